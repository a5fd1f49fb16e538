"""The raw timeline of one run, for whoever wants more of it than its figures: JSON lines.

The first line says under what the run was made, each further one what became of a request:

    {"arm": "mirage", "kernels": "plug-in", "load": 2.0, "repeat": 0, "split": 0.4,
     "length_scale": 0.2, "device_bytes": ..., "page_bytes": ..., "block_size": ...,
     "max_num_seqs": ..., "max_model_len": ..., "preemptions": 4, "counted": {...},
     "models": {"small": {"layers": 12, "unit_bytes": ..., "weight_bytes": ...,
                          "kv_bytes_per_token": ..., "pool_tokens": ...}, ...}}
    {"model": "small", "arrival_s": 0.13, "prompt_tokens": 12, "output_tokens": 60,
     "token_times_s": [0.61, 0.66, ...], "finished": true}

``pool_tokens`` can be held at the start: all that there ever is where pools are static, the least
otherwise.  ``kernels``: step times of runs with the same ones can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.sharing.arms import Arm
from benchmarks.sharing.client import Run
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.servers import EngineSpec


def write_record(
    folder: Path,
    arm: Arm,
    conditions: Conditions,
    load: float,
    run: Run,
    counted: Mapping[str, float],
) -> Path:
    """Write the run beside those of the same arm and load; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    head = _head(arm, conditions, load, counted)
    stem = f"{arm.name}-{head['split']}-{load:g}x"
    head["repeat"] = repeat = len(list(folder.glob(f"{stem}-*.jsonl")))
    path = folder / f"{stem}-{repeat}.jsonl"
    lines = (json.dumps(line) + "\n" for line in (head, *_requests(run)))
    path.write_text("".join(lines))
    return path


def _head(
    arm: Arm, conditions: Conditions, load: float, counted: Mapping[str, float]
) -> dict[str, object]:
    engines = {engine.name: engine for engine in arm.setup(conditions).engines}
    return {
        "arm": arm.name,
        "kernels": "plug-in" if arm.same_kernels else "stock",
        "load": load,
        "split": getattr(arm, "split", None),
        "length_scale": conditions.length_scale,
        "lengths": conditions.lengths_name,
        "seed": conditions.seed,
        "eager": conditions.eager,
        "device_bytes": conditions.device_bytes,
        "page_bytes": conditions.page_bytes,
        "block_size": conditions.block_size,
        "max_num_seqs": conditions.max_num_seqs,
        "max_model_len": conditions.max_model_len,
        "preemptions": counted["preemptions"],
        "counted": dict(counted),
        "models": {
            model.name: {
                "layers": model.spec.layers,
                "unit_bytes": model.spec.linear_bytes // model.spec.layers,
                "weight_bytes": model.weight_bytes,
                "kv_bytes_per_token": model.spec.kv_bytes_per_token,
                "pool_tokens": _pool_tokens(
                    engines[model.name], model.block_bytes(conditions.block_size)
                ),
            }
            for model in conditions.models
        },
    }


def _pool_tokens(engine: EngineSpec, block_bytes: int) -> int:
    """What an engine with the plug-in was told to begin with, or all blocks but the null block."""
    arguments = engine.extra_arguments
    if "--additional-config" in arguments:
        config = json.loads(arguments[arguments.index("--additional-config") + 1])
        return int(config["mirage"]["pool_tokens"])
    return (engine.kv_bytes // block_bytes - 1) * engine.block_size


def _requests(run: Run) -> Iterator[dict[str, object]]:
    for outcome in run.outcomes:
        yield {
            "model": outcome.request.model,
            "arrival_s": outcome.request.arrival_s,
            "prompt_tokens": len(outcome.request.prompt),
            "output_tokens": outcome.request.output_tokens,
            "token_times_s": [round(time_s, 6) for time_s in outcome.token_times_s],
            "finished": outcome.finished,
        }
