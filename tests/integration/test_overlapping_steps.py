"""The elastic pool under overlapping steps: step n + 1 is scheduled before step n is answered.

vLLM's CPU platform never overlaps steps, so a queue of two stands for the executor.  The worker
is real as far as memory goes: a host device, a pool range, granules mapped and unmapped by the
operations that ride with the steps.  Its "forward pass" writes a stamp for every new token into
the token's slot in every layer, and reads back the stamps of all tokens before it: a block that
was unmapped, zeroed or handed to another request while somebody still used it shows at once.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from benchmarks.models import Family, ModelSpec, build
from mirage_core.control.operations import (
    Accept,
    ApplyPlan,
    FetchReport,
    Inspect,
    MapGranules,
    Operation,
    Outcome,
    Release,
    UnmapGranules,
    WorkerFacts,
    WorkerReport,
)
from mirage_core.kv.geometry import PoolGeometry
from mirage_core.kv.mapper import PoolMapper
from mirage_core.memory.host import HostDevice
from mirage_core.memory.outcome import Refused
from mirage_core.memory.raw import UNSHARED
from mirage_core.memory.table import PageTable
from mirage_core.model import RESIDENT, DeviceGeometry, DeviceId, EngineId, GranuleId, PageId
from tests.integration.storm import REPORT, StormScheduler

LAYERS, BLOCK_TOKENS, PAGE_BYTES = 2, 32, 4096
BLOCK_BYTES = 2048  # two blocks a page, 64 bytes a token
BLOCKS, FIRST_GRANULES = 64, 3


class StampingWorker:
    """Performs operations and stamps tokens, one step after the other, as a worker does."""

    def __init__(self, pages: int) -> None:
        self.geometry = PoolGeometry.compact(
            layers=LAYERS, block_bytes=BLOCK_BYTES, page_bytes=PAGE_BYTES, blocks=BLOCKS
        )
        self.device = HostDevice.create(DeviceGeometry(DeviceId("overlap"), PAGE_BYTES, pages))
        self.table = PageTable()
        self.table.receive([PageId(p) for p in range(pages)])
        self.range = self.device.reserve(self.geometry.places)
        self.mapper = PoolMapper(self.range, self.geometry, self.table, poison=True)
        self.mapper.map([GranuleId(g) for g in range(FIRST_GRANULES)])
        raw = torch.frombuffer(
            self.range.buffer(0, self.geometry.places * PAGE_BYTES), dtype=torch.int64
        )
        self.slots = raw.view(LAYERS, BLOCKS, BLOCK_TOKENS, -1)
        self.blocks: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}

    def facts(self) -> WorkerFacts:
        return WorkerFacts(
            engine=EngineId("overlap"),
            unit_pages=(),
            static_pages=0,
            weights_digest="",
            page_bytes=PAGE_BYTES,
            device_pages=self.device.geometry.pages,
            kv_layers=LAYERS,
            kv_block_bytes=BLOCK_BYTES,
            kv_layer_stride_bytes=self.geometry.layer_stride_bytes,
            reserve_pages=self.table.reserve_pages,
            first_granules=FIRST_GRANULES,
        )

    def execute(self, output: Any) -> ModelRunnerOutput:
        operations = getattr(output, "mirage_operations", ())
        outcomes = tuple(self._perform(operation) for operation in operations)
        self._update(output)
        sampled = {r: self._forward(r, n) for r, n in output.num_scheduled_tokens.items()}
        ids = list(sampled)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=[sampled[r] for r in ids],
        )
        if operations:
            fetch = FetchReport(0, 0, 0.0, 0, 0.0, 0, (), ())
            result.mirage_report = WorkerReport(outcomes, self.table.reserve_pages, RESIDENT, fetch)
        return result

    def _perform(self, operation: Operation) -> Outcome:
        match operation:
            case Accept(pages):
                self.table.receive(pages)
                return Outcome(operation)
            case MapGranules(granules):
                result: object = self.mapper.map(granules)
            case UnmapGranules(granules):
                result = self.mapper.unmap(granules, UNSHARED)
            case ApplyPlan():
                return Outcome(operation)
            case Release(count):
                pages = self.table.choose(count)
                self.table.give_back(pages)
                return Outcome(operation, pages=pages)
            case Inspect():
                self.table.check()
                self.mapper.check()
                return Outcome(operation, holdings=self.table.holdings())
        return Outcome(operation, result.reason if isinstance(result, Refused) else None)

    def _update(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
            self.computed[new.req_id] = new.num_computed_tokens
            self.tokens.setdefault(new.req_id, list(new.prompt_token_ids))
            self.prompts[new.req_id] = len(new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        for index, request in enumerate(cached.req_ids):
            added = cached.new_block_ids[index]
            if request in cached.resumed_req_ids:
                self.blocks[request] = list(added[0])
                # What was in flight when it was preempted may have been dropped.
                kept = self.prompts[request] + cached.num_output_tokens[index]
                del self.tokens[request][kept:]
            elif added is not None:
                self.blocks[request].extend(added[0])
            self.computed[request] = cached.num_computed_tokens[index]

    def _slot(self, request: str, position: int) -> torch.Tensor:
        block = self.blocks[request][position // BLOCK_TOKENS]
        return self.slots[:, block, position % BLOCK_TOKENS, :]

    def _stamp(self, request: str, position: int) -> int:
        # By content, not by request: requests with one prefix share its blocks.
        return hash(tuple(self.tokens[request][: position + 1])) & ((1 << 62) - 1)

    def _forward(self, request: str, count: int) -> list[int]:
        start = self.computed[request]
        for position in range(start, start + count):
            self._slot(request, position).fill_(self._stamp(request, position))
        for position in range(start + count):
            found = self._slot(request, position)
            assert bool((found == self._stamp(request, position)).all()), (
                f"{request}: the KV of token {position} is not what was written"
            )
        if start + count < len(self.tokens[request]):
            return []
        token = 3 + self._stamp(request, start + count - 1) % 4000
        self.tokens[request].append(token)
        return [token]


def make_scheduler(worker: StampingWorker, depth: int) -> StormScheduler:
    spec = ModelSpec(
        family=Family.LLAMA, hidden=64, layers=LAYERS, heads=1, kv_heads=1, ffn=64, dtype="float32"
    )
    config = EngineArgs(
        model=str(build(spec)),
        block_size=BLOCK_TOKENS,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=512,
        enforce_eager=True,
        additional_config={
            "mirage": {
                "device": {"size_bytes": 1 << 20, "page_bytes": PAGE_BYTES},
                "pool_tokens": FIRST_GRANULES * 2 * BLOCK_TOKENS,
            }
        },
    ).create_engine_config()
    config.scheduler_config.async_scheduling = depth > 1
    config.cache_config.num_gpu_blocks = BLOCKS
    assert config.max_concurrent_batches == depth
    attention = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    scheduler = StormScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"l{i}" for i in range(LAYERS)], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=False,
    )
    core = SimpleNamespace(collective_rpc=lambda name: [worker.facts()], input_queue=None)
    scheduler.attach(core)
    scheduler.mirage.raging = True
    return scheduler


@pytest.mark.parametrize("depth", [1, 2])
def test_no_block_moves_under_a_step_in_flight(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "storm.json"))
    worker = StampingWorker(pages=14 * LAYERS)
    scheduler = make_scheduler(worker, depth)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
    source = random.Random(5)
    shared = [source.randrange(3, 4000) for _ in range(70)]
    waiting = [
        Request(
            request_id=f"r{index}",
            prompt_token_ids=shared[: source.randrange(0, 70)]
            + [source.randrange(3, 4000) for _ in range(source.randrange(1, 90))],
            sampling_params=SamplingParams(
                max_tokens=source.randrange(5, 120), ignore_eos=True, temperature=0.0
            ),
            pooling_params=None,
            block_hasher=hasher,
        )
        for index in range(30)
    ]
    expected = {r.request_id: (len(r.prompt_token_ids), r.max_tokens) for r in waiting}
    in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()
    steps = 0
    while waiting or scheduler.has_requests() or in_flight:
        if waiting and source.random() < 0.6:
            scheduler.add_request(waiting.pop())
        if not waiting and not scheduler.has_unfinished_requests():
            scheduler.mirage.raging = False
        if len(in_flight) < depth and scheduler.has_requests():
            output = scheduler.schedule()
            in_flight.append((output, worker.execute(output)))
            if len(in_flight) < depth:
                continue
        if in_flight:
            scheduler.update_from_output(*in_flight.popleft())
        steps += 1
        assert steps < 20_000, "the requests do not come to an end"
    for request, (prompt, generated) in expected.items():
        assert len(worker.tokens[request]) == prompt + generated
    counts = scheduler.mirage.counts
    assert counts["growths"] > 100
    assert counts["shrinks"] > 100
    assert counts["preemptions"] > 0
    scheduler.mirage.check()
    worker.table.check()
    worker.mapper.check()


def test_request_longer_than_any_pool_fails_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "storm.json"))
    worker = StampingWorker(pages=14 * LAYERS)
    scheduler = make_scheduler(worker, depth=1)
    scheduler.mirage.raging = False
    init_none_hash(sha256)
    scheduler.mirage.on_pool_limit(4)  # granules of 64 tokens, less one block
    for name, tokens in (("fits", 100), ("never", 300)):
        scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=[7] * 20,
                sampling_params=SamplingParams(max_tokens=tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
            )
        )
    reasons: dict[str, str] = {}
    while scheduler.has_requests():
        output = scheduler.schedule()
        outputs = scheduler.update_from_output(output, worker.execute(output))
        for per_client in outputs.values():
            for each in per_client.outputs:
                if each.finish_reason is not None:
                    reasons[each.request_id] = str(each.finish_reason)
    assert reasons == {"never": "error", "fits": "length"}
    scheduler.mirage.check()
