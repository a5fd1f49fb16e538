"""Traces and lengths read from a path; every row is checked, and a bad one named by its line.

Known files: Azure's LLM inference traces of 2023 (``TIMESTAMP, ContextTokens, GeneratedTokens``),
and tables of lengths with one of the pairs of columns in ``LENGTH_COLUMNS`` (ShareGPT, Alpaca).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.quantiles import Floats
from mirage_core.simulator.workloads.trace import Trace

LENGTH_COLUMNS = (
    ("opt_in", "opt_out"),
    ("llama2_in", "llama2_out"),
    ("llama3_in", "llama3_out"),
    ("num_prefill_tokens", "num_decode_tokens"),
    ("input_toks", "output_toks"),
)
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ConfigError):
    """A file that cannot be used; the message begins with its path and line."""


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Pairs of prompt and output tokens, drawn with replacement."""

    pairs: tuple[tuple[int, int], ...]

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        chosen = np.array(self.pairs, dtype=np.float64)[rng.integers(len(self.pairs), size=count)]
        return chosen[:, 0], chosen[:, 1]


@dataclass(frozen=True, slots=True)
class GapTrace:
    """Gaps of a trace in their own order, from a seeded place and wrapping round."""

    gaps_s: tuple[float, ...]

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        start = int(rng.integers(len(self.gaps_s)))
        return np.resize(np.roll(np.array(self.gaps_s), -start), count)


def read_azure_trace(path: Path) -> Trace:
    """Arrivals and lengths of an Azure trace, the first arrival at 0 s; raises TraceError."""
    arrivals_s: list[float] = []
    lengths: list[tuple[int, int]] = []
    for line, row in _rows(path, AZURE_COLUMNS):
        prompt, output = (_positive(path, line, name, row[name]) for name in AZURE_COLUMNS[1:])
        lengths.append((prompt, output))
        arrivals_s.append(_seconds(path, line, row["TIMESTAMP"]))
        if len(arrivals_s) > 1 and arrivals_s[-1] < arrivals_s[-2]:
            raise TraceError(f"{path}:{line}: arrives before the row above; sort the file by time")
    if len(arrivals_s) < 2 or arrivals_s[0] == arrivals_s[-1]:
        raise TraceError(f"{path}: needs two arrivals at different times or more")
    pairs = np.array(lengths, dtype=np.int64)
    return Trace(np.array(arrivals_s) - arrivals_s[0], pairs[:, 0], pairs[:, 1])


def read_azure_gaps(path: Path) -> GapTrace:
    """Gaps between the arrivals of an Azure trace; raises TraceError."""
    return GapTrace(tuple(np.diff(read_azure_trace(path).arrivals_s).tolist()))


def read_lengths(path: Path, columns: tuple[str, str] | None = None) -> LengthTable:
    """Pairs of lengths under vLLM's filter for ShareGPT; raises TraceError.

    ``columns``: of prompt and output; without them the first pair of ``LENGTH_COLUMNS`` that the
    file has.  The filter keeps prompts of 4..1024 tokens, outputs of 4 or more, 2048 together;
    in a file with ``first_role`` it keeps the conversations that a human began.
    """
    pairs: list[tuple[int, int]] = []
    for line, row in _rows(path, columns or ()):
        named = columns or next((pair for pair in LENGTH_COLUMNS if set(pair) <= row.keys()), None)
        if named is None:
            known = ", ".join("/".join(pair) for pair in LENGTH_COLUMNS)
            raise TraceError(f"{path}:1: no known pair of length columns ({known})")
        prompt, output = (_positive(path, line, name, row[name]) for name in named)
        long_enough = prompt >= 4 and output >= 4
        short_enough = prompt <= 1024 and prompt + output <= 2048
        if long_enough and short_enough and row.get("first_role", "human") == "human":
            pairs.append((prompt, output))
    if not pairs:
        raise TraceError(f"{path}: no row is within the filter")
    return LengthTable(tuple(pairs))


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows by column, each with its line number."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}:1: no column {', '.join(missing)}")
            for row in reader:
                if None in row.values() or None in row:
                    raise TraceError(f"{path}:{reader.line_num}: wrong number of fields")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _positive(path: Path, line: int, column: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise TraceError(f"{path}:{line}: {column} must be a whole number above 0, not {text!r}")
    return int(text)


def _seconds(path: Path, line: int, text: str) -> float:
    """Seconds of an Azure timestamp, whose fraction has seven digits (datetime takes six)."""
    whole, _, fraction = text.partition(".")
    try:
        moment = datetime.fromisoformat(whole + "+00:00")
        return moment.timestamp() + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    except ValueError as error:
        raise TraceError(f"{path}:{line}: not a timestamp: {text!r}") from error
