"""The simulator's benchmark on small traces: its fields, and what they must say."""

from __future__ import annotations

from benchmarks.simulator import CODE, CONV, Fleet, measure, trace_of


def test_the_result_has_the_promised_fields() -> None:
    traces = {each.name: trace_of(each, None).until(60.0) for each in (CODE, CONV)}
    result = measure(traces, Fleet(gpus=20, traffic_s=(1.0, 3.0)))
    assert result["jump_identical"] is True
    assert result["deterministic"] is True
    for name in ("code_requests_per_s", "conv_requests_per_s", "c1_mirage_requests_per_s"):
        assert result[name] > 0
    assert result["steps_per_s"] > 0
    assert result["rss_mb"] > 0
    assert result["fleet"]["requests_measured"] == 120
    assert result["fleet"]["ten_minutes_requests"] == 24_000
    for mode in ("jump", "step"):
        assert result["static"]["conv"][mode]["finished"] == len(traces["conv"])
