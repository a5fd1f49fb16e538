"""Figures, files, pictures and traces of a run, and the file and command that make one."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from pyarrow import parquet
from rich.console import Console
from typer.testing import CliRunner

from mirage_core.errors import ConfigError
from mirage_core.simulator.commands import EXAMPLE, simulate_command
from mirage_core.simulator.config import DeviceSpec, EngineSpec, RunConfig, SchedulerLimits
from mirage_core.simulator.outputs import (
    draw_series,
    figures_by_model,
    figures_of,
    table,
    write_requests,
    write_steps,
)
from mirage_core.simulator.perfetto import trace_events, write_trace
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from mirage_core.simulator.run_file import RunFile, build_run, read_run_file
from mirage_core.simulator.step_models import FittedStepTime
from mirage_core.simulator.workloads.quantiles import ALPACA, AZURE_CODE
from mirage_core.simulator.workloads.streams import Stream, merge
from mirage_core.simulator.workloads.trace import generate
from mirage_core.sizing.documents import Document

STEP_TIME = FittedStepTime(10**10, 10**8, 10**5, 10**9, 10**7, 0)
LIMITS = SchedulerLimits(max_model_len=1024)
CONFIG = RunConfig(
    models=("a", "b"),
    devices=(
        DeviceSpec(
            "gpu",
            (EngineSpec("a", STEP_TIME, 30, LIMITS), EngineSpec("b", STEP_TIME, 60, LIMITS)),
            quantum_s=0.5,
        ),
    ),
)


@pytest.fixture(scope="module")
def results() -> Results:
    """Pools so small that requests are preempted."""
    streams = [Stream(i, generate(AZURE_CODE, ALPACA, 6.0, 20.0, 400, seed=i)) for i in (0, 1)]
    found = simulate(CONFIG, merge(streams))
    assert found.counters["preemptions"] > 0
    return found


def test_a_model_s_figures_add_up_to_the_run_s(results: Results) -> None:
    apart, whole = figures_by_model(results, CONFIG.models), figures_of(results)
    assert sum(f.requests for f in apart.values()) == whole.requests == len(results.requests)
    assert sum(f.finished for f in apart.values()) == whole.finished
    assert sum(f.preemptions for f in apart.values()) == whole.preemptions
    assert sum(f.throughput_tok_s for f in apart.values()) == pytest.approx(whole.throughput_tok_s)
    assert whole.ttft_p50_s == pytest.approx(np.percentile(results.ttft_s(), 50))
    assert whole.tbt_p50_s <= whole.tbt_p99_s


def test_the_table_is_as_wide_as_a_terminal(results: Results) -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(figures_by_model(results, CONFIG.models), "title"))
    lines = console.export_text().splitlines()
    assert any(line.strip().startswith("a ") for line in lines)
    assert max(map(len, lines)) <= 80


def test_requests_are_written_as_parquet_and_csv_alike(results: Results, tmp_path: Path) -> None:
    write_requests(results, CONFIG.models, tmp_path / "r.parquet")
    write_requests(results, CONFIG.models, tmp_path / "r.csv")
    rows = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    text = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert len(rows) == len(text) == len(results.requests)
    assert [row["model"] for row in rows] == [row["model"] for row in text]
    assert sum(row["preemptions"] for row in rows) == results.preemptions.sum()
    done = [row for row in rows if row["status"] == "finished"]
    assert len(done) == results.finished.sum()
    assert all(0 < row["ttft_s"] <= row["latency_s"] for row in done)


def test_steps_are_written_and_another_ending_is_refused(results: Results, tmp_path: Path) -> None:
    assert results.steps is not None
    write_steps(results.steps, ["gpu a", "gpu b"], tmp_path / "s.parquet")
    rows = parquet.read_table(tmp_path / "s.parquet")
    assert rows.num_rows == len(results.steps.steps)
    assert set(rows["engine"].to_pylist()) == {"gpu a", "gpu b"}
    with pytest.raises(ConfigError, match=r"neither \.parquet nor \.csv"):
        write_steps(results.steps, ["gpu a", "gpu b"], tmp_path / "s.txt")


def test_the_picture_is_a_png(results: Results, tmp_path: Path) -> None:
    draw_series(results, ["gpu a", "gpu b"], CONFIG.models, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_trace_holds_every_step_and_preemption_in_time(
    results: Results, tmp_path: Path
) -> None:
    write_trace(results, CONFIG, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert sum(event["args"]["steps"] for event in steps) == results.counters["steps"]
    for thread in (0, 1):
        mine = [event for event in steps if event["tid"] == thread]
        ends = [event["ts"] + event["dur"] for event in mine]
        assert all(a <= b["ts"] + 1e-3 for a, b in zip(ends, mine[1:], strict=False))
    preempted = [event for event in events if event.get("cat") == "preemption"]
    assert 0 < sum(e["args"]["requests"] for e in preempted) <= results.counters["preemptions"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {
        "a",
        "b",
    }


def test_a_pool_that_changes_and_a_link_that_streams_are_in_the_trace(results: Results) -> None:
    assert results.steps is not None
    capacity = results.steps.capacity_blocks.copy()
    capacity[len(capacity) // 2 :] += 8
    streamed = np.where(results.steps.steps > 0, 10**9, 0)
    steps = replace(results.steps, capacity_blocks=capacity, streamed_ps=streamed)
    events = list(trace_events(steps, CONFIG))
    assert {e["name"] for e in events if e.get("cat") == "remap"} == {"pool grows"}
    fetches = [event for event in events if event.get("cat") == "fetch"]
    spans = {(e["tid"], e["ts"]): e["dur"] for e in events if e.get("cat") == "step"}
    assert len(fetches) == len(steps.steps)
    for event in fetches:
        assert 0 < event["dur"] <= spans[event["tid"] - 1_000_000, event["ts"]]


def parsed(text: str) -> RunFile:
    return Document("run.yaml", text).parse(RunFile)


SHORT = EXAMPLE.replace("horizon_s: 300", "horizon_s: 20")


def test_the_example_describes_a_run_that_fits() -> None:
    config, requests = build_run(parsed(SHORT))
    assert config.models == ("opt-13b", "llama-3-8b")
    assert config.arm.name == "mirage"
    assert len(requests) == 20 * (4 + 8)
    assert [engine.model for engine in config.devices[0].engines] == list(config.models)


def test_two_gb200_share_a_link_and_a_chain_names_its_agents() -> None:
    text = """
gpu: GB200
devices: 4
models:
  - {model: llama-3-8b, memory_share: 0.3}
  - {model: opt-13b, memory_share: 0.3}
chain:
  traffic: {rate_per_s: 1, lengths: alpaca}
  agents:
    - {model: llama-3-8b, output_tokens: 100}
    - {model: opt-13b, output_tokens: 50, think_s: 0.2}
horizon_s: 30
"""
    config, requests = build_run(parsed(text))
    assert [device.link for device in config.devices] == ["link 0", "link 0", "link 1", "link 1"]
    assert len(requests) == 60
    assert requests.after.tolist()[:4] == [-1, 0, -1, 2]
    done = simulate(config, requests)
    assert done.finished.all()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.replace("quantum_s", "quantom_s"), r"run.yaml:4: quantom_s: unknown field"),
        (lambda t: t.replace("0.35", "1.35"), r"run.yaml:8: models.0.memory_share"),
        (lambda t: t.replace("0.35", "0.85"), r"add up to more than 1"),
        (lambda t: t.replace("0.35", "0.10"), r"opt-13b: 9.6 GB hold its weights"),
        (lambda t: t.replace("GH200-96", "GH201"), r"unknown GPU 'GH201'"),
        (lambda t: t.replace("model: opt-13b", "model: opt-14b"), r"opt-14b"),
        (lambda t: t.replace("rate_per_s: 4, ", ""), r"give rate_per_s, or the path of a trace"),
        (
            lambda t: t.replace("lengths: sharegpt", "lengths: none.csv"),
            r"none.csv: cannot be read",
        ),
        (lambda t: t + "failures: [{device: 3, at_s: 1, for_s: 1}]", r"there is no device 3"),
        (lambda t: t.replace("arm: mirage", "arm: magic"), r"run.yaml:2: arm"),
    ],
)
def test_a_fault_of_the_file_is_named(change: Callable[[str], str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_run(parsed(change(SHORT)))


def test_a_trace_by_path_is_scaled_and_cut_to_what_the_model_takes(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:17:{s:02d}.0000000,{100 * s + 1},5\n" for s in range(60))
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    traffic = f"{{trace: {tmp_path / 't.csv'}, rate_per_s: 2}}"
    text = SHORT.replace("{rate_per_s: 4, arrivals: azure-code, lengths: sharegpt}", traffic)
    _, requests = build_run(parsed(text))
    mine = requests.model == 0
    assert requests.prompt_tokens[mine].max() == 3901  # of up to 5,901; 4,096 is the longest
    assert requests.arrival_ps[mine].max() < 20 * 10**12


def test_the_command_writes_what_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SHORT)
    app = typer.Typer()
    app.command()(simulate_command)
    files = {name: tmp_path / name for name in ("r.parquet", "s.csv", "p.png", "t.json")}
    options = ["--requests", "--steps", "--plot", "--trace"]
    words = [str(w) for pair in zip(options, files.values(), strict=True) for w in pair]
    told = CliRunner().invoke(app, [str(tmp_path / "run.yaml"), *words], catch_exceptions=False)
    assert told.exit_code == 0
    assert "opt-13b" in told.output
    assert "not calibrated" in told.output
    for path in files.values():
        assert path.stat().st_size > 0
    assert [each.model for each in read_run_file(tmp_path / "run.yaml").models] == [
        "opt-13b",
        "llama-3-8b",
    ]


def test_the_command_gives_the_range_of_a_gpu_that_nobody_calibrated(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SHORT.replace("horizon_s: 20", "horizon_s: 5"))
    app = typer.Typer()
    app.command()(simulate_command)
    told = CliRunner().invoke(app, [str(tmp_path / "run.yaml"), "--range"], catch_exceptions=False)
    assert "all, slow GPU" in told.output
    assert "all, fast GPU" in told.output
