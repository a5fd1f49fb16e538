"""Times of steps: figures worked out by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import MisuseError
from mirage_core.model import UnitGrain
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.hardware import Rate, find_hardware
from mirage_core.sizing.roofline import Part, step_times, unit_times

GH200 = find_hardware("GH200-96")
MODELS = ["opt-13b", "llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-3-1b", "jamba-v0.1"]


@pytest.mark.parametrize(
    ("batch", "context_tokens", "layer_ms"),
    [
        (1, 76.8, 0.158),
        (128, 76.8, 0.208),  # Alpaca: mean context of a token of a reply
        (128, 373.6, 0.402),  # ShareGPT, the same
    ],
)
def test_a_layer_of_opt_13b_at_peak_bandwidth(
    batch: int, context_tokens: float, layer_ms: float
) -> None:
    step = [Part(batch, context_tokens - 1)]
    times = step_times(find_model("opt-13b"), step, GH200.as_published())
    assert round(1e3 * times.layers_s[0], 3) == layer_ms


def test_a_layer_of_opt_13b_crosses_the_papers_link_in_1_474_ms() -> None:
    assert round(1e3 * find_model("opt-13b").layers[0].size_bytes / 427e9, 3) == 1.474


@pytest.mark.parametrize("grain", UnitGrain)
@pytest.mark.parametrize("name", MODELS)
def test_times_of_units_add_up_to_the_step(name: str, grain: UnitGrain) -> None:
    model = find_model(name)
    step = [Part(7, 900), Part(1, 100, 300)]
    whole, units = step_times(model, step, GH200), unit_times(model, grain, step, GH200)
    assert len(units.layers_s) == len(model.units(grain))
    assert units.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert min(units.layers_s) > 0


steps = st.lists(
    st.builds(Part, st.integers(1, 64), st.integers(0, 5000), st.integers(1, 600)),
    min_size=1,
    max_size=3,
)


@given(name=st.sampled_from(MODELS), step=steps, factor=st.floats(1.0, 10.0))
@settings(deadline=None, max_examples=60)
def test_faster_hardware_never_takes_longer(name: str, step: list[Part], factor: float) -> None:
    def faster(rate: Rate) -> Rate:
        return Rate(rate.spec * factor, rate.low * factor, rate.high * factor)

    model = find_model(name)
    plain_s = step_times(model, step, GH200).step_s
    memory = replace(GH200, hbm_bytes_per_s=faster(GH200.hbm_bytes_per_s))
    arithmetic = replace(GH200, flops_per_s=faster(GH200.flops_per_s))
    assert 0.0 < step_times(model, step, memory).step_s <= plain_s
    assert 0.0 < step_times(model, step, arithmetic).step_s <= plain_s


@given(name=st.sampled_from(MODELS), step=steps, more=st.integers(1, 500))
@settings(deadline=None, max_examples=60)
def test_more_work_never_takes_less(name: str, step: list[Part], more: int) -> None:
    model = find_model(name)
    plain_s = step_times(model, step, GH200).step_s
    first = step[0]
    for grown in (
        first._replace(requests=first.requests + more),
        first._replace(context_tokens=first.context_tokens + more),
        first._replace(new_tokens=first.new_tokens + more),
    ):
        assert step_times(model, [grown, *step[1:]], GH200).step_s >= plain_s * (1 - 1e-12)


def test_a_small_batch_reads_only_the_experts_that_it_uses() -> None:
    model = find_model("mixtral-8x7b")
    one, many = (step_times(model, [Part(batch, 0)], GH200).step_s for batch in (1, 64))
    assert 3.0 < many / one < 4.0


def test_a_step_without_tokens_is_a_mistake() -> None:
    with pytest.raises(MisuseError, match="one token or more"):
        step_times(find_model("opt-13b"), [], GH200)
