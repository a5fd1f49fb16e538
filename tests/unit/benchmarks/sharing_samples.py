"""Outcomes and model folders small enough to check by hand."""

from pathlib import Path

from benchmarks.models import Family, ModelSpec
from benchmarks.sharing.client import Outcome
from benchmarks.sharing.conditions import HostedModel
from benchmarks.sharing.workload import Request

SMALL_BYTES, LARGE_BYTES = 40_000_000, 80_000_000


def hosted(folder: Path, name: str, size_bytes: int, core: int) -> HostedModel:
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size_bytes)
    spec = ModelSpec(
        Family.LLAMA, hidden=128, layers=4, heads=2, kv_heads=2, ffn=256, dtype="float32"
    )
    return HostedModel(name, spec, folder, (core,))


def outcome(
    number: int,
    times_s: list[float],
    token_ids: list[int] | None = None,
    model: str = "small",
    arrival_s: float = 0.0,
    finished: bool = True,
) -> Outcome:
    ids = list(range(len(times_s))) if token_ids is None else token_ids
    request = Request(number, model, arrival_s, (5, 6), len(ids))
    return Outcome(request, ids, times_s, finished, None if finished else "cut off")
