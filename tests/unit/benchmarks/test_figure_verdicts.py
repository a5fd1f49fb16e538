"""Rules by which a claim of the paper is judged."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures.verdicts import Claim, Form, Verdict, judge, sensitivity


def claim(form: Form, paper: float | None = 0.5) -> Claim:
    return Claim("c", "8", "text", form, paper)


def settings(*values: float):
    return {(("quantum", str(i)),): value for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("form", "paper", "values", "verdict"),
    [
        (Form.EFFECT, 0.5, (0.5, 0.6, 0.1), Verdict.REPRODUCED),
        (Form.EFFECT, 0.5, (0.5, 0.2, 0.1), Verdict.PARTLY),
        (Form.EFFECT, 0.5, (0.5, 0.6, -0.1), Verdict.PARTLY),
        (Form.EFFECT, 0.5, (0.9, 0.9), Verdict.PARTLY),
        (Form.EFFECT, 0.5, (0.5, -0.1, -0.2), Verdict.NOT),
        (Form.EFFECT, 0.5, (0.0,), Verdict.NOT),
        (Form.EFFECT, -0.127, (-0.1, -0.05), Verdict.REPRODUCED),
        (Form.UP_TO, 0.22, (0.3, 0.12), Verdict.REPRODUCED),
        (Form.EQUAL, None, (0.1, -0.1, 0.0, 0.4), Verdict.REPRODUCED),
        (Form.EQUAL, None, (0.1, 0.4), Verdict.PARTLY),
        (Form.EQUAL, None, (0.1, -0.4, -0.4), Verdict.NOT),
        (Form.EXACT, 0.75, (0.62,), Verdict.PARTLY),
        (Form.EXACT, 7.0, (7.03,), Verdict.REPRODUCED),
        (Form.HOLDS, None, (1.0, 1.0), Verdict.REPRODUCED),
        (Form.HOLDS, None, (1.0, 0.0), Verdict.PARTLY),
        (Form.HOLDS, None, (0.0, 0.0), Verdict.NOT),
    ],
)
def test_a_verdict_follows_its_rule(form, paper, values, verdict) -> None:
    assert judge(claim(form, paper), settings(*values)).verdict is verdict


def test_a_setting_without_a_value_counts_against_the_claim() -> None:
    found = judge(claim(Form.EFFECT), settings(0.5, math.nan))
    assert found.verdict is Verdict.PARTLY
    assert (found.right_sign, found.met, found.low, found.high) == (1, 1, 0.5, 0.5)


@given(
    st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(0.01, 2) | st.floats(-2, -0.01)
)
def test_one_more_wrong_setting_never_betters_a_verdict(values, paper) -> None:
    order = [Verdict.REPRODUCED, Verdict.PARTLY, Verdict.NOT]
    wrong = -math.copysign(1.0, paper)
    for form in (Form.EFFECT, Form.UP_TO, Form.EXACT):
        before = judge(claim(form, paper), settings(*values)).verdict
        after = judge(claim(form, paper), settings(*values, wrong)).verdict
        assert order.index(after) >= order.index(before)


def test_the_reasons_give_the_counts() -> None:
    why = judge(claim(Form.EFFECT), settings(0.5, 0.1, -0.1)).why
    assert why == "right in sign in 2 of 3 settings, within 10 points or 25% of it in 1"


def test_a_claim_that_nothing_could_bear_out_says_so() -> None:
    why = judge(claim(Form.EFFECT), settings(0.0, 0.0)).why
    assert why == "no difference in any of 2 settings: memory never ran short"


def test_sensitivity_is_the_mean_by_choice_of_each_axis_that_varies() -> None:
    values = {
        (("quantum", "1 s"), ("memory", "GB")): 0.2,
        (("quantum", "5 s"), ("memory", "GB")): 0.4,
        (("quantum", "5 s"), ("memory", "GB"), ("seed", "2")): 0.6,
    }
    assert sensitivity(values) == {"quantum": {"1 s": 0.2, "5 s": pytest.approx(0.5)}}
