"""From cases to runs to the claims' JSON."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import arithmetic
from benchmarks.figures import conditions as on
from benchmarks.figures.claims import BY_NAME, CLAIMS
from benchmarks.figures.comparisons import Comparison, Metric, comparisons
from benchmarks.figures.conditions import Case
from benchmarks.figures.evaluate import effect, entry, evaluate, values_of, write
from benchmarks.figures.runs import Runner, config_of, simulate_case
from mirage_core.sizing.catalogue import find_model

ARMS = (on.STATIC, on.ELASTIC, on.MIRAGE, on.SWAP, on.remapping(cap=0.2))


@pytest.fixture(scope="module")
def computed():
    return arithmetic.arithmetic(find_model("opt-13b"))


def test_every_claim_has_its_runs_or_its_arithmetic(computed) -> None:
    judged = [comparison.claim for comparison in comparisons()] + list(computed)
    assert sorted(judged) == sorted(claim.name for claim in CLAIMS)


@pytest.mark.parametrize(
    ("r", "whole", "halves", "quarters"),
    [(9.3, 2, 3, 3.5), (7.1, 3, 4, 5), (4.6, 6, 7, 8), (3.7, 8, 9, 10), (2.0, 18, 19, 19.5)],
)
def test_smaller_units_free_more_without_a_stall(r, whole, halves, quarters) -> None:
    """The figures of a slot-level simulation, n = 40, best over the number of slots."""
    freed = [arithmetic.stall_free_layers(40, parts, r) for parts in (1, 2, 4)]
    assert freed == [whole, halves, quarters]


def test_the_two_slot_rule_depends_on_r_and_nine_is_one_case_of_it() -> None:
    assert arithmetic.first_with_two_slots(40, 4000 / 427) == 9
    assert arithmetic.first_with_two_slots(40, 4.6) != 9


def test_a_third_of_both_models_gives_less_than_the_paper_says(computed) -> None:
    assert max(computed["batch-1.75x"].values()) == pytest.approx(0.619, abs=0.001)


def test_effects_are_reductions_of_latencies_and_gains_of_throughput() -> None:
    assert effect(Metric.TTFT_P99, 1.0, 4.0) == 0.75
    assert effect(Metric.THROUGHPUT, 3.0, 2.0) == 0.5
    assert math.isnan(effect(Metric.TBT_P99, math.nan, 1.0))
    assert math.isnan(effect(Metric.THROUGHPUT, 1.0, 0.0))


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.kind)
@pytest.mark.parametrize("sharing", ["temporal", "spatial", "mig"])
def test_every_arm_serves_every_request_under_every_sharing(arm, sharing) -> None:
    slices = (0.35, 0.35, 0.2) if sharing == "mig" else ()
    case = Case(on.c1("Alpaca"), arm=arm, sharing=sharing, slices=slices, requests=45)
    assert simulate_case(case, 20.0).finished.all()


def test_a_load_is_a_multiple_of_what_static_serves_with_all_at_once() -> None:
    runner = Runner()
    case = Case(on.single("Alpaca"), arm=on.MIRAGE, load=0.5, requests=60)
    served = runner.run(case.saturating).figures
    assert runner.rate_per_s(case) == pytest.approx(0.5 * 60 / served.span_s)
    assert runner.rate_per_s(replace(case, load=None, rate_per_s=3.0)) == 3.0
    assert runner.run(case) is runner.run(case)


def test_arms_have_the_same_memory_and_requests_fit_the_static_pool() -> None:
    case = Case(on.c2("ShareGPT", "ShareGPT"), memory="GB")
    config = config_of(case)
    (device,) = config.devices
    assert device.memory_bytes <= 0.8 * 96e9
    pools = [engine.pool_blocks * 16 for engine in device.engines]
    assert pools[0] == pytest.approx(1780, abs=20)  # 65 % of 96 GB beside OPT-30b
    assert simulate_case(replace(case, requests=20), 1.0).finished.all()


def test_a_claim_s_json_gives_value_range_verdict_and_the_elastic_pool(tmp_path: Path) -> None:
    claim = BY_NAME["c1-throughput"]
    case = Case(on.c1("Alpaca"), requests=45)
    pairs = {(("other", "base"),): [(replace(case, arm=on.MIRAGE), case)]}
    compared = Comparison(claim.name, (Metric.THROUGHPUT,), pairs, elastic=True)
    runner = Runner()
    values = values_of(claim, compared.metrics, compared.pairs, runner)
    found = entry(claim, values, values)
    assert found["verdict"] in ("reproduced", "partly", "not")
    assert found["against_elastic"]["base"] == found["ours"]["base"] == values[(("other", "base"),)]
    assert found["calibrated"] is False
    nothing = entry(claim, {(("other", "base"),): math.nan}, None)
    write([found, nothing], tmp_path / "claims.json", runs=2, took_s=1.0)
    written = json.loads((tmp_path / "claims.json").read_text())
    assert written["claims"][1]["ours"]["base"] is None
    assert sum(written["verdicts"].values()) == 2
    assert found["conditions"] == {"other": ["base"]}


def test_runs_in_a_log_are_taken_as_they_are_and_a_torn_line_is_run_again(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    cases = [Case(on.single("Alpaca"), load=load, requests=30) for load in (0.5, 1.3)]
    first = Runner(log)
    measured = [first.run(case) for case in cases]
    lines = log.read_text().splitlines()
    assert len(lines) == 3  # and what gave the rate
    log.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    again = Runner(log, resume=True)
    assert [again.run(case) for case in cases] == measured
    assert log.read_text().splitlines() == lines
    assert Runner(log).measured == {}
    assert log.read_text() == ""


def test_evaluation_wants_values_of_every_claim(computed) -> None:
    with pytest.raises(KeyError):
        evaluate([], computed, Runner())
