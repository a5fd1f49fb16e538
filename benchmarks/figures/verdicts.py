"""When a claim of the paper counts as reproduced, partly, or not.  Fixed before any run.

A claim is judged over all *settings*: every choice for what the paper leaves unstated (quantum,
range of loads, memory, link ...).  One setting gives one value, averaged over what the paper
averages over.  The simulation stands for a GPU that it was not calibrated on, so a value is not
expected to be met closely: within 10 points of a percentage or a quarter of the paper's value,
whichever is more, counts as *met*; a value on the paper's side of nothing as *right in sign*.

    form      reproduced                            partly                       not
    EFFECT    right sign in every setting and       right sign in at least       otherwise
              met in at least half                  half of the settings
    UP_TO     as EFFECT; the value is the greatest over loads and data sets
    EQUAL     |value| <= 0.15 in at least 3/4       in at least half, or better  otherwise
              of the settings                       than equal in the others
    EXACT     (arithmetic) within 2 % of the        right sign                   otherwise
              paper's value in every setting
    HOLDS     (yes or no) in every setting          in at least half             otherwise

An effect is a share: the reduction of a latency (0.544 for "-54.4 %"), or the gain of a throughput
(0.399 for "+39.9 %"), so that more is better for both.  A value that cannot be had (no request
finished, say) is nan and counts as of the wrong sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Setting = tuple[tuple[str, str], ...]
"""What was chosen for each thing unstated: (axis, choice) pairs."""

MET_POINTS = 0.10
MET_SHARE = 0.25
EQUAL_WITHIN = 0.15
EXACT_SHARE = 0.02
_ROUNDING = 1e-9


class Verdict(Enum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not"


class Form(Enum):
    """What kind of statement a claim is; the rules are in the module's table."""

    EFFECT = "effect"
    UP_TO = "up to"
    EQUAL = "equal"
    EXACT = "exact"
    HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper, with its value as a share (None where it gives no number)."""

    name: str
    figure: str
    text: str
    form: Form
    paper: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A claim's verdict, and the counts that it rests on."""

    verdict: Verdict
    why: str
    settings: int
    right_sign: int
    met: int
    low: float
    high: float


def judge(claim: Claim, values: Mapping[Setting, float]) -> Judgement:
    """The verdict over all settings; at least one is needed."""
    found = list(values.values())
    count = len(found)
    right = sum(_right_sign(claim, value) for value in found)
    met = sum(_met(claim, value) for value in found)
    finite = [value for value in found if not math.isnan(value)]
    verdict = _verdict(claim.form, count, right, met)
    compares = claim.form in (Form.EFFECT, Form.UP_TO, Form.EQUAL)
    return Judgement(
        verdict=verdict,
        why=_why(claim, count, right, met, alike=compares and not any(found)),
        settings=count,
        right_sign=right,
        met=met,
        low=min(finite, default=math.nan),
        high=max(finite, default=math.nan),
    )


def _verdict(form: Form, count: int, right: int, met: int) -> Verdict:
    if form is Form.EQUAL:
        full, part = met >= 0.75 * count, right >= 0.5 * count
    elif form is Form.EXACT or form is Form.HOLDS:
        full, part = met == count, right >= 0.5 * count
    else:
        full, part = right == count and met >= 0.5 * count, right >= 0.5 * count
    return Verdict.REPRODUCED if full else Verdict.PARTLY if part else Verdict.NOT


def _right_sign(claim: Claim, value: float) -> bool:
    if claim.form is Form.HOLDS:
        return value >= 0.5
    if claim.form is Form.EQUAL:
        return value >= -EQUAL_WITHIN - _ROUNDING
    return value * math.copysign(1.0, claim.paper or 1.0) > _ROUNDING


def _met(claim: Claim, value: float) -> bool:
    if claim.form is Form.HOLDS:
        return value >= 0.5
    if claim.form is Form.EQUAL:
        return abs(value) <= EQUAL_WITHIN + _ROUNDING
    if claim.paper is None:
        return _right_sign(claim, value)
    share, points = (EXACT_SHARE, 0.0) if claim.form is Form.EXACT else (MET_SHARE, MET_POINTS)
    return abs(value - claim.paper) <= max(points, share * abs(claim.paper)) + _ROUNDING


def _why(claim: Claim, count: int, right: int, met: int, alike: bool) -> str:
    settings = f"{count} setting{'s' if count > 1 else ''}"
    if alike:
        return f"no difference in any of {settings}: memory never ran short"
    if claim.form is Form.HOLDS:
        return f"holds in {met} of {settings}"
    if claim.form is Form.EQUAL:
        return f"equal within {EQUAL_WITHIN:.0%} in {met} of {settings}, not worse in {right}"
    near = (
        f"{EXACT_SHARE:.0%} of it"
        if claim.form is Form.EXACT
        else (f"{100 * MET_POINTS:.0f} points or {MET_SHARE:.0%} of it")
    )
    number = "" if claim.paper is None else f", within {near} in {met}"
    return f"right in sign in {right} of {settings}{number}"


def sensitivity(values: Mapping[Setting, float]) -> dict[str, dict[str, float]]:
    """Mean value by axis and choice, of the axes on which the settings differ."""
    sums: dict[str, dict[str, list[float]]] = {}
    for setting, value in values.items():
        for axis, choice in setting:
            sums.setdefault(axis, {}).setdefault(choice, []).append(value)
    return {
        axis: {choice: sum(found) / len(found) for choice, found in choices.items()}
        for axis, choices in sums.items()
        if len(choices) > 1
    }
