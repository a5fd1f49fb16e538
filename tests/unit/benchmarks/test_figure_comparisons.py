"""What is compared: complete, fair, and each run once."""

from dataclasses import replace

from benchmarks.figures import conditions as on
from benchmarks.figures.claims import BY_NAME
from benchmarks.figures.comparisons import all_cases, comparisons


def test_arms_of_a_pair_differ_in_the_arm_or_the_pool_alone() -> None:
    for comparison in comparisons():
        for pairs in comparison.pairs.values():
            for ours, baseline in pairs:
                assert ours != baseline
                assert replace(ours, arm=baseline.arm, kv_scale=baseline.kv_scale) == baseline


def test_every_setting_of_a_claim_averages_over_equally_many_runs() -> None:
    for comparison in comparisons():
        assert comparison.claim in BY_NAME
        assert len({len(pairs) for pairs in comparison.pairs.values()}) == 1


def test_a_case_runs_once_and_after_the_one_that_gives_its_rate() -> None:
    cases = all_cases(comparisons())
    assert len(set(cases)) == len(cases)
    place = {case: i for i, case in enumerate(cases)}
    for case, i in place.items():
        if case.load is not None:
            assert place[case.saturating] < i


def test_settings_cross_the_axes_and_vary_the_rest_alone() -> None:
    base = on.Case(on.single("Alpaca"))
    found = on.settings(base, {"quantum": on.QUANTA}, on.FEW)
    assert len(found) == len(on.QUANTA) + len(on.FEW)
    assert found[(("quantum", "5 s"), ("other", "base"))] == replace(base, quantum_s=5.0)
    assert found[(("quantum", "1 s"), ("other", "GB"))] == replace(base, memory="GB")
