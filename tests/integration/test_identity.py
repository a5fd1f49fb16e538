"""No remapping ever changes an output (DESIGN §8.5), for each architecture, eager and compiled.

One engine answers a set of requests in calm, then the same requests while its plan and its pool
change at random before every step.  All invariants are checked after every change, pages are
poisoned with 0xFF whenever they change hands, and fetched bytes are compared with their sums.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from benchmarks.models import Family, ModelSpec, build, native_dtype
from tests.integration.storm import REPORT

pytestmark = pytest.mark.engines

REQUESTS = 20
STORMS = 6

CASES = [
    pytest.param(Family.LLAMA, "layer", True, id="llama-layer-eager"),
    pytest.param(Family.OPT, "half", True, id="opt-half-eager"),
    pytest.param(Family.QWEN3, "linear", True, id="qwen3-linear-eager"),
    pytest.param(Family.LLAMA, "half", False, id="llama-half-compiled"),
]


def requests() -> tuple[list[dict], list[int]]:
    source = random.Random(3)
    shared = [source.randrange(3, 4000) for _ in range(40)]
    prompts = []
    for index in range(REQUESTS):
        own = [source.randrange(3, 4000) for _ in range(source.randrange(8, 80))]
        prompts.append({"prompt_token_ids": (shared if index % 3 == 0 else []) + own})
    return prompts, [source.randrange(40, 120) for _ in range(REQUESTS)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("family", "grain", "eager"), CASES)
def test_outputs_in_a_storm_of_plans_are_those_of_calm(
    family: Family, grain: str, eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import LLM, SamplingParams

    monkeypatch.setenv(REPORT, str(tmp_path / "storm.json"))
    spec = ModelSpec(
        family=family,
        hidden=128,
        layers=6,
        heads=4,
        kv_heads=2 if family is not Family.OPT else 4,
        ffn=256,
        head_size=32,
        dtype=native_dtype(),
    )
    llm = LLM(
        str(build(spec)),
        dtype=native_dtype(),
        enforce_eager=eager,
        max_model_len=512,
        block_size=32,
        max_num_seqs=3,
        max_num_batched_tokens=64,  # prompts are prefilled in chunks
        enable_prefix_caching=True,
        seed=0,
        worker_cls="mirage_core.engines.vllm.worker.MirageWorker",
        scheduler_cls="tests.integration.storm.StormScheduler",
        additional_config={
            "mirage": {
                "device": {"size_bytes": 48 << 20, "page_bytes": 64 << 10},
                "pool_tokens": 600,
                "pool_max_tokens": 4096,
                "grain": grain,
                "verify": True,
            }
        },
    )
    prompts, lengths = requests()

    def answers(storm: bool) -> list[list[int]]:
        params = [
            SamplingParams(
                max_tokens=n,
                ignore_eos=True,
                temperature=0.0,
                extra_args={"storm": True} if storm else None,
            )
            for n in lengths
        ]
        return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]

    try:
        calm = answers(storm=False)
        for _ in range(STORMS):
            assert answers(storm=True) == calm
    finally:
        llm.llm_engine.engine_core.shutdown()
    counts = json.loads((tmp_path / "storm.json").read_text())
    print(f"{family.value} {grain}: {counts}")
    assert counts["remaps"] + counts["reversions"] >= 400
    assert counts["growths"] > 20
    assert counts["shrinks"] > 20
    assert counts["inspections"] > 500
    assert counts["fetches"] > 1000
