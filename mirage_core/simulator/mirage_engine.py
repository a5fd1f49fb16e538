"""One simulated engine under MIRAGE: the product's Remapper over a simulated worker and link.

It does at a step boundary what the plug-in does (``engines.vllm.elastic``): takes the worker's
answers and what the agent said, lets the Remapper decide, gives the orders to the worker, whose
answers come with the next step, and reports.  Decisions are the product's; this file only feeds
them and says for how long they stand.

Left out: which block lies in which granule.  Live blocks are counted as if they filled the fewest
granules, so pools drain a little sooner here than where requests end in between others.  An engine
that has requests but not its turn (temporal sharing) reports itself inactive and asks for nothing,
unless its turn ended because not one of its requests fitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from mirage_core.control import remapper as act
from mirage_core.control.foresight import (
    OWN_PLANS_INTERVAL_S,
    STUCK_PREEMPTIONS,
    STUCK_S,
    granules_needed,
)
from mirage_core.control.operations import ApplyPlan, Operation, Outcome
from mirage_core.control.own_plans import last_resort_plans, own_plans
from mirage_core.control.remapper import ASK_AGAIN_S, Action, PoolView, Remapper
from mirage_core.model import EngineId, GranuleId, OperationId, RemapPlan, UnitId
from mirage_core.policy.settings import Policy
from mirage_core.policy.when import Demand, needed_blocks
from mirage_core.simulator.batch_watch import BatchWatch
from mirage_core.simulator.config import EngineSpec
from mirage_core.simulator.link import Direction
from mirage_core.simulator.memory_port import EngineView, Site, StepMemory
from mirage_core.simulator.mirage_stalls import StallModel, bucket
from mirage_core.simulator.mirage_worker import SimulatedWorker
from mirage_core.simulator.quiet import QUIET_STEPS, claims_of, steps_until_more
from mirage_core.simulator.units import NEVER_PS, PS_PER_S, to_ps
from mirage_core.wire import messages as wire

IDLE_STEP_S = 1e-3
"""An engine without requests takes a step so often while its worker has orders."""
TIMES_BUCKET = 1.1
"""Measured times within this factor are reported as one: the real ones are means of many steps."""
OWN_PLANS_BUCKET = 1.25
"""As the arbiter's (``engine_record.COST_STEP``): times for which one table of own plans serves."""

own_plans_of = lru_cache(maxsize=256)(own_plans)
last_resort_plans_of = lru_cache(maxsize=64)(last_resort_plans)


class AgentSide(Protocol):
    """Where the engine's messages go."""

    def send(self, engine: EngineId, message: wire.EngineMessage) -> None: ...


@dataclass(frozen=True, slots=True)
class Geometry:
    """What one engine's memory is made of, in pages."""

    unit_pages: tuple[int, ...]
    static_pages: int
    granule_pages: int
    granule_blocks: int
    first_granules: int
    max_granules: int

    @property
    def start_pages(self) -> int:
        return self.static_pages + sum(self.unit_pages) + self.first_granules * self.granule_pages


class SimulatedEngineMemory:
    """The ``MemoryPort`` of one engine."""

    def __init__(
        self,
        name: EngineId,
        place: tuple[str, int],
        spec: EngineSpec,
        geometry: Geometry,
        worker: SimulatedWorker,
        stalls: StallModel,
        *,
        site: Site,
        agent: AgentSide,
        policy: Policy,
        horizon_steps: int,
        report_interval_s: float,
    ) -> None:
        """``place``: the device's name, and the engine's index on it."""
        self.name = name
        self.worker = worker
        self.remapper = Remapper(
            granule_pages=geometry.granule_pages,
            first_granules=geometry.first_granules,
            max_granules=geometry.max_granules,
            unit_pages=geometry.unit_pages,
            own_plans=(),
            last_resort_plans=(
                last_resort_plans_of(geometry.unit_pages) if policy.weights_move else ()
            ),
            linked=True,
        )
        self._device, self._place = place
        self._spec = spec
        self._geometry = geometry
        self._stalls = stalls
        self._site = site
        self.agent = agent
        self._policy = policy
        self._horizon_steps = horizon_steps
        self._report_interval_s = report_interval_s

        self._inbox: deque[wire.AgentMessage] = deque()
        self._operations: list[Operation] = []
        self._outcomes: list[Outcome] = []
        self._limit_granules = geometry.max_granules
        self._agents_plan: RemapPlan | None = None
        self._denied_s = float("-inf")
        self._deadlines_s: list[float] = []
        self._preempt = False
        self._short = False
        self._stuck_since_s: float | None = None
        self._landing: list[tuple[UnitId, float]] = []
        self._ordered: tuple[tuple[int, int, int], list[GranuleId]] = ((-1, -1, -1), [])

        self._batch = BatchWatch(spec.step_time)
        self._rate_bytes_per_s = 0.0
        self._streams = False
        self._own_plans_key: tuple[int, int] | None = None
        self._next_own_plans_s = 0.0

        self._active = False
        self._next_report_s = 0.0
        self._told: tuple[object, ...] | None = None
        self._times: dict[tuple[int, float], tuple[tuple[float, ...], tuple[float, ...]]] = {}
        self._sequence = 0
        self.stall_steps = 0

    # ---- what others may know

    @property
    def limit_blocks(self) -> int:
        return self._limit_granules * self._geometry.granule_blocks - 1

    @property
    def capacity_blocks(self) -> int:
        blocks = self._usable_granules * self._geometry.granule_blocks
        return blocks - 1  # vLLM's null block

    @property
    def _usable_granules(self) -> int:
        return len(self.remapper.mapped) - len(self.remapper.draining())

    @property
    def lends(self) -> bool:
        return bool(self.remapper.plan.slots)

    @property
    def now_ps(self) -> int:
        return self._site.now_ps

    def describe(self) -> wire.Describe:
        geometry = self._geometry
        return wire.Describe(
            priority=self._spec.priority,
            unit_pages=geometry.unit_pages,
            static_pages=geometry.static_pages,
            granule_pages=geometry.granule_pages,
            pool_max_granules=geometry.max_granules,
            pool_min_granules=geometry.first_granules,
        )

    # ---- the agent

    def hear(self, message: wire.AgentMessage) -> None:
        """A message came; it is taken in at the next step boundary."""
        self._inbox.append(message)
        self._site.wake(self._place)

    def hear_limits(self, limits: wire.Limits) -> None:
        """The pool is never smaller than what is mapped: less is stale news."""
        granules = limits.pool_limit_pages // self._geometry.granule_pages
        self._limit_granules = max(granules, len(self.remapper.mapped))
        self.remapper.on_limits(limits.allowance_pages, limits.plan_held)

    def _take_in(self, message: wire.AgentMessage, view: EngineView, now_s: float) -> None:
        remapper = self.remapper
        match message:
            case wire.Granted(request_id, pages):
                self._act(remapper.on_granted(request_id, pages))
            case wire.Denied(request_id, _):
                self._denied_s = now_s
                self._act(remapper.on_denied(request_id, now_s))
            case wire.Shrink(operation, pages, deadline_s):
                self._deadlines_s.append(now_s + deadline_s)
                pool = self._pool_view(view, 0)
                self._act(remapper.on_shrink(operation, pages, now_s + deadline_s, pool))
            case wire.ApplyPlan(operation, plan, pages):
                self._agents_plan = plan
                self._act(remapper.on_apply_plan(operation, plan, pages))
            case wire.Limits():
                self.hear_limits(message)
            case _:
                raise AssertionError(f"{message} to an engine that has started")

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case act.Order(operation):
                    self._operations.append(operation)
                case act.PreemptHolders():
                    self._preempt = True
                case act.SendAsk(request_id, pages):
                    self._send(wire.Ask(request_id, pages))
                case act.SendDone(operation, pages):
                    done = OperationId(operation)
                    plan, mapped = self.remapper.plan, len(self.remapper.mapped)
                    self._send(wire.Done(done, pages, plan, mapped))
                    self._next_report_s = 0.0
                    self._told = None
                case act.SendRefused(operation, reason, pages):
                    self._send(wire.Refused(OperationId(operation), reason, pages))
                case act.SendGiveBack(pages):
                    if pages:
                        self._send(wire.GiveBack(pages))
                        self._told = None
                case act.AddGranules() | act.DrainGranules() | act.ForgetGranules():
                    pass  # capacity follows from the remapper's books
                case act.SendRejoin():
                    raise AssertionError("the simulated link is never lost")

    def _send(self, message: wire.EngineMessage) -> None:
        self.agent.send(self.name, message)

    # ---- a step boundary

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        now_s = now_ps / PS_PER_S
        limit_tokens = (self.limit_blocks + 1) * self._spec.limits.block_tokens
        wants = view.active or (self._short and view.waiting > 0 and not view.running)
        claims = claims_of(view, limit_tokens, waiting=wants)
        reports = view.active != self._active or now_s >= self._next_report_s
        self._observe(view, claims, reports, now_s)
        for outcome in self._outcomes:
            self._act(self.remapper.on_outcome(outcome))
        self._outcomes.clear()
        while self._inbox:
            self._take_in(self._inbox.popleft(), view, now_s)
        blocks = self._needed_blocks(claims, self._horizon_steps if wants else 0)
        pool = self._pool_view(view, self._granules_for(blocks))
        self._short = wants and pool.needed_granules > self._usable_granules
        self._act(self.remapper.on_step(pool, now_s))
        delay_s = self._perform(view, now_s)
        self._set_streaming(view)
        if reports or now_s >= self._next_report_s:
            self._report(view, pool, now_s)
        steps, until_s = self._quiet(claims, blocks, pool.needed_granules, now_s)
        return self._answer(view, steps, until_s, delay_s, now_ps)

    def _needed_blocks(self, claims: Sequence[Demand], horizon_steps: int) -> int:
        return needed_blocks(
            claims,
            block_tokens=self._spec.limits.block_tokens,
            max_running=self._spec.limits.max_num_seqs,
            horizon_steps=horizon_steps,
        )

    def _granules_for(self, blocks: int) -> int:
        return granules_needed(
            blocks,
            granule_blocks=self._geometry.granule_blocks,
            min_granules=self._geometry.first_granules,
            limit_granules=self._limit_granules,
        )

    def _observe(
        self, view: EngineView, claims: Sequence[Demand], reports: bool, now_s: float
    ) -> None:
        """What is measured of steps: it changes when the batch does, and with each report.

        Between these every boundary sees the same, so that jumping and stepping agree.
        """
        changed = self._batch.observe(view, claims[: view.running])
        if changed or reports:
            link = self._site.link
            self._rate_bytes_per_s = link.rate_bytes_per_s(self._device, Direction.TO_DEVICE)
            self._refresh_own_plans(now_s)
        if view.running or not view.active:
            self._stuck_since_s = None
        elif self._stuck_since_s is None:
            self._stuck_since_s = now_s

    def _set_streaming(self, view: EngineView) -> None:
        streams = view.active and bool(self.worker.plan.slots)
        if streams != self._streams:
            self._streams = streams
            link = self._site.link
            change = link.open_stream if streams else link.close_stream
            change(self._device, self.name, Direction.TO_DEVICE)

    def _refresh_own_plans(self, now_s: float) -> None:
        batch, policy = self._batch, self._policy
        if now_s < self._next_own_plans_s or not batch.measured or not policy.weights_move:
            return
        self._next_own_plans_s = now_s + OWN_PLANS_INTERVAL_S
        key = (
            bucket(batch.plain_s, OWN_PLANS_BUCKET),
            bucket(self._rate_bytes_per_s, OWN_PLANS_BUCKET),
        )
        if key == self._own_plans_key:
            return
        self._own_plans_key = key
        cost = self._stalls.cost(OWN_PLANS_BUCKET ** key[0], self._rate_bytes_per_s)
        self.remapper.on_own_plans(
            own_plans_of(
                self._geometry.unit_pages,
                cost.compute_s,
                cost.transfer_s,
                added_share=policy.max_added_share,
                slots=policy.slots,
            )
        )

    def _starving(self, view: EngineView, now_s: float) -> bool:
        since_s = self._stuck_since_s
        return view.lone_preemptions >= STUCK_PREEMPTIONS or (
            since_s is not None and now_s - since_s >= STUCK_S
        )

    def _pool_view(self, view: EngineView, needed: int) -> PoolView:
        remapper, geometry = self.remapper, self._geometry
        draining = remapper.draining()
        order = self._granules_in_order(draining)
        live = -(-(view.used_blocks + 1) // geometry.granule_blocks)
        kept = len(order) - len(draining)
        room = max(0, kept - geometry.first_granules)
        spare = tuple(order[live:kept][::-1][:room])
        emptiest = tuple(order[max(1, kept - room) : kept][::-1]) if draining or room else ()
        return PoolView(
            active=view.active,
            starving=view.active and self._starving(view, self.now_ps / PS_PER_S),
            needed_granules=needed,
            spare=spare,
            emptiest=emptiest,
            drained=tuple(order[max(live, kept) :]),
        )

    def _granules_in_order(self, draining: set[GranuleId]) -> list[GranuleId]:
        """Mapped granules as they fill: draining ones last, the others by number."""
        counters = self.remapper.counters
        key = (counters.granules_mapped, len(self.remapper.mapped), hash(frozenset(draining)))
        if key != self._ordered[0]:
            mapped = self.remapper.mapped
            order = [*sorted(mapped - draining), *sorted(mapped & draining)]
            self._ordered = (key, order)
        return self._ordered[1]

    def _perform(self, view: EngineView, now_s: float) -> float:
        """Give the orders to the worker; seconds for which they hold up the coming step."""
        cost_s = 0.0
        operations, self._operations = self._operations, []
        for operation in operations:
            performed = self.worker.perform(operation)
            self._outcomes.append(performed.outcome)
            cost_s += performed.cost_s
            if isinstance(operation, ApplyPlan) and performed.outcome.refused is None:
                self._begin_fetches(performed.fetches, now_s + cost_s)
        if not view.active:
            return cost_s
        # Every resident unit is used in the coming step, so it waits for all that are on their way.
        if self._landing:
            due = [(unit, lands_s - now_s - cost_s) for unit, lands_s in self._landing]
            plain_s = self._batch.plain_s
            if view.waiting:
                plain_s = max(plain_s, view.prefill_step_ps / PS_PER_S)
            cost_s += max(0.0, self._stalls.landing_delay_s(due, plain_s))
            self._landing.clear()
            self.stall_steps += 1
        return cost_s

    def _begin_fetches(self, units: Sequence[UnitId], begins_s: float) -> None:
        """Units come one after the other, in order of execution, behind those on their way."""
        resident = [each for each in self._landing if each[0] not in self.worker.plan.cycled]
        at_s = max([begins_s, *(lands_s for _, lands_s in resident)])
        for unit in units:
            at_s += self._stalls.unit_bytes[unit] / self._rate_bytes_per_s
            resident.append((unit, at_s))
        self._landing = resident

    # ---- telling

    def _report(self, view: EngineView, pool: PoolView, now_s: float) -> None:
        """What has changed since the last report; the same again would change nothing."""
        self._active = view.active
        self._next_report_s = now_s + self._report_interval_s
        compute_s, transfer_s = self._reported_times()
        report = wire.Report(
            sequence=self._sequence + 1,
            active=view.active,
            pool_granules=self._usable_granules,
            running_requests=view.running,
            waiting_requests=view.waiting,
            spare_granules=len(pool.spare),
            needed_granules=pool.needed_granules,
            plan=self.remapper.plan,
            reserve_pages=self.remapper.reserve_pages,
            unit_compute_s=compute_s,
            unit_transfer_s=transfer_s,
            prefill_s=_rounded(view.prefill_step_ps / PS_PER_S),
        )
        told = (
            report.active,
            report.pool_granules,
            report.spare_granules,
            report.needed_granules,
            report.plan,
            compute_s,
            transfer_s,
            report.prefill_s,
        )
        if told != self._told:
            self._told = told
            self._sequence += 1
            self._send(report)

    def _reported_times(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if not self._batch.measured:
            return (), ()
        key = (bucket(self._batch.plain_s, TIMES_BUCKET), self._rate_bytes_per_s)
        times = self._times.get(key)
        if times is None:
            cost = self._stalls.cost(TIMES_BUCKET ** key[0], self._rate_bytes_per_s)
            times = self._times[key] = (cost.compute_s, cost.transfer_s)
        return times

    # ---- the answer

    def _answer(
        self,
        view: EngineView,
        steps: int,
        until_s: float,
        delay_s: float,
        now_ps: int,
    ) -> StepMemory:
        now_s = now_ps / PS_PER_S
        if not view.active:
            if self._outcomes or self._operations:
                wake_ps = now_ps + to_ps(max(delay_s, IDLE_STEP_S))
                self._site.call_at(wake_ps, lambda: self._site.wake(self._place))
            delay_s = 0.0
        capacity = self.capacity_blocks
        preempt_to = capacity if self._preempt else None
        self._preempt = False
        stretch = self._stalls.stretch(
            self.worker.plan, self._batch.plain_s, self._rate_bytes_per_s
        )
        recheck_ps = NEVER_PS
        if view.waiting and not view.running:
            again_s = min(now_s + STUCK_S, until_s)
            recheck_ps = to_ps(again_s) if again_s > now_s else now_ps + to_ps(IDLE_STEP_S)
        return StepMemory(
            capacity_blocks=capacity,
            headroom_steps=self._horizon_steps,
            stretch=stretch,
            delay_ps=to_ps(delay_s),
            preempt_to_blocks=preempt_to,
            quiet_steps=steps,
            quiet_until_ps=min(NEVER_PS, to_ps(until_s)),
            recheck_ps=recheck_ps,
        )

    def _quiet(
        self, claims: Sequence[Demand], blocks: int, needed: int, now_s: float
    ) -> tuple[int, float]:
        """Steps, and the moment, until which the Remapper would decide nothing more."""
        until_s = self._next_report_s
        self._deadlines_s = [at_s for at_s in self._deadlines_s if at_s > now_s]
        until_s = min([until_s, *self._deadlines_s])
        if self._denied_s + ASK_AGAIN_S > now_s:
            until_s = min(until_s, self._denied_s + ASK_AGAIN_S)
        remapper = self.remapper
        have = self._usable_granules
        short = needed > have
        own_plan = self.lends and remapper.plan != self._agents_plan
        if self._outcomes or self._operations or self._landing:
            return 0, until_s
        if not short and (remapper.reserve_pages or own_plan):
            return 0, until_s
        if short and needed >= self._limit_granules:
            return QUIET_STEPS, until_s
        reach = needed if short else have
        steps = steps_until_more(
            claims,
            block_tokens=self._spec.limits.block_tokens,
            horizon_steps=self._horizon_steps,
            spare_blocks=reach * self._geometry.granule_blocks - 1 - blocks,
        )
        return steps, until_s


def _rounded(time_s: float) -> float:
    return TIMES_BUCKET ** bucket(time_s, TIMES_BUCKET) if time_s > 0 else 0.0
