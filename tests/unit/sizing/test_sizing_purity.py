"""Models are sized where torch, vLLM and numpy are absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "vllm", "transformers", "ray", "grpc", "redis", "numpy"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())

from mirage_core.sizing.catalogue import find_model, known_models
from mirage_core.sizing.hardware import find_hardware
from mirage_core.sizing.roofline import Part, step_times

step = step_times(find_model("opt-13b"), [Part(1, 100)], find_hardware("GB200"))
print(len(known_models()), 0.0 < step.step_s < 1.0)
"""


def test_sizing_needs_neither_torch_nor_vllm_nor_numpy() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["44", "True"]
