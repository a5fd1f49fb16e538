"""Files of traces and lengths: the formats that are known, and rows that are refused by line."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.sharing.traces import TraceError, read_azure_gaps, read_lengths

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0319600,110,27
2023-11-16 18:18:04.0319600,7433,14"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_gaps_keep_the_trace_s_order_and_seven_digits(tmp_path: Path) -> None:
    trace = read_azure_gaps(written(tmp_path, AZURE))
    assert trace.gaps_s == pytest.approx((0.052, 0.0, 60.0), abs=1e-6)


def test_a_trace_wraps_round_from_a_place_that_the_seed_chooses(tmp_path: Path) -> None:
    trace = read_azure_gaps(written(tmp_path, AZURE))
    drawn = trace.sample(7, np.random.default_rng(0)).tolist()
    assert drawn == trace.sample(7, np.random.default_rng(0)).tolist()
    assert sorted(drawn[:3]) == sorted(trace.gaps_s)
    assert drawn[3:6] == drawn[:3]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:17:00.0000000,10,10", "before the row above"),
        ("2023-11-16 18:19:00.0000000,-10,10", "ContextTokens must be"),
        ("2023-11-16 18:19:00.0000000,10,0", "GeneratedTokens must be"),
        ("2023-11-16 18:19:00.0000000,10,1.5", "GeneratedTokens must be"),
        ("yesterday,10,10", "not a timestamp"),
        ("2023-11-16 18:19:00.0000000,10", "number of fields"),
        ("2023-11-16 18:19:00.0000000,10,10,10", "number of fields"),
    ],
)
def test_a_bad_row_is_refused_by_line(tmp_path: Path, row: str, complaint: str) -> None:
    path = written(tmp_path, f"{AZURE}\n{row}\n")
    with pytest.raises(TraceError, match=complaint) as error:
        read_azure_gaps(path)
    assert str(error.value).startswith(f"{path}:6: ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
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
