"""Our linear kernel against the stock ones, and the native transfer thread against a Python one.

``python -m benchmarks.linear`` (``make bench-linear``) writes ``build/bench/linear.json``.

- *Linears*: ``mirage::linear``, vLLM's float32 oneDNN linear and torch's ``F.linear``, in turns in
  one process, on one thread.  Each arm walks over many copies of its weight, so that weights come
  from memory as they do in a model, not from the cache.  Times are the thread's CPU time, which a
  busy machine disturbs less; a ratio is the median of the turns' own ratios (over 1: ours faster).
- *Pick-up*: how long after its request a fetch begins, while the requesting thread goes on
  computing in Python and so holds Python's lock: the native engine against the same loop as a
  Python thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from mirage_core import native
from mirage_core.model import UnitId
from mirage_core.transfer import TransferEngine, UnitSpan

SHAPES = (
    (1536, 512),
    (512, 512),
    (3072, 512),
    (512, 1536),
    (2304, 768),
    (768, 768),
    (4096, 768),
    (768, 2048),
    (2048, 2048),
    (4096, 512),
)
"""(out, in) features of small models' linears."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 256)
WEIGHTS_BYTES = 40 << 20
"""Copies of one arm's weight together; the arms together exceed the last cache."""
TURNS = 15
PICK_UPS = 200
BUSY_S = 0.01
"""Python computes this long after a request: twice the interval at which its lock changes hands."""
UNIT_BYTES = 1 << 20
OUTPUT = Path("build/bench/linear.json")

OURS, ONEDNN, TORCH = "mirage", "oneDNN", "F.linear"
Linear = Callable[[torch.Tensor], torch.Tensor]


class Comparison(NamedTuple):
    """One shape at one batch size: medians of the arms' times and of the ratios to ours."""

    times_us: dict[str, float]
    ratios: dict[str, float]


def arms(weight: torch.Tensor, copies: int) -> dict[str, Iterator[Linear]]:
    """Each arm's linears, one for a copy of the weight, round and round."""
    out_features = weight.shape[0]
    native.load()

    def ours() -> Linear:
        packed = torch.ops.mirage.pack_linear(weight)
        return lambda x: torch.ops.mirage.linear(x, packed, None, out_features, -1, -1)

    def stock() -> Linear:
        handler = onednn.create_onednn_mm(weight.clone().t(), 32)
        return lambda x: onednn.onednn_mm(handler, x, None)

    def functional() -> Linear:
        own = weight.clone()
        return lambda x: torch.nn.functional.linear(x, own)

    makers = {OURS: ours, TORCH: functional}
    try:
        from vllm import _custom_ops as onednn

        makers[ONEDNN] = stock
    except ImportError:
        pass  # without vLLM its kernel is not compared
    return {name: cycle([make() for _ in range(copies)]) for name, make in makers.items()}


def compare(linears: dict[str, Iterator[Linear]], x: torch.Tensor) -> Comparison:
    times_us: dict[str, list[float]] = {name: [] for name in linears}
    repeat = 4 if x.shape[0] <= 16 else 1
    for turn in range(TURNS + 2):
        for name, arm in linears.items():
            begin_ns = time.thread_time_ns()
            for _ in range(repeat):
                next(arm)(x)
            if turn >= 2:
                times_us[name].append((time.thread_time_ns() - begin_ns) / repeat / 1e3)
    return Comparison(
        {name: statistics.median(times) for name, times in times_us.items()},
        {
            name: statistics.median(
                theirs / ours for theirs, ours in zip(times, times_us[OURS], strict=True)
            )
            for name, times in times_us.items()
            if name != OURS
        },
    )


def compare_all(console: Console) -> dict[str, dict[str, object]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, dict[str, object]] = {}
    tables: dict[str, Table] = {}
    for out_features, in_features in SHAPES:
        weight = torch.randn(out_features, in_features)
        copies = max(1, WEIGHTS_BYTES // (weight.numel() * weight.element_size()))
        linears = arms(weight, copies)
        ratios: list[dict[str, float]] = []
        for rows in BATCHES:
            comparison = compare(linears, torch.randn(rows, in_features))
            results[f"{out_features}x{in_features} batch {rows}"] = comparison._asdict()
            ratios.append(comparison.ratios)
        for name in ratios[0]:
            if name not in tables:
                tables[name] = Table("N x K", *map(str, BATCHES), title=f"{name} / ours, by batch")
            tables[name].add_row(
                f"{out_features}x{in_features}", *(f"{ratio[name]:.2f}" for ratio in ratios)
            )
    for table in tables.values():
        console.print(table)
    return results


class PythonTransferThread:
    """The transfer engine's loop in Python: what the native one is measured against."""

    def __init__(self, spans: list[UnitSpan]) -> None:
        self.pick_up_s: list[float] = []
        self._spans = spans
        self._requests: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._landed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def request(self, unit: int) -> None:
        self._landed.clear()
        self._requests.put((unit, time.monotonic()))

    def drain(self) -> None:
        self._landed.wait()

    def close(self) -> None:
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            unit, requested_s = request
            self.pick_up_s.append(time.monotonic() - requested_s)
            span = self._spans[unit]
            ctypes.memmove(span.device_address, span.host_address, span.size_bytes)
            self._landed.set()


def compute_in_python() -> None:
    end_s = time.monotonic() + BUSY_S
    while time.monotonic() < end_s:
        pass


def pick_up_times_s() -> dict[str, list[float]]:
    device = ctypes.create_string_buffer(UNIT_BYTES)
    host = [ctypes.create_string_buffer(UNIT_BYTES) for _ in range(2)]
    spans = [
        UnitSpan(ctypes.addressof(device), ctypes.addressof(copy), UNIT_BYTES) for copy in host
    ]
    native_s = []
    python_engine = PythonTransferThread(spans)
    with TransferEngine() as engine:
        engine.register_units(spans)
        engine.set_slots([[UnitId(0), UnitId(1)]], landed={UnitId(0)})
        x = torch.empty(1)
        for turn in range(PICK_UPS):
            unit = turn % 2
            torch.ops.mirage.unit_wait(x, unit)
            torch.ops.mirage.unit_done(x, unit)  # requests the other unit
            compute_in_python()
            engine.drain()
            native_s.append(engine.stats().units[1 - unit].queued_last_s)
            python_engine.request(unit)
            compute_in_python()
            python_engine.drain()
    python_engine.close()
    return {"native thread": native_s, "Python thread": python_engine.pick_up_s}


def compare_pick_up(console: Console) -> dict[str, dict[str, float]]:
    table = Table(title=f"pick-up of {PICK_UPS} fetches beside computing Python")
    table.add_column("engine")
    for heading in ("median us", "p99 us", "worst us"):
        table.add_column(heading, justify="right")
    results = {}
    for name, times_s in pick_up_times_s().items():
        figures = {
            "median_us": statistics.median(times_s) * 1e6,
            "p99_us": statistics.quantiles(times_s, n=100)[98] * 1e6,
            "worst_us": max(times_s) * 1e6,
        }
        results[name] = figures
        table.add_row(name, *(f"{value:.0f}" for value in figures.values()))
    console.print(table)
    return results


def main() -> None:
    console = Console()
    report = {
        "torch": torch.__version__,
        "load_average_at_start": os.getloadavg()[0],
        "pick_up": compare_pick_up(console),
        "linear": compare_all(console),
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
