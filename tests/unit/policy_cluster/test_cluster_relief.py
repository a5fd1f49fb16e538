"""A device has nothing left to remap: move, replicate or ask for a node; and who must wait."""

from __future__ import annotations

import pytest
from cluster_views import clusters, device, held, prove, wish, wishes
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_core.cluster_model import ModelState, ModelWish, Turn
from mirage_core.model import DeviceId
from mirage_core.policy.cluster.relief import AskForNode, Move, Replicate, choose_relief
from mirage_core.policy.cluster.replicas import choose_replicas, group_replicas, may_change
from mirage_core.policy.cluster.silence import may_move_models, standing_of
from mirage_core.policy.cluster.turns import choose_turn
from mirage_core.policy.cluster.view import ClusterDevice, Standing


def test_idle_model_is_moved_away_for_a_waiting_one() -> None:
    short = device("x", held("m"), held("a", active=False), waiting="m")
    relief = choose_relief(short, wish("m"), [short, device("y"), device("z", size=200)])
    assert isinstance(relief, Move)
    assert (relief.model, relief.source, relief.target) == ("a", "x", "z")


@pytest.mark.parametrize(
    "stays",
    [
        held("a", active=None),
        held("a", active=True),
        held("a", active=False, priority=1),
        held("a", active=False, movable=False),
    ],
    ids=["not reported", "active", "more important", "named by an operator"],
)
def test_model_that_must_not_move_is_not_moved(stays: object) -> None:
    short = device("x", held("m"), stays, waiting="m")  # type: ignore[arg-type]
    relief = choose_relief(short, wish("m"), [short, device("y")])
    assert isinstance(relief, Replicate)
    assert relief.targets == ("y",)


def test_node_is_asked_for_when_no_device_has_room() -> None:
    short = device("x", held("m"), held("a", active=False), waiting="m")
    relief = choose_relief(short, wish("m", weights=30), [short, device("y", size=5)])
    assert isinstance(relief, AskForNode)
    assert (relief.devices, relief.need_bytes) == (1, 30)


def test_nothing_is_moved_to_a_device_that_is_short_itself() -> None:
    short = device("x", held("m"), held("a", active=False), waiting="m")
    relief = choose_relief(short, wish("m"), [short, device("y", waiting="b")])
    assert isinstance(relief, AskForNode)


@prove
@given(clusters(), wishes)
def test_relief_never_touches_what_it_must_not(
    devices: dict[DeviceId, ClusterDevice], borrower: ModelWish
) -> None:
    short = next((each for each in devices.values() if each.waiting == borrower.name), None)
    assume(short is not None)
    assert short is not None
    relief = choose_relief(short, borrower, devices.values())
    match relief:
        case Move(model=model, target=target):
            moved = next(each for each in short.held if each.model == model)
            assert moved.active is False
            assert moved.movable
            assert moved.priority <= borrower.priority
            assert model != borrower.name
            assert devices[target].standing is Standing.OPEN
            assert not devices[target].holds(model)
        case Replicate(targets=targets):
            assert len(set(targets)) == borrower.spec.devices_per_replica
            assert len({devices[each].node for each in targets}) == 1
            assert short.device not in targets


def test_model_serves_where_it_is_until_its_replacement_runs() -> None:
    model = wish(replicas=2)
    assert choose_turn(model, placed=False, running_elsewhere=1) is None
    assert choose_turn(model, placed=False, running_elsewhere=2) is Turn.DRAINING


def test_absent_model_drains_and_inactive_one_lends() -> None:
    absent, inactive = wish(state=ModelState.ABSENT), wish(state=ModelState.INACTIVE)
    assert choose_turn(absent, placed=True, running_elsewhere=0) is Turn.DRAINING
    assert choose_turn(inactive, placed=True, running_elsewhere=0) is Turn.INACTIVE
    assert choose_turn(wish(), placed=True, running_elsewhere=9) is None


def test_moves_stop_when_a_third_of_the_agents_is_silent() -> None:
    assert may_move_models(known=4, silent=1)
    assert not may_move_models(known=3, silent=1)
    assert not may_move_models(known=3, silent=3)
    assert not may_move_models(known=0, silent=0)


def test_silent_device_is_lost_only_after_a_while() -> None:
    assert standing_of(drained=False, silent_s=None, lost_after_s=60.0) is Standing.OPEN
    assert standing_of(drained=False, silent_s=59.0, lost_after_s=60.0) is Standing.SILENT
    assert standing_of(drained=False, silent_s=60.0, lost_after_s=60.0) is Standing.CLOSED
    assert standing_of(drained=True, silent_s=None, lost_after_s=60.0) is Standing.CLOSED


def test_setting_goes_to_all_devices_of_a_replica_or_to_none() -> None:
    a, b = DeviceId("a"), DeviceId("b")
    assert may_change((a, b), {a, b}, ())
    assert not may_change((a, b), {a}, ())
    assert not may_change((a, b), {a, b}, {b})


def test_devices_that_make_no_whole_replica_are_left_over() -> None:
    nodes = {DeviceId(d): n for d, n in (("a", "1"), ("b", "1"), ("c", "1"), ("d", "2"))}
    replicas, left = group_replicas(nodes, nodes, 2)  # type: ignore[arg-type]
    assert (replicas, left) == ([("a", "b")], ("c", "d"))


@prove
@given(clusters(), st.integers(-2, 2), st.integers(1, 3), st.integers(1, 4))
def test_replicas_chosen_at_once_are_those_chosen_one_by_one(
    devices: dict[DeviceId, ClusterDevice], priority: int, size: int, count: int
) -> None:
    left = dict(devices)
    one_by_one = []
    for _ in range(count):
        for replica in choose_replicas(left.values(), priority, size, 1):
            one_by_one.append(replica)
            for each in replica:
                del left[each]
    assert choose_replicas(devices.values(), priority, size, count) == one_by_one
