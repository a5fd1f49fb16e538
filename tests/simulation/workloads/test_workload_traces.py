"""Traces: files refused by line, scaling refused by reason, streams and chains."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.files import (
    TraceError,
    read_azure_gaps,
    read_azure_trace,
    read_lengths,
)
from mirage_core.simulator.workloads.quantiles import ALPACA, AZURE_CODE, SHAREGPT
from mirage_core.simulator.workloads.streams import Agent, Stream, chain, merge
from mirage_core.simulator.workloads.trace import Scaling, Trace, generate, scale

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0319600,110,27
2023-11-16 18:18:04.0319600,7433,14"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_an_azure_trace_is_read_with_seven_digits_and_starts_at_zero(tmp_path: Path) -> None:
    trace = read_azure_trace(written(tmp_path, AZURE))
    assert trace.arrivals_s == pytest.approx([0, 0.052, 0.052, 60.052], abs=1e-6)
    assert trace.prompt_tokens.tolist() == [4808, 3180, 110, 7433]
    assert trace.output_tokens.tolist() == [10, 8, 27, 14]
    assert len(trace.within(4000)) == 2
    assert len(trace.until(1.0)) == 3


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:17:00.0000000,10,10", "before the row above"),
        ("2023-11-16 18:19:00.0000000,-10,10", "ContextTokens must be"),
        ("2023-11-16 18:19:00.0000000,10,0", "GeneratedTokens must be"),
        ("2023-11-16 18:19:00.0000000,10,1.5", "GeneratedTokens must be"),
        ("yesterday,10,10", "not a timestamp"),
        ("2023-11-16 18:19:00.0000000,10", "number of fields"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path: Path, row: str, complaint: str) -> None:
    path = written(tmp_path, f"{AZURE}\n{row}\n")
    with pytest.raises(TraceError, match=complaint) as error:
        read_azure_trace(path)
    assert str(error.value).startswith(f"{path}:6: ")


def test_gaps_keep_the_trace_s_order_and_wrap_round_from_a_seeded_place(tmp_path: Path) -> None:
    trace = read_azure_gaps(written(tmp_path, AZURE))
    assert trace.gaps_s == pytest.approx((0.052, 0.0, 60.0), abs=1e-6)
    drawn = trace.sample(7, np.random.default_rng(0)).tolist()
    assert drawn == trace.sample(7, np.random.default_rng(0)).tolist()
    assert sorted(drawn[:3]) == sorted(trace.gaps_s)
    assert drawn[3:6] == drawn[:3]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column TIMESTAMP"),
        ("\n".join(AZURE.splitlines()[:2]), "two arrivals"),
    ],
)
def test_a_trace_without_gaps_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_azure_gaps(written(tmp_path, text))


def test_a_missing_or_binary_file_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: cannot be read"):
        read_lengths(tmp_path / "absent.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match=r"binary\.csv: cannot be read"):
        read_lengths(binary)


def test_lengths_pass_vllm_s_filter(tmp_path: Path) -> None:
    text = """first_role,opt_in,opt_out,llama2_in,llama2_out
human,35,260,42,285
gpt,35,260,42,285
human,3,260,3,285
human,35,3,42,3
human,1025,10,1200,12
human,1000,1049,1000,1049
human,1000,1048,1000,1049"""
    assert read_lengths(written(tmp_path, text)).pairs == ((35, 260), (1000, 1048))


@pytest.mark.parametrize(
    "header", ["opt_in,opt_out", "num_prefill_tokens,num_decode_tokens", "input_toks,output_toks"]
)
def test_lengths_are_drawn_in_pairs_from_every_known_table(tmp_path: Path, header: str) -> None:
    table = read_lengths(written(tmp_path, f"{header}\n10,20\n30,40\n"))
    prompts, outputs = table.sample(100, np.random.default_rng(0))
    pairs = set(zip(prompts.tolist(), outputs.tolist(), strict=True))
    assert pairs == {(10.0, 20.0), (30.0, 40.0)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", ":1: no known pair"),
        ("opt_in,opt_out\n10,20\n10,-1\n", ":3: opt_out must be"),
        ("opt_in,opt_out\n1,1\n", "no row is within"),
    ],
)
def test_useless_lengths_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_lengths(written(tmp_path, text))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv:1: no column GeneratedTokens"):
        read_azure_trace(written(tmp_path, "TIMESTAMP,ContextTokens\n"))
    with pytest.raises(TraceError, match=r"trace\.csv:1: no column llama2_in, llama2_out"):
        read_lengths(written(tmp_path, "opt_in,opt_out\n5,6\n"), ("llama2_in", "llama2_out"))


def test_lengths_of_another_tokenizer_are_read_by_their_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "opt_in,opt_out,llama2_in,llama2_out\n10,20,30,40\n")
    assert read_lengths(path).pairs == ((10, 20),)
    assert read_lengths(path, ("llama2_in", "llama2_out")).pairs == ((30, 40),)


@pytest.mark.parametrize(
    ("arrivals_s", "prompt", "complaint"),
    [
        ([1.0, 0.5], [1, 1], "in order"),
        ([-1.0, 0.5], [1, 1], "not be negative"),
        ([0.0, 0.5], [1, 0], "one prompt token"),
        ([0.0], [1, 1], "as many lengths"),
    ],
)
def test_a_trace_of_nonsense_is_refused(arrivals_s, prompt, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Trace(np.array(arrivals_s), np.array(prompt), np.array([1] * len(prompt)))


def test_scaling_that_a_method_cannot_do_is_refused() -> None:
    trace = generate(AZURE_CODE, ALPACA, 2.0, 200.0, 2048, seed=0)
    with pytest.raises(ConfigError, match="thinning lowers a rate"):
        scale(trace, 20.0, Scaling.THIN, seed=0)
    with pytest.raises(ConfigError, match="whole multiples"):
        scale(trace, 3.3, Scaling.SUPERPOSE, seed=0)
    with pytest.raises(ConfigError, match="above 0"):
        scale(trace, -1.0, Scaling.COMPRESS, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate_per_s=st.floats(0.1, 50),
    longest=st.integers(2, 4096),
)
def test_generated_requests_fit_keep_the_rate_and_repeat(
    seed: int, rate_per_s: float, longest: int
) -> None:
    trace, again = (
        generate(AZURE_CODE, SHAREGPT, rate_per_s, 20.0, longest, seed) for _ in range(2)
    )
    assert len(trace) == round(rate_per_s * 20.0)
    assert (trace.prompt_tokens + trace.output_tokens).max() <= longest
    assert trace.arrivals_s[-1] < 20.0
    assert np.array_equal(trace.arrivals_s, again.arrivals_s)
    assert np.array_equal(trace.output_tokens, again.output_tokens)


def test_streams_are_merged_in_order_of_arrival_and_keep_their_model() -> None:
    ones = Trace(np.array([0.0, 2.0]), np.array([1, 1]), np.array([5, 5]))
    twos = Trace(np.array([1.0, 3.0]), np.array([2, 2]), np.array([6, 6]))
    merged = merge([Stream(0, ones), Stream(1, twos, priority=3)])
    assert merged.model.tolist() == [0, 1, 0, 1]
    assert merged.prompt_tokens.tolist() == [1, 2, 1, 2]
    assert merged.priority.tolist() == [0, 3, 0, 3]
    with pytest.raises(ConfigError, match="one stream"):
        merge([])


AGENTS = (Agent(0, 100, 20), Agent(1, 50, 10, think_s=0.5), Agent(0, 10, 5))


def test_a_chain_hands_each_answer_to_the_next_agent() -> None:
    trace = Trace(np.array([0.0, 1.0]), np.array([30, 40]), np.array([10, 30]))
    requests = chain(trace, AGENTS, 2048)
    assert requests.model.tolist() == [0, 1, 0] * 2
    assert requests.after.tolist() == [-1, 0, 1, -1, 3, 4]
    assert requests.output_tokens.tolist() == [50, 25, 5, 150, 75, 15]
    assert requests.prompt_tokens.tolist() == [50, 90, 110, 60, 200, 270]
    assert requests.think_ps[1] == requests.think_ps[4] == 5 * 10**11


def test_a_chain_that_outgrows_the_longest_request_is_refused_by_row() -> None:
    trace = Trace(np.array([0.0, 1.0]), np.array([30, 90]), np.array([10, 10]))
    with pytest.raises(ConfigError, match="row 1 of the trace: agent 0 would get 110"):
        chain(trace, AGENTS, 100)
