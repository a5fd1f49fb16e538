"""Sizes of models: against figures published or known, and laws that hold for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import ConfigError, UnsupportedError
from mirage_core.model import UnitGrain
from mirage_core.sizing.architectures import FAMILIES, size_model
from mirage_core.sizing.caches import CacheKind
from mirage_core.sizing.catalogue import find_model, known_models
from mirage_core.sizing.weights import Dtype, parse_dtype

FACTS = {
    # published parameters, those of the largest layer, KV bytes a token in 16 bits
    "opt-6.7b": (6_658_473_984, 201_379_840, 524_288),
    "opt-13b": (12_853_473_280, 314_639_360, 819_200),
    "opt-30b": (29_974_540_288, 616_655_872, 1_376_256),
    "llama-2-13b": (13_015_864_320, 317_204_480, 819_200),
    "llama-3-8b": (8_030_261_248, 218_112_000, 131_072),
    "llama-3.1-70b": (70_553_706_496, 855_654_400, 327_680),
    "qwen3-8b": (8_190_735_360, 192_946_432, 147_456),
    "mixtral-8x7b": (46_702_792_704, 1_451_270_144, 131_072),
    "deepseek-v2-lite": (15_706_484_224, 584_847_872, 31_104),
    "deepseek-v3": (671_026_419_200, 11_507_286_272, 70_272),
}
NAMES = sorted(known_models())


@pytest.mark.parametrize("name", FACTS)
def test_published_figures_are_met_to_the_last_parameter(name: str) -> None:
    model = find_model(name)
    largest = max(layer.params for layer in model.layers)
    assert (model.published_params, largest, model.kv_bytes_per_token) == FACTS[name]


def test_a_token_of_mixtral_multiplies_two_experts_of_eight() -> None:
    model = find_model("mixtral-8x7b")
    embedding = 32_000 * 4096  # looked up, not multiplied
    assert model.token_flops == 2 * (12_879_925_248 - embedding)


def test_every_kind_of_cache_is_among_the_known_models() -> None:
    kinds = {cache.kind for name in NAMES for cache in find_model(name).caches()}
    assert kinds == set(CacheKind)


def test_every_family_has_a_known_model() -> None:
    sized = {entry.config["architectures"][0] for entry in known_models().values()}
    assert sized | {"DeepseekV3ForCausalLM"} == set(FAMILIES)


@pytest.mark.parametrize("grain", UnitGrain)
@pytest.mark.parametrize("name", NAMES)
def test_units_and_the_static_part_add_up_to_the_model(name: str, grain: UnitGrain) -> None:
    model = find_model(name)
    units = model.units(grain)
    assert sum(unit.size_bytes for unit in units) == model.movable_bytes
    assert model.movable_bytes + model.static_bytes == model.weight_bytes
    assert [unit.layer for unit in units] == sorted(unit.layer for unit in units)
    assert len({unit.name for unit in units}) == len(units)


@pytest.mark.parametrize("name", ["opt-13b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_ranks_together_hold_the_model_and_what_each_keeps_whole(name: str) -> None:
    whole, half = find_model(name), find_model(name, ranks=2)
    assert whole.weight_bytes <= 2 * half.weight_bytes < 1.02 * whole.weight_bytes
    latent = any(cache.kind is CacheKind.MLA for cache in whole.caches())
    shared = 1 if latent else 2
    assert half.kv_bytes_per_token * shared == whole.kv_bytes_per_token


def test_more_ranks_than_key_value_heads_hold_copies_of_them() -> None:
    assert find_model("glm-4-9b", ranks=8).kv_bytes_per_token == 40 * 2 * 128 * 2


@given(
    name=st.sampled_from(NAMES),
    tokens=st.integers(1, 200_000),
    more=st.integers(1, 5000),
    block=st.sampled_from([1, 16, 32, 128]),
)
@settings(deadline=None)
def test_a_request_grows_with_its_context_by_whole_blocks(
    name: str, tokens: int, more: int, block: int
) -> None:
    model = find_model(name)
    shorter, longer = (model.request_bytes(count, block) for count in (tokens, tokens + more))
    assert shorter <= longer
    assert model.request_bytes(tokens, 1) <= shorter
    bound = model.kv_bytes_per_token * (tokens + 2 * block) + model.state_bytes_per_request
    cross = sum(c.token_bytes * block for c in model.caches() if c.kind is CacheKind.CROSS)
    assert shorter <= bound + cross


def test_a_window_bounds_what_a_request_keeps() -> None:
    model = find_model("gemma-3-1b")
    full = sum(cache.token_bytes for cache in model.caches() if cache.kind is CacheKind.FULL)
    assert model.request_bytes(30_000) - model.request_bytes(20_000) == 10_000 * full


def test_a_state_costs_the_same_at_any_length() -> None:
    model = find_model("mamba-2.8b")
    assert model.request_bytes(1) == model.request_bytes(100_000) == model.state_bytes_per_request


def test_dtypes_scale_weights_and_caches_apart() -> None:
    narrow = find_model("llama-3-8b", kv_dtype=Dtype.FP8)
    wide = find_model("llama-3-8b", dtype=Dtype.FLOAT32, kv_dtype=Dtype.BFLOAT16)
    usual = find_model("llama-3-8b")
    assert narrow.weight_bytes == usual.weight_bytes == wide.weight_bytes // 2
    assert 2 * narrow.kv_bytes_per_token == usual.kv_bytes_per_token == wide.kv_bytes_per_token


def test_a_quantized_model_has_small_linears_and_all_else_as_before() -> None:
    usual, small = find_model("llama-3-8b"), find_model("llama-3-8b", dtype=Dtype.FP8)
    assert 2 * small.movable_bytes == usual.movable_bytes
    assert small.static_bytes == usual.static_bytes
    assert small.kv_bytes_per_token == usual.kv_bytes_per_token


def config(**changes: Any) -> dict[str, Any]:
    return {**known_models()["llama-3-8b"].config, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "m: hidden_size or n_embd or d_model is missing"),
        ({"num_hidden_layers": 0}, "m: num_hidden_layers must be a whole number of at least 1"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads must be a whole number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"architectures": []}, "m: architectures must be a list of texts"),
        ({"dtype": "bfloat17"}, "unknown dtype 'bfloat17'; there are"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        size_model(config(**changes), name="m")


def test_what_is_not_sized_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="architecture T5Model is not sized"):
        size_model(config(architectures=["T5Model"]), name="m")
    with pytest.raises(UnsupportedError, match="quantization_config is not sized"):
        size_model(config(quantization_config={"quant_method": "awq"}), name="m")


def test_ranks_that_do_not_divide_a_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="14 attention heads cannot be split over 4 ranks"):
        find_model("qwen2.5-0.5b", ranks=4)


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'opt-14b'.*opt-13b"):
        find_model("opt-14b")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch.float16", Dtype.FLOAT16), ("half", Dtype.FLOAT16), ("fp8_e4m3", Dtype.FP8)],
)
def test_dtypes_have_several_names(name: str, dtype: Dtype) -> None:
    assert parse_dtype(name) is dtype
