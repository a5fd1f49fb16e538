"""Commands of the agent for people: ``mirage replay``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from node_agent.replay import Difference, replay


def replay_command(
    log: Annotated[Path, typer.Argument(help="An agent's event log (its option --event-log).")],
) -> None:
    """Feed an agent's event log to the arbiter again: its decisions must match.

    Exit code 0: they do; 1: they do not, and the first difference is shown; 2: no event log.
    """
    console = Console(soft_wrap=True, highlight=False)
    done = replay(log)
    counts = f"{done.agents} agents, {done.events} events, {done.decisions} decisions"
    if done.difference is None:
        console.print(f"[green]the same[/green]: {counts}")
        return
    console.print(f"[red]different[/red] after {counts}")
    _show(console, log, done.difference)
    raise typer.Exit(1)


def _show(console: Console, log: Path, difference: Difference) -> None:
    console.print(f"{log}, line {difference.line}: {difference.what}", markup=False)
    both = difference.logged is not None and difference.replayed is not None
    for name, decision in (("logged", difference.logged), ("replayed", difference.replayed)):
        if decision is not None:
            shown = _unlike(decision, difference) if both else decision
            console.print(f"  {name}: {json.dumps(shown)}", markup=False)


def _unlike(decision: Any, difference: Difference) -> Any:
    """Of two decisions, only what one has otherwise."""
    other = difference.replayed if decision is difference.logged else difference.logged
    return _without_equal(decision, other)


def _without_equal(value: Any, other: Any) -> Any:
    if isinstance(value, dict) and isinstance(other, dict):
        return {k: _without_equal(v, other.get(k)) for k, v in value.items() if v != other.get(k)}
    return value
