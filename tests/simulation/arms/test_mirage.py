"""MIRAGE in the simulator: the product's books hold at every event, and its settings act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mirage_core.control.arbiter_events import Event
from mirage_core.errors import ConfigError
from mirage_core.model import EngineId, PageId
from mirage_core.policy.how_many import SlotRule
from mirage_core.policy.settings import Policy
from mirage_core.policy.which_model import DonorOrder
from mirage_core.simulator.arms import MirageArm
from mirage_core.simulator.arms.mirage import bundle_of
from mirage_core.simulator.config import EngineSpec, Sharing
from mirage_core.simulator.memory_port import EngineView, StepMemory
from mirage_core.simulator.mirage_agent import SimulatedAgent
from mirage_core.simulator.mirage_engine import SimulatedEngineMemory
from mirage_core.simulator.request import Requests, requests_from
from mirage_core.simulator.run import simulate
from mirage_core.wire import messages as wire
from tests.simulation.arms.small import MB, Spied, engine, load, small_run, spied


def ports_of(arm: Spied) -> list[SimulatedEngineMemory]:
    return [port for port in arm.ports if isinstance(port, SimulatedEngineMemory)]


def run(arm: MirageArm, requests: Requests, **options: object) -> list[SimulatedEngineMemory]:
    """The engines after a run in which every request finished."""
    watched = spied(arm)
    assert simulate(small_run(watched, **options), requests).finished.all()  # type: ignore[arg-type]
    return ports_of(watched)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Checks all books after every event of an agent and at every step; counts both."""
    counts = [0, 0]
    handle, on_step = SimulatedAgent._handle, SimulatedEngineMemory.on_step

    def check_books(agent: SimulatedAgent) -> None:
        agent.arbiter.check()
        owners: dict[PageId, EngineId] = {}
        for name, memory in agent.engines.items():
            for page in memory.worker.holdings().all():
                assert page not in owners, f"page {page} is {owners[page]}'s and {name}'s"
                owners[page] = name
        summary = agent.arbiter.summary(0.0)
        held = sum(
            each.pool_pages + each.resident_pages + each.slot_pages + each.in_flight_pages
            for each in summary.engines
        )
        assert summary.free_pages + held == 3 * 220 // 2 // 2, "2 MiB pages in bundles of 2"
        assert len(owners) <= held

    def handle_checked(agent: SimulatedAgent, event: Event) -> None:
        counts[0] += 1
        handle(agent, event)
        check_books(agent)

    def step_checked(memory: SimulatedEngineMemory, view: EngineView, now_ps: int) -> StepMemory:
        counts[1] += 1
        mapped = len(memory.remapper.mapped) * 16
        assert view.used_blocks + 1 <= mapped, "a block is in use outside the mapped part"
        answer = on_step(memory, view, now_ps)
        assert answer.delay_ps >= 0
        return answer

    monkeypatch.setattr(SimulatedAgent, "_handle", handle_checked)
    monkeypatch.setattr(SimulatedEngineMemory, "on_step", step_checked)
    yield counts
    assert min(counts) > 0


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("rate_per_s", [2.0, 12.0])
def test_books_hold_at_every_event(sharing: Sharing, rate_per_s: float) -> None:
    run(MirageArm(), load(60, rate_per_s, 11), sharing=sharing)


ABLATIONS = (
    MirageArm(policy=Policy(order=DonorOrder.LRU)),
    MirageArm(policy=Policy(order=DonorOrder.PRIORITY)),
    MirageArm(policy=Policy(cap_share=0.3)),
    MirageArm(policy=Policy(reversion=None)),
    MirageArm(policy=Policy(slots=SlotRule.ONE)),
    MirageArm(policy=Policy(slots=SlotRule.TWO)),
    MirageArm(policy=Policy(max_added_share=0.5)),
    MirageArm(policy=Policy(weights_move=False)),
    MirageArm(parts_per_unit=2),
    MirageArm(parts_per_unit=4, policy=Policy(slots=SlotRule.TWO)),
    MirageArm(horizon_steps=0),
    MirageArm(least_pool_share=0.0),
    MirageArm(least_pool_share=1.0, latency_s=0.0),
)


@pytest.mark.parametrize("number", range(len(ABLATIONS)))
def test_calling_the_remapper_at_each_step_changes_nothing(number: int) -> None:
    """Stepping asks the port, and so the Remapper, before every single step."""
    sharing = Sharing.SPATIAL if number % 2 else Sharing.TEMPORAL
    config = small_run(ABLATIONS[number], sharing=sharing)
    requests = load(40, 10.0, number)
    jumped = simulate(config, requests)
    stepped = simulate(replace(config, jump=False), requests)
    assert jumped.finished.all()
    assert np.array_equal(jumped.finish_ps, stepped.finish_ps)
    assert jumped.counters == stepped.counters


def test_most_steps_need_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    on_step = SimulatedEngineMemory.on_step

    def counted(memory: SimulatedEngineMemory, view: EngineView, now_ps: int) -> StepMemory:
        nonlocal calls
        calls += 1
        return on_step(memory, view, now_ps)

    monkeypatch.setattr(SimulatedEngineMemory, "on_step", counted)
    results = simulate(small_run(MirageArm()), load(40, 3.0, 1))
    assert calls < results.counters["steps"] / 2


def burst_for_a(requests: int = 30) -> Requests:
    """All for the first of three models; the others are idle."""
    return requests_from(np.zeros(requests), [300] * requests, [150] * requests, model=0)


def test_idle_models_lend_and_take_back() -> None:
    ports = run(MirageArm(), burst_for_a())
    assert sum(port.remapper.counters.remaps for port in ports[1:]) > 0
    assert sum(port.remapper.counters.granules_mapped for port in ports) > 0
    quiet = np.array([0.0, *np.linspace(5.0, 30.0, 40)])
    later = requests_from(quiet, [300] * 41, [20] * 41, model=np.arange(41) % 3)
    ports = run(MirageArm(), later)
    assert all(not port.remapper.plan.slots for port in ports), "all units are resident again"


def test_burst_is_served_sooner_than_by_a_pool_that_shares_without_weights() -> None:
    ends = [
        simulate(small_run(MirageArm(policy=policy)), burst_for_a()).end_ps
        for policy in (Policy(), Policy(weights_move=False))
    ]
    assert ends[0] < ends[1]


def test_without_moving_weights_no_plan_ever_changes() -> None:
    ports = run(MirageArm(policy=Policy(weights_move=False)), load(100, 12.0, 2))
    assert all(port.remapper.counters.remaps == 0 for port in ports)


def test_capped_models_lend_no_more_than_the_cap() -> None:
    policy = Policy(cap_share=0.3, reversion=None)
    ports = run(MirageArm(policy=policy), burst_for_a())
    for port in ports:
        unit_pages = port.describe().unit_pages
        assert port.remapper.plan.freed_pages(unit_pages) <= 0.3 * sum(unit_pages)
    assert any(port.remapper.plan.slots for port in ports)


def test_nothing_reverts_where_reversion_is_off() -> None:
    ports = run(MirageArm(policy=Policy(reversion=None)), burst_for_a())
    assert any(port.remapper.plan.slots for port in ports[1:])
    assert sum(port.remapper.counters.reversions for port in ports[1:]) == 0


@pytest.mark.parametrize(("rule", "slots"), [(SlotRule.ONE, 1), (SlotRule.TWO, 2)])
def test_plans_have_the_slots_that_the_rule_says(rule: SlotRule, slots: int) -> None:
    ports = run(MirageArm(policy=Policy(slots=rule, reversion=None)), burst_for_a())
    plans = [port.remapper.plan for port in ports[1:] if port.remapper.plan.slots]
    assert plans
    assert all(len(plan.slots) == slots for plan in plans)


def test_smaller_units_make_a_finer_plan() -> None:
    ports = run(MirageArm(parts_per_unit=4), burst_for_a())
    assert all(len(port.describe().unit_pages) == 32 for port in ports)


def ttft_of_first_for_b(arm: MirageArm, link_bytes_per_s: float) -> float:
    """A burst for a makes b lend; when a is done, one request for b."""
    requests = requests_from(
        [*[0.0] * 30, 60.0], [300] * 30 + [100], [150] * 30 + [10], model=[0] * 30 + [1]
    )
    watched = spied(arm)
    results = simulate(small_run(watched, link_bytes_per_s=link_bytes_per_s), requests)
    assert results.finished.all()
    assert results.finish_ps[:30].max() < results.arrival_ps[30]
    assert ports_of(watched)[1].lends == arm.policy.weights_move
    return float(results.first_token_ps[30] - results.arrival_ps[30]) / 1e12


def test_cold_start_streams_what_was_lent_over_the_link() -> None:
    lending = MirageArm(policy=Policy(reversion=None))
    resident = ttft_of_first_for_b(MirageArm(policy=Policy(weights_move=False)), 1e9)
    slow = ttft_of_first_for_b(lending, 1e9)
    # At 1 GB/s a unit takes 21 ms, twice what a step does; and all cycled ones are fetched.
    assert slow > resident + 0.021
    assert slow > ttft_of_first_for_b(lending, 100e9)


@pytest.mark.parametrize(("priority", "lends"), [(-5, True), (5, False)])
def test_running_model_lends_to_a_more_important_one_alone(
    priority: int, lends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b runs one long request with room to spare, a has a burst; lending may slow b."""
    lent_ps: list[int] = []
    hear = SimulatedEngineMemory.hear

    def watched(memory: SimulatedEngineMemory, message: wire.AgentMessage) -> None:
        if isinstance(message, wire.ApplyPlan) and memory.name.endswith("/1"):
            lent_ps.append(memory.now_ps)
        hear(memory, message)

    monkeypatch.setattr(SimulatedEngineMemory, "hear", watched)
    requests = requests_from(
        [0.0, *[0.1] * 20], [100] + [300] * 20, [100] + [150] * 20, model=[1] + [0] * 20
    )
    specs = [engine("a"), engine("b", priority=priority)]
    arm = MirageArm(policy=Policy(max_added_share=5.0))
    results = simulate(
        small_run(arm, sharing=Sharing.SPATIAL, engines=specs, memory_bytes=440 * MB), requests
    )
    assert results.finished.all()
    assert any(at_ps < results.finish_ps[0] for at_ps in lent_ps) == lends


def test_models_that_do_not_fit_are_refused_with_the_bytes_missing() -> None:
    with pytest.raises(ConfigError, match="place fewer models"):
        simulate(small_run(MirageArm(), memory_bytes=300 * MB), load(3, 1.0, 0))


def test_cache_that_is_no_whole_number_of_layers_is_refused() -> None:
    bad: EngineSpec = replace(engine("a"), block_bytes=MB + 1)
    with pytest.raises(ConfigError, match="block_bytes"):
        simulate(small_run(MirageArm(), engines=[bad]), load(3, 1.0, 0, models=1))


def test_device_without_a_link_is_refused() -> None:
    config = small_run(MirageArm())
    without = replace(config, devices=(replace(config.devices[0], link=""),))
    with pytest.raises(ConfigError, match="no host link"):
        simulate(without, load(3, 1.0, 0))


@pytest.mark.parametrize(
    "wrong",
    [{"least_pool_share": 1.5}, {"horizon_steps": -1}, {"report_interval_s": 0.0}],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MirageArm(**wrong)  # type: ignore[arg-type]


def test_bundles_are_whole_in_every_granule_and_waste_little() -> None:
    assert bundle_of([200, 200, 32], [301, 303, 208]) == 8
    assert bundle_of([200, 32], [9]) == 1
    assert bundle_of([7], [1000]) == 7
