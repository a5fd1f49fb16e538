"""The simulated engine schedules what vLLM's own scheduler schedules, step by step.

vLLM's real ``Scheduler`` runs beside the simulator over random small workloads with too few
blocks.  A simulated step takes one second whatever is in it, so the n-th second is the n-th step
of both, and all that can be seen of a step is compared: its tokens, who runs, who waits, blocks
in use; and of each request when its first and last token came and how often it was preempted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from benchmarks.models import Family, ModelSpec, build
from mirage_core.simulator.config import DeviceSpec, EngineSpec, RunConfig, SchedulerLimits
from mirage_core.simulator.request import requests_from
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from mirage_core.simulator.step_models import FittedStepTime
from mirage_core.simulator.units import PS_PER_S

BLOCK_TOKENS = 32
MAX_MODEL_LEN = 512
ONE_SECOND = FittedStepTime(PS_PER_S, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Job:
    arrival: int
    tokens: tuple[int, ...]
    output: int
    priority: int
    group: int
    shared: int


@dataclass(frozen=True)
class Case:
    blocks: int
    max_tokens: int
    max_seqs: int
    caching: bool
    priority: bool
    jobs: tuple[Job, ...]


def random_case(seed: int, *, caching: bool, priority: bool) -> Case:
    source = random.Random(seed)
    prefixes = [[source.randrange(3, 4000) for _ in range(160)] for _ in range(3)]
    max_seqs = source.choice([4, 8, 16])
    jobs = []
    for index in range(source.randrange(10, 40)):
        group = source.randrange(3)
        shared = source.choice([0, 0, 40, 64, 100, 160]) if caching else 0
        # The first token after the shared ones tells requests apart.
        own = [4000 + index] + [source.randrange(3, 4000) for _ in range(source.randrange(0, 150))]
        jobs.append(
            Job(
                arrival=source.randrange(0, 60),
                tokens=(*prefixes[group][:shared], *own),
                output=source.choice([1, 2, source.randrange(3, 120)]),
                priority=source.randrange(3) if priority else 0,
                group=group if shared else -1,
                shared=shared,
            )
        )
    jobs.sort(key=lambda job: job.arrival)
    longest = max(len(job.tokens) + job.output for job in jobs)
    least = -(-longest // BLOCK_TOKENS)
    return Case(
        blocks=least + source.randrange(0, 16),
        max_tokens=source.choice([32, 64, 128, 512]),
        max_seqs=max_seqs,
        caching=caching,
        priority=priority,
        jobs=tuple(jobs),
    )


def run_simulator(case: Case, *, jump: bool) -> Results:
    limits = SchedulerLimits(
        block_tokens=BLOCK_TOKENS,
        max_num_batched_tokens=case.max_tokens,
        max_num_seqs=case.max_seqs,
        max_model_len=MAX_MODEL_LEN,
        prefix_caching=case.caching,
        priority=case.priority,
    )
    engine = EngineSpec("m", ONE_SECOND, case.blocks, limits)
    requests = requests_from(
        [job.arrival for job in case.jobs],
        [len(job.tokens) for job in case.jobs],
        [job.output for job in case.jobs],
        priority=[job.priority for job in case.jobs],
        prefix_group=[job.group for job in case.jobs],
        prefix_tokens=[job.shared for job in case.jobs],
    )
    return simulate(RunConfig(("m",), (DeviceSpec("d", (engine,)),), jump=jump), requests)


@pytest.fixture(scope="module")
def vllm_config() -> Any:
    spec = ModelSpec(
        family=Family.LLAMA, hidden=64, layers=1, heads=1, kv_heads=1, ffn=64, dtype="float32"
    )
    return EngineArgs(
        model=str(build(spec)),
        block_size=BLOCK_TOKENS,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_model_len=MAX_MODEL_LEN,
        enforce_eager=True,
    ).create_engine_config()


def make_scheduler(config: Any, case: Case) -> Scheduler:
    config.scheduler_config.async_scheduling = False
    config.scheduler_config.max_num_seqs = case.max_seqs
    config.scheduler_config.max_num_batched_tokens = case.max_tokens
    config.scheduler_config.max_num_scheduled_tokens = case.max_tokens
    config.scheduler_config.policy = "priority" if case.priority else "fcfs"
    config.cache_config.num_gpu_blocks = case.blocks + 1  # vLLM's null block
    config.cache_config.enable_prefix_caching = case.caching
    attention = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=case.blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["l0"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=False,
    )


Step = tuple[int, int, int, int, int]
"""(second, tokens, running, waiting, blocks in use)"""


def run_vllm(config: Any, case: Case) -> tuple[list[Step], dict[str, list[int]]]:
    """Steps, and of each request [first token's second, last token's, preemptions]."""
    scheduler = make_scheduler(config, case)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256) if case.caching else None
    coming = list(enumerate(case.jobs))
    requests: dict[str, Request] = {}
    steps: list[Step] = []
    times: dict[str, list[int]] = {}
    second = 0
    while coming or scheduler.has_unfinished_requests():
        while coming and coming[0][1].arrival <= second:
            index, job = coming.pop(0)
            request = Request(
                request_id=f"{index:04}",
                prompt_token_ids=list(job.tokens),
                sampling_params=SamplingParams(
                    max_tokens=job.output, ignore_eos=True, temperature=0.0
                ),
                pooling_params=None,
                block_hasher=hasher,
                priority=job.priority,
                arrival_time=float(job.arrival),
            )
            requests[request.request_id] = request
            scheduler.add_request(request)
        output = scheduler.schedule()
        pool = scheduler.kv_cache_manager.block_pool
        scheduled = output.num_scheduled_tokens
        if scheduled:
            steps.append(
                (
                    second,
                    sum(scheduled.values()),
                    len(scheduler.running),
                    len(scheduler.waiting) + len(scheduler.skipped_waiting),
                    case.blocks - pool.get_num_free_blocks(),
                )
            )
        sampled = [
            [7] if requests[r].num_computed_tokens >= requests[r].num_tokens else []
            for r in scheduled
        ]
        ids = list(scheduled)
        scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={r: i for i, r in enumerate(ids)},
                sampled_token_ids=sampled,
            ),
        )
        if not scheduled and scheduler.has_unfinished_requests():
            continue  # an empty step, after which all give way: no time passes
        second += 1
        for name, tokens in zip(ids, sampled, strict=True):
            if tokens:
                times.setdefault(name, [second, second, 0])[1] = second
                times[name][2] = requests[name].num_preemptions
    return steps, times


def compare(config: Any, case: Case) -> int:
    steps, times = run_vllm(config, case)
    results = run_simulator(case, jump=False)
    log = results.steps
    assert log is not None
    found = list(
        zip(
            (log.start_ps // PS_PER_S).tolist(),
            (log.decodes + log.prefill_tokens).tolist(),
            log.running.tolist(),
            log.waiting.tolist(),
            log.used_blocks.tolist(),
            strict=True,
        )
    )
    for ours, theirs in zip(found, steps, strict=False):
        assert ours == theirs, f"(second, tokens, running, waiting, blocks): {ours} != {theirs}"
    assert len(found) == len(steps)
    expected = np.array([times[name] for name in sorted(times)])
    assert (results.first_token_ps // PS_PER_S).tolist() == expected[:, 0].tolist()
    assert (results.finish_ps // PS_PER_S).tolist() == expected[:, 1].tolist()
    assert results.preemptions.tolist() == expected[:, 2].tolist()
    jumped = run_simulator(case, jump=True)
    assert np.array_equal(jumped.finish_ps, results.finish_ps)
    assert np.array_equal(jumped.preemptions, results.preemptions)
    return int(expected[:, 2].sum())


def test_schedules_as_vllm_does_first_come_first_served(vllm_config: Any) -> None:
    cases = [random_case(seed, caching=False, priority=False) for seed in range(40)]
    assert sum(compare(vllm_config, case) for case in cases) > 50


def test_schedules_as_vllm_does_with_prefix_caching(vllm_config: Any) -> None:
    init_none_hash(sha256)
    cases = [random_case(seed, caching=True, priority=False) for seed in range(100, 140)]
    assert sum(compare(vllm_config, case) for case in cases) > 50


def test_schedules_as_vllm_does_by_priority(vllm_config: Any) -> None:
    cases = [random_case(seed, caching=False, priority=True) for seed in range(200, 240)]
    assert sum(compare(vllm_config, case) for case in cases) > 50


def test_schedules_as_vllm_does_by_priority_with_prefix_caching(vllm_config: Any) -> None:
    init_none_hash(sha256)
    cases = [random_case(seed, caching=True, priority=True) for seed in range(300, 340)]
    assert sum(compare(vllm_config, case) for case in cases) > 50
