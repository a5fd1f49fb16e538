"""Bad input to the plug-in gets one clear error that names what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirage_core.engines.vllm import checks
from mirage_core.engines.vllm.architectures import ARCHITECTURES, layer_shape
from mirage_core.engines.vllm.config import engine_config
from mirage_core.errors import ConfigError, UnsupportedError
from mirage_core.model import UnitGrain

PRIVATE = {"device": {"size_bytes": 1 << 20}, "pool_tokens": 64}


def test_settings_are_read_from_additional_config() -> None:
    config = engine_config({"mirage": {**PRIVATE, "grain": "half", "priority": 3}})
    assert config.grain is UnitGrain.HALF
    assert config.priority == 3
    assert config.device is not None
    assert config.device.page_bytes == 2 << 20


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({**PRIVATE, "prioritty": 1}, "prioritty"),
        ({**PRIVATE, "pool_tokens": 0}, "pool_tokens"),
        ({**PRIVATE, "grain": "quarter"}, "grain"),
        ({"pool_tokens": 64}, "agent"),
        ({**PRIVATE, "agent": "/run/a.sock"}, "exactly one"),
        ({**PRIVATE, "link_bytes_per_s": -1}, "link_bytes_per_s"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        engine_config({"mirage": settings})


@pytest.mark.parametrize("additional", [{}, None, {"other": 1}])
def test_classes_without_settings_say_what_is_missing(additional: Any) -> None:
    with pytest.raises(ConfigError, match="--additional-config"):
        engine_config(additional)


def test_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="MixtralForCausalLM"):
        layer_shape("MixtralForCausalLM")


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_grain_moves_each_linear_once(architecture: str) -> None:
    shape = layer_shape(architecture)
    for grain in UnitGrain:
        moved = [name for group in shape.groups(grain) for name in group]
        assert moved == list(shape.attention + shape.mlp)


def test_another_vllm_is_refused_and_the_right_one_named() -> None:
    checks.check_version("0.29.0")
    checks.check_version("0.29.0+cpu")
    with pytest.raises(UnsupportedError, match=r"needs vLLM 0\.29\.0, found 0\.30\.1"):
        checks.check_version("0.30.1")


def test_every_function_that_the_plug_in_relies_on_is_as_it_knows_it() -> None:
    pytest.importorskip("vllm")
    checks.check_signatures()


def test_changed_signature_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"os\.path:join"):
        checks.check_signatures({"os.path:join": ("a", "b")})
    with pytest.raises(UnsupportedError, match=r"os\.path:gone"):
        checks.check_signatures({"os.path:gone": ()})


def vllm_config(**changes: Any) -> Any:
    """What the checks read of a VllmConfig; ``changes`` by section and name."""
    sections: dict[str, dict[str, Any]] = {
        "parallel_config": {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
        },
        "scheduler_config": {"watermark": 0.0},
        "cache_config": {"cache_dtype": "auto"},
        "model_config": {
            "quantization": None,
            "is_encoder_decoder": False,
            "is_multimodal_model": False,
            "enable_sleep_mode": False,
        },
        "compilation_config": {"inductor_compile_config": {}},
        "offload_config": {
            "uva": SimpleNamespace(cpu_offload_gb=0),
            "prefetch": SimpleNamespace(offload_group_size=0),
        },
    }
    whole = {"speculative_config": None, "lora_config": None, "kv_transfer_config": None}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            sections[section][field] = value
        else:
            whole[section] = value
    return SimpleNamespace(**{k: SimpleNamespace(**v) for k, v in sections.items()}, **whole)


def test_supported_engine_passes() -> None:
    checks.check_config(vllm_config())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallel_config__tensor_parallel_size": 2}, "tensor parallelism"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"speculative_config": object()}, "speculative decoding"),
        ({"lora_config": object()}, "LoRA"),
        ({"model_config__quantization": "fp8"}, "quantized"),
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"cache_config__cache_dtype": "fp8"}, "fp8"),
        ({"scheduler_config__watermark": 0.1}, "watermark"),
        (
            {"compilation_config__inductor_compile_config": {"max_autotune": True}},
            "max_autotune",
        ),
    ],
)
def test_unsupported_option_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        checks.check_config(vllm_config(**changes))
