"""The cluster controller in the loop: the product's Reconciler places, starts, scales, recovers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_core.control.reconciler import ReconcilerSettings
from mirage_core.errors import ConfigError
from mirage_core.simulator.config import (
    ControllerSpec,
    DeviceSpec,
    EngineSpec,
    Failure,
    RunConfig,
    Scaling,
    SchedulerLimits,
)
from mirage_core.simulator.request import requests_from
from mirage_core.simulator.results import Results, Status
from mirage_core.simulator.run import simulate
from mirage_core.simulator.step_models import FittedStepTime

GB = 10**9
LIMITS = SchedulerLimits(max_num_batched_tokens=512, max_num_seqs=8, max_model_len=1024)
STEP = FittedStepTime(10**10, 10**8, 10**4, 0, 10**7, 0)
CONTROLLER = ControllerSpec(start_s=2.0, report_interval_s=1.0)


def config_of(devices: int, controller: ControllerSpec = CONTROLLER) -> RunConfig:
    engine = EngineSpec("m", STEP, 200, LIMITS, static_bytes=GB)
    return RunConfig(
        ("m",),
        tuple(DeviceSpec(f"d{i}", (engine,), memory_bytes=4 * GB) for i in range(devices)),
        controller=controller,
        network_s=0.001,
    )


def steady(rate_per_s: float, seconds: float) -> list[float]:
    return [i / rate_per_s for i in range(int(rate_per_s * seconds))]


def served(results: Results) -> list[int]:
    """Engines that computed something."""
    assert results.steps is not None
    return np.unique(results.steps.engine).tolist()


def test_requests_wait_until_the_controller_has_placed_and_started_an_engine() -> None:
    results = simulate(config_of(2), requests_from([0.0, 0.5, 5.0], [10] * 3, [5] * 3))
    assert (results.status == Status.FINISHED).all()
    assert (results.first_token_ps[:2] > 2.0e12).all()
    assert results.first_token_ps[2] - results.arrival_ps[2] < 0.1e12
    # Three directives a device: of the device, its placement, its model.
    assert results.counters["controller_directives"] == 6
    assert results.counters["controller_commits"] >= 1


def test_replicas_follow_the_load_up_and_down() -> None:
    scaling = Scaling("m", 1, 4, target_requests=4, up_after_s=3.0, down_after_s=10.0)
    # A replica that is not needed is given up only once it was idle for a while.
    settings = ReconcilerSettings(retire_after_s=5.0)
    controller = replace(CONTROLLER, scaling=(scaling,), settings=settings)
    arrivals = np.array(steady(20, 40) + [60.0 + t for t in steady(0.5, 60)])
    requests = requests_from(arrivals, [50] * len(arrivals), [60] * len(arrivals))
    results = simulate(config_of(4, controller), requests)
    assert (results.status == Status.FINISHED).all()
    assert served(results) == [0, 1, 2, 3]
    assert results.steps is not None
    starts_s, engines = results.steps.start_ps / 1e12, results.steps.engine
    assert np.unique(engines[starts_s < 3.0]).tolist() == [0]
    late = np.unique(engines[starts_s > 100.0])
    assert len(late) == 1


def test_a_device_that_comes_back_serves_once_its_engine_has_started_again() -> None:
    config = replace(config_of(2), failures=(Failure("d0", 5.0, 4.0),))
    arrivals = steady(10, 20)
    requests = requests_from(arrivals, [20] * len(arrivals), [20] * len(arrivals))
    results = simulate(config, requests)
    assert (results.status == Status.FINISHED).all()
    assert results.counters["rerouted"] > 0
    assert results.steps is not None
    of_lost = results.steps.start_ps[results.steps.engine == 0] / 1e12
    assert not ((of_lost > 5.0) & (of_lost < 9.0 + CONTROLLER.start_s)).any()
    assert (of_lost > 11.0).any()


def test_jumping_gives_what_stepping_gives_with_the_controller_in_the_loop() -> None:
    scaling = Scaling("m", 1, 3, target_requests=4, up_after_s=1.0, down_after_s=5.0)
    config = replace(
        config_of(3, replace(CONTROLLER, scaling=(scaling,))), failures=(Failure("d1", 6.0, 2.0),)
    )
    source = np.random.default_rng(5)
    arrivals = np.sort(source.random(200) * 15)
    requests = requests_from(arrivals, source.integers(1, 200, 200), source.integers(1, 90, 200))
    jumped = simulate(config, requests)
    stepped = simulate(replace(config, jump=False), requests)
    assert jumped.finish_ps.tolist() == stepped.finish_ps.tolist()
    assert jumped.engine.tolist() == stepped.engine.tolist()
    assert jumped.counters == stepped.counters


def test_a_rule_for_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="scaling of 'x', which is no model of the run"):
        config_of(1, replace(CONTROLLER, scaling=(Scaling("x", 1, 2, 4),)))
