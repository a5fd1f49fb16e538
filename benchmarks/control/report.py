"""The results as a table: what was asked, what came, and whether it is enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """``holds`` None: reported, not judged."""

    title: str
    field: str
    show: Callable[[Any], str]
    wanted: str = ""
    holds: Callable[[Any], bool] | None = None


_ROWS = (
    Row("agents", "agents", "{:,}".format),
    Row(
        "one directive, p99",
        "directive_one_p99_ms",
        "{:.1f} ms".format,
        "< 50 ms",
        lambda v: v < 50,
    ),
    Row(
        "directives to all, p99", "directive_all_p99_s", "{:.3f} s".format, "< 1 s", lambda v: v < 1
    ),
    Row("controller, reports only", "controller_cores", "{:.2f} cores".format),
    Row("controller, memory", "controller_rss_mb", "{:.0f} MB".format),
    Row("controller, loop lag p99 below", "loop_lag_p99_below_ms", "{:.0f} ms".format),
    Row(
        "load generator's core",
        "generator_core_share",
        "{:.0%}".format,
        "< 80 %",
        lambda v: v < 0.8,
    ),
    Row("most agents held", "max_agents", "{:,}".format),
    Row("  limited by", "limited_by", str),
    Row("leader killed, worst", "failover_s_max", "{:.2f} s".format, "< 5 s", lambda v: v < 5),
    Row("spurious failovers", "spurious_failovers", str, "0", lambda v: v == 0),
    Row("  in", "soak_s", "{:.0f} s at full load".format),
    Row("deposed leaders obeyed", "deposed_leader_obeyed", str, "0", lambda v: v == 0),
    Row("writes accepted", "writes_accepted", "{:,}".format),
    Row("  lost", "writes_lost", str, "0", lambda v: v == 0),
    Row("  done twice", "writes_twice", str, "0", lambda v: v == 0),
    Row("partitions", "partitions", lambda v: _partitions(v)),
    Row("fuzzed messages", "fuzz_messages", "{:,}".format),
    Row("  improper answers", "fuzz_improper", str, "0", lambda v: v == 0),
    Row("  branches of the handlers", "handler_branch_coverage", "{:.0%}".format),
)


def table(found: Mapping[str, Any]) -> Table:
    shown = Table(title="control plane", title_justify="left")
    for title, justify in (
        ("what", "left"),
        ("measured", "right"),
        ("wanted", "left"),
        ("", "left"),
    ):
        shown.add_column(title, justify=justify)  # type: ignore[arg-type]
    for row in _ROWS:
        value = found.get(row.field)
        if value is None:
            continue
        verdict = ""
        if row.holds is not None:
            verdict = "[green]yes[/green]" if row.holds(value) else "[red]no[/red]"
        shown.add_row(row.title, row.show(value), row.wanted, verdict)
    return shown


def _partitions(found: Mapping[str, Any]) -> str:
    if "not_run" in found:
        return f"not run: {found['not_run']}"
    followed_s = found["leader_from_redis"]["another_leader_followed_s"]
    back_s = found["agents_from_leader"]["all_back_s"]
    return f"next leader {followed_s:.1f} s, agents back {back_s:.1f} s"
