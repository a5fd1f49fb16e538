"""``mirage replay``: a real agent's log gives its decisions again, a changed one does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from agent_node import Node
from typer.testing import CliRunner, Result

from mirage_core.cluster_model import DirectDevice, Sharing, Turn
from mirage_core.control.arbiter_events import (
    Directed,
    EngineDied,
    Linked,
    Received,
    Tick,
    Unlinked,
)
from mirage_core.control.directed import Directions, ModelDirection
from mirage_core.errors import ConfigError
from mirage_core.model import (
    DeviceGeometry,
    DeviceId,
    EngineId,
    Holdings,
    ModelName,
    OperationId,
    PageId,
    RemapPlan,
    UnitId,
)
from mirage_core.policy.settings import Policy
from mirage_core.wire import messages as m
from node_agent.commands import replay_command
from node_agent.event_log import Beginning, EventLog, read_log
from node_agent.journal import JsonLines

Lines = list[dict[str, Any]]


@pytest.fixture
def recorded(node: Node) -> Lines:
    """The log of an agent that lent pages of an idle engine and gave them back."""
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    b.until(lambda s: s["cycled"], "b lends")
    a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
    a.do("load", active=False, live=0)
    b.do("load", active=True, live=1)
    b.until(lambda s: not s["cycled"], "b has its units back")
    assert node.agent.stop() == 0
    lines = [json.loads(line) for line in node.agent.event_log.read_text().splitlines()]
    assert any("decision" in line for line in lines)
    return lines


def run(path: Path, lines: Lines) -> Result:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_on(path)


def run_on(path: Path) -> Result:
    app = typer.Typer()
    app.command()(replay_command)
    return CliRunner().invoke(app, [str(path)])


def fault_of(path: Path) -> str:
    """The error that ``mirage`` ends with; its root prints it and exits with 2."""
    error = run_on(path).exception
    assert isinstance(error, ConfigError)
    return str(error)


def first(lines: Lines, key: str, kind: str = "") -> int:
    """Index of the first line with ``key``, of a message of ``kind`` if one is named."""
    for index, line in enumerate(lines):
        if key in line and (not kind or line[key].get("message", {}).get("kind") == kind):
            return index
    raise AssertionError(f"no {key} {kind}")


def test_log_of_a_real_agent_is_decided_the_same(recorded: Lines, tmp_path: Path) -> None:
    decisions = sum("decision" in line for line in recorded)
    result = run(tmp_path / "log", recorded)
    assert result.exit_code == 0, result.output
    assert f"{decisions} decisions" in result.output


def test_log_of_two_agents_in_turn_is_read_as_two(recorded: Lines, tmp_path: Path) -> None:
    result = run(tmp_path / "log", recorded + recorded)
    assert result.exit_code == 0, result.output
    assert "2 agents" in result.output


def test_changed_decision_is_named_with_its_line(recorded: Lines, tmp_path: Path) -> None:
    at = first(recorded, "decision")
    recorded[at]["decision"]["decision"]["short_pages"] += 7
    result = run(tmp_path / "log", recorded)
    assert result.exit_code == 1
    assert f"line {at + 1}: the event of line" in result.output
    assert "short_pages" in result.output


def test_changed_event_leads_to_another_decision(recorded: Lines, tmp_path: Path) -> None:
    at = first(recorded, "event", "Ask")
    recorded[at]["event"]["message"]["pages"] += 4
    result = run(tmp_path / "log", recorded)
    assert result.exit_code == 1, result.output


def test_missing_decisions_are_missed(recorded: Lines, tmp_path: Path) -> None:
    at = max(i for i, line in enumerate(recorded) if "decision" in line)
    del recorded[at]
    result = run(tmp_path / "log", recorded)
    assert result.exit_code == 1
    assert "the log lacks a decision" in result.output


def test_event_that_cannot_have_happened_is_refused(recorded: Lines, tmp_path: Path) -> None:
    at = first(recorded, "event", "Done")
    recorded.insert(at, recorded[at])
    result = run(tmp_path / "log", recorded)
    assert result.exit_code == 1
    assert "refuses this event" in result.output


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ('{"t_s": 1.0, "event": {"kind": "Tick"}}\n', "does not begin as"),
        ("not json\n", "line 1"),
        ('{"t_s": 1.0, "event": {"kind": "Party"}}\n', "line 1"),
        ("[]\n", "line 1"),
    ],
)
def test_file_that_is_no_event_log_is_an_error(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert named in fault_of(path)


def test_every_kind_of_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    a, pages, plan = EngineId("a"), (PageId(1), PageId(2)), RemapPlan(((UnitId(0), UnitId(2)),))
    directions = Directions(
        models=(ModelDirection(ModelName("m"), priority=3, turn=Turn.DRAINING),),
        device=DirectDevice(sharing=Sharing.TEMPORAL),
        placed=(ModelName("m"),),
    )
    messages = (
        m.Take(1, 5),
        m.Describe(2, (3, 4), 1, 2, 9, 1, plan, pinned=True),
        m.Report(7, True, 4, plan=plan, unit_compute_s=(0.1, 0.2), prefill_s=0.3),
        m.Ask(3, 4),
        m.Done(OperationId(1), pages, plan, 6),
        m.Refused(OperationId(2), "not now", pages),
        m.Rejoin(DeviceGeometry(DeviceId("d"), 65536, 10), Holdings(unit=pages)),
        m.GiveBack(pages),
    )
    events = [
        Linked(a, ModelName("m"), m.Role.SCHEDULER),
        Unlinked(a, m.Role.WORKER),
        EngineDied(a),
        Tick(),
        Directed(directions, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        *(Received(a, message) for message in messages),
    ]
    lines = JsonLines(tmp_path / "log")
    beginning = Beginning(10, Policy(reversion=None), {a: ModelName("m")}, 5)
    log = EventLog(lines, beginning, 0.5)
    for event in events:
        log.observe_event(event, 1.25)
    lines.close()
    read = list(read_log(tmp_path / "log"))
    assert read[0].beginning == beginning
    assert [line.event for line in read[1:]] == events
    assert {line.t_s for line in read[1:]} == {1.25}


def test_log_of_an_agent_that_knew_no_traces_is_read(tmp_path: Path) -> None:
    directions = Directions(models=(ModelDirection(ModelName("m"), priority=3),))
    lines = JsonLines(tmp_path / "log")
    EventLog(lines, Beginning(10, Policy(), {}, 5), 0.5).observe_event(Directed(directions), 1.0)
    lines.close()
    beginning, directed = (json.loads(line) for line in (tmp_path / "log").open())
    del directed["event"]["traceparent"]
    result = run(tmp_path / "old", [beginning, directed])
    assert result.exit_code == 0, result.output
    assert [each.event for each in read_log(tmp_path / "old")][1:] == [Directed(directions)]


def test_log_cut_within_a_line_names_the_line(recorded: Lines, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(line) + "\n" for line in recorded)[:-9])
    assert f"line {len(recorded)} " in fault_of(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in fault_of(tmp_path / "no")
