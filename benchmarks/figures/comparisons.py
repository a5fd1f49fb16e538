"""Which runs each claim compares, in every setting.  Fixed before any run.

A claim about an arm against a baseline has, for each setting, pairs of cases that differ in
nothing but the arm; the setting's value is the mean effect over its pairs (loads and data sets,
which the paper averages over), or the greatest for "up to".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from benchmarks.figures import conditions as on
from benchmarks.figures.conditions import ArmChoice, Case, Changes, settings
from benchmarks.figures.verdicts import Setting
from mirage_core.policy.how_many import SlotRule


class Metric(Enum):
    """What is measured of a run; an effect is a reduction of a latency or a gain of throughput."""

    TBT_P50 = "tbt_p50_s"
    TBT_P99 = "tbt_p99_s"
    TTFT_P99 = "ttft_p99_s"
    THROUGHPUT = "throughput_tok_s"


Pair = tuple[Case, Case]
"""(the arm that the claim is about, its baseline)"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One claim's pairs by setting; ``metrics``: more than one only for "up to" and "spikes"."""

    claim: str
    metrics: tuple[Metric, ...]
    pairs: Mapping[Setting, Sequence[Pair]]
    elastic: bool = False
    """also set against the elastic pool in the baseline's place"""


def comparisons() -> list[Comparison]:
    """All claims that runs can judge."""
    return [
        _spikes(),
        _batch(),
        *_three("c1", _by_data(on.c1), {"quantum": on.QUANTA}, on.DEVIATIONS),
        *_three("c2", _by_data(lambda d: on.c2(d, d)), {"quantum": on.QUANTA}, on.DEVIATIONS),
        *_three("c2-rates", _unequal(), {"quantum": on.QUANTA}, on.FEW),
        *_three("c2-lengths", _long_and_short(), {"quantum": on.QUANTA}, on.FEW | on.PROMPT_SHARES),
        _mru(),
        *_three("c1-mps", _spatial("spatial"), {"overlap": on.OVERLAPS}, _WITH_LINK),
        *_three("c1-mig", _spatial("mig"), {"slices": on.MIG_SLICES}, _WITH_LINK),
        *_swap(),
        _one_slot(),
        _reversion("reversion-1", 1.0),
        _reversion("reversion-10", 10.0),
        _cap("cap-p99", Metric.TBT_P99),
        _cap("cap-p50", Metric.TBT_P50),
    ]


_WITH_LINK = {
    name: changes for name, changes in on.DEVIATIONS.items() if name in on.FEW or "link" in name
}


def over_loads(
    bases: Iterable[Case],
    axes: dict[str, dict[str, Changes]],
    others: dict[str, Changes],
    arms: tuple[ArmChoice, ArmChoice],
) -> dict[Setting, list[Pair]]:
    """Pairs at all loads of a range, the range being one more axis."""
    found: dict[Setting, list[Pair]] = {}
    for base in bases:
        for setting, case in settings(base, axes, others).items():
            for name, loads in on.LOAD_RANGES.items():
                pairs = found.setdefault((*setting, ("loads", name)), [])
                for load in loads:
                    at = replace(case, load=load)
                    pairs.append((replace(at, arm=arms[0]), replace(at, arm=arms[1])))
    return found


def _three(
    claim: str,
    bases: Sequence[Case],
    axes: dict[str, dict[str, Changes]],
    others: dict[str, Changes],
) -> list[Comparison]:
    pairs = over_loads(bases, axes, others, (on.MIRAGE, on.STATIC))
    return [
        Comparison(f"{claim}-{what}", (metric,), pairs, elastic=True)
        for what, metric in (
            ("tbt", Metric.TBT_P99),
            ("ttft", Metric.TTFT_P99),
            ("throughput", Metric.THROUGHPUT),
        )
    ]


def _by_data(tenants: Callable[[str], tuple[on.Tenant, ...]]) -> list[Case]:
    return [Case(tenants(data)) for data in on.DATA_SETS]


def _unequal() -> list[Case]:
    return [Case(on.c2(d, d, ratio)) for d in on.DATA_SETS for ratio in on.RATE_RATIOS]


def _long_and_short() -> list[Case]:
    return [Case(on.c2("long", "short")), Case(on.c2("short", "long"))]


def _spatial(sharing: str) -> list[Case]:
    return [replace(case, sharing=sharing) for case in _by_data(on.c1)]


def _spikes() -> Comparison:
    """Static against a pool ten times as large, which never runs out."""
    base = Case(on.single("ShareGPT"), load=max(on.LOADS))
    pairs = {
        setting: [(replace(case, kv_scale=10.0), case)]
        for setting, case in settings(base, {}, on.DEVIATIONS).items()
    }
    return Comparison("recomputation-spikes", (Metric.TBT_P99, Metric.TTFT_P99), pairs)


def _batch() -> Comparison:
    """The pool with a third of both models' parameters against the pool without."""
    base = on.BATCH
    others = {name: on.DEVIATIONS[name] for name in ("1024 sequences", "seed 2")}
    larger = (80 - 52 + 52 / 3) / (80 - 52)
    pairs = {
        setting: [(replace(case, kv_scale=larger), case)]
        for setting, case in settings(base, {}, others).items()
    }
    return Comparison("batch-throughput-1.75x", (Metric.THROUGHPUT,), pairs)


def _mru() -> Comparison:
    """Any tail, any load, any data set: the claim says "up to"."""
    pairs = over_loads(_by_data(on.c1), {"quantum": on.QUANTA}, on.FEW, (on.MIRAGE, on.LRU))
    return Comparison("mru", (Metric.TBT_P99, Metric.TTFT_P99), pairs)


def _swap() -> list[Comparison]:
    base = Case(on.single("Alpaca"))
    pairs = over_loads([base], {}, on.DEVIATIONS, (on.MIRAGE, on.SWAP))
    return [
        Comparison("swap-tbt", (Metric.TBT_P99,), pairs, elastic=True),
        Comparison("swap-ttft", (Metric.TTFT_P99,), pairs, elastic=True),
        Comparison("swap-throughput", (Metric.THROUGHPUT,), pairs, elastic=True),
    ]


def _one_slot() -> Comparison:
    pairs: dict[Setting, list[Pair]] = {}
    for name, added in on.ADDED.items():
        one, best = (
            on.remapping(slots=rule, added=added) for rule in (SlotRule.ONE, SlotRule.BEST)
        )
        others = on.FEW if added == on.UNLIMITED else {}
        found = over_loads([Case(on.single("Alpaca"))], {}, others, (one, best))
        pairs |= {(("added", name), *setting): each for setting, each in found.items()}
    return Comparison("one-slot", (Metric.THROUGHPUT,), pairs)


def _reversion(claim: str, rate_per_s: float) -> Comparison:
    pairs: dict[Setting, list[Pair]] = {}
    base = Case(on.single("Alpaca"), rate_per_s=rate_per_s)
    for name, added in on.ADDED.items():
        if added:  # without added time there is nothing that reversion could take away
            with_, without = (on.remapping(added=added, reverts=each) for each in (True, False))
            for setting, case in settings(base, {}, on.DEVIATIONS).items():
                pair = (replace(case, arm=with_), replace(case, arm=without))
                pairs[(("added", name), *setting)] = [pair]
    return Comparison(claim, (Metric.TBT_P50,), pairs)


def _cap(claim: str, metric: Metric) -> Comparison:
    """Capped against not, both remapping whatever it costs; caps are an axis."""
    pairs: dict[Setting, list[Pair]] = {}
    base = Case(on.single("Alpaca"), rate_per_s=10.0)
    for cap in on.CAPS:
        others = on.DEVIATIONS if cap == on.CAPS[0] else {}
        for setting, case in settings(base, {}, others).items():
            capped = replace(case, arm=on.remapping(cap=cap))
            pairs[(("cap", f"{cap:.0%}"), *setting)] = [(capped, replace(case, arm=on.remapping()))]
    return Comparison(claim, (metric,), pairs)


def against_elastic(comparison: Comparison) -> Mapping[Setting, Sequence[Pair]]:
    """The same pairs with the elastic pool in the baseline's place."""
    return {
        setting: [(ours, replace(baseline, arm=on.ELASTIC)) for ours, baseline in pairs]
        for setting, pairs in comparison.pairs.items()
    }


def all_cases(compared: Iterable[Comparison]) -> list[Case]:
    """Every run that is needed, each once, those that give saturations first."""
    wanted: dict[Case, None] = {}
    for comparison in compared:
        tables = [comparison.pairs]
        tables += [against_elastic(comparison)] if comparison.elastic else []
        for table in tables:
            for pairs in table.values():
                for pair in pairs:
                    wanted.update(dict.fromkeys(pair))
    saturating = dict.fromkeys(case.saturating for case in wanted if case.load is not None)
    return [*saturating, *(case for case in wanted if case not in saturating)]
