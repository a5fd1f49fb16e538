"""Where an agent goes next: to the leader at once, and nowhere while there is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node_agent.uplink_route import MAX_REDIRECTS, MAX_WAITS, Route

A, B, C, STRANGER = "a:1", "b:1", "c:1", "stranger:1"


def route(*controllers: str) -> Route:
    return Route(controllers, 0, lambda address: address != STRANGER)


def test_controllers_are_tried_in_turn() -> None:
    tried = route(A, B, C)
    seen = []
    for _ in range(4):
        seen.append(tried.address)
        assert not tried.take(None)
    assert seen == [A, B, C, A]


def test_standby_leads_to_the_leader_at_once() -> None:
    tried = route(A, B)
    assert tried.take(C)
    assert tried.address == C


def test_controllers_that_name_each_other_are_not_followed_for_ever() -> None:
    tried = route(A)
    assert tried.take(B)
    for address in (C, B, C)[: MAX_REDIRECTS - 1]:
        assert not tried.take(address)
    assert tried.address == C
    assert not tried.take(B)
    assert tried.address == C, "waits where it is"


def test_agents_go_on_from_a_lost_leader_to_its_successor() -> None:
    tried = route(A, B, C)
    assert tried.take(C)
    tried.take(None)  # c, the leader, has died
    assert tried.address == A
    tried = route(B, A, C)
    assert tried.take(A)
    tried.take(None)
    assert tried.address == C, "whoever sent it there"


def test_agent_waits_at_a_standby_until_a_leader_is_elected() -> None:
    tried = route(A, B, C)
    tried.take(None)  # a, the leader, has died
    for _ in range(MAX_WAITS):
        assert tried.address == B
        assert not tried.take(""), "c is not asked instead"
    assert tried.take(C)
    assert tried.address == C


def test_standby_that_never_learns_of_a_leader_is_left() -> None:
    tried = route(A, B)
    for _ in range(MAX_WAITS):
        tried.take("")
        assert tried.address == A
    tried.take("")
    assert tried.address == B


def test_address_that_may_not_be_dialled_is_not_followed() -> None:
    tried = route(A, B)
    assert not tried.take(STRANGER)
    assert tried.address == A


@given(st.lists(st.sampled_from([None, "", A, B, C, STRANGER]), max_size=60))
def test_no_controller_is_stuck_to_for_ever(answers: list[str | None]) -> None:
    """Whatever was said before, one that only knows no leader is left in the end."""
    tried = route(A, B, C)
    for answer in answers:
        tried.take(answer)
        assert tried.address in (A, B, C)
    stuck = tried.address
    for _ in range(MAX_WAITS + 1):
        tried.take("")
    assert tried.address != stuck
