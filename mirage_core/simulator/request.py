"""The requests of a run, as columns; one row a request, in order of arrival.

Columns instead of objects: twelve million requests are a run of a large cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirage_core.errors import ConfigError
from mirage_core.simulator.units import PS_PER_S

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """Validated columns of equal length, all int64.

    arrival_ps     not before the row above
    prompt_tokens  at least 1
    output_tokens  tokens it generates, at least 1
    model          index into the run's model names
    prefix_group   rows of one group begin with the same tokens; -1: shares nothing
    prefix_tokens  how many tokens they share (at most the prompt's)
    priority       vLLM's: the lower runs first (only where the engine's policy is priority)
    after          row whose finish this one awaits, an earlier one; -1: none (multi-agent chains)
    think_ps       time between that finish and this arrival; then ``arrival_ps`` is its earliest
    """

    arrival_ps: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    model: Ints
    prefix_group: Ints
    prefix_tokens: Ints
    priority: Ints
    after: Ints
    think_ps: Ints

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_ps[-1] - self.arrival_ps[0]) / PS_PER_S if len(self) else 0.0


def requests_from(
    arrival_s: Sequence[float] | npt.NDArray[np.float64],
    prompt_tokens: Sequence[int] | Ints,
    output_tokens: Sequence[int] | Ints,
    *,
    model: int | Sequence[int] | Ints = 0,
    prefix_group: Sequence[int] | Ints | None = None,
    prefix_tokens: Sequence[int] | Ints | None = None,
    priority: Sequence[int] | Ints | None = None,
    after: Sequence[int] | Ints | None = None,
    think_s: Sequence[float] | npt.NDArray[np.float64] | None = None,
    source: str = "requests",
    first_line: int = 1,
) -> Requests:
    """Checked columns; ConfigError names the first bad row as ``source:line``.

    ``first_line`` is the line of row 0 in ``source`` (2 for a CSV file with a header).
    """
    arrivals = np.asarray(arrival_s, dtype=np.float64)
    rows = len(arrivals)

    def column(name: str, values: object, default: int) -> Ints:
        if values is None:
            return np.full(rows, default, dtype=np.int64)
        found = np.asarray(values)
        if found.ndim == 0:
            found = np.full(rows, found)
        if found.shape != (rows,):
            raise ConfigError(f"{source}: {rows} arrivals but {found.size} values of {name}")
        whole: Ints = found.astype(np.int64)
        refuse(found != whole, name, found, "must be a whole number")
        return whole

    def refuse(bad: npt.NDArray[np.bool_], name: str, values: npt.NDArray, why: str) -> None:  # type: ignore[type-arg]
        if bad.any():
            row = int(bad.argmax())
            raise ConfigError(f"{source}:{first_line + row}: {name} is {values[row]}, {why}")

    refuse(~np.isfinite(arrivals), "arrival_s", arrivals, "must be a number of seconds")
    refuse(arrivals < 0, "arrival_s", arrivals, "must not be negative")
    refuse(arrivals > 1e6, "arrival_s", arrivals, "must be seconds from the start, below 1e6")
    earlier = np.concatenate(([False], arrivals[1:] < arrivals[:-1])) if rows else arrivals < 0
    refuse(earlier, "arrival_s", arrivals, "before the line above: sort the trace by arrival")
    think = np.zeros(rows) if think_s is None else np.asarray(think_s, dtype=np.float64)
    if think.shape != (rows,):
        raise ConfigError(f"{source}: {rows} arrivals but {think.size} values of think_s")
    refuse(~((think >= 0) & (think <= 1e6)), "think_s", think, "must be 0 to 1e6 seconds")

    result = Requests(
        arrival_ps=np.rint(arrivals * PS_PER_S).astype(np.int64),
        prompt_tokens=column("prompt_tokens", prompt_tokens, 1),
        output_tokens=column("output_tokens", output_tokens, 1),
        model=column("model", model, 0),
        prefix_group=column("prefix_group", prefix_group, -1),
        prefix_tokens=column("prefix_tokens", prefix_tokens, 0),
        priority=column("priority", priority, 0),
        after=column("after", after, -1),
        think_ps=np.rint(think * PS_PER_S).astype(np.int64),
    )
    for name in ("prompt_tokens", "output_tokens"):
        values = getattr(result, name)
        refuse(values < 1, name, values, "must be at least 1")
    refuse(result.model < 0, "model", result.model, "must be a model's index")
    shared = result.prefix_tokens
    refuse(
        (shared < 0) | (shared > result.prompt_tokens),
        "prefix_tokens",
        shared,
        "must be a part of the prompt",
    )
    refuse(
        result.after >= np.arange(rows),
        "after",
        result.after,
        "must be an earlier row, counted from 0",
    )
    return result
