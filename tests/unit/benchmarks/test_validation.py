"""The simulator against real runs: records read back, step times recovered, errors and floors."""

import json
from pathlib import Path

import pytest
from sharing_samples import outcome

from benchmarks.sharing.arms import StockArm
from benchmarks.sharing.client import Run
from benchmarks.sharing.record import write_record
from benchmarks.validation.__main__ import validate
from benchmarks.validation.calibrate import calibrate
from benchmarks.validation.records import Head, ModelFacts, Record, Served, read_record, repeats
from mirage_core.errors import ConfigError

FACTS = ModelFacts(
    layers=4,
    unit_bytes=1_000_000,
    weight_bytes=5_000_000,
    kv_bytes_per_token=1024,
    pool_tokens=4096,
)


def head(**changes: object) -> Head:
    fields = {
        "arm": "stock",
        "kernels": "stock",
        "load": 1.0,
        "split": 0.4,
        "length_scale": 0.2,
        "lengths": "ShareGPT quantiles",
        "seed": 0,
        "eager": True,
        "repeat": 0,
        "device_bytes": 20_000_000,
        "page_bytes": 65_536,
        "block_size": 32,
        "max_num_seqs": 32,
        "max_model_len": 256,
        "preemptions": 0.0,
        "counted": {"preemptions": 0.0},
        "models": {"small": FACTS},
    }
    return Head.model_validate(fields | changes)


STEP_S, DECODE_S, CONTEXT_S, PREFILL_S, TOKEN_S, HTTP_S = 0.02, 0.002, 5e-6, 0.004, 1e-4, 0.01


def served() -> tuple[Served, ...]:
    """Batches of 1 to 4 requests, one batch after another; a request comes just before each of a
    batch's first steps.

    Times follow the formula that a calibration is to find.
    """
    requests: list[Served] = []
    begin_s = 0.0
    for batch in range(12):
        prompts = [8 + 12 * batch + 5 * i for i in range(1 + batch % 4)]
        times: list[list[float]] = [[] for _ in prompts]
        now_s = begin_s + HTTP_S / 2
        arrivals_s: list[float] = []
        running: list[int] = []
        for step in range(24 + len(prompts)):
            new = [step] if step < len(prompts) else []
            arrivals_s += [now_s - HTTP_S / 2 - (1e-4 if step else 0.0)] * len(new)
            context = sum(prompts[i] + len(times[i]) for i in running)
            took_s = STEP_S + DECODE_S * len(running) + CONTEXT_S * context
            took_s += sum(PREFILL_S + TOKEN_S * prompts[i] for i in new)
            now_s += took_s
            running += new
            for i in running:
                times[i].append(now_s + HTTP_S / 2)
        requests += [
            Served(
                model="small",
                arrival_s=arrival_s,
                prompt_tokens=prompt,
                output_tokens=len(each),
                token_times_s=tuple(each),
                finished=True,
            )
            for arrival_s, prompt, each in zip(arrivals_s, prompts, times, strict=True)
        ]
        begin_s = now_s + 1.0
    return tuple(requests)


def slowed(factor: float) -> tuple[Served, ...]:
    """The same requests, their tokens later by ``factor``."""
    return tuple(
        each.model_copy(
            update={
                "token_times_s": tuple(
                    each.arrival_s + factor * (time_s - each.arrival_s)
                    for time_s in each.token_times_s
                )
            }
        )
        for each in served()
    )


def test_a_calibration_finds_the_step_times_that_made_the_tokens() -> None:
    found = calibrate(Record(head(), served()), "small")
    fitted = found.step_time
    assert fitted.step_ps == pytest.approx(STEP_S * 1e12, rel=0.02)
    assert fitted.decode_ps == pytest.approx(DECODE_S * 1e12, rel=0.05)
    assert fitted.context_ps == pytest.approx(CONTEXT_S * 1e12, rel=0.05)
    assert fitted.prefill_ps == pytest.approx(PREFILL_S * 1e12, rel=0.1)
    assert fitted.prefill_token_ps == pytest.approx(TOKEN_S * 1e12, rel=0.05)
    assert found.slowdown == 0.0
    assert found.residual_share < 1e-3


def test_steps_beside_a_busy_engine_show_how_much_it_slows_them() -> None:
    mine = served()
    turn_s = mine[len(mine) // 2].arrival_s - 0.5  # between two batches

    def later_s(time_s: float) -> float:
        return time_s if time_s < turn_s else turn_s + 1.3 * (time_s - turn_s)

    slower = tuple(
        each.model_copy(
            update={
                "arrival_s": later_s(each.arrival_s),
                "token_times_s": tuple(map(later_s, each.token_times_s)),
            }
        )
        for each in mine
    )
    end_s = slower[-1].token_times_s[-1]
    other = mine[0].model_copy(
        update={"model": "large", "arrival_s": turn_s, "token_times_s": (end_s,)}
    )
    both = head(models={"small": FACTS, "large": FACTS})
    found = calibrate(Record(both, (*slower, other)), "small")
    assert found.slowdown == pytest.approx(0.3, abs=0.05)
    assert found.step_time.step_ps == pytest.approx(STEP_S * 1e12, rel=0.05)


def test_a_run_with_too_few_steps_does_not_calibrate() -> None:
    with pytest.raises(ConfigError, match="24 steps of small without prompts and 0 with some"):
        calibrate(Record(head(), served()[:1]), "small")


def test_predictions_meet_runs_that_follow_the_calibrated_times() -> None:
    records = [Record(head(), served())]
    records += [Record(head(load=2.0, repeat=n), served()) for n in range(5)]
    result = validate(records)
    metrics = result["metrics"]
    assert result["calibrated_on"] == {"stock": records[0].head.name}
    assert result["conditions"] == 1
    assert result["fits"]["stock"]["first_token_s"] == pytest.approx(HTTP_S, rel=0.2)
    for name in ("ttft", "tbt", "throughput"):
        assert metrics[name]["median_error"] < 0.1, name
        assert metrics[name]["p99_error"] < 0.2, name
        assert metrics[name]["noise_floor"] == 0.0
        assert metrics[name]["why"] is None
    assert metrics["preemptions"]["median_error"] is None  # there were none to miss


def test_errors_are_those_of_the_repeats_mean_and_the_floor_is_their_spread() -> None:
    records = [Record(head(), served())]
    slower = (0.9, 1.0, 1.0, 1.0, 1.1)
    records += [Record(head(load=2.0, repeat=n), slowed(s)) for n, s in enumerate(slower)]
    floor = validate(records)["metrics"]["tbt"]["noise_floor"]
    assert floor == pytest.approx(0.0, abs=1e-6)  # the median run is the mean
    records += [Record(head(load=2.0, repeat=9), slowed(1.4))]
    assert validate(records)["metrics"]["tbt"]["noise_floor"] > 0.02


def test_what_was_not_run_is_null_with_a_reason() -> None:
    nothing = validate([])
    assert nothing["calibrated_on"] is None
    for metric in nothing["metrics"].values():
        assert metric["median_error"] is None
        assert metric["noise_floor"] is None
        assert "no real run" in metric["why"]
    once = validate([Record(head(), served()), Record(head(load=2.0), served())])
    assert once["metrics"]["tbt"]["median_error"] is not None
    assert once["metrics"]["tbt"]["noise_floor"] is None
    assert "5 times" in once["metrics"]["tbt"]["why"]
    json.dumps(once)


def test_runs_of_other_requests_are_no_repeats() -> None:
    one, other = Record(head(), served()), Record(head(repeat=1), served()[1:])
    assert [len(group) for group in repeats([one, other])] == [1, 1]


def test_runs_that_differ_in_more_than_the_repeat_are_apart() -> None:
    records = [Record(head(repeat=n, load=load), ()) for n in (0, 1) for load in (1.0, 2.0)]
    assert [len(group) for group in repeats(records)] == [2, 2]


def test_a_record_is_read_back_as_written_and_numbered(tmp_path: Path, conditions) -> None:
    run = Run(0.0, (outcome(0, [0.5, 0.75]), outcome(1, [], [7], model="large", finished=False)))
    first, second = (
        write_record(tmp_path, StockArm(0.4), conditions, 2.0, run, {"preemptions": 3.0})
        for _ in range(2)
    )
    assert (first.name, second.name) == ("stock-0.4-2x-0.jsonl", "stock-0.4-2x-1.jsonl")
    record = read_record(second)
    assert record.head.repeat == 1
    assert record.head.preemptions == 3.0
    assert record.requests[0].token_times_s == (0.5, 0.75)
    assert not record.requests[1].finished
    small = record.head.models["small"]
    blocks = conditions.pools(0.4)["small"] // conditions.models[0].block_bytes(32)
    assert small.pool_tokens == (blocks - 1) * 32


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"model": "small", "arrival_s": -1}', r":2: arrival_s: .*greater than or equal"),
        ("not json", ":2: not JSON"),
        (
            '{"model": "x", "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, '
            '"token_times_s": [], "finished": false}',
            ":2: no model 'x'",
        ),
    ],
)
def test_a_bad_record_is_refused_by_file_and_line(tmp_path: Path, line, complaint) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(head().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=complaint):
        read_record(path)
