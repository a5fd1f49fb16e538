"""Policy and state machines import, and run, where torch, vLLM, Ray and protobuf are absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "vllm", "ray", "grpc", "google", "redis", "numpy"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())

import mirage_core.policy.algorithm1
from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Tick
from mirage_core.control.own_plans import own_plans
from mirage_core.control.reconciler import Reconciler, ReconcilerSettings
from mirage_core.control.reconciler_events import Tick as ClusterTick
from mirage_core.control.remapper import PoolView, Remapper
from mirage_core.policy.settings import Policy

Arbiter(100, Policy()).handle(Tick(), 0.0)
Reconciler("store", 1, (), ReconcilerSettings(), 0.0).handle(ClusterTick(), 0.0)
plans = own_plans((4,) * 8, (1.0,) * 8, (0.1,) * 8)
engine = Remapper(
    granule_pages=2, first_granules=1, max_granules=9, unit_pages=(4,) * 8, own_plans=plans,
    allowance_pages=32, linked=False,
)
view = PoolView(active=True, starving=False, needed_granules=3, spare=(), emptiest=(), drained=())
print(len(engine.on_step(view, 0.0)), len(plans))
"""


def test_policy_and_state_machines_need_nothing_but_python() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    actions, plans = map(int, ran.stdout.split())
    assert actions == 1
    assert plans > 1
