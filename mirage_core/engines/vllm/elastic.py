"""One engine's elastic memory as its scheduler sees it: joins vLLM, the remapper and the agent.

It lives in the engine core's thread.  Before a step it takes what the agent said, lets the
remapper decide, changes the block pool and collects the worker's operations; after the step it
takes the worker's answers.  Nothing here waits.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.request import Request

from mirage_core.control import remapper as act
from mirage_core.control.foresight import (
    HORIZON_STEPS,
    OWN_PLANS_INTERVAL_S,
    STUCK_PREEMPTIONS,
    STUCK_S,
    granules_needed,
)
from mirage_core.control.operations import FetchReport, Operation, WorkerFacts, WorkerReport
from mirage_core.control.own_plans import last_resort_plans, own_plans
from mirage_core.control.remapper import Action, PoolView, Remapper
from mirage_core.engines.vllm.blocks import GranuleBlockQueue, make_elastic
from mirage_core.engines.vllm.config import EngineConfig
from mirage_core.engines.vllm.traces import MoveTraces
from mirage_core.kv.geometry import PoolGeometry
from mirage_core.model import BlockId, GranuleId, ModelName, OperationId
from mirage_core.policy.when import Demand, admission_headroom_blocks, needed_blocks
from mirage_core.wire import messages as wire
from mirage_core.wire.client import AgentClient, LinkLost, LinkRestored

if TYPE_CHECKING:
    from mirage_core.engines.vllm.scheduler import MirageScheduler

_log = logging.getLogger("vllm.mirage.elastic")


class ElasticMemory:
    """Joins vLLM's scheduler, the remapper and the agent's link; lives in the core's thread."""

    def __init__(
        self,
        scheduler: MirageScheduler,
        config: EngineConfig,
        facts: WorkerFacts,
        wake: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._config = config
        self._facts = facts
        pool = scheduler.kv_cache_manager.block_pool
        self._geometry = PoolGeometry(
            layers=facts.kv_layers,
            block_bytes=facts.kv_block_bytes,
            layer_stride_bytes=facts.kv_layer_stride_bytes,
            page_bytes=facts.page_bytes,
            blocks=len(pool.blocks),
        )
        self._queue: GranuleBlockQueue = make_elastic(pool, self._geometry, facts.first_granules)
        self._fetch: FetchReport | None = None
        self._operations: list[Operation] = []
        self._impossible: set[str] = set()
        self._limit_granules = self._geometry.granules
        self._active = False
        self._last_active_s = time.monotonic()
        self._next_report_s = 0.0
        self._next_own_plans_s = 0.0
        self._sequence = 0
        self.preemptions = 0
        self._starving = False
        self._stuck_since_s: float | None = None
        self._prefill_s = 0.0
        """How long a step with a prompt in it takes, an exponential mean; 0 until there was one."""

        self._client: AgentClient | None = None
        self._traces = MoveTraces(facts.engine)
        self._device_fd = -1
        private = config.device is not None
        self.remapper = Remapper(
            granule_pages=self._geometry.granule_pages,
            first_granules=facts.first_granules,
            max_granules=self._geometry.granules,
            unit_pages=facts.unit_pages,
            own_plans=(),
            last_resort_plans=last_resort_plans(facts.unit_pages),
            reserve_pages=facts.reserve_pages,
            allowance_pages=sum(facts.unit_pages) if private else 0,
            linked=not private,
            passive=config.passive,
        )
        if config.agent is not None:
            self._join(config, wake)

    # ---- the agent

    def _join(self, config: EngineConfig, wake: Callable[[], None]) -> None:
        vllm_config = self._scheduler.vllm_config
        self._client = AgentClient(
            str(config.agent),
            wire.Hello(
                role=wire.Role.SCHEDULER,
                engine=self._facts.engine,
                model=ModelName(model_name(vllm_config)),
                weights_digest=self._facts.weights_digest,
            ),
        )
        self._device_fd = self._client.take_device_fd()
        self._client.start(wake)
        self._describe()

    def _describe(self) -> None:
        facts = self._facts
        self._send(
            wire.Describe(
                priority=self._config.priority,
                unit_pages=facts.unit_pages,
                static_pages=facts.static_pages,
                granule_pages=self._geometry.granule_pages,
                pool_max_granules=self._geometry.granules,
                pool_min_granules=facts.first_granules,
                plan=self.remapper.plan,
                pinned=self._config.pinned or self._config.passive,
            )
        )
        self._next_report_s = 0.0

    def _send(self, message: wire.EngineMessage) -> None:
        if self._client is not None:
            self._client.send(message)

    def _hear(self, now_s: float) -> None:
        """Take what the agent said since the last step."""
        if self._client is None:
            return
        while True:
            try:
                message = self._client.inbox.get_nowait()
            except queue.Empty:
                return
            match message:
                case wire.Granted(request_id, pages):
                    self._perform(self.remapper.on_granted(request_id, pages))
                case wire.Denied(request_id, reason):
                    _log.info("the agent has no pages: %s", reason)
                    self._perform(self.remapper.on_denied(request_id, now_s))
                case wire.Shrink(operation, pages, deadline_s):
                    self._traces.received(message)
                    self._perform(
                        self.remapper.on_shrink(operation, pages, now_s + deadline_s, self._view())
                    )
                case wire.ApplyPlan(operation, plan, pages):
                    self._traces.received(message)
                    self._perform(self.remapper.on_apply_plan(operation, plan, pages))
                case wire.Limits(pool_limit_pages, allowance_pages, plan_held, lend_most_pages):
                    self.on_pool_limit(pool_limit_pages // self._geometry.granule_pages)
                    self.remapper.on_limits(allowance_pages, plan_held, lend_most_pages)
                case LinkLost(reason):
                    _log.warning("serving goes on without the agent: %s", reason)
                    self._traces.abandoned(reason)
                    self.remapper.on_link_lost()
                case LinkRestored():
                    self._perform(self.remapper.on_link_restored())
                case _:
                    _log.warning("the agent sent %s out of place", type(message).__name__)

    # ---- around a step

    def has_work(self) -> bool:
        """Something must be done although no request runs."""
        return (
            self.remapper.busy
            or self.remapper.holds_leftover
            or bool(self._operations)
            or bool(self._impossible)
            or (self._client is not None and not self._client.inbox.empty())
        )

    def before_step(self, now_s: float) -> tuple[Operation, ...]:
        """Decide, and return the operations that ride with this step."""
        self._hear(now_s)
        for granule in self._queue.draining():
            self._queue.forget_hashes(granule)
        self._perform(self.remapper.on_step(self._view(), now_s))
        if not self._config.passive:
            self._scheduler.kv_cache_manager.watermark_blocks = self._headroom_blocks()
        self._starving = False
        operations, self._operations = tuple(self._operations), []
        return operations

    def after_step(self, report: WorkerReport) -> None:
        """Take the worker's answers."""
        for outcome in report.outcomes:
            if outcome.refused is not None:
                _log.info("%s: %s", type(outcome.operation).__name__, outcome.refused)
            self._perform(self.remapper.on_outcome(outcome))
        self._plan_own(report.fetch)

    def observe_preemption(self, request: Request) -> None:
        """A request gave way; again and again with no other running, it does not fit at all."""
        self.preemptions += 1
        if not self._scheduler.running and request.num_preemptions >= STUCK_PREEMPTIONS:
            self._starving = True

    def observe_progress(self, scheduled_tokens: int, now_s: float) -> None:
        """A step computed so many tokens; none for long, and no request fits."""
        if scheduled_tokens or not self._scheduler.has_unfinished_requests():
            self._stuck_since_s = None
        elif self._stuck_since_s is None:
            self._stuck_since_s = now_s
        elif now_s - self._stuck_since_s >= STUCK_S:
            self._starving = True

    def observe_prefill(self, step_s: float) -> None:
        """A step that computed prompts took ``step_s``: what a cold start can hide behind."""
        self._prefill_s += (step_s - self._prefill_s) / (8.0 if self._prefill_s else 1.0)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case act.Order(operation):
                    self._operations.append(operation)
                case act.AddGranules(granules):
                    for granule in granules:
                        self._queue.add(granule)
                case act.DrainGranules(granules):
                    for granule in granules:
                        self._queue.drain(granule)
                case act.ForgetGranules(granules):
                    for granule in granules:
                        self._queue.remove_granule(granule)
                case act.PreemptHolders(granules):
                    self._preempt_holders(granules)
                case act.SendAsk(request_id, pages):
                    self._send(wire.Ask(request_id, pages))
                case act.SendDone(operation_id, pages):
                    granules_now = len(self.remapper.mapped)
                    self._send(
                        wire.Done(
                            OperationId(operation_id), pages, self.remapper.plan, granules_now
                        )
                    )
                    self._traces.answered(operation_id)
                    self._next_report_s = 0.0
                case act.SendRefused(operation_id, reason, pages):
                    self._traces.answered(operation_id, reason)
                    self._send(wire.Refused(OperationId(operation_id), reason, pages))
                case act.SendGiveBack(pages):
                    if pages:
                        self._send(wire.GiveBack(pages))
                case act.SendRejoin(holdings):
                    assert self._client is not None
                    if self._client.rejoin(holdings, self._device_fd):
                        self._describe()

    def _preempt_holders(self, granules: tuple[GranuleId, ...]) -> None:
        """Requests that hold the last blocks of late drains start over elsewhere."""
        late = set(granules)
        scheduler = self._scheduler
        now_s = time.monotonic()
        for request in list(scheduler.running):
            blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
            if any(self._geometry.granule_of(BlockId(b)) in late for b in blocks):
                # As vLLM's reset_prefix_cache does: the request may be resumed in this very step,
                # so it counts as not scheduled before and what is in flight for it is dropped.
                scheduler.running.remove(request)
                scheduler._preempt_request(request, now_s, drop_stale_output=True)
                scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    # ---- what is needed

    def _view(self) -> PoolView:
        minimum = self.remapper.min_granules
        queue_ = self._queue
        spare = [g for g in queue_.granules_without_live_blocks() if g != 0]
        room = max(0, len(self.remapper.mapped) - len(self.remapper.draining()) - minimum)
        return PoolView(
            active=self._scheduler.has_unfinished_requests(),
            starving=self._starving,
            needed_granules=self._needed_granules(),
            spare=tuple(spare[:room]),
            emptiest=tuple(queue_.emptiest()[:room]),
            drained=tuple(g for g in queue_.draining() if queue_.live(g) == 0),
        )

    def _needed_granules(self) -> int:
        """What running requests, and those that can join them, will hold soon (paper §5.1)."""
        scheduler = self._scheduler
        blocks = needed_blocks(
            map(_demand, itertools.chain(scheduler.running, self._waiting())),
            block_tokens=scheduler.block_size,
            max_running=scheduler.max_num_running_reqs,
            horizon_steps=HORIZON_STEPS,
        )
        return granules_needed(
            blocks,
            granule_blocks=self._geometry.granule_blocks,
            min_granules=self.remapper.min_granules,
            limit_granules=self._limit_granules,
        )

    def _headroom_blocks(self) -> int:
        """Without it a burst is admitted into the last free blocks while pages are on their way,
        and preempted before they come."""
        scheduler = self._scheduler
        if not scheduler.waiting and not scheduler.skipped_waiting:
            return 0
        return admission_headroom_blocks(
            map(_demand, scheduler.running),
            map(_demand, self._waiting()),
            free_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            block_tokens=scheduler.block_size,
            max_running=scheduler.max_num_running_reqs,
            horizon_steps=HORIZON_STEPS,
        )

    def _waiting(self) -> Iterator[Request]:
        return itertools.chain(self._scheduler.waiting, self._scheduler.skipped_waiting)

    def _plan_own(self, fetch: FetchReport) -> None:
        """Measured times decide what the own layers can give."""
        self._fetch = fetch
        now_s = time.monotonic()
        if now_s < self._next_own_plans_s:
            return
        self._next_own_plans_s = now_s + OWN_PLANS_INTERVAL_S
        facts = self._facts
        plans = own_plans(facts.unit_pages, fetch.unit_compute_s, fetch.unit_transfer_s)
        self.remapper.on_own_plans(plans)
        if self._client is None and plans:
            own_pages = sum(facts.unit_pages) - plans[-1].freed_pages
            pool_pages = facts.device_pages - facts.static_pages - own_pages
            self.on_pool_limit(pool_pages // self._geometry.granule_pages)

    # ---- requests that can never fit

    def on_pool_limit(self, granules: int) -> None:
        """The device can never give more than ``granules``; less than there are is stale news."""
        self._limit_granules = max(granules, len(self.remapper.mapped))
        for request in self._scheduler.requests.values():
            self.on_request(request)

    def on_request(self, request: Request) -> None:
        """Remember a request that no pool of this device could ever hold."""
        tokens = min(_final_tokens(request), self._scheduler.max_model_len)
        blocks = -(-tokens // self._scheduler.block_size) + 1
        limit = self._limit_granules * self._geometry.granule_blocks
        if blocks > limit:
            _log.error(
                "request %s may need %d tokens of KV cache, this device can give %d at most: "
                "shorten it, lower max_tokens, or give the device more memory",
                request.request_id,
                tokens,
                (limit - 1) * self._scheduler.block_size,
            )
            self._impossible.add(request.request_id)

    def take_impossible(self) -> set[str]:
        impossible, self._impossible = self._impossible, set()
        return impossible

    # ---- telling the agent

    def report(self, now_s: float) -> None:
        """Report at the agent's interval, and at once when the model wakes or falls idle."""
        scheduler = self._scheduler
        active = scheduler.has_unfinished_requests()
        changed = active != self._active
        if active:
            self._last_active_s = now_s
        self._active = active
        if self._client is None or (not changed and now_s < self._next_report_s):
            return
        self._next_report_s = now_s + self._client.welcome.report_interval_s
        self._sequence += 1
        view = self._view()
        granules = len(self.remapper.mapped) - len(self.remapper.draining())
        fetch = self._fetch
        running, waiting = scheduler.get_request_counts()
        self._send(
            wire.Report(
                sequence=self._sequence,
                active=active,
                pool_granules=granules,
                running_requests=running,
                waiting_requests=waiting,
                spare_granules=len(view.spare),
                needed_granules=view.needed_granules,
                plan=self.remapper.plan,
                reserve_pages=self.remapper.reserve_pages,
                unit_compute_s=fetch.unit_compute_s if fetch else (),
                unit_transfer_s=fetch.unit_transfer_s if fetch else (),
                idle_s=now_s - self._last_active_s,
                preemptions=self.preemptions,
                fetches=fetch.fetches if fetch else 0,
                fetched_bytes=fetch.fetched_bytes if fetch else 0,
                stall_s=fetch.stall_s if fetch else 0.0,
                fetch_busy_s=fetch.busy_s if fetch else 0.0,
                prefill_s=self._prefill_s,
                free_kv_tokens=self._queue.num_free_blocks * scheduler.block_size,
            )
        )

    def check(self) -> None:
        """Every invariant that the scheduler can see (DESIGN §8.2)."""
        self._queue.check()

    def close(self) -> None:
        if self._client is not None:
            self._traces.abandoned("the engine ends")
            self._client.close()
            os.close(self._device_fd)
            self._client = None


def _demand(request: Request) -> Demand:
    return Demand(request.num_computed_tokens, request.num_tokens, _final_tokens(request))


def _final_tokens(request: Request) -> int:
    """The most tokens that a request can come to."""
    return request.num_prompt_tokens + request.max_tokens


def model_name(vllm_config: Any) -> str:
    """The model's name as clients know it."""
    served = vllm_config.model_config.served_model_name
    return served[0] if isinstance(served, list) else served
