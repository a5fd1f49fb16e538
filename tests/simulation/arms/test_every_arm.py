"""What holds for every arm, whatever the workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.simulator.arms import ElasticArm, KvSwapArm, MirageArm, StaticOffloadArm
from mirage_core.simulator.arms.elastic import ElasticPort
from mirage_core.simulator.config import Sharing
from mirage_core.simulator.memory_port import Arm, StaticArm
from mirage_core.simulator.request import requests_from
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from tests.simulation.arms.small import ARMS, MB, engine, load, small_run, spied

CONSTANT: tuple[Arm, ...] = (
    StaticArm(),
    StaticOffloadArm(share=0.5),
    KvSwapArm(host_bytes=200 * MB, adaptive=False),
)
"""Arms whose pools stay as they are."""


def same(one: Results, other: Results) -> bool:
    return (
        np.array_equal(one.finish_ps, other.finish_ps)
        and np.array_equal(one.first_token_ps, other.first_token_ps)
        and np.array_equal(one.preemptions, other.preemptions)
        and one.counters == other.counters
    )


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate_per_s=st.sampled_from([1.0, 6.0, 40.0]),
    quantum_s=st.sampled_from([None, 0.3, 2.0]),
    spatial=st.booleans(),
)
def test_every_request_finishes_and_jumping_is_stepping(
    arm: Arm, seed: int, rate_per_s: float, quantum_s: float | None, spatial: bool
) -> None:
    requests = load(30, rate_per_s, seed)
    config = small_run(
        arm, sharing=Sharing.SPATIAL if spatial else Sharing.TEMPORAL, quantum_s=quantum_s
    )
    jumped = simulate(config, requests)
    assert jumped.finished.all()
    assert jumped.counters["generated_tokens"] == int(requests.output_tokens.sum())
    assert (jumped.first_token_ps > jumped.arrival_ps).all()
    assert (jumped.finish_ps >= jumped.first_token_ps).all()
    assert same(jumped, simulate(replace(config, jump=False), requests))


@pytest.mark.parametrize("arm", [*ARMS[:5]], ids=lambda arm: arm.name)
def test_no_more_blocks_are_used_than_the_pool_has(arm: Arm) -> None:
    results = simulate(small_run(arm), load(120, 10.0, 3))
    assert results.steps is not None
    if isinstance(arm, KvSwapArm):
        return  # a smaller batch hides less, and those that run go on
    assert (results.steps.used_blocks <= results.steps.capacity_blocks).all()


@pytest.mark.parametrize("arm", CONSTANT, ids=lambda arm: arm.name)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), faster=st.floats(1.0, 20.0))
def test_faster_link_never_ends_later(arm: Arm, seed: int, faster: float) -> None:
    """All requests are there at once, so the steps are the same ones."""
    rng = np.random.default_rng(seed)
    requests = requests_from(
        np.zeros(30), rng.integers(1, 400, 30), rng.integers(1, 100, 30), model=0
    )
    ends = [
        simulate(small_run(arm, engines=[engine("a")], link_bytes_per_s=rate), requests).end_ps
        for rate in (1e9, 1e9 * faster)
    ]
    assert ends[1] <= ends[0]


def test_faster_link_serves_mirage_sooner() -> None:
    requests = load(60, 12.0, 5)
    ends = [
        simulate(small_run(MirageArm(), link_bytes_per_s=rate), requests).latency_s().mean()
        for rate in (0.5e9, 50e9)
    ]
    assert ends[1] < ends[0]


def test_elastic_pages_are_conserved() -> None:
    arm = spied(ElasticArm())
    results = simulate(small_run(arm), load(60, 12.0, 7))
    assert results.finished.all()
    ports = [port for port in arm.ports if isinstance(port, ElasticPort)]
    held = sum(port.granules * port.granule_pages for port in ports)
    weights = 3 * (8 * 10 + 3)
    assert held + ports[0].free.pages + weights == 3 * 220 // 2
    assert all(port.granules == 1 for port in ports), "idle engines keep one granule"


def test_elastic_pool_serves_a_burst_that_a_static_one_cannot_hold() -> None:
    requests = requests_from(np.zeros(8), [300] * 8, [100] * 8, model=0)
    static = simulate(small_run(StaticArm()), requests)
    elastic = simulate(small_run(ElasticArm()), requests)
    assert elastic.counters["preemptions"] < static.counters["preemptions"]
    assert elastic.end_ps < static.end_ps


def test_offloaded_layers_pay_where_the_link_is_fast_and_cost_where_it_is_slow() -> None:
    requests = requests_from(np.zeros(16), [300] * 16, [100] * 16, model=0)

    def end_ps(arm: Arm, link_bytes_per_s: float) -> int:
        run = small_run(arm, engines=[engine("a")], link_bytes_per_s=link_bytes_per_s)
        return simulate(run, requests).end_ps

    static = end_ps(StaticArm(), 1e9)
    assert end_ps(StaticOffloadArm(share=0.5), 100e9) < static
    assert end_ps(StaticOffloadArm(share=0.5), 1e9) > static
