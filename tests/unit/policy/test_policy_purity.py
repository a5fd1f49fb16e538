"""The policy imports and runs with torch, vLLM and Ray absent, and with no clock or system."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent(
    """
    import sys

    ABSENT = {"torch", "vllm", "ray", "numpy", "grpc", "redis", "google", "pydantic", "rich"}

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ABSENT:
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Absent())

    import pkgutil
    from importlib import import_module

    import mirage_core.policy

    for module in pkgutil.iter_modules(mirage_core.policy.__path__, "mirage_core.policy."):
        import_module(module.name)

    from mirage_core.model import EngineId, ModelName, RESIDENT
    from mirage_core.policy.algorithm1 import plan_reversion, plan_shortage
    from mirage_core.policy.cost import StepCost
    from mirage_core.policy.how_many import SlotRule, build_plan_table
    from mirage_core.policy.settings import Policy
    from mirage_core.policy.view import DeviceView, EngineView

    table = build_plan_table(StepCost((1.0,) * 8, (2.0,) * 8), (4,) * 8, SlotRule.BEST)

    def engine(name, active):
        return EngineView(
            EngineId(name), ModelName(name), 0, active, 0.0, RESIDENT, table, 10, 0, 0
        )

    device = DeviceView(2, (engine("a", True), engine("b", False)))
    decision = plan_shortage(device, EngineId("a"), 6, Policy(), 0.0)
    assert [type(action).__name__ for action in decision.actions] == ["GrantPages", "ApplyPlan"]
    assert plan_reversion(device, Policy(), 0.0).actions == ()
    assert not ABSENT & {name.partition(".")[0] for name in sys.modules}
    """
)


def test_policy_imports_and_runs_with_torch_vllm_and_ray_absent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
