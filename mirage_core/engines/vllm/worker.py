"""vLLM's CPU worker with its weights and KV cache on a device's pages.

Start-up: the model loads as always, but its linears are packed into plain tensors; those move to
the host copy and to units on the device, everything else to the device's static part; the KV
cache becomes a range of which only granules are mapped.  From then on each step performs what the
scheduler sent along, before its forward pass.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import logging
import os
import time
import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import vllm
from torch.overrides import TorchFunctionMode
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.cpu_worker import CPUWorker

from mirage_core import native
from mirage_core.control.operations import WorkerFacts, WorkerReport
from mirage_core.engines.memory import EngineMemory
from mirage_core.engines.vllm import checks
from mirage_core.engines.vllm.architectures import layer_shape
from mirage_core.engines.vllm.config import EngineConfig, engine_config
from mirage_core.engines.vllm.elastic import model_name
from mirage_core.engines.vllm.grain import measure_grain
from mirage_core.engines.vllm.linears import (
    CapturedLinear,
    bind_linear,
    capture_head,
    capture_linears,
    choose_kernel,
)
from mirage_core.engines.vllm.model_weights import SplitModel, split_model
from mirage_core.errors import ConfigError, UnsupportedError
from mirage_core.kv.geometry import PoolGeometry, round_up_blocks
from mirage_core.memory.host import HostDevice
from mirage_core.model import (
    DeviceGeometry,
    DeviceId,
    EngineId,
    ModelName,
    PageId,
    UnitGrain,
    UnitId,
)
from mirage_core.transfer.engine import TransferEngine
from mirage_core.weights.host_copy import (
    CHECKSUM_BYTES,
    HostCopy,
    HostCopyWriter,
    host_copy_bytes,
    host_copy_digest,
)
from mirage_core.weights.layout import Tensor, WeightLayout, lay_out
from mirage_core.wire import messages as wire
from mirage_core.wire.client import AgentClient

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput

_log = logging.getLogger("vllm.mirage.worker")

REPORT_INTERVAL_S = 0.25
"""Steps without operations carry a report so often, for measured times and counters."""


class MirageWorker(CPUWorker):
    """``--worker-cls mirage_core.engines.vllm.worker.MirageWorker``."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        checks.check_version(vllm.__version__)
        checks.check_signatures()
        checks.check_config(vllm_config)
        self._settings: EngineConfig = engine_config(vllm_config.additional_config)
        self._shape = layer_shape(vllm_config.model_config.architecture)
        self._kernel = choose_kernel(vllm_config.model_config.dtype)
        # Part of the key of compiled graphs: another kernel compiles another graph.
        vllm_config.additional_config["mirage_kernel"] = self._kernel.name
        # vLLM checks a pool against free memory; ours is of addresses, and pages are the agent's.
        vllm_config.cache_config.kv_cache_memory_bytes = 1
        super().__init__(vllm_config, *args, **kwargs)
        self._client: AgentClient | None = None
        self._memory: EngineMemory | None = None
        self._pool_view: torch.Tensor | None = None
        self._engine = EngineId(str(uuid.uuid4()))
        self._report: Any = None
        self._next_report_s = 0.0

    # ---- weights

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        native.load()
        with capture_linears(self._kernel) as captured:
            super().load_model(load_dummy_weights=load_dummy_weights)
        model = self.model_runner.model
        captured.append(capture_head(self._kernel, model))
        self._device = self._open_device()
        split = split_model(model, self._shape, self._grain(model, captured), captured)
        layout = _layout(self._device.geometry.page_bytes, split)
        host_copy = self._host_copy(layout, split)
        self._weights_digest = host_copy.digest
        transfer = TransferEngine(cpus=self._settings.fetch_cpus, verify=self._settings.verify)
        transfer.set_bandwidth_limit(self._settings.link_bytes_per_s)
        self._memory = EngineMemory(
            self._device, layout, host_copy, transfer, verify=self._settings.verify
        )
        self._take(layout.places + layout.static.pages, "its weights")
        self._memory.start_weights()
        self._bind(layout, split)
        _log.info(
            "%d units of %d pages, %d static pages, kernel %s",
            len(layout.parts),
            max(layout.unit_pages),
            layout.static.pages,
            self._kernel.name,
        )

    def _grain(self, model: torch.nn.Module, captured: list[CapturedLinear]) -> UnitGrain:
        if self._settings.grain is not None:
            return self._settings.grain
        return measure_grain(
            self._kernel,
            model,
            self._shape,
            captured,
            page_bytes=self._device.geometry.page_bytes,
            link_bytes_per_s=self._settings.link_bytes_per_s,
        )

    def _open_device(self) -> HostDevice:
        private = self._settings.device
        if private is not None:
            device = HostDevice.create(
                DeviceGeometry(
                    DeviceId(f"private-{self._engine}"),
                    private.page_bytes,
                    private.size_bytes // private.page_bytes,
                )
            )
            self._private_pages = [PageId(page) for page in range(device.geometry.pages)]
            return device
        self._client = AgentClient(
            str(self._settings.agent),
            wire.Hello(
                role=wire.Role.WORKER,
                engine=self._engine,
                model=ModelName(model_name(self.vllm_config)),
            ),
        )
        fd = self._client.take_device_fd()
        geometry = self._client.geometry
        return HostDevice.open(fd, geometry.device, geometry.page_bytes)

    def _take(self, pages: int, purpose: str) -> None:
        """Pages for the start, all or nothing."""
        memory = self._memory_started
        if self._client is None:
            if pages > len(self._private_pages):
                raise ConfigError(
                    f"the device has {len(self._private_pages)} pages left, {purpose} need "
                    f"{pages}: raise device.size_bytes by "
                    f"{(pages - len(self._private_pages)) * self._device.geometry.page_bytes}"
                )
            memory.receive(tuple(self._private_pages[:pages]))
            del self._private_pages[:pages]
            return
        answer = self._client.take(pages)
        if isinstance(answer, wire.Denied):
            raise ConfigError(f"no room on the device for {purpose}: {answer.reason}")
        memory.receive(answer)

    def _host_copy(self, layout: WeightLayout, split: SplitModel) -> HostCopy:
        """The model's host copy: the node's, if another engine has filled it already."""
        tensors = [[t for _, t in unit.tensors()] for unit in split.units]
        if self._client is None:
            writer = HostCopyWriter(layout)
            _fill(writer, layout, tensors)
            return writer.seal()
        digest = host_copy_digest(layout, _checksums(layout, tensors))
        fd = self._client.open_host_copy(digest, host_copy_bytes(layout))
        if fd is not None:
            try:
                return HostCopy.open(fd, layout, digest)
            finally:
                os.close(fd)
        writer = HostCopyWriter(layout)
        _fill(writer, layout, tensors)
        host_copy = writer.seal()
        self._client.host_copy_filled(digest, host_copy.fd)
        return host_copy

    def _bind(self, layout: WeightLayout, split: SplitModel) -> None:
        """Point the model's parameters at the device."""
        store = self._memory_started.weights
        for index, unit in enumerate(split.units):
            buffer = store.unit_buffer(UnitId(index))
            views = _views(buffer, layout.parts[index].offsets_bytes, unit.tensors())
            last = len(unit.linears) - 1
            for position, linear in enumerate(unit.linears):
                bind_linear(
                    self._kernel,
                    linear,
                    views[f"{position}.weight"],
                    views.get(f"{position}.bias"),
                    UnitId(index) if position == 0 else None,
                    UnitId(index) if position == last else None,
                )
        tensors = split.static_tensors()
        views = _views(store.static_buffer(), layout.static.offsets_bytes, tensors)
        for name, tensor in tensors:
            views[name].copy_(tensor)
        for name, parameter in split.parameters:
            parameter.data = views[name]
        for index, linear in enumerate(split.static_linears):
            bind_linear(
                self._kernel,
                linear,
                views[f"linear.{index}.weight"],
                views.get(f"linear.{index}.bias"),
                None,
                None,
            )

    # ---- KV pool

    def determine_available_memory(self) -> int:
        """Bytes of the pool's addresses, not of memory: whole granules of ``pool_max_tokens``."""
        self.model_runner.warming_up_model()
        specs = list(self.get_kv_cache_spec().values())
        if any(type(spec) is not FullAttentionSpec for spec in specs) or len(set(specs)) > 1:
            raise UnsupportedError(
                "MIRAGE supports models whose layers all have full attention and one KV shape"
            )
        block_bytes, block_tokens = specs[0].page_size_bytes, specs[0].block_size
        geometry = self._device.geometry
        per_token = len(specs) * block_bytes // block_tokens
        tokens = self._settings.pool_max_tokens or geometry.size_bytes // per_token
        tokens = max(tokens, self._settings.pool_tokens, self.model_config.max_model_len)
        blocks = round_up_blocks(-(-tokens // block_tokens) + 1, block_bytes, geometry.page_bytes)
        return blocks * block_bytes * len(specs)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        tensors = kv_cache_config.kv_cache_tensors
        if len(tensors) != 1 or len(kv_cache_config.kv_cache_groups) != 1:
            raise UnsupportedError("MIRAGE supports one KV cache group in one tensor")
        layout = kv_cache_config.kv_cache_layout
        if layout != "LBHNC":
            raise UnsupportedError(f"MIRAGE supports the KV cache layout LBHNC, not {layout}")
        tensor = tensors[0]
        self._pool_geometry = PoolGeometry(
            layers=len(tensor.layers),
            block_bytes=tensor.block_stride,
            layer_stride_bytes=tensor.layer_stride,
            page_bytes=self._device.geometry.page_bytes,
            blocks=kv_cache_config.num_blocks,
        )
        memory = self._memory_started
        view = torch.frombuffer(memory.open_pool(self._pool_geometry), dtype=torch.int8)
        self._pool_view = view[: tensor.size]
        super().initialize_from_config(kv_cache_config)
        self._first_granules = self._count_first_granules()
        self._take(self._first_granules * self._pool_geometry.granule_pages, "its KV pool")
        memory.map_first(self._first_granules)
        if self._client is None:
            self._take(len(self._private_pages), "its reserve")

    def _count_first_granules(self) -> int:
        block_tokens = self.cache_config.block_size
        blocks = -(-self._settings.pool_tokens // block_tokens) + 1  # + 1: vLLM's null block
        granules = -(-blocks // self._pool_geometry.granule_blocks)
        return min(granules, self._pool_geometry.granules)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        if tag == "kv_cache" and self._pool_view is not None:
            return _PoolAllocation(self._pool_view)
        return nullcontext()

    # ---- steps

    def mirage_facts(self) -> WorkerFacts:
        """For the scheduler, once (see scheduler.attach)."""
        if self._client is not None:
            self._client.start()  # nothing more is asked; the link stays, for a restarted agent
        layout = self._memory_started.weights.layout
        geometry = self._pool_geometry
        return WorkerFacts(
            engine=self._engine,
            unit_pages=layout.unit_pages,
            static_pages=layout.static.pages,
            weights_digest=self._weights_digest,
            page_bytes=geometry.page_bytes,
            device_pages=self._device.geometry.pages,
            kv_layers=geometry.layers,
            kv_block_bytes=geometry.block_bytes,
            kv_layer_stride_bytes=geometry.layer_stride_bytes,
            reserve_pages=self._memory_started.table.reserve_pages,
            first_granules=self._first_granules,
        )

    def mirage_report(self) -> WorkerReport:
        """Counters and measured times, for whoever calls ``collective_rpc``."""
        return self._memory_started.report(())

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        self._step(getattr(scheduler_output, "mirage_operations", ()))
        return self._with_report(super().execute_model(scheduler_output))

    def sample_tokens(self, grammar_output: Any) -> ModelRunnerOutput:
        return self._with_report(super().sample_tokens(grammar_output))

    def _step(self, operations: tuple[Any, ...]) -> None:
        now_s = time.monotonic()
        if operations or now_s >= self._next_report_s:
            memory = self._memory_started
            self._report = memory.report(memory.perform(operations))
            self._next_report_s = now_s + REPORT_INTERVAL_S

    def _with_report(self, output: Any) -> Any:
        """Send what the step's operations came to with its output, once there is one."""
        if output is None or self._report is None:
            return output
        output = copy.copy(output)  # vLLM shares one object among all empty outputs
        output.mirage_report, self._report = self._report, None
        return output

    @property
    def _memory_started(self) -> EngineMemory:
        assert self._memory is not None, "the model is not loaded"
        return self._memory


class _PoolAllocation(TorchFunctionMode):
    """Gives vLLM's one allocation of KV cache (``allocate_kv_cache``) the pool's addresses."""

    def __init__(self, pool: torch.Tensor) -> None:
        super().__init__()
        self._pool = pool

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and args == (self._pool.numel(),):
            assert kwargs.get("dtype") is torch.int8
            return self._pool
        return func(*args, **kwargs)


def _layout(page_bytes: int, split: SplitModel) -> WeightLayout:
    def tensors(prefix: str, named: list[tuple[str, torch.Tensor]]) -> list[Tensor]:
        return [
            Tensor(f"{prefix}{name}", str(t.dtype), tuple(t.shape), t.numel() * t.element_size())
            for name, t in named
        ]

    return lay_out(
        page_bytes,
        [(unit.name, tensors(f"{unit.name}.", unit.tensors())) for unit in split.units],
        tensors("", split.static_tensors()),
    )


def _views(
    buffer: ctypes.Array[ctypes.c_ubyte],
    offsets_bytes: tuple[int, ...],
    named: list[tuple[str, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """For each tensor, one of its dtype and shape at its place in ``buffer``."""
    raw = torch.frombuffer(buffer, dtype=torch.uint8)
    return {
        name: raw[offset : offset + t.numel() * t.element_size()].view(t.dtype).view(t.shape)
        for offset, (name, t) in zip(offsets_bytes, named, strict=True)
    }


def _fill(writer: HostCopyWriter, layout: WeightLayout, tensors: list[list[torch.Tensor]]) -> None:
    for index, part in enumerate(layout.parts):
        base = ctypes.addressof(writer.buffer(UnitId(index)))
        for offset, t in zip(part.offsets_bytes, tensors[index], strict=True):
            ctypes.memmove(base + offset, t.data_ptr(), t.numel() * t.element_size())


def _checksums(layout: WeightLayout, tensors: list[list[torch.Tensor]]) -> list[bytes]:
    """The host copy's checksum of each unit (zero between tensors), before the copy is made."""
    checksums = []
    for part, unit in zip(layout.parts, tensors, strict=True):
        digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        end = 0
        for offset, t in zip(part.offsets_bytes, unit, strict=True):
            digest.update(bytes(offset - end))
            size_bytes = t.numel() * t.element_size()
            digest.update((ctypes.c_ubyte * size_bytes).from_address(t.data_ptr()))
            end = offset + size_bytes
        checksums.append(digest.digest())
    return checksums
