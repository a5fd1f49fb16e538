"""From traces to the simulator's requests: one stream a model, or chains of agents.

In a chain one arrival sets off several requests, each awaiting the one before: an agent's answer,
with what it was asked, is part of the next one's prompt.

    arrival -> planner --answer--> coder --answer--> reviewer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_core.errors import ConfigError
from mirage_core.simulator.request import Requests, requests_from
from mirage_core.simulator.workloads.quantiles import Floats
from mirage_core.simulator.workloads.trace import Tokens, Trace


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests that one model gets; ``model`` is its index among the run's models."""

    model: int
    trace: Trace
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Agent:
    """One stage of a chain.

    model              its index among the run's models
    output_tokens      it answers with, on average; spread as in the trace that sets off the chain
    instruction_tokens its own prompt, before what it gets from the stage before
    think_s            between the answer of the stage before and this stage's arrival
    """

    model: int
    output_tokens: int
    instruction_tokens: int
    think_s: float = 0.0


def merge(streams: Sequence[Stream]) -> Requests:
    """All streams on one clock, in order of arrival; ties in the streams' order."""
    if not streams:
        raise ConfigError("a workload needs one stream of requests at least")
    arrivals_s = np.concatenate([stream.trace.arrivals_s for stream in streams])
    order = np.argsort(arrivals_s, kind="stable")
    counts = [len(stream.trace) for stream in streams]
    return requests_from(
        arrivals_s[order],
        np.concatenate([stream.trace.prompt_tokens for stream in streams])[order],
        np.concatenate([stream.trace.output_tokens for stream in streams])[order],
        model=np.repeat([stream.model for stream in streams], counts)[order],
        priority=np.repeat([stream.priority for stream in streams], counts)[order],
    )


def chain(trace: Trace, agents: Sequence[Agent], longest_tokens: int) -> Requests:
    """Each row of ``trace`` sets off all ``agents`` in turn; its prompt is what they work on.

    Stage k's prompt is its instruction, the row's prompt, and the answers of the stages before.
    Answers vary from row to row as the trace's outputs do.  Raises ConfigError if a stage's
    prompt leaves no room to answer.
    """
    if not agents:
        raise ConfigError("a chain needs one agent at least")
    rows, stages = len(trace), len(agents)
    relative: Floats = trace.output_tokens / trace.output_tokens.mean()
    prompts = np.empty((rows, stages), dtype=np.int64)
    outputs = np.empty((rows, stages), dtype=np.int64)
    carried: Tokens = trace.prompt_tokens.copy()
    for stage, agent in enumerate(agents):
        prompts[:, stage] = carried + agent.instruction_tokens
        room = longest_tokens - prompts[:, stage]
        if room.min() < 1:
            row = int(room.argmin())
            raise ConfigError(
                f"row {row} of the trace: agent {stage} would get {prompts[row, stage]} prompt "
                f"tokens, {longest_tokens} is the longest request; shorten prompts or answers"
            )
        wanted = np.rint(relative * agent.output_tokens).astype(np.int64)
        outputs[:, stage] = np.clip(wanted, 1, room)
        carried = carried + outputs[:, stage]
    first = np.arange(rows)[:, None] * stages
    after = first + np.arange(stages)[None, :] - 1
    after[:, 0] = -1
    return requests_from(
        np.repeat(trace.arrivals_s, stages),
        prompts.ravel(),
        outputs.ravel(),
        model=np.tile([agent.model for agent in agents], rows),
        after=after.ravel(),
        think_s=np.tile([agent.think_s for agent in agents], rows),
    )
