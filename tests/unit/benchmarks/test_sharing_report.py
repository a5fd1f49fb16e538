"""Conditions, the result's JSON and table, the timeline, and the pictures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sharing_samples import LARGE_BYTES, SMALL_BYTES, outcome

from benchmarks.sharing.arms import Setup, StockArm, static_engines
from benchmarks.sharing.client import Run
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.figures import figures_of
from benchmarks.sharing.plots import draw
from benchmarks.sharing.report import ArmResult, Result, table
from benchmarks.sharing.servers import Engine, ServerError
from benchmarks.sharing.timeline import Sample, read_timeline
from mirage_core.errors import ConfigError

FIGURES = {
    "throughput_tok_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tbt_p50_s",
    "tbt_p99_s",
    "preemptions",
    "completed",
    "failed",
}


@dataclass(frozen=True)
class OtherArm:
    """An arm with the plug-in's kernels."""

    name: str
    same_kernels: bool = True

    def setup(self, conditions: Conditions) -> Setup:
        return Setup(static_engines(conditions, 0.4))

    async def enter(self, engines: Mapping[str, Engine]) -> None: ...

    async def counters(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        return {"preemptions": 0}


def result_of(arm: OtherArm | StockArm, last_s: float, tokens: list[int]) -> ArmResult:
    run = Run(50.0, (outcome(0, [1.0, last_s], tokens), outcome(1, [2.0], [4], model="large")))
    samples = (
        Sample(0.0, "small", 20, 5, 150, 0, 0),
        Sample(1.0, "small", 60, 50, 150, 0, 0),
        Sample(0.0, "large", 30, 0, 300, 0, 0),
        Sample(1.0, "large", 30, 0, 100, 12, 0),
    )
    figures = figures_of(run, {"preemptions": 1.0, "remaps": 2.0})
    return ArmResult(arm, run, figures, () if arm.name == "stock" else samples)


@pytest.fixture
def result(conditions: Conditions) -> Result:
    made = Result(conditions, saturation_tok_s={"small": 10.0, "large": 5.0})
    for load in conditions.loads:
        made.loads[load] = [
            result_of(StockArm(0.4), 8.0 * load, [1, 3]),
            result_of(OtherArm("passive"), 8.0 * load, [1, 2]),
            result_of(OtherArm("elastic"), 6.0 * load, [1, 2]),
            result_of(OtherArm("mirage"), 4.0 * load, [1, 2]),
        ]
    made.splits = {0.4: made.loads[2.0][0].figures, 0.5: result_of(StockArm(0.5), 99, []).figures}
    made.no_pressure_ratio = 0.99
    return made


def test_pools_are_whole_blocks_within_the_kv_memory(conditions: Conditions) -> None:
    assert conditions.device_bytes % conditions.page_bytes == 0
    assert conditions.kv_bytes == conditions.device_bytes - SMALL_BYTES - LARGE_BYTES
    assert conditions.kv_bytes / conditions.device_bytes == pytest.approx(0.1, abs=0.01)
    for split in (0.2, 0.5, 0.8):
        pools = conditions.pools(split)
        assert sum(pools.values()) <= conditions.kv_bytes
        for model in conditions.models:
            assert pools[model.name] % model.block_bytes(conditions.block_size) == 0


def test_a_split_that_cannot_hold_the_longest_request_is_refused(conditions: Conditions) -> None:
    with pytest.raises(ConfigError, match="5% of the KV memory gives small"):
        conditions.pools(0.05)


def test_static_engines_have_the_split_s_pools_and_their_own_cores(conditions: Conditions) -> None:
    small, large = static_engines(conditions, 0.4)
    assert {small.name: small.kv_bytes, large.name: large.kv_bytes} == conditions.pools(0.4)
    assert not set(small.cores) & set(large.cores)


def test_the_json_holds_every_arm_and_ratio_of_every_load(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sharing.json"
    result.write(path)
    read = json.loads(path.read_text())

    assert set(read["loads"]) == {"1", "2"}
    for entry in [read, *read["loads"].values()]:
        assert set(entry["arms"]) == {"stock", "passive", "elastic", "mirage"}
        for figures in entry["arms"].values():
            assert set(figures) >= FIGURES
        assert entry["arms"]["mirage"]["remaps"] == 2
        assert entry["outputs_identical"] is True
        assert entry["stock_divergence"] == 0.5
        assert entry["ratio_vs_stock"] == pytest.approx(2.0)
        assert entry["ratio_vs_elastic"] == pytest.approx(1.5)
    assert read["arms"] == read["loads"]["2"]["arms"]
    assert read["no_pressure_ratio"] == 0.99
    assert read["stock_split"] == 0.4
    assert read["conditions"]["kv_share"] == 0.1
    assert read["conditions"]["models"]["large"]["worker_cores"] == [1]


def test_a_wrong_token_of_one_arm_shows(result: Result) -> None:
    result.loads[2.0][-1] = result_of(OtherArm("mirage"), 8.0, [1, 9])
    assert result.as_json()["outputs_identical"] is False


def test_what_was_not_measured_is_null(conditions: Conditions) -> None:
    made = Result(conditions)
    made.loads[2.0] = [result_of(StockArm(0.4), 8.0, [1, 2])]
    read = made.as_json()
    for name in ("outputs_identical", "stock_divergence", "ratio_vs_stock", "no_pressure_ratio"):
        assert read[name] is None
    assert Result(conditions).as_json()["loads"] == {}


def test_the_table_fits_a_terminal_of_80_columns(result: Result) -> None:
    text = StringIO()
    Console(file=text, width=80).print(table(result))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (mirage,) = [line.split() for line in lines if line.split()[:2] == ["2x", "mirage"]]
    assert mirage[3] == "2.00"
    assert "…" not in text.getvalue()


def test_a_load_has_a_picture(result: Result, tmp_path: Path) -> None:
    del result.loads[1.0]
    (file,) = draw(result, tmp_path / "pictures")
    assert file.name == "sharing-2x.png"
    assert file.read_bytes().startswith(b"\x89PNG")


LINE = {
    "t_s": 12.0,
    "model": "small",
    "pool_pages": 4,
    "spare_pages": 2,
    "resident_pages": 9,
    "cycled_units": 1,
    "free_pages": 3,
}


def test_a_timeline_is_cut_to_the_run_and_counts_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    lines = [json.dumps({**LINE, "t_s": t_s, "more": 1}) for t_s in (9.0, 12.0, 21.0)]
    path.write_text("\n".join(lines) + '\n{"t_s": 13.0, "eng')
    expected = Sample(2.0, "small", 4, 2, 9, 1, 3)
    assert read_timeline(path, 10.0, 20.0) == (expected,)
    assert read_timeline(path, 3.0, 9.5) == (replace(expected, t_s=6.0),)


@pytest.mark.parametrize("text", ["nonsense\n", '{"t_s": 1.0}\n', "3\n"])
def test_a_timeline_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "timeline.jsonl"
    with pytest.raises(ServerError, match="no timeline"):
        read_timeline(path, 0, 1)
    path.write_text(text)
    with pytest.raises(ServerError, match="no timeline"):
        read_timeline(path, 0, 1)


def test_stock_engines_load_no_plug_in(conditions: Conditions) -> None:
    for engine in StockArm(0.4).setup(conditions).engines:
        assert engine.environment()["VLLM_PLUGINS"] == ""
    for engine in static_engines(conditions, 0.4):
        assert "VLLM_PLUGINS" not in engine.environment()
