"""What holds of every run: nothing is lost or made, time goes forward, and both modes agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import ConfigError
from mirage_core.simulator.config import (
    DeviceSpec,
    EngineSpec,
    Failure,
    Routing,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.request import Requests, requests_from
from mirage_core.simulator.results import Results, Status
from mirage_core.simulator.run import simulate
from mirage_core.simulator.step_models import RooflineCosts, RooflineStepTime, TableStepTime

COSTS = RooflineCosts(
    weight_bytes=2e9,
    kv_bytes_per_token=1e5,
    flops_per_token=4e9,
    flops_per_pair=1e5,
    bytes_per_s=1e12,
    flops_per_s=1e14,
    step_overhead_s=1e-4,
    request_overhead_s=1e-6,
)
TABLE = TableStepTime(
    batches=(1, 4, 32),
    contexts=(1, 100, 2000),
    decode_s=((1e-3, 1.5e-3, 2e-3), (1.2e-3, 2e-3, 4e-3), (2e-3, 3e-3, 9e-3)),
    prompts=(1, 64, 1024),
    prefill_s=(1e-3, 2e-3, 9e-3),
)


@dataclass(frozen=True)
class Cluster:
    """What hypothesis varies of a cluster."""

    models: int
    replicas: int
    blocks: int
    sharing: Sharing
    quantum_s: float | None
    overlap: float
    caching: bool
    priority: bool
    table: bool
    routing: Routing


def config_of(cluster: Cluster, costs: RooflineCosts = COSTS) -> RunConfig:
    limits = SchedulerLimits(
        block_tokens=16,
        max_num_batched_tokens=64,
        max_num_seqs=16,
        max_model_len=512,
        prefix_caching=cluster.caching,
        priority=cluster.priority,
    )
    step_time = TABLE if cluster.table else RooflineStepTime(costs)
    names = tuple(f"m{index}" for index in range(cluster.models))
    engines = tuple(EngineSpec(name, step_time, cluster.blocks, limits) for name in names)
    devices = tuple(
        DeviceSpec(
            f"d{index}",
            engines,
            sharing=cluster.sharing,
            quantum_s=cluster.quantum_s,
            switch_s=1e-4,
            spatial_overlap=cluster.overlap,
        )
        for index in range(cluster.replicas)
    )
    return RunConfig(names, devices, routing=cluster.routing)


def requests_of(seed: int, count: int, models: int, span_s: float) -> Requests:
    source = np.random.default_rng(seed)
    group = source.integers(-1, 3, count)
    prompts = source.integers(1, 200, count)
    return requests_from(
        np.sort(source.random(count) * span_s),
        prompts,
        source.integers(1, 120, count),
        model=source.integers(0, models, count),
        priority=source.integers(0, 3, count),
        prefix_group=group,
        prefix_tokens=np.where(group >= 0, prompts * 2 // 3, 0),
    )


clusters = st.builds(
    Cluster,
    models=st.integers(1, 3),
    replicas=st.integers(1, 3),
    blocks=st.integers(20, 60),
    sharing=st.sampled_from(Sharing),
    quantum_s=st.sampled_from([None, 0.003, 0.02]),
    overlap=st.sampled_from([0.0, 0.4, 1.0]),
    caching=st.booleans(),
    priority=st.booleans(),
    table=st.booleans(),
    routing=st.sampled_from(Routing),
)


def times_of(results: Results) -> list[list[int]]:
    return [
        column.tolist()
        for column in (
            results.first_token_ps,
            results.finish_ps,
            results.engine,
            results.preemptions,
            results.status,
            results.late_gaps_ps,
        )
    ]


@settings(max_examples=60, deadline=None)
@given(cluster=clusters, seed=st.integers(0, 2**31), span_s=st.sampled_from([0.01, 0.3, 2.0]))
def test_jumping_gives_what_stepping_every_step_gives(
    cluster: Cluster, seed: int, span_s: float
) -> None:
    config, requests = config_of(cluster), requests_of(seed, 40, cluster.models, span_s)
    stepped = simulate(replace(config, jump=False), requests)
    jumped = simulate(config, requests)
    assert times_of(jumped) == times_of(stepped)
    assert jumped.counters == stepped.counters
    assert jumped.end_ps == stepped.end_ps
    assert jumped.steps is not None
    assert stepped.steps is not None
    assert len(jumped.steps.steps) <= len(stepped.steps.steps)
    ours, theirs = jumped.steps.expanded(), stepped.steps
    for engine in range(len(config.devices) * cluster.models):
        mine, its = ours.engine == engine, theirs.engine == engine
        for name in ("start_ps", "first_ps", "gap_ps", "decodes", "prefill_tokens", "running"):
            found, expected = getattr(ours, name)[mine], getattr(theirs, name)[its]
            assert found.tolist() == expected.tolist(), name


@settings(max_examples=60, deadline=None)
@given(cluster=clusters, seed=st.integers(0, 2**31))
def test_tokens_and_blocks_are_conserved_and_time_goes_forward(cluster: Cluster, seed: int) -> None:
    config, requests = config_of(cluster), requests_of(seed, 40, cluster.models, 0.2)
    results = simulate(config, requests)
    assert (results.status == Status.FINISHED).all()
    log = results.steps
    assert log is not None
    steps = log.expanded()
    # Every token of every request came out once, whatever was recomputed.
    assert results.counters["generated_tokens"] == int(requests.output_tokens.sum())
    # Every known token was computed, but for the last one and for what the cache had.
    computed = int((steps.decodes + steps.prefill_tokens).sum())
    needed = int((requests.prompt_tokens + requests.output_tokens - 1).sum())
    again = results.counters.get("recomputed_tokens", 0)
    hits = results.counters.get("prefix_hit_tokens", 0)
    assert computed == needed + again - hits
    assert (steps.used_blocks <= steps.capacity_blocks).all()
    assert (steps.first_ps > 0).all()
    assert (results.first_token_ps > results.arrival_ps).all()
    assert (results.finish_ps >= results.first_token_ps).all()
    for engine in np.unique(steps.engine):
        mine = steps.engine == engine
        ends = steps.start_ps[mine] + steps.first_ps[mine]
        assert (steps.start_ps[mine][1:] >= ends[:-1]).all()
    if cluster.sharing is Sharing.TEMPORAL:
        # The engines of one device never compute at the same time.
        for device in range(cluster.replicas):
            mine = steps.engine // cluster.models == device
            spans = sorted(
                zip(steps.start_ps[mine], (steps.start_ps + steps.first_ps)[mine], strict=True)
            )
            assert all(before[1] <= after[0] for before, after in pairwise(spans))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), faster=st.floats(1.01, 8.0))
def test_more_bandwidth_never_makes_a_request_of_one_batch_later(seed: int, faster: float) -> None:
    cluster = Cluster(
        1, 1, 2000, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.LEAST_REQUESTS
    )
    requests = requests_of(seed, 40, 1, 0.0)
    slow = simulate(config_of(cluster), requests)
    quick_costs = COSTS._replace(bytes_per_s=COSTS.bytes_per_s * faster)
    quick = simulate(config_of(cluster, quick_costs), requests)
    assert (quick.finish_ps <= slow.finish_ps).all()
    assert (quick.first_token_ps <= slow.first_token_ps).all()


def test_two_runs_of_one_configuration_are_equal() -> None:
    cluster = Cluster(
        3, 2, 30, Sharing.TEMPORAL, 0.01, 0.0, True, True, False, Routing.LEAST_REQUESTS
    )
    requests = requests_of(7, 200, 3, 1.0)
    first, second = (simulate(config_of(cluster), requests) for _ in range(2))
    assert times_of(first) == times_of(second)


def test_a_slower_neighbour_slows_a_shared_device() -> None:
    alone = Cluster(1, 1, 60, Sharing.SPATIAL, None, 0.0, False, False, False, Routing.ROUND_ROBIN)
    beside = replace(alone, models=2)
    one = requests_from([0.0], [10], [50])
    both = requests_from([0.0, 0.0], [10, 10], [50, 50], model=[0, 1])
    quick = simulate(config_of(alone), one).finish_ps[0]
    shared = simulate(config_of(beside), both).finish_ps[0]
    overlapping = simulate(config_of(replace(beside, overlap=1.0)), both).finish_ps[0]
    assert shared > 1.9 * quick
    assert overlapping == quick


def test_a_turn_ends_after_its_quantum_if_others_wait() -> None:
    cluster = Cluster(2, 1, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    requests = requests_from([0.0, 0.001], [10, 10], [200, 5], model=[0, 1])
    to_idle = simulate(config_of(cluster), requests)
    in_turns = simulate(config_of(replace(cluster, quantum_s=0.01)), requests)
    assert to_idle.first_token_ps[1] > to_idle.finish_ps[0]
    assert in_turns.finish_ps[1] < in_turns.finish_ps[0]


def test_requests_of_a_lost_device_are_served_by_another() -> None:
    cluster = Cluster(1, 2, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    config = replace(config_of(cluster), failures=(Failure("d0", 0.05, 0.2),))
    requests = requests_of(3, 60, 1, 0.5)
    results = simulate(config, requests)
    assert (results.status == Status.FINISHED).all()
    assert results.counters["rerouted"] > 0
    assert results.steps is not None
    log = results.steps.expanded()
    down = (log.engine == 0) & (log.start_ps > 0.05e12) & (log.start_ps < 0.25e12)
    assert not down.any()
    assert times_of(simulate(replace(config, jump=False), requests)) == times_of(results)


def test_requests_are_lost_only_where_no_replica_is_left() -> None:
    cluster = Cluster(1, 1, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    config = replace(config_of(cluster), failures=(Failure("d0", 0.0, 1.0),))
    results = simulate(config, requests_from([0.5, 1.5], [10, 10], [5, 5]))
    assert results.status.tolist() == [Status.LOST, Status.FINISHED]


def test_a_request_longer_than_any_pool_is_rejected_and_the_others_go_on() -> None:
    cluster = Cluster(1, 1, 20, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    results = simulate(config_of(cluster), requests_from([0, 0, 0], [400, 511, 10], [5, 9, 5]))
    assert results.status.tolist() == [Status.REJECTED, Status.REJECTED, Status.FINISHED]


def test_a_chain_waits_for_the_request_before_it() -> None:
    cluster = Cluster(1, 1, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    requests = requests_from([0, 0, 9], [10] * 3, [20] * 3, after=[-1, 0, 1], think_s=[0, 0.5, 0])
    results = simulate(replace(config_of(cluster), network_s=0.1), requests)
    assert results.arrival_ps[1] == results.finish_ps[0] + 0.5e12
    assert results.arrival_ps[2] == 9e12
    assert results.first_token_ps[0] > 0.2e12


def test_time_between_tokens_counts_each_token_once() -> None:
    cluster = Cluster(2, 1, 22, Sharing.TEMPORAL, 0.02, 0.0, False, False, False, Routing.PREFIX)
    requests = requests_of(11, 60, 2, 0.1)
    results = simulate(config_of(cluster), requests)
    assert results.counters["preemptions"] > 0
    values, weights = results.tbt_samples_s()
    assert weights.sum() == int((requests.output_tokens - 1).sum())
    spans_s = (results.finish_ps - results.first_token_ps).sum() / 1e12
    assert float((values * weights).sum()) == pytest.approx(float(spans_s))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 2, 1], [1, 1, 1], [1, 1, 1]), r"t.csv:4: arrival_s is 1.0, before the line above"),
        (([0, -1, 2], [1, 1, 1], [1, 1, 1]), r"t.csv:3: arrival_s is -1.0, must not be negative"),
        (([0, 1, 2], [1, 0, 1], [1, 1, 1]), r"t.csv:3: prompt_tokens is 0, must be at least 1"),
        (([0, 1, 2], [1, 1, 1], [1, 1, -4]), r"t.csv:4: output_tokens is -4"),
        (([0, float("nan"), 2], [1, 1, 1], [1, 1, 1]), r"t.csv:3: arrival_s is nan"),
        (([0, 1, 2], [1, 1.5, 1], [1, 1, 1]), r"t.csv:3: prompt_tokens is 1.5, must be a whole"),
        (([0, 1, 2], [1, 1], [1, 1, 1]), r"t.csv: 3 arrivals but 2 values of prompt_tokens"),
    ],
)
def test_a_bad_trace_is_refused_by_line(columns: tuple[list[float], ...], message: str) -> None:
    arrivals, prompts, outputs = columns
    with pytest.raises(ConfigError, match=message):
        requests_from(arrivals, prompts, outputs, source="t.csv", first_line=2)


def test_a_request_for_a_model_that_is_not_there_is_refused() -> None:
    cluster = Cluster(1, 1, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    with pytest.raises(ConfigError, match="request 1 is for model 3, there are 1"):
        simulate(config_of(cluster), requests_from([0, 1], [1, 1], [1, 1], model=[0, 3]))


def test_a_long_pause_in_a_chain_is_not_the_end_of_the_run() -> None:
    cluster = Cluster(1, 1, 60, Sharing.TEMPORAL, None, 0.0, False, False, False, Routing.PREFIX)
    requests = requests_from([0, 0], [10] * 2, [20] * 2, after=[-1, 0], think_s=[0, 20_000])
    config = replace(config_of(cluster), failures=(Failure("d0", 15_000, 1.0),))
    assert (simulate(config, requests).status == Status.FINISHED).all()
