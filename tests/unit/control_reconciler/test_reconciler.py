"""The reconciler, rule by rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
from simulated_cluster import SimulatedCluster, changed, engine, model_wish

from mirage_core.cluster_model import (
    Acknowledgement,
    Authority,
    ClusterWish,
    DeviceWish,
    DirectDevice,
    DirectiveKey,
    DirectLending,
    DirectModel,
    DirectPlacement,
    Lending,
    ModelState,
    NodeName,
    NodeWish,
    Outcome,
    Truth,
    Turn,
)
from mirage_core.control import reconciler_events as ev
from mirage_core.control import reconciler_status as status
from mirage_core.errors import MisuseError
from mirage_core.model import DeviceId, ModelName

A = ModelName("a")


def one_device() -> SimulatedCluster:
    """A device that runs model ``a``, with all settled."""
    cluster = SimulatedCluster()
    cluster.join("d1")
    cluster.wish(model_wish("a"))
    cluster.report("d1", engine("a"))
    cluster.settle()
    return cluster


def condition(cluster: SimulatedCluster, kind: str, model: str = "a") -> tuple[Truth, str]:
    found = status.model_status(cluster.reconciler.state, ModelName(model))
    each = next(each for each in found.conditions if each.kind == kind)
    return each.status, each.reason


def test_priority_becomes_a_directive_and_is_observed_once_applied() -> None:
    cluster = one_device()
    before = cluster.reconciler.state.models[A].revision
    revision = cluster.wish(model_wish("a", priority=7))
    accepted = status.model_status(cluster.reconciler.state, A)
    assert (accepted.desired_revision, accepted.observed_revision) == (revision, before)
    assert condition(cluster, "Applied") == (Truth.FALSE, "Pending")
    cluster.commit()
    assert status.model_status(cluster.reconciler.state, A).observed_revision == before, (
        "sent, not applied"
    )
    cluster.settle()
    assert cluster.body("d1", "model/a") == DirectModel(A, 7, None, False, None)
    assert status.model_status(cluster.reconciler.state, A).observed_revision == revision
    assert condition(cluster, "Applied") == (Truth.TRUE, "Applied")


def test_nothing_is_sent_before_it_is_stored() -> None:
    cluster = one_device()
    cluster.wish(model_wish("a", priority=7))
    held = cluster.body("d1", "model/a")
    assert isinstance(held, DirectModel)
    assert held.priority == 0
    assert cluster.commit()
    assert cluster.body("d1", "model/a") == DirectModel(A, 7, None, False, None)


def test_wishes_that_come_during_a_write_become_one_more_write() -> None:
    cluster = one_device()
    for priority in range(5):
        cluster.wish(model_wish("a", priority=10 + priority))
    assert cluster.commit()
    assert cluster.commit()
    assert not cluster.commit()
    held = cluster.body("d1", "model/a")
    assert isinstance(held, DirectModel)
    assert held.priority == 14


def test_trace_of_the_call_travels_in_the_directive() -> None:
    cluster = one_device()
    cluster.wish(model_wish("a", priority=7), "00-trace")
    cluster.settle()
    held = cluster.agents[DeviceId("d1")].holds[DirectiveKey("model/a")]
    assert held.traceparent == "00-trace"


def test_wish_set_to_what_it_is_writes_nothing() -> None:
    cluster = one_device()
    revision = cluster.wish(model_wish("a"))
    assert not cluster.commit()
    assert status.model_status(cluster.reconciler.state, A).observed_revision == revision


def test_agent_that_joins_is_told_all_at_once_and_only_when_all_is_stored() -> None:
    cluster = SimulatedCluster()
    cluster.wish(model_wish("a", devices=("d1",)))
    agent = cluster.join("d1")
    assert not agent.holds
    cluster.settle()
    cluster.pass_time(1)
    assert cluster.body("d1", "placement") == DirectPlacement((A,))
    assert set(agent.holds) == {"device", "placement", "model/a"}


def test_agent_of_a_new_leader_is_told_at_once_without_a_write() -> None:
    cluster = one_device()
    cluster.fail_over()
    agent = cluster.join("d1")
    assert not cluster.commits
    assert {d.authority.epoch for d in agent.holds.values()} == {cluster.reconciler.state.epoch}
    assert condition(cluster, "Applied")[0] is Truth.FALSE
    cluster.settle()
    assert condition(cluster, "Applied") == (Truth.TRUE, "Applied")


def test_placement_survives_its_leader() -> None:
    cluster = SimulatedCluster()
    for device in ("d1", "d2", "d3"):
        cluster.join(device)
    cluster.wish(model_wish("a", replicas=2))
    cluster.settle()
    placed = cluster.placed("a")
    cluster.fail_over()
    for device in ("d3", "d2", "d1"):
        cluster.join(device)
    cluster.pass_time(3)
    assert cluster.placed("a") == placed


def test_silent_agent_makes_applied_unknown_and_never_true() -> None:
    cluster = one_device()
    cluster.leave("d1")
    cluster.wish(model_wish("a", priority=3))
    cluster.settle()
    assert condition(cluster, "Applied") == (Truth.UNKNOWN, "AgentSilent")


def test_end_of_an_older_stream_says_nothing_about_the_newest() -> None:
    cluster = one_device()
    old = cluster.agents[DeviceId("d1")].hello.incarnation
    cluster.join("d1")
    cluster.handle(ev.Left(DeviceId("d1"), old))
    assert cluster.reconciler.state.devices[DeviceId("d1")].connected
    assert cluster.reconciler.state.connected == 1


def test_refused_directive_is_told_and_not_repeated() -> None:
    cluster = one_device()
    cluster.agents[DeviceId("d1")].refuses = {DirectiveKey("model/a")}
    cluster.wish(model_wish("a", priority=3))
    cluster.settle()
    assert condition(cluster, "Applied") == (Truth.FALSE, "Refused")
    assert cluster.told("DirectiveRefused") == ["model/a"]
    cluster.pass_time(100)
    assert cluster.told("DirectiveRefused") == ["model/a"]


def test_refusal_that_may_pass_is_retried_with_growing_pauses() -> None:
    cluster = one_device()
    agent = cluster.agents[DeviceId("d1")]
    agent.refuses, agent.retryable = {DirectiveKey("model/a")}, True
    cluster.wish(model_wish("a", priority=3))
    sent: list[float] = []
    take = agent.take

    def note(directive: object) -> None:
        sent.append(cluster.now_s)
        take(directive)  # type: ignore[arg-type]

    agent.take = note  # type: ignore[method-assign, assignment]
    cluster.settle()
    cluster.pass_time(40)
    pauses = [b - a for a, b in pairwise(sent)]
    assert pauses == [1, 2, 4, 8, 16]
    agent.refuses = set()
    cluster.pass_time(60)
    assert condition(cluster, "Applied") == (Truth.TRUE, "Applied")


def test_agent_that_has_heard_a_newer_leader_deposes_this_one() -> None:
    cluster = one_device()
    held = cluster.agents[DeviceId("d1")].holds[DirectiveKey("model/a")]
    newer = Authority(held.authority.store, held.authority.epoch + 5, 1)
    stale = Acknowledgement(held.operation, held.key, held.authority, Outcome.STALE, latest=newer)
    cluster.handle(ev.Answered(DeviceId("d1"), stale))
    assert cluster.deposed == [newer]


def test_answer_to_a_replaced_directive_is_ignored() -> None:
    cluster = one_device()
    old = cluster.agents[DeviceId("d1")].holds[DirectiveKey("model/a")]
    cluster.wish(model_wish("a", priority=3))
    cluster.commit()
    late = Acknowledgement(old.operation, old.key, old.authority, Outcome.APPLIED)
    cluster.handle(ev.Answered(DeviceId("d1"), late))
    assert condition(cluster, "Applied") == (Truth.FALSE, "Pending")


def test_freeze_and_shadow_reach_every_device() -> None:
    cluster = one_device()
    cluster.join("d2")
    cluster.settle()
    cluster.wish(ClusterWish(freeze=True, shadow=True))
    cluster.settle()
    for device in ("d1", "d2"):
        assert cluster.body(device, "device") == DirectDevice(freeze=True, shadow=True)
    found = status.cluster_status(cluster.reconciler.state, ())
    assert found.observed_revision == found.desired_revision


def test_frozen_cluster_moves_nothing_until_thaw() -> None:
    cluster = one_device()
    cluster.join("d2")
    cluster.wish(ClusterWish(freeze=True))
    cluster.wish(DeviceWish(DeviceId("d1"), drain=True))
    cluster.pass_time(5)
    assert cluster.placed("a") == {"d1"}
    cluster.wish(ClusterWish())
    cluster.settle()
    assert cluster.placed("a") == {"d2"}


def test_shadow_tells_once_what_it_would_do() -> None:
    cluster = one_device()
    cluster.join("d2")
    cluster.wish(ClusterWish(shadow=True))
    cluster.wish(DeviceWish(DeviceId("d1"), drain=True))
    cluster.pass_time(5)
    assert cluster.placed("a") == {"d1"}
    assert cluster.told("Shadowed") == ["model/a"]


def test_drained_node_gives_its_models_away_once_they_run_elsewhere() -> None:
    cluster = one_device()
    cluster.join("d2", node="n2")
    cluster.wish(NodeWish(NodeName("n1"), drain=True))
    cluster.settle()
    assert cluster.placed("a") == {"d2"}
    assert cluster.body("d1", "placement") == DirectPlacement(())
    serving = cluster.body("d1", "model/a")
    assert isinstance(serving, DirectModel)
    assert serving.turn is None
    cluster.report("d2", engine("a"))
    cluster.settle()
    drained = cluster.body("d1", "model/a")
    assert isinstance(drained, DirectModel)
    assert drained.turn is Turn.DRAINING


def test_lost_device_gives_its_models_away_and_a_silent_one_keeps_them() -> None:
    cluster = one_device()
    for device in ("d2", "d3", "d4"):
        cluster.join(device)
    cluster.settle()
    cluster.leave("d1")
    cluster.pass_time(59)
    assert cluster.placed("a") == {"d1"}
    cluster.pass_time(3)
    assert cluster.placed("a") != {"d1"}


def test_moves_stop_while_a_third_of_the_agents_is_silent() -> None:
    cluster = one_device()
    for device in ("d2", "d3"):
        cluster.join(device)
    cluster.settle()
    cluster.leave("d1")
    cluster.pass_time(200)
    assert cluster.placed("a") == {"d1"}
    assert cluster.told("MovesStopped") == ["cluster"]
    found = status.cluster_status(cluster.reconciler.state, ())
    assert {c.kind: c.status for c in found.conditions}["MovesStopped"] is Truth.TRUE
    cluster.join("d4")
    cluster.join("d5")
    cluster.pass_time(10)
    assert cluster.placed("a") != {"d1"}
    assert cluster.told("MovesResumed") == ["cluster"]


def test_idle_model_is_moved_away_from_a_device_with_nothing_left() -> None:
    cluster = SimulatedCluster()
    cluster.join("d1")
    cluster.wish(model_wish("a", priority=1))
    cluster.wish(model_wish("b"))
    cluster.settle()
    cluster.join("d2")
    busy, idle = engine("a", active=True, waiting_pages=9), engine("b")
    cluster.report("d1", busy, idle)
    cluster.pass_time(3)
    assert cluster.placed("b") == {"d1"}, "a short wait is no shortage"
    cluster.pass_time(4)
    assert cluster.placed("b") == {"d2"}
    assert cluster.told("Moved") == ["model/b"]


def test_model_whose_activity_is_not_reported_is_not_moved() -> None:
    cluster = SimulatedCluster()
    cluster.join("d1")
    cluster.wish(model_wish("a", priority=1, devices=("d1",)))
    cluster.wish(model_wish("b"))
    cluster.settle()
    cluster.join("d2")
    cluster.report("d1", engine("a", active=True, waiting_pages=9), engine("b", active=None))
    cluster.pass_time(20)
    assert cluster.placed("b") == {"d1"}
    assert cluster.told("NodeNeeded") == ["model/a"]
    assert ModelName("a") in cluster.reconciler.state.wanted


def test_node_is_asked_for_once_and_not_wanted_when_the_wait_ends() -> None:
    cluster = one_device()
    cluster.report("d1", engine("a", active=True, waiting_pages=9))
    cluster.pass_time(200)
    assert cluster.told("NodeNeeded") == ["model/a"]
    cluster.report("d1", engine("a", active=True))
    cluster.pass_time(1)
    assert not cluster.reconciler.state.wanted


def test_deleted_model_drains_and_is_purged_when_it_runs_nowhere() -> None:
    cluster = one_device()
    gone = changed(model_wish("a"), state=ModelState.ABSENT)
    cluster.wish(gone)
    cluster.settle()
    held = cluster.body("d1", "model/a")
    assert isinstance(held, DirectModel)
    assert held.turn is Turn.DRAINING
    assert not cluster.purged
    cluster.report("d1")
    cluster.settle()
    cluster.pass_time(2)
    assert cluster.purged == ["a"], "asked once"
    cluster.handle(ev.Forgotten(A))
    cluster.settle()
    assert cluster.body("d1", "model/a") is None
    assert cluster.body("d1", "placement") is None, "without models all may start engines"


def test_replica_takes_a_setting_on_all_devices_or_on_none() -> None:
    cluster = SimulatedCluster()
    cluster.join("d1")
    cluster.join("d2")
    cluster.wish(model_wish("a", per_replica=2))
    cluster.settle()
    assert cluster.placed("a") == {"d1", "d2"}
    cluster.agents[DeviceId("d2")].refuses = {DirectiveKey("model/a")}
    cluster.wish(model_wish("a", per_replica=2, priority=5))
    cluster.settle()
    for device in ("d1", "d2"):
        held = cluster.body(device, "model/a")
        assert isinstance(held, DirectModel)
        assert held.priority == 0, "what one refuses none keeps"
    assert condition(cluster, "Applied")[0] is Truth.FALSE


def test_replica_with_a_silent_device_takes_no_new_setting() -> None:
    cluster = SimulatedCluster()
    cluster.join("d1")
    cluster.join("d2")
    cluster.wish(model_wish("a", per_replica=2))
    cluster.settle()
    cluster.leave("d2")
    cluster.wish(model_wish("a", per_replica=2, priority=5))
    cluster.settle()
    held = cluster.body("d1", "model/a")
    assert isinstance(held, DirectModel)
    assert held.priority == 0
    cluster.join("d2")
    cluster.settle()
    for device in ("d1", "d2"):
        held = cluster.body(device, "model/a")
        assert isinstance(held, DirectModel)
        assert held.priority == 5


def test_unregistered_model_is_left_alone_and_told_of() -> None:
    cluster = one_device()
    cluster.report("d1", engine("a"), engine("stranger"))
    cluster.settle()
    assert cluster.told("UnregisteredModel") == ["device/d1"]
    assert cluster.body("d1", "model/stranger") is None


def test_commit_that_nobody_asked_for_is_misuse() -> None:
    with pytest.raises(MisuseError, match="not asked for"):
        SimulatedCluster().handle(ev.Committed(1))


def test_agent_is_directed_nothing_that_it_does_not_know() -> None:
    cluster = SimulatedCluster()
    agent = cluster.join("d1", capabilities=("device", "placement"))
    cluster.wish(model_wish("a"))
    cluster.settle()
    assert set(agent.holds) == {"device", "placement"}
    assert condition(cluster, "Applied") == (Truth.FALSE, "Withheld")


def test_bounds_of_lending_are_a_directive_of_their_own_until_they_are_free_again() -> None:
    cluster = one_device()
    cluster.wish(model_wish("a", lending=Lending(3, 7)))
    assert condition(cluster, "Applied") == (Truth.FALSE, "Pending")
    cluster.settle()
    assert cluster.body("d1", "lend/a") == DirectLending(A, 3, 7)
    assert condition(cluster, "Applied") == (Truth.TRUE, "Applied")
    cluster.fail_over()
    agent = cluster.join("d1")
    cluster.settle()
    assert agent.holds[DirectiveKey("lend/a")].body == DirectLending(A, 3, 7)
    revision = cluster.wish(model_wish("a"))
    cluster.settle()
    assert set(agent.holds) == {"device", "placement", "model/a"}
    assert status.model_status(cluster.reconciler.state, A).observed_revision == revision


def test_bounds_of_lending_are_withheld_from_an_agent_that_does_not_know_them() -> None:
    cluster = SimulatedCluster()
    agent = cluster.join("d1", capabilities=("device", "placement", "model"))
    cluster.wish(model_wish("a", lending=Lending(3)))
    cluster.settle()
    assert set(agent.holds) == {"device", "placement", "model/a"}
    assert condition(cluster, "Applied") == (Truth.FALSE, "Withheld")
    cluster.wish(model_wish("a"))
    cluster.settle()
    assert condition(cluster, "Applied") == (Truth.TRUE, "Applied")


def test_refused_bounds_of_lending_are_told_of_their_model() -> None:
    cluster = one_device()
    cluster.agents[DeviceId("d1")].refuses.add(DirectiveKey("lend/a"))
    cluster.wish(model_wish("a", lending=Lending(3)))
    cluster.settle()
    assert cluster.told("DirectiveRefused") == ["model/a"]
    assert condition(cluster, "Applied") == (Truth.FALSE, "Refused")


def test_weak_store_is_a_condition_of_the_cluster() -> None:
    state = SimulatedCluster().reconciler.state
    for weaknesses, expected in (((), Truth.FALSE), (("appendfsync",), Truth.TRUE)):
        found = status.cluster_status(state, weaknesses)
        weak = next(each for each in found.conditions if each.kind == "DurabilityWeak")
        assert weak.status is expected
        assert weak.message == "; ".join(weaknesses)


def test_many_models_are_placed_over_several_events() -> None:
    cluster = SimulatedCluster()
    for number in range(4):
        cluster.join(f"d{number}", pages=1000)
    cluster.settle()
    names = [f"m{number}" for number in range(150)]
    for name in names:
        cluster.revision += 1
        cluster.handle(ev.Wished(model_wish(name), cluster.revision, more=name != names[-1]))
    cluster.settle()
    cluster.pass_time(3)
    assert all(len(cluster.placed(name)) == 1 for name in names)
