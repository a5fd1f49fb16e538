"""The plan: placement, lending and figures, by the product's own policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mirage_core.errors import ConfigError
from mirage_core.model import UnitGrain
from mirage_core.planner.lend import Member, Traffic, lend, pool_size
from mirage_core.planner.place import PlacedGpu, place, request_tokens
from mirage_core.planner.plan import make_plan
from mirage_core.planner.report import render
from mirage_core.planner.wanted import (
    Question,
    Wanted,
    parse_gpu_options,
    parse_model_option,
    read_question,
)
from mirage_core.policy.cost import StepCost
from mirage_core.policy.how_many import SlotRule, build_plan_table, largest_free_plan
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.hardware import Hardware, find_hardware

C1 = ({"model": "opt-13b", "share": 0.35}, {"model": "llama-2-13b", "share": 0.35},
      {"model": "llama-3-8b", "share": 0.20})  # fmt: skip


def question(*models: Mapping[str, Any], gpu: str = "GH200-96", **rest: Any) -> Question:
    values = {"gpus": [{"gpu": gpu}], "models": list(models), "loads": [], **rest}
    return Question(Wanted.model_validate(values))


def members(asked: Question) -> list[Member]:
    return [
        Member(
            tenant,
            pool_size(tenant, asked.wanted.block_tokens, asked.wanted.page_bytes),
            Traffic(prompt_tokens=109, context_tokens=374),
            request_tokens(asked, tenant.sizing),
        )
        for tenant in place(asked)[0].tenants
    ]


def fixed(gpu: str = "GH200-96", share: float = 0.5) -> Hardware:
    return find_hardware(gpu).at(share)


# ---- placement


def test_shares_of_the_papers_first_cluster_leave_the_kv_cache_that_facts_state() -> None:
    (gpu,) = place(question(*C1))
    tokens = [pool_size(tenant, 16, 2 << 20).tokens for tenant in gpu.tenants]
    assert tokens == [9632, 9232, 23952]
    assert gpu.claimed_bytes <= gpu.usable_bytes


def test_the_papers_second_cluster_does_not_fit_in_decimal_gigabytes() -> None:
    with pytest.raises(ConfigError, match=r"opt-30b: a share of 0.65 is 62.4 GB"):
        place(question({"model": "opt-30b", "share": 0.65}, {"model": "opt-6.7b", "share": 0.15}))


def test_models_without_a_share_divide_what_is_left() -> None:
    (gpu,) = place(question({"model": "opt-13b"}, {"model": "llama-3-8b"}))
    pools = [tenant.size_bytes - tenant.sizing.weight_bytes for tenant in gpu.tenants]
    least = [tenant.sizing.request_bytes(2048, 16) for tenant in gpu.tenants]
    assert pools[0] - least[0] == pytest.approx(pools[1] - least[1], rel=0.01)
    assert 0 <= gpu.usable_bytes - gpu.claimed_bytes < 10


def test_models_spread_over_gpus_and_replicas_over_different_ones() -> None:
    asked = question(
        {"model": "opt-30b"}, {"model": "llama-2-13b", "replicas": 2},
        gpus=[{"gpu": "H100-SXM", "count": 3}],
    )  # fmt: skip
    held = [[tenant.wanted.label for tenant in gpu.tenants] for gpu in place(asked)]
    assert sorted(held) == [["llama-2-13b"], ["llama-2-13b"], ["opt-30b"]]


def test_ranks_of_a_model_are_placed_on_gpus_of_one_node() -> None:
    model = {"model": "llama-3.1-70b", "ranks": 2}
    asked = question(model, gpus=[{"gpu": "H100-SXM", "count": 2, "per_node": 2}])
    assert [len(gpu.tenants) for gpu in place(asked)] == [1, 1]
    with pytest.raises(ConfigError, match=r"llama-3\.1-70b has no room"):
        place(question(model, gpus=[{"gpu": "H100-SXM", "count": 2}]))


def test_a_model_without_room_is_named_with_what_is_left() -> None:
    with pytest.raises(ConfigError, match=r"mixtral-8x7b has no room: it needs 93\..*gpu 0.*72\.0"):
        place(question({"model": "mixtral-8x7b"}, gpu="H100-SXM"))


# ---- lending


def test_units_given_while_active_are_those_of_the_policys_own_tables() -> None:
    asked = question(*C1)
    member, gpu = members(asked)[0], fixed()
    (lending, *_) = lend(members(asked), gpu, UnitGrain.LAYER)
    layer_bytes = member.tenant.sizing.units(UnitGrain.LAYER)[0].size_bytes
    rest_s = lending.step_s * 0.06
    cost = StepCost(
        ((lending.step_s - rest_s) / 40,) * 40,
        (layer_bytes / gpu.h2d_bytes_per_s.typical,) * 40,
        rest_s,
    )
    plan = largest_free_plan(build_plan_table(cost, (300,) * 40, SlotRule.BEST)).plan
    assert lending.free_units == len(plan.cycled) - len(plan.slots) > 0


@pytest.mark.parametrize("grain", [UnitGrain.LAYER, UnitGrain.HALF])
def test_remapping_never_takes_tokens_away(grain: UnitGrain) -> None:
    asked = question(*C1)
    for lending, member in zip(lend(members(asked), fixed(), grain), members(asked), strict=True):
        granule_tokens = member.pool.granule_blocks * member.pool.block_tokens
        assert member.pool.tokens - granule_tokens < lending.tokens_others_busy
        assert lending.tokens_others_busy <= lending.tokens_others_idle
        assert 0 <= lending.free_units <= lending.units


def test_a_faster_link_never_lends_less_and_smaller_units_never_free_fewer_bytes() -> None:
    asked = question(*C1)
    cases = [lend(members(asked), fixed(gpu), UnitGrain.LAYER) for gpu in ("H100-SXM", "GH200-96")]
    slow, fast = ([lending.free_bytes for lending in case] for case in cases)
    assert all(one <= other for one, other in zip(slow, fast, strict=True))
    assert sum(slow) < sum(fast)
    halves = [lending.free_bytes for lending in lend(members(asked), fixed(), UnitGrain.HALF)]
    assert all(one <= other for one, other in zip(fast, halves, strict=True))


def test_an_active_model_behind_pcie_gives_nothing() -> None:
    asked = question({"model": "opt-13b", "share": 0.45}, gpu="H100-SXM")
    (lending,) = lend(members(asked), fixed("H100-SXM"), UnitGrain.LAYER)
    assert lending.free_units == 0


def test_a_cold_start_takes_as_long_as_the_weights_on_the_link() -> None:
    asked = question(*C1)
    (lending, *_) = lend(members(asked), fixed(), UnitGrain.LAYER)
    rate = fixed().h2d_bytes_per_s.typical
    assert lending.load_s == find_model("opt-13b").weight_bytes / rate
    assert lending.lent_first_token_s <= lending.prefill_s * (1 + 1e-9)


# ---- the whole plan


def test_a_plan_has_ranges_latencies_and_costs_and_is_valid_json() -> None:
    asked = question(
        *C1[1:],
        gpus=[{"gpu": "GH200-96", "price_per_hour": 3.0}],
        loads=[0.3, 2.0],
        requests=60,
        lengths="alpaca",
    )
    (gpu,) = make_plan(asked).gpus
    assert not gpu.calibrated
    model = gpu.models[0]
    assert model.load_s.low < model.load_s.high
    assert model.movable_bytes + model.static_bytes + model.pool_bytes == model.size_bytes
    assert [(point.load, point.arm) for point in gpu.loads] == [
        (0.3, "static"), (0.3, "mirage"), (2.0, "static"), (2.0, "mirage"),
    ]  # fmt: skip
    light, heavy = gpu.loads[0], gpu.loads[2]
    assert light.ttft_p99_s.low <= heavy.ttft_p99_s.high
    assert heavy.tokens_per_s.low > light.tokens_per_s.high
    assert light.cost_per_million is not None
    assert heavy.cost_per_million is not None
    assert light.cost_per_million.low > heavy.cost_per_million.high
    priced = 3.0 / 3600 / heavy.tokens_per_s.high * 1e6
    assert heavy.cost_per_million.low == pytest.approx(priced)
    json.dumps(make_plan(asked).to_json(), allow_nan=False)


def test_a_plan_is_the_same_each_time() -> None:
    asked = question(*C1, loads=[1.0], requests=40)
    assert make_plan(asked) == make_plan(asked)


def test_models_that_the_simulator_does_not_know_are_planned_without_latencies() -> None:
    (gpu,) = make_plan(question({"model": "falcon-h1-1.5b"}, loads=[0.5])).gpus
    assert gpu.loads == ()
    assert "latency is not predicted" in gpu.notes[0]
    assert "keeps a state" in gpu.models[0].notes[0]


def test_a_model_that_keeps_nothing_by_token_has_no_tokens() -> None:
    (gpu,) = make_plan(question({"model": "mamba-2.8b"}, {"model": "opt-13b"})).gpus
    mamba, opt = gpu.models
    assert mamba.static_tokens == mamba.tokens_others_idle.high == 0
    assert opt.static_tokens > 0


def test_a_gpu_without_models_stays_empty() -> None:
    plan = make_plan(question({"model": "opt-13b"}, gpus=[{"gpu": "GH200-96", "count": 2}]))
    assert [len(gpu.models) for gpu in plan.gpus] == [1, 0]


def test_tables_fit_80_columns_and_say_what_they_are() -> None:
    asked = question(*C1, loads=[0.5], requests=40)
    console = Console(width=80, record=True)
    for each in render(make_plan(asked)):
        console.print(each)
    text = console.export_text()
    assert "9.63k" in text
    assert "not calibrated" in text
    assert "No cost: give the GPU a price" in text
    assert "…" not in text


# ---- what is asked

FILE = """\
gpus:
  - gpu: GH200-96
models:
  - model: opt-13b
    share: 0.35
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GH200-96", "GH300", r"ask.yaml:2: gpus.0.gpu: unknown GPU 'GH300'"),
        ("opt-13b", "opt-14b", r"ask.yaml:4: models.0.model: unknown model 'opt-14b'"),
        ("share: 0.35", "sharee: 0.35", r"ask.yaml:5: models.0.sharee: unknown field$"),
        ("share: 0.35", "share: 1.5", r"ask.yaml:5: models.0.share: Input should be less"),
        ("share: 0.35", "dtype: float7", r"ask.yaml:4: models.0.model: unknown dtype 'float7'"),
        ("share: 0.35", "share: 0.05", r"ask.yaml:4: models.0: opt-13b: a share of 0.05 is 4.8"),
        ("share: 0.35", "ranks: 2", r"ask.yaml:4: models.0: opt-13b has no room"),
        ("share: 0.35", "ranks: 3", r"ask.yaml:4: models.0.model: .* over 3 ranks"),
        ("share: 0.35", "share: 0.35\n  - model: opt-13b", r"two models are called opt-13b"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "ask.yaml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        place(read_question(path))


def test_more_gpus_can_be_given_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    rate = "{spec: 1000, source: mine}"
    path.write_text(
        "gpus:\n  Mine:\n    hbm_gb: 40\n"
        + "".join(
            f"    {name}: {rate}\n"
            for name in ("hbm_gb_per_s", "bf16_tflop_per_s", "h2d_gb_per_s", "d2h_gb_per_s")
        )
    )
    gpu: PlacedGpu = place(question({"model": "opt-13b"}, gpu="Mine", hardware=path))[0]
    assert gpu.hardware.hbm_bytes == 40e9


def test_options_name_models_and_count_gpus() -> None:
    model = parse_model_option("opt-13b:0.35")
    assert (model.model, model.share) == ("opt-13b", 0.35)
    assert parse_model_option("opt-13b").share is None
    gpus = parse_gpu_options(["A", "B", "A"], 2.0)
    assert [(gpu.gpu, gpu.count, gpu.price_per_hour) for gpu in gpus] == [
        ("A", 2, 2.0), ("B", 1, 2.0),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--model opt-13b:half: write NAME or NAME:SHARE"):
        parse_model_option("opt-13b:half")
    with pytest.raises(ConfigError, match="--model opt-13b:35: write NAME or NAME:SHARE"):
        parse_model_option("opt-13b:35")
