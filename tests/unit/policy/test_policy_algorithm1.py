"""Algorithm 1: decisions from snapshots, and many of them in a row (§5.5)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import Bench, devices, engine, prove, table

from mirage_core.errors import ConfigError, MisuseError
from mirage_core.model import RESIDENT, EngineId
from mirage_core.policy.algorithm1 import (
    most_lending_row,
    overlent_row,
    plan_reversion,
    plan_shortage,
    recalled_pages,
)
from mirage_core.policy.decision import ApplyPlan, Decision, GrantPages, ReclaimPool
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView
from mirage_core.policy.when import Reversion, UseWatch
from mirage_core.policy.which_model import DonorOrder

A, B, C = EngineId("a"), EngineId("b"), EngineId("c")

policies = st.builds(
    Policy,
    order=st.sampled_from(DonorOrder),
    cap_share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    max_added_share=st.sampled_from([0.0, 0.1, 5.0]),
    reversion=st.none() | st.builds(Reversion, st.sampled_from([0.0, 0.5]), st.just(0.0)),
    recall_share=st.sampled_from([None, 0.0, 0.25]),
    weights_move=st.booleans(),
)


def kinds(decision: Decision) -> list[tuple[str, str]]:
    return [(type(action).__name__, action.engine) for action in decision.actions]


def carried_out(device: DeviceView, decision: Decision) -> Bench:
    bench = Bench(device.free_pages, {view.engine: view for view in device})
    pages = bench.pages
    bench.carry_out(decision)
    assert bench.pages == pages, "a page was made or lost"
    return bench


# --- shortage: the four sources in their order -----------------------------------------------


def test_free_pages_are_granted_first_and_nothing_else_is_touched() -> None:
    device = DeviceView(10, (engine("a", active=True), engine("b", pool_spare_pages=20)))
    decision = plan_shortage(device, A, 8, Policy(), now_s=1.0)
    assert decision.actions == (GrantPages(A, 8),)
    assert (decision.short_pages, decision.coming_pages, decision.decided_s) == (0, 0, 1.0)


def test_spare_pool_pages_come_before_weights_and_leave_the_pool_its_minimum() -> None:
    lender = engine("b", pool_pages=20, pool_spare_pages=15, pool_min_pages=10)
    device = DeviceView(0, (engine("a", active=True), lender))
    decision = plan_shortage(device, A, 14, Policy(), 0.0)
    assert decision.actions[0] == ReclaimPool(B, 10)
    assert kinds(decision) == [("ReclaimPool", "b"), ("ApplyPlan", "b")]
    assert decision.actions[1].freed_pages == 4


def test_spare_pages_of_inactive_models_come_before_those_of_active_ones() -> None:
    spare = {"pool_pages": 20, "pool_spare_pages": 20}
    device = DeviceView(
        0,
        (engine("a", active=True), engine("b", active=True, **spare), engine("c", **spare)),
    )
    assert kinds(plan_shortage(device, A, 30, Policy(), 0.0)) == [
        ("ReclaimPool", "c"),
        ("ReclaimPool", "b"),
    ]


def test_next_inactive_donor_is_asked_once_the_first_is_at_its_cap() -> None:
    # Figure 7, phases 2 and 3: Model-C up to its limit, then Model-B, Model-A not yet.
    device = DeviceView(
        0, (engine("a", active=True), engine("b", priority=2), engine("c", priority=1))
    )
    decision = plan_shortage(device, A, 36, Policy(cap_share=0.5), 0.0)
    assert kinds(decision) == [("ApplyPlan", "c"), ("ApplyPlan", "b")]
    assert [action.freed_pages for action in decision.actions] == [24, 12]


def test_inactive_donor_keeps_the_floor_of_its_cold_start() -> None:
    device = DeviceView(0, (engine("a", active=True, pinned=True), engine("b", floor_pages=40)))
    decision = plan_shortage(device, A, 40, Policy(), 0.0)
    assert decision.coming_pages == 8
    assert decision.short_pages == 32


def test_active_models_lend_only_what_adds_no_step_time() -> None:
    device = DeviceView(0, (engine("a", active=True), engine("b", active=True)))
    decision = plan_shortage(device, A, 1000, Policy(), 0.0)
    assert kinds(decision) == [("ApplyPlan", "a"), ("ApplyPlan", "b")]
    for action in decision.actions:
        assert table().row_of(action.plan).added_s == 0.0
        assert action.freed_pages == table().largest(48, 0.0).freed_pages > 0
    slower = plan_shortage(device, A, 1000, Policy(max_added_share=0.5), 0.0)
    assert slower.coming_pages > decision.coming_pages


def test_model_with_higher_priority_is_never_the_donor_while_it_is_active() -> None:
    device = DeviceView(
        0, (engine("a", active=True, pinned=True), engine("b", active=True, priority=1))
    )
    decision = plan_shortage(device, A, 4, Policy(max_added_share=9.0), 0.0)
    assert decision.actions == ()
    assert decision.short_pages == 4
    assert "more important" in decision.reasons[-1].why


def test_elastic_policy_moves_no_weights() -> None:
    device = DeviceView(3, (engine("a", active=True), engine("b", pool_spare_pages=5)))
    decision = plan_shortage(device, A, 100, Policy(weights_move=False), 0.0)
    assert decision.actions == (GrantPages(A, 3), ReclaimPool(B, 5))
    assert decision.short_pages == 92


def test_grants_and_reclaims_are_whole_granules() -> None:
    lender = engine("b", pool_spare_pages=11, granule_pages=3)
    device = DeviceView(5, (engine("a", active=True, granule_pages=4), lender))
    decision = plan_shortage(device, A, 9, Policy(), 0.0)  # three granules, 12 pages
    assert decision.actions == (GrantPages(A, 4), ReclaimPool(B, 9))
    assert decision.short_pages == 0


def test_pages_promised_to_another_engine_are_not_granted_again() -> None:
    device = DeviceView(10, (engine("a", active=True, pinned=True),), owed_pages=7)
    assert plan_shortage(device, A, 10, Policy(), 0.0).actions == (GrantPages(A, 3),)


def test_unknown_borrower_and_negative_need_are_misuse() -> None:
    device = DeviceView(1, (engine("a"),))
    with pytest.raises(MisuseError):
        plan_shortage(device, B, 1, Policy(), 0.0)
    with pytest.raises(MisuseError):
        plan_shortage(device, A, -1, Policy(), 0.0)


def test_policy_refuses_shares_out_of_range() -> None:
    for bad in ({"cap_share": 1.1}, {"cap_share": math.nan}, {"max_added_share": -0.1}):
        with pytest.raises(ConfigError):
            Policy(**bad)


@prove
@given(devices(), st.integers(0, 120), policies)
def test_a_decision_never_exceeds_what_engines_have_and_conserves_pages(
    device: DeviceView, needed: int, policy: Policy
) -> None:
    borrower = device.engines[0]
    decision = plan_shortage(device, borrower.engine, needed, policy, 0.0)
    bench = carried_out(device, decision)
    for view in device:
        after = bench.engines[view.engine]
        if view.pinned and view is not borrower:
            assert after == view
        if after.plan != view.plan:
            assert policy.weights_move
            lends_active = view.active or view is borrower
            most = most_lending_row(view, lends_active, policy)
            assert after.row.freed_pages <= most.freed_pages
            assert not view.active or view.priority <= borrower.priority
            if lends_active:
                limit_s = policy.max_added_share * view.plan_table.resident_step_s
                assert after.row.added_s <= limit_s


@prove
@given(devices(), st.integers(0, 120), policies)
def test_no_more_pages_are_freed_than_needed_beyond_one_step_of_a_plan_or_pool(
    device: DeviceView, needed: int, policy: Policy
) -> None:
    borrower = device.engines[0]
    decision = plan_shortage(device, borrower.engine, needed, policy, 0.0)
    need = -(-needed // borrower.granule_pages) * borrower.granule_pages
    granted = sum(a.pages for a in decision.actions if isinstance(a, GrantPages))
    need -= decision.short_pages
    assert need % borrower.granule_pages == 0
    from_free = min(device.spendable_pages, need)
    assert 0 <= from_free - granted < borrower.granule_pages
    found = from_free + decision.coming_pages
    assert found >= need
    if found > need and decision.actions:
        last = decision.actions[-1]
        view = device[last.engine]
        if isinstance(last, ReclaimPool):
            step = view.granule_pages
        else:
            assert isinstance(last, ApplyPlan)
            row = view.plan_table.row_of(last.plan)
            below = view.plan_table.rows[view.plan_table.rows.index(row) - 1]
            step = row.freed_pages - max(below.freed_pages, view.row.freed_pages)
        assert found - need < step


@prove
@given(devices(), st.integers(0, 120), policies)
def test_donors_are_asked_in_order_each_to_its_limit_before_the_next(
    device: DeviceView, needed: int, policy: Policy
) -> None:
    borrower = device.engines[0]
    decision = plan_shortage(device, borrower.engine, needed, policy, 0.0)
    plans = [action for action in decision.actions if isinstance(action, ApplyPlan)]
    active = [device[a.engine].active or device[a.engine] is borrower for a in plans]
    assert active == sorted(active)
    if decision.short_pages:
        return  # the last may then have been asked for less than it could, to end on a granule
    for action, is_active in list(zip(plans, active, strict=True))[:-1]:
        view = device[action.engine]
        most = most_lending_row(view, is_active, policy)
        assert view.plan_table.row_of(action.plan) == most


@prove
@given(devices(), st.integers(0, 120), policies, st.randoms())
def test_same_snapshot_gives_the_same_decision(
    device: DeviceView, needed: int, policy: Policy, random: object
) -> None:
    borrower = device.engines[0].engine
    engines = list(device.engines)
    random.shuffle(engines)  # type: ignore[attr-defined]
    shuffled = replace(device, engines=tuple(engines))
    first = plan_shortage(device, borrower, needed, policy, 0.0)
    assert plan_shortage(device, borrower, needed, policy, 0.0) == first
    assert plan_shortage(shuffled, borrower, needed, policy, 0.0) == first
    back = plan_reversion(device, policy, 0.0)
    assert plan_reversion(shuffled, policy, 0.0) == back


# --- reversion ----------------------------------------------------------------------------------


def lending(name: str, freed_pages: int, **fields: object) -> object:
    return engine(name, plan=table().cheapest(freed_pages).plan, **fields)


def test_free_pages_restore_active_models_first_highest_priority_first() -> None:
    device = DeviceView(
        24,
        (
            lending("a", 8, priority=9),
            lending("b", 8, active=True, priority=1),
            lending("c", 8, active=True, priority=2),
        ),
    )
    decision = plan_reversion(device, Policy(), 0.0)
    assert decision.actions == tuple(ApplyPlan(EngineId(name), RESIDENT, -8) for name in "cba")


def test_free_pages_restore_as_far_as_they_reach() -> None:
    device = DeviceView(5, (lending("a", 12),))
    (action,) = plan_reversion(device, Policy(), 0.0).actions
    assert action == ApplyPlan(A, table().cheapest(8).plan, -4)


def test_model_slowed_by_its_plan_takes_spare_pool_pages_and_units_of_inactive_models() -> None:
    slowed = lending("a", 40, active=True)
    hidden = table().largest(48, 0.0).freed_pages
    device = DeviceView(0, (slowed, engine("b", pool_spare_pages=6)))
    decision = plan_reversion(device, Policy(), 0.0)
    assert kinds(decision) == [("ReclaimPool", "b"), ("ApplyPlan", "b")]
    assert 0 <= decision.coming_pages - (40 - hidden) < 4


def test_slowed_model_is_restored_before_a_more_important_one_that_is_not() -> None:
    slowed, hidden = lending("a", 40, active=True), lending("b", 4, active=True, priority=5)
    decision = plan_reversion(DeviceView(8, (slowed, hidden)), Policy(), 0.0)
    assert decision.actions[0] == ApplyPlan(A, table().cheapest(32).plan, -8)


def test_pages_on_their_way_are_not_asked_for_twice() -> None:
    device = DeviceView(0, (lending("a", 40, active=True), engine("b", pool_spare_pages=6)))
    assert plan_reversion(replace(device, coming_pages=40), Policy(), 0.0).actions == ()
    owed = replace(device, coming_pages=40, owed_pages=40)
    assert plan_reversion(owed, Policy(), 0.0).actions != ()


def test_plan_that_stalls_at_the_present_cost_gives_way_to_one_of_as_many_pages() -> None:
    # One slot was enough for a larger batch; at this ratio two slots hide what one does not.
    plans = table(units=40, ratio=4.6, pages=4)
    one_slot = table(units=40, ratio=3.0, pages=4).cheapest(24).plan
    assert len(one_slot.slots) == 1
    assert plans.row_of(one_slot).added_s > 0
    view = engine("a", plans, active=True, plan=one_slot)
    (action,) = plan_reversion(DeviceView(0, (view,)), Policy(), 0.0).actions
    assert action == ApplyPlan(A, plans.cheapest(24).plan, 0)
    assert plans.cheapest(24).added_s == 0.0


def test_unused_pool_pages_go_back_only_while_units_wait_for_them() -> None:
    borrower = engine(
        "a", active=True, pool_pages=50, pool_spare_pages=40, use_watch=UseWatch(0.0, 10, 10)
    )
    policy = Policy(reversion=Reversion(0.5, 1.0))
    waits = DeviceView(0, (borrower, lending("b", 8)))
    assert plan_reversion(waits, policy, 0.0).actions == (ReclaimPool(A, 8),)
    waits_for_more = DeviceView(0, (borrower, lending("b", 44)))
    assert plan_reversion(waits_for_more, policy, 0.0).actions == (ReclaimPool(A, 35),)
    assert plan_reversion(DeviceView(0, (borrower, engine("b"))), policy, 0.0).actions == ()


def test_without_reversion_nothing_goes_back() -> None:
    device = DeviceView(50, (lending("a", 40, active=True),))
    assert plan_reversion(device, Policy(reversion=None), 0.0) == Decision(0.0)


@prove
@given(devices(), policies)
def test_reversion_never_exceeds_what_there_is_and_conserves_pages(
    device: DeviceView, policy: Policy
) -> None:
    decision = plan_reversion(device, policy, 0.0)
    assert len({action.engine for action in decision.actions if isinstance(action, ApplyPlan)}) == (
        sum(isinstance(action, ApplyPlan) for action in decision.actions)
    )
    taken = sum(-a.freed_pages for a in decision.actions if isinstance(a, ApplyPlan))
    assert taken <= device.spendable_pages
    bench = carried_out(device, decision)
    for view in device:
        # No active model is slower than before, none is asked to lend by a reversion.
        if view.active:
            assert bench.engines[view.engine].row.freed_pages <= view.row.freed_pages


@prove
@given(
    devices(),
    policies.filter(lambda policy: policy.reversion is not None),
    st.integers(0, 100),
)
def test_hysteresis_never_oscillates_under_a_constant_demand(
    device: DeviceView, policy: Policy, demand: int
) -> None:
    """Ask and give back in turn, step after step: the device comes to rest and stays there."""
    assert policy.reversion is not None
    bench = Bench(device.free_pages, {view.engine: view for view in device})
    pages, name = bench.pages, device.engines[0].engine
    idle_steps = 0
    for step in range(200):
        for view in list(bench.engines.values()):
            used = demand if view.engine == name else view.pool_used_pages
            bench.use(view.engine, used, float(step), policy.reversion)
        # As the arbiter does: what is recalled goes to whom it was recalled for, not to who asks.
        decisions = []
        for _ in range(2):
            decisions.append(plan_reversion(bench.view, policy, float(step)))
            bench.carry_out(decisions[-1])
        kept = recalled_pages(bench.view, policy, float(step))
        bench.grant_owed(kept)
        short = demand - bench.engines[name].pool_pages
        if short > 0 and name not in bench.owed:
            view = bench.engines[name]
            needed = -(-short // view.granule_pages) * view.granule_pages
            view_now = bench.view
            view_now = replace(view_now, owed_pages=view_now.owed_pages + kept)
            decision = plan_shortage(view_now, name, needed, policy, float(step))
            bench.carry_out(decision)
            decisions.append(decision)
            granted = sum(a.pages for a in decision.actions if isinstance(a, GrantPages))
            owed = needed - granted - decision.short_pages
            assert owed % view.granule_pages == 0
            if owed:
                bench.owed[name] = owed
            bench.grant_owed(kept)
        assert bench.pages == pages
        idle_steps = 0 if any(decision.actions for decision in decisions) else idle_steps + 1
        if idle_steps == 5:
            return
    pytest.fail("the device did not come to rest")


def test_an_idle_pool_keeps_no_margin_while_units_are_lent() -> None:
    """A tenth of its use is less than a granule, which would stay, and what is lent with it."""
    watch = UseWatch(since_s=0.0, peak_pages=54, held_peak_pages=54)
    fields = {"pool_pages": 72, "pool_spare_pages": 18, "pool_min_pages": 54, "granule_pages": 18}
    for active, actions in ((False, (ReclaimPool(B, 18),)), (True, ())):
        pool = engine("b", use_watch=watch, active=active, **fields)
        device = DeviceView(0, (lending("a", 8), pool))
        assert plan_reversion(device, Policy(), 10.0).actions == actions


# --- recall ---------------------------------------------------------------------------------------


def slowed(**fields: object) -> DeviceView:
    """``a`` woke long ago with most of its units in ``b``'s pool, which is full of live blocks."""
    most = table().rows[-1].freed_pages
    owner = lending("a", most, active=True, active_since_s=-10.0, priority=5)
    pool = engine("b", active=True, pool_pages=60, pool_spare_pages=0, **fields)
    return DeviceView(0, (owner, pool))


def test_a_model_that_its_lent_units_slow_gets_them_back_from_pools_in_use() -> None:
    device = slowed(pool_min_pages=4, granule_pages=2)
    decision = plan_reversion(device, Policy(), 0.0)
    (action,) = decision.actions
    assert isinstance(action, ReclaimPool)
    assert action.engine == B
    row = overlent_row(device[A], Policy())
    assert row is not None
    missing = device[A].row.freed_pages - row.freed_pages
    assert missing <= action.pages < missing + 2
    assert {reason.rule for reason in decision.reasons} == {"recall"}


@pytest.mark.parametrize(
    ("fields", "policy", "now_s"),
    [
        ({"pool_min_pages": 60}, Policy(), 0.0),
        ({"priority": 6}, Policy(), 0.0),
        ({"pinned": True}, Policy(), 0.0),
        ({}, Policy(recall_share=None), 0.0),
        ({}, Policy(recall_share=1e9), 0.0),
        ({}, Policy(), -9.5),
    ],
    ids=["least pool", "more important", "pinned", "switched off", "hardly slowed", "just woken"],
)
def test_nothing_in_use_is_recalled(
    fields: dict[str, object], policy: Policy, now_s: float
) -> None:
    device = slowed(**{"priority": 5, "pool_min_pages": 4, **fields})
    assert plan_reversion(device, policy, now_s).actions == ()


def test_what_is_spare_is_taken_before_what_is_in_use() -> None:
    device = slowed(pool_min_pages=4)
    pool = replace(device[B], pool_spare_pages=3)
    decision = plan_reversion(replace(device, engines=(device[A], pool)), Policy(), 0.0)
    first, second = decision.actions
    assert (first, second.engine) == (ReclaimPool(B, 3), B)
    assert [reason.rule for reason in decision.reasons] == ["spare pool pages", "recall"]
