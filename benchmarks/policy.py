"""Time of one decision: ``python -m benchmarks.policy`` (``make bench-policy``).

Eight models of 80 layers on one device.  Each case is one ``plan_shortage`` or ``plan_reversion``
call on a fresh snapshot; plan tables exist already, as in the agent, and their build is timed
apart.  Writes ``build/bench/policy.json``, times in microseconds.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mirage_core.model import RESIDENT, EngineId, ModelName
from mirage_core.policy.algorithm1 import plan_reversion, plan_shortage
from mirage_core.policy.cost import StepCost
from mirage_core.policy.decision import Decision
from mirage_core.policy.how_many import PlanTable, SlotRule, build_plan_table
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView

LAYERS = 80
MODELS = 8
LAYER_PAGES = 816  # Llama-3.1-70B: 1711.3 MB a layer, pages of 2 MiB
COMPUTE_S, TRANSFER_S = 0.45e-3, 4.01e-3  # a layer, of 1711.3 MB at 3.8 TB/s and 427 GB/s
CALLS = 5000
WARM_CALLS = 200
OUTPUT = Path("build/bench/policy.json")

BORROWER = EngineId("engine-0")


def build_table(parts: int) -> PlanTable:
    """Plan table of the model with each layer in ``parts`` equal units."""
    units = LAYERS * parts
    cost = StepCost((COMPUTE_S / parts,) * units, (TRANSFER_S / parts,) * units)
    return build_plan_table(cost, (LAYER_PAGES // parts,) * units, SlotRule.BEST)


def build_device(plans: PlanTable) -> DeviceView:
    """Two active models, the borrower among them, and six inactive ones, none lending yet."""
    return DeviceView(
        free_pages=0,
        engines=tuple(
            EngineView(
                engine=EngineId(f"engine-{index}"),
                model=ModelName(f"model-{index}"),
                priority=index % 3,
                active=index < 2,
                last_active_s=float(index),
                plan=RESIDENT,
                plan_table=plans,
                pool_pages=4000,
                pool_spare_pages=0 if index < 2 else 500,
                pool_min_pages=100,
                granule_pages=LAYERS,
            )
            for index in range(MODELS)
        ),
    )


def cases(device: DeviceView) -> Iterator[tuple[str, Callable[[], Decision]]]:
    policy = Policy(cap_share=0.8)
    all_pages = MODELS * LAYERS * LAYER_PAGES
    free = replace(device, free_pages=10_000)
    lent = replace(
        device,
        engines=tuple(
            view if view.active else replace(view, plan=view.plan_table.rows[-1].plan)
            for view in device
        ),
    )
    yield "shortage, free pages", lambda: plan_shortage(free, BORROWER, 800, policy, 0.0)
    yield "shortage, one donor", lambda: plan_shortage(device, BORROWER, 8000, policy, 0.0)
    yield "shortage, every model", lambda: plan_shortage(device, BORROWER, all_pages, policy, 0.0)
    yield "reversion, nothing lent", lambda: plan_reversion(device, policy, 0.0)
    yield "reversion, six models lent", lambda: plan_reversion(lent, policy, 0.0)


def call_times_s(call: Callable[[], Decision]) -> list[float]:
    times_s = []
    for _ in range(WARM_CALLS + CALLS):
        begin_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - begin_s)
    return times_s[WARM_CALLS:]


def main() -> None:
    build_s = {}
    for parts in (1, 2, 4):
        begin_s = time.perf_counter()
        build_table(parts)
        build_s[parts] = time.perf_counter() - begin_s
    device = build_device(build_table(1))

    shown = Table(title=f"One decision, {MODELS} models of {LAYERS} layers, {CALLS} calls a case")
    for heading in ("case", "median us", "p99 us", "actions"):
        shown.add_column(heading, justify="left" if heading == "case" else "right")
    results = {}
    for name, call in cases(device):
        times_s = call_times_s(call)
        median_us = statistics.median(times_s) * 1e6
        p99_us = statistics.quantiles(times_s, n=100)[98] * 1e6
        actions = len(call().actions)
        results[name] = {"median_us": median_us, "p99_us": p99_us, "actions": actions}
        shown.add_row(name, f"{median_us:.1f}", f"{p99_us:.1f}", str(actions))

    console = Console()
    console.print(shown)
    for parts, took_s in build_s.items():
        console.print(f"plan table of {LAYERS * parts} units, built once a cost: {took_s:.3f} s")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "layers": LAYERS,
        "models": MODELS,
        "calls": CALLS,
        "cases": results,
        "table_build_s": {f"{LAYERS * parts} units": took_s for parts, took_s in build_s.items()},
    }
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
