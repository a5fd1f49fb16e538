"""``python -m benchmarks.own_layers``: one engine and its own layers, over links of three speeds.

On a CPU a layer's transfer takes a fraction of its compute (r = T_T / T_c of about 0.2, FACTS of
the method's arithmetic), so cycling looks free.  Here the link is also limited to r = 4 and r = 9,
the range of an OPT-13b on GH200: then the cost model lets an active model give few layers, and the
gain shrinks to what they buy.  One private device, no agent, the same requests for every arm; each
arm is an engine of its own, started one after the other; the cost model chooses the grain.  Writes
build/bench/own_layers.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.models import Family, ModelSpec, build, native_dtype

OUT = Path("build/bench/own_layers.json")
REQUESTS = 48
POOL_TOKENS = 1024
PAGE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Arm:
    """``r`` limits the link to a transfer of r times a layer's compute; None: no limit."""

    name: str
    passive: bool
    r: float | None = None


ARMS = (
    Arm("passive", passive=True),
    Arm("no limit", passive=False),
    Arm("r = 4", passive=False, r=4.0),
    Arm("r = 9", passive=False, r=9.0),
)


def _spec() -> ModelSpec:
    return ModelSpec(
        Family.LLAMA, hidden=512, layers=16, heads=8, kv_heads=8, ffn=1536, dtype=native_dtype()
    )


def _device_bytes(spec: ModelSpec) -> int:
    """The model, its first pool, and next to nothing else: more can only come from its layers."""
    weights = spec.linear_bytes + 3 * 4096 * spec.hidden * spec.element_bytes
    return weights + (POOL_TOKENS + 256) * spec.kv_bytes_per_token


def _run(arm: Arm, link_bytes_per_s: float | None) -> dict[str, Any]:
    """One engine's life; in a process of its own, so that nothing is left for the next."""
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    os.environ["HF_HUB_OFFLINE"] = "1"
    from vllm import LLM, SamplingParams

    spec = _spec()
    settings: dict[str, Any] = {
        "device": {"size_bytes": _device_bytes(spec), "page_bytes": PAGE_BYTES},
        "pool_tokens": POOL_TOKENS,
        "passive": arm.passive,
    }
    if link_bytes_per_s is not None:
        settings["link_bytes_per_s"] = link_bytes_per_s
    llm = LLM(
        str(build(spec)),
        dtype=native_dtype(),
        enforce_eager=True,
        max_model_len=512,
        block_size=32,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=False,
        worker_cls="mirage_core.engines.vllm.worker.MirageWorker",
        scheduler_cls="mirage_core.engines.vllm.scheduler.MirageScheduler",
        additional_config={"mirage": settings},
    )
    source = random.Random(1)
    prompts = [
        {"prompt_token_ids": [source.randrange(3, 4000) for _ in range(source.randrange(16, 64))]}
        for _ in range(REQUESTS)
    ]
    params = [
        SamplingParams(max_tokens=source.randrange(64, 200), ignore_eos=True, temperature=0.0)
        for _ in range(REQUESTS)
    ]
    try:
        began_s = time.monotonic()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        spent_s = time.monotonic() - began_s
        report = llm.collective_rpc("mirage_report")[0]  # as plain values: it crossed processes
    finally:
        llm.llm_engine.engine_core.shutdown()
    fetch = report["fetch"]
    tokens = [tuple(o.outputs[0].token_ids) for o in outputs]
    ttft_s = sorted(o.metrics.first_token_ts - o.metrics.queued_ts for o in outputs)
    return {
        "throughput_tok_s": sum(map(len, tokens)) / spent_s,
        "ttft_p50_s": ttft_s[len(ttft_s) // 2],
        "ttft_max_s": ttft_s[-1],
        "cycled_units_at_end": sum(map(len, report["plan"]["slots"])),
        "fetches": fetch["fetches"],
        "stall_s": fetch["stall_s"],
        "units_per_layer": len(fetch["unit_compute_s"]) // spec.layers,
        "layer_compute_s": sum(fetch["unit_compute_s"]) / spec.layers,
        "layer_transfer_s": sum(fetch["unit_transfer_s"]) / spec.layers,
        "tokens": tokens,
    }


def main() -> None:
    spec = _spec()
    layer_bytes = spec.linear_bytes / spec.layers
    context = multiprocessing.get_context("spawn")
    results: dict[str, dict[str, Any]] = {}
    console = Console()
    for arm in ARMS:
        link = None
        if arm.r is not None:
            # Against the batch of a busy engine: the reference ran the same requests.
            link = layer_bytes / (arm.r * results["passive"]["layer_compute_s"])
        with console.status(f"{arm.name}: one engine, {REQUESTS} requests"):
            with ProcessPoolExecutor(1, context) as process:
                measured = process.submit(_run, arm, link).result()
            results[arm.name] = {**measured, "link_bytes_per_s": link}
    reference = results["passive"]["tokens"]
    table = Table(title="One engine, its own layers, the same requests")
    for column in (
        "arm",
        "tok/s",
        "x passive",
        "TTFT p50 s",
        "TTFT max s",
        "grain",
        "stall s",
        "same",
    ):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, result in results.items():
        result["outputs_identical"] = result.pop("tokens") == reference
        base = results["passive"]["throughput_tok_s"]
        table.add_row(
            name,
            f"{result['throughput_tok_s']:.0f}",
            f"{result['throughput_tok_s'] / base:.2f}",
            f"{result['ttft_p50_s']:.2f}",
            f"{result['ttft_max_s']:.2f}",
            {1: "layer", 2: "half"}.get(result["units_per_layer"], "linear"),
            f"{result['stall_s']:.2f}",
            "yes" if result["outputs_identical"] else "NO",
        )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"arms": [asdict(a) for a in ARMS], "results": results}, indent=2))
    console.print(table)
    console.print(f"result: {OUT}")


if __name__ == "__main__":
    main()
