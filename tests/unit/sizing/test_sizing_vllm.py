"""Sizes against vLLM's own model classes and KV cache specs (all variants: make bench-sizing)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.sizing import count_exact


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_all_known_models_are_sized_as_vllm_sizes_them() -> None:
    result = count_exact(quick=True)
    faults = {name: model["faults"] for name, model in result["models"].items() if model["faults"]}
    assert faults == {}
    assert result["sizing_configs_exact"] == result["sizing_configs_total"] >= 25
