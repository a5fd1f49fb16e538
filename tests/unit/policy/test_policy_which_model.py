"""Which model: the order of donors, key by key (§5.2)."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import devices, engine, prove

from mirage_core.model import EngineId
from mirage_core.policy.view import DeviceView
from mirage_core.policy.which_model import DonorOrder, may_lend, rank_donors

A, B, C = EngineId("a"), EngineId("b"), EngineId("c")


def names(*views: object, order: DonorOrder = DonorOrder.MRU, borrower: str = "z") -> str:
    ranked = rank_donors(views, EngineId(borrower), order)  # type: ignore[arg-type]
    return "".join(view.engine for view in ranked)


def test_inactive_models_lend_before_active_ones_whatever_their_priority() -> None:
    assert names(engine("a", active=True), engine("b", priority=9)) == "ba"


def test_lowest_priority_lends_first() -> None:
    assert names(engine("a", priority=2), engine("b", priority=1)) == "ba"


def test_most_recently_used_lends_first_among_equals() -> None:
    old, new = engine("a", last_active_s=1.0), engine("b", last_active_s=2.0)
    assert names(old, new) == "ba"
    assert names(old, new, order=DonorOrder.LRU) == "ab"


def test_pure_priority_order_ignores_use() -> None:
    old, new = engine("a", last_active_s=1.0), engine("b", last_active_s=2.0)
    assert names(old, new, order=DonorOrder.PRIORITY) == "ab"


def test_borrower_pays_before_its_equals_and_after_lesser_models() -> None:
    views = [
        engine("a", active=True, priority=1),
        engine("b", active=True, priority=1),
        engine("c", active=True, priority=0),
    ]
    assert names(*views, borrower="b") == "cba"


def test_borrower_counts_as_active() -> None:
    assert names(engine("a"), engine("b", priority=5), borrower="a") == "ba"


@prove
@given(devices(), st.sampled_from(DonorOrder))
def test_order_does_not_depend_on_the_order_of_the_view(
    device: DeviceView, order: DonorOrder
) -> None:
    borrower = device.engines[0].engine
    ranked = rank_donors(device.engines, borrower, order)
    for engines in list(permutations(device.engines))[:6]:
        assert rank_donors(engines, borrower, order) == ranked


def test_model_with_higher_priority_is_never_the_donor_while_active() -> None:
    borrower = engine("a", active=True, priority=1)
    assert not may_lend(engine("b", active=True, priority=2), borrower)
    assert may_lend(engine("b", active=True, priority=1), borrower)
    assert may_lend(engine("b", active=False, priority=2), borrower)


def test_pinned_model_is_never_the_donor() -> None:
    assert not may_lend(engine("b", pinned=True), engine("a", active=True))
