"""The paper's claims, in the order of its figures.  Fixed before any run.

A reduction of a latency is stated as a positive share, so are gains of throughput.
"""

from __future__ import annotations

from benchmarks.figures.verdicts import Claim, Form

TBT, TTFT, THROUGHPUT = "P99 TBT", "P99 TTFT", "throughput"


def _three(
    figure: str, what: str, text: str, tbt: float, ttft: float, throughput: float
) -> tuple[Claim, ...]:
    return (
        Claim(f"{what}-tbt", figure, f"{text}: P99 TBT falls", Form.EFFECT, tbt),
        Claim(f"{what}-ttft", figure, f"{text}: P99 TTFT falls", Form.EFFECT, ttft),
        Claim(f"{what}-throughput", figure, f"{text}: throughput grows", Form.EFFECT, throughput),
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "recomputation-spikes",
        "1a",
        "recomputation spikes latency at high request rates (judged: at the highest load, P99 TBT "
        "or P99 TTFT is at least twice that of a pool that never runs out)",
        Form.HOLDS,
    ),
    Claim("link-7x-h100", "1b", "GH200's CPU-GPU bandwidth is 7 times H100's", Form.EXACT, 7.0),
    Claim("link-14x-a100", "1b", "GH200's CPU-GPU bandwidth is 14 times A100's", Form.EXACT, 14.0),
    Claim(
        "gb200-keeps-900",
        "1b",
        "GB200 preserves 900 GB/s of bidirectional bandwidth (judged per GPU, against GH200)",
        Form.EXACT,
        1.0,
    ),
    Claim(
        "batch-1.75x",
        "4",
        "two OPT-13b on H100 80 GB: a third of all parameters makes the batch 1.75 times as large",
        Form.EXACT,
        0.75,
    ),
    Claim(
        "batch-throughput-1.75x",
        "4",
        "and throughput 1.75 times (ShareGPT, all requests at once)",
        Form.EFFECT,
        0.75,
    ),
    Claim(
        "cpu-attention",
        "5a",
        "loading 30 % of OPT-13b is faster than attention on the CPU on GH200, and slower on H100 "
        "(judged: at the largest batch of 128, ShareGPT contexts)",
        Form.HOLDS,
    ),
    Claim(
        "30-percent-stalls-off-peak",
        "5b",
        "remapping 30 % of OPT-13b stalls off peak (judged: at batch 8, ShareGPT contexts)",
        Form.HOLDS,
    ),
    Claim(
        "30-percent-fits-average",
        "5b",
        "remapping 30 % of OPT-13b is hidden at the average batch (judged: at any batch to 128)",
        Form.HOLDS,
    ),
    Claim(
        "two-slots-from-9",
        "5.4",
        "at 40 layers two slots are better from 9 layers freed (judged: the first number of "
        "layers at which two slots give the shorter step)",
        Form.EXACT,
        9.0,
    ),
    Claim(
        "bound-of-5.3",
        "5.3",
        "N layers with N times the transfer within a step add no time (judged: for every N that "
        "the bound admits)",
        Form.HOLDS,
    ),
    *_three("8", "c1", "C1, temporal, against static vLLM", 0.544, 0.967, 0.399),
    *_three("8", "c2", "C2, temporal, against static vLLM", 0.448, 0.748, 0.453),
    *_three("9", "c2-rates", "C2 with unequal rates, against static vLLM", 0.825, 0.993, 0.867),
    *_three("10", "c2-lengths", "C2, long with short, against static vLLM", 0.571, 0.981, 0.656),
    Claim("mru", "11", "MRU against LRU: tail latency falls by up to 22 %", Form.UP_TO, 0.22),
    *_three("12", "c1-mps", "C1 under MPS, against static vLLM", 0.655, 0.207, 0.066),
    *_three("13", "c1-mig", "C1 under MIG, against static vLLM", 0.574, 0.348, 0.079),
    Claim("swap-tbt", "14", "OPT-13b, Alpaca, against Pie: P99 TBT is equal", Form.EQUAL),
    Claim("swap-ttft", "14", "against Pie: P99 TTFT falls", Form.EFFECT, 0.936),
    Claim("swap-throughput", "14", "against Pie: throughput grows", Form.EFFECT, 0.471),
    Claim(
        "one-slot",
        "15",
        "always one slot: throughput against the dynamic choice",
        Form.EFFECT,
        -0.127,
    ),
    Claim("reversion-1", "16", "reversion at 1 request/s: P50 TBT falls", Form.EFFECT, 0.49),
    Claim("reversion-10", "16", "reversion at 10 requests/s: little changes", Form.EQUAL),
    Claim("cap-p99", "17", "capped remapping at 10 requests/s: P99 TBT falls", Form.EFFECT, 0.58),
    Claim("cap-p50", "17", "capped remapping at 10 requests/s: P50 TBT falls", Form.EFFECT, 0.44),
)

BY_NAME = {claim.name: claim for claim in CLAIMS}
