"""Stalls against FACTS §4's formulas and table, and against a plain simulation of one step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_core.errors import ConfigError
from mirage_core.model import RESIDENT, RemapPlan, UnitId
from mirage_core.policy.cost import closed_form_step_s
from mirage_core.policy.how_many import SlotRule, build_plan_table, largest_free_plan
from mirage_core.policy.which_units import assign_slots, choose_even_units
from mirage_core.simulator.mirage_stalls import StallModel, units_of
from mirage_core.simulator.step_time import Stretch
from mirage_core.simulator.units import to_ps

LAYERS = 40
LAYER_BYTES = 1000
LINK = 1000.0
"""A layer crosses the link in a second."""


def model(parts: int = 1) -> StallModel:
    return StallModel(units_of((LAYER_BYTES,) * LAYERS, (), parts))


def even_plan(freed: int, slots: int) -> RemapPlan:
    units = [UnitId(unit) for unit in range(LAYERS)]
    return RemapPlan(assign_slots(choose_even_units(units, freed + slots), slots))


def plain_s(ratio: float) -> float:
    """A step whose layers compute in 1/ratio of their transfer."""
    return LAYERS / ratio


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.6, 9.37])
@pytest.mark.parametrize(("freed", "slots"), [(1, 1), (3, 1), (9, 1), (2, 2), (6, 2), (10, 2)])
def test_step_under_an_even_plan_is_that_of_the_formulas(
    ratio: float, freed: int, slots: int
) -> None:
    step_s = model().step_s(even_plan(freed, slots), plain_s(ratio), LINK)
    ideal_s = closed_form_step_s(LAYERS, freed, slots, 1.0 / ratio, 1.0)
    # Gaps between cycled layers are whole layers: the widest and the mean one differ by less
    # than one, which costs less than a layer's compute for each cycled layer.
    assert ideal_s - 1e-9 <= step_s <= ideal_s + (freed + slots) / ratio


@pytest.mark.parametrize(
    ("ratio", "whole", "halves", "quarters", "eighths"),
    [
        (9.3, 2, 3, 3.5, 4),
        (7.1, 3, 4, 5, 5.25),
        (4.6, 6, 7, 8, 8.25),
        (3.7, 8, 9, 10, 10.5),
        (2.0, 18, 19, 19.5, 19.75),
    ],
)
def test_layers_freed_without_stall_are_those_of_the_table(
    ratio: float, whole: float, halves: float, quarters: float, eighths: float
) -> None:
    for parts, layers in ((1, whole), (2, halves), (4, quarters), (8, eighths)):
        cost = model(parts).cost(plain_s(ratio), LINK)
        table = build_plan_table(cost, (1,) * (LAYERS * parts), SlotRule.BEST)
        freed = largest_free_plan(table).freed_pages / parts
        # The table was made with any number of slots, the policy tries three at most.
        assert layers - 0.5 <= freed <= layers + 0.25, (parts, freed)
        if parts == 1:
            assert freed == layers


plans = st.tuples(st.integers(1, 20), st.integers(1, 3)).filter(lambda p: p[0] >= p[1])


@given(plan=plans, ratio=st.floats(0.5, 12.0), other=st.floats(0.2, 3.0))
def test_stretch_is_exact_at_the_batch_at_hand_and_never_too_long_elsewhere(
    plan: tuple[int, int], ratio: float, other: float
) -> None:
    stalls, remap = model(), even_plan(*plan)
    step_s = plain_s(ratio)
    stretch = stalls.stretch(remap, step_s, LINK)
    assert isinstance(stretch, Stretch)
    exact_s = stalls.step_s(remap, step_s, LINK)
    stretched_s = stretch.step_ps(to_ps(step_s), 0) / 1e12
    # One tangent serves step times within 2.5 % on either side.
    assert abs(stretched_s - exact_s) <= 0.03 * exact_s
    there_s = stalls.step_s(remap, step_s * other, LINK)
    assert stretch.step_ps(to_ps(step_s * other), 0) / 1e12 <= there_s * 1.002


@given(plan=plans, ratio=st.floats(0.5, 12.0), faster=st.floats(1.0, 5.0))
def test_faster_link_never_lengthens_a_step(
    plan: tuple[int, int], ratio: float, faster: float
) -> None:
    stalls, remap = model(), even_plan(*plan)
    slow_s = stalls.step_s(remap, plain_s(ratio), LINK)
    assert stalls.step_s(remap, plain_s(ratio), LINK * faster) <= slow_s * (1 + 1e-9)


def test_resident_model_has_no_stretch() -> None:
    assert model().stretch(RESIDENT, 1.0, LINK) is None


@given(
    lands=st.dictionaries(st.integers(0, LAYERS - 1), st.floats(-5.0, 60.0), max_size=8),
    step_s=st.floats(0.1, 50.0),
)
def test_landing_delay_is_what_walking_through_the_step_gives(
    lands: dict[int, float], step_s: float
) -> None:
    at_s = 0.0
    for unit in range(LAYERS):
        at_s = max(at_s, lands.get(unit, at_s)) + step_s / LAYERS
    landing = [(UnitId(unit), lands_s) for unit, lands_s in lands.items()]
    delay_s = max(0.0, model().landing_delay_s(landing, step_s))
    assert delay_s == pytest.approx(at_s - step_s, abs=1e-9)


def test_units_are_cut_into_equal_parts_that_make_the_whole() -> None:
    units = units_of((1000, 600), (0.5, 0.3), 4)
    assert [unit.size_bytes for unit in units] == [250] * 4 + [150] * 4
    assert sum(unit.compute_share for unit in units) == pytest.approx(0.8)
    with pytest.raises(ConfigError, match="0 parts"):
        units_of((1,), (), 0)
