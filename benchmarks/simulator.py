"""The simulator's speed, and what it is worth: ``build/bench/sim.json``.

``python -m benchmarks.simulator [--code FILE] [--conv FILE]`` serves the Azure 2023 traces, code
and conv, with one static model, stepping every step and jumping between events, and conv lengths
with the paper's C1 (three models on one GH200, taking turns) under MIRAGE.  Without files (also
read from MIRAGE_AZURE_CODE and MIRAGE_AZURE_CONV) seeded traces of the same statistics stand in,
and the result says so.  Rates are requests over CPU seconds of one core.

The result also collects what other benchmarks found, if they ran before: sizes
(``benchmarks.sizing``), claims (``benchmarks.figures``), validation (``benchmarks.validation``).
Ten minutes of 10,000 GPUs under the cluster's controller are reckoned from two measured slices;
``--whole-fleet`` simulates them instead, alone (half an hour), and writes ``fleet.json``.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mirage_core.errors import ConfigError
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.build import engine_spec, link_spec
from mirage_core.simulator.config import (
    ControllerSpec,
    DeviceSpec,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.memory_port import StaticArm
from mirage_core.simulator.request import Requests, requests_from
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from mirage_core.simulator.workloads.files import read_azure_trace
from mirage_core.simulator.workloads.quantiles import (
    AZURE_CODE,
    AZURE_CODE_LENGTHS,
    AZURE_CONV,
    AZURE_CONV_LENGTHS,
    GapSource,
    LengthSource,
)
from mirage_core.simulator.workloads.trace import Scaling, Trace, generate, scale
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.hardware import find_hardware

BUILD = Path("build")
OUTPUT = BUILD / "bench" / "sim.json"
SEED = 2023
REPEATS = 3
"""The best time of so many runs counts: the machine is shared."""
LONGEST_TOKENS = 16_384
"""Covers both traces."""
QUANTUM_S = 1.0
C1_RATE_PER_S = 2.0
"""All three models together, the conv trace compressed in time: static vLLM bears some 2.7."""
FLEET_START_S = 10.0
C1 = (("OPT-13b", 0.35), ("Llama-2-13b", 0.35), ("Llama-3-8b", 0.20))


@dataclass(frozen=True)
class Workload:
    """One of the two traces: where its seeded stand-in comes from."""

    name: str
    gaps: GapSource
    lengths: LengthSource
    rate_per_s: float
    span_s: float


CODE = Workload("code", AZURE_CODE, AZURE_CODE_LENGTHS, 8_819 / 3_436, 3_436)
CONV = Workload("conv", AZURE_CONV, AZURE_CONV_LENGTHS, 19_366 / 3_502, 3_502)


def trace_of(workload: Workload, path: Path | None) -> Trace:
    """The file's trace, or a seeded one with the same rate, length and statistics."""
    if path is not None:
        return read_azure_trace(path)
    return generate(
        workload.gaps,
        workload.lengths,
        workload.rate_per_s,
        workload.span_s,
        LONGEST_TOKENS,
        SEED,
    )


def requests_of(trace: Trace, models: int = 1) -> Requests:
    """Model after model in turn."""
    return requests_from(
        trace.arrivals_s,
        trace.prompt_tokens,
        trace.output_tokens,
        model=np.arange(len(trace)) % models,
    )


def one_static_model() -> RunConfig:
    """Llama-3-8B alone on an H100, most of its memory."""
    model, gpu = find_model("Llama-3-8b"), find_hardware("H100-SXM")
    engine = engine_spec(
        model,
        gpu,
        int(72e9),
        SchedulerLimits(max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=32_768),
    )
    return RunConfig((model.name,), (DeviceSpec("gpu", (engine,)),))


def c1_with_mirage() -> RunConfig:
    """The paper's C1: shares of a GH200 of 96 GiB, one model at a time."""
    gpu = find_hardware("GH200-96")
    memory_bytes = 96 * 2**30
    limits = SchedulerLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=2048)
    engines = tuple(
        engine_spec(find_model(name), gpu, int(memory_bytes * share), limits) for name, share in C1
    )
    device = DeviceSpec(
        "gpu",
        engines,
        memory_bytes=int(memory_bytes * sum(share for _, share in C1)),
        sharing=Sharing.TEMPORAL,
        quantum_s=QUANTUM_S,
        link="link",
    )
    return RunConfig(
        tuple(engine.model for engine in engines),
        (device,),
        links=(link_spec("link", gpu),),
        arm=MirageArm(),
    )


def timed(run: Callable[[], Results]) -> tuple[Results, float]:
    """The results, and the least CPU seconds of a few runs."""
    least_s = float("inf")
    for _ in range(REPEATS):
        began_s = time.process_time()
        results = run()
        least_s = min(least_s, time.process_time() - began_s)
    return results, least_s


def same(first: Results, second: Results) -> bool:
    """Equal to the picosecond: every request, every step, every counter."""
    assert first.steps is not None
    assert second.steps is not None
    ours, theirs = first.steps.expanded(), second.steps.expanded()
    return (
        first.counters == second.counters
        and first.end_ps == second.end_ps
        and all(
            np.array_equal(getattr(first, name), getattr(second, name))
            for name in ("first_token_ps", "finish_ps", "preemptions", "status", "late_gaps_ps")
        )
        and all(
            np.array_equal(getattr(ours, name), getattr(theirs, name))
            for name in ("start_ps", "first_ps", "gap_ps", "decodes", "prefill_tokens")
        )
    )


def figures_of(results: Results, seconds: float | None = None) -> dict[str, Any]:
    """What came of a run, and how fast it ran if that was measured."""
    values_s, weights = results.tbt_samples_s()
    order = np.argsort(values_s)
    reached = np.cumsum(weights[order])
    tbt_p99_s = values_s[order][np.searchsorted(reached, 0.99 * reached[-1])]
    ttft_s = results.ttft_s()
    speed = {}
    if seconds is not None:
        speed = {
            "cpu_s": round(seconds, 3),
            "requests_per_s": round(len(results.requests) / seconds),
            "steps_per_s": round(results.counters["steps"] / seconds),
        }
    return speed | {
        "requests": len(results.requests),
        "simulated_s": round(results.end_ps / 1e12, 1),
        "steps": results.counters["steps"],
        "preemptions": results.counters["preemptions"],
        "finished": int(results.finished.sum()),
        "ttft_p50_s": round(float(np.quantile(ttft_s, 0.5)), 4),
        "ttft_p99_s": round(float(np.quantile(ttft_s, 0.99)), 4),
        "tbt_p99_s": round(float(tbt_p99_s), 5),
    }


def measure_static(trace: Trace) -> dict[str, Any]:
    config, requests = one_static_model(), requests_of(trace)
    jumped, jump_s = timed(lambda: simulate(config, requests))
    again = simulate(config, requests)
    stepped, step_s = timed(lambda: simulate(replace(config, jump=False), requests))
    return {
        "jump": figures_of(jumped, jump_s),
        "step": figures_of(stepped, step_s),
        "identical": same(jumped, stepped),
        "deterministic": same(jumped, again),
    }


def measure_c1(trace: Trace) -> dict[str, Any]:
    """Requests beyond OPT's 2,048 tokens are left out, as a server of these models would."""
    fitting = trace.within(2048)
    slower = scale(fitting, C1_RATE_PER_S, Scaling.COMPRESS, SEED)
    config, requests = c1_with_mirage(), requests_of(slower, len(C1))
    results, seconds = timed(lambda: simulate(config, requests))
    again = simulate(config, requests)
    static = simulate(replace(config, arm=StaticArm()), requests)
    return {
        "mirage": figures_of(results, seconds),
        "static": figures_of(static),
        "left_out": len(trace) - len(fitting),
        "deterministic": same(results, again),
    }


def found_elsewhere(path: Path) -> dict[str, Any]:
    """Another benchmark's result; empty if it did not run."""
    return json.loads(path.read_text()) if path.exists() else {}


@dataclass(frozen=True)
class Fleet:
    """How large the large run is; ``traffic_s`` are two slices of it, from which it is reckoned."""

    gpus: int = 10_000
    requests_per_s_a_gpu: float = 2.0
    traffic_s: tuple[float, float] = (5.0, 10.0)

    @property
    def requests_per_s(self) -> float:
        return self.gpus * self.requests_per_s_a_gpu


TEN_MINUTES_S = 600.0


def fleet_of(fleet: Fleet) -> RunConfig:
    """One model on many H100, eight a node, placed and started by the controller."""
    one = one_static_model()
    devices = tuple(
        replace(
            one.devices[0],
            name=f"gpu-{index:05}",
            node=f"node-{index // 8:04}",
            memory_bytes=80 * 10**9,
        )
        for index in range(fleet.gpus)
    )
    return RunConfig(
        one.models,
        devices,
        record_steps=False,
        network_s=1e-3,
        controller=ControllerSpec(start_s=FLEET_START_S),
    )


def measure_fleet(fleet: Fleet) -> dict[str, Any]:
    """CPU seconds grow with requests from a start's: two slices give both."""
    config = fleet_of(fleet)
    spent: list[tuple[int, float]] = []
    for traffic_s in fleet.traffic_s:
        requests = fleet_requests(fleet, traffic_s)
        began_s = time.process_time()
        results = simulate(config, requests)
        spent.append((len(requests), time.process_time() - began_s))
        assert results.finished.all()
    (few, few_s), (many, many_s) = spent
    each_s = max(1e-9, (many_s - few_s) / (many - few))
    start_s = max(0.0, few_s - few * each_s)
    whole = fleet.requests_per_s * TEN_MINUTES_S
    return {
        "gpus": fleet.gpus,
        "requests_measured": many,
        "cpu_s_measured": round(many_s, 1),
        "requests_per_s": round(1 / each_s),
        "start_cpu_s": round(start_s, 1),
        "ten_minutes_requests": round(whole),
        "ten_minutes_cpu_minutes_reckoned": round((start_s + whole * each_s) / 60, 1),
    }


def fleet_requests(fleet: Fleet, traffic_s: float) -> Requests:
    """From when the controller has placed and started all models."""
    rate_per_s = fleet.requests_per_s
    trace = generate(AZURE_CONV, AZURE_CONV_LENGTHS, rate_per_s, traffic_s, LONGEST_TOKENS, SEED)
    arrivals_s = trace.arrivals_s + FLEET_START_S + 5.0
    return requests_from(arrivals_s, trace.prompt_tokens, trace.output_tokens)


def measure_whole_fleet(fleet: Fleet) -> dict[str, Any]:
    """All ten minutes, on one core."""
    began_s = time.process_time()
    requests = fleet_requests(fleet, TEN_MINUTES_S)
    results = simulate(fleet_of(fleet), requests)
    spent_s = time.process_time() - began_s
    ttft_s = results.ttft_s()
    return {
        "gpus": fleet.gpus,
        "requests": len(requests),
        "finished": int(results.finished.sum()),
        "cpu_minutes": round(spent_s / 60, 1),
        "requests_per_s": round(len(requests) / spent_s),
        "ttft_p50_s": float(np.quantile(ttft_s, 0.5)),
        "ttft_p99_s": float(np.quantile(ttft_s, 0.99)),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "counters": dict(results.counters),
    }


def measure(traces: dict[str, Trace], fleet: Fleet) -> dict[str, Any]:
    """All that this benchmark measures itself."""
    static = {name: measure_static(trace) for name, trace in traces.items()}
    c1 = measure_c1(traces["conv"])
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "code_requests_per_s": static["code"]["jump"]["requests_per_s"],
        "conv_requests_per_s": static["conv"]["jump"]["requests_per_s"],
        "steps_per_s": static["conv"]["jump"]["steps_per_s"],
        "jump_identical": all(found["identical"] for found in static.values()),
        "c1_mirage_requests_per_s": c1["mirage"]["requests_per_s"],
        "rss_mb": round(peak_kb / 1024),
        "deterministic": c1["deterministic"]
        and all(found["deterministic"] for found in static.values()),
        "fleet": measure_fleet(fleet),
        "static": static,
        "c1": c1,
    }


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def main(
    code: Annotated[Path | None, typer.Option(envvar="MIRAGE_AZURE_CODE")] = None,
    conv: Annotated[Path | None, typer.Option(envvar="MIRAGE_AZURE_CONV")] = None,
    output: Path = OUTPUT,
    whole_fleet: Annotated[
        bool, typer.Option("--whole-fleet", help="Only ten minutes of 10,000 GPUs (half an hour).")
    ] = False,
) -> None:
    """Measure and write the result."""
    if whole_fleet:
        write(output.with_name("fleet.json"), found := measure_whole_fleet(Fleet()))
        print(json.dumps(found, indent=2))
        return
    paths = {CODE: code, CONV: conv}
    try:
        traces = {workload.name: trace_of(workload, path) for workload, path in paths.items()}
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    sizing = found_elsewhere(BUILD / "bench" / "sizing.json")
    result = measure(traces, Fleet()) | {
        "validation": found_elsewhere(BUILD / "bench" / "validation.json").get("metrics"),
        "claims": found_elsewhere(BUILD / "figures" / "claims.json").get("verdicts"),
        "sizing_configs_exact": sizing.get("sizing_configs_exact"),
        "sizing_configs_total": sizing.get("sizing_configs_total"),
        "traces": {
            workload.name: "file" if path else f"seeded, seed {SEED}"
            for workload, path in paths.items()
        },
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
    }
    write(output, result)
    shown = {name: value for name, value in result.items() if name not in ("static", "c1")}
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    typer.run(main)
