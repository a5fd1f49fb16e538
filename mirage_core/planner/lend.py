"""What each model of a GPU gives and gets: the device's own policy, asked once for each case.

A case is a model that runs short while the others are idle, or while they are busy too.  The
snapshot is the arbiter's (``policy.view``), the decision Algorithm 1's (``policy.algorithm1``);
only the times in the cost model come from a roofline instead of measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_core.kv.geometry import blocks_of_a_granule
from mirage_core.model import RESIDENT, EngineId, ModelName, UnitGrain
from mirage_core.planner.place import Tenant
from mirage_core.policy.algorithm1 import most_lending_row, plan_shortage
from mirage_core.policy.cost import StepCost
from mirage_core.policy.how_many import (
    PlanRow,
    PlanTable,
    SlotRule,
    build_plan_table,
    cold_start_floor_pages,
)
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView
from mirage_core.sizing.hardware import Hardware
from mirage_core.sizing.roofline import Part, step_times, unit_times

MOST_REQUESTS = 256
"""vLLM's usual limit of requests in a batch."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Means of the requests: tokens of a prompt, and of the context at a token of a reply."""

    prompt_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A static KV pool: whole blocks, and the granules in which MIRAGE moves them.

    A model that keeps nothing by token has no blocks, and granules of a page and no tokens.
    """

    page_bytes: int
    block_tokens: int
    block_bytes: int
    blocks: int
    granule_blocks: int
    granule_pages: int

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    @property
    def granules(self) -> int:
        return self.blocks // self.granule_blocks if self.granule_blocks else 0

    @property
    def granule_tokens(self) -> int:
        return self.granule_blocks * self.block_tokens

    def tokens_of_pages(self, pages: int) -> int:
        return pages // self.granule_pages * self.granule_tokens

    def pages_of_tokens(self, tokens: int) -> int:
        """Pages of the granules that hold ``tokens``; as many as there are at most."""
        if not self.granule_tokens:
            return 0
        return min(self.granules, -(-tokens // self.granule_tokens)) * self.granule_pages


@dataclass(frozen=True, slots=True)
class Member:
    """One tenant with what its lending depends on."""

    tenant: Tenant
    pool: PoolSize
    traffic: Traffic
    least_pool_tokens: int

    @property
    def batch(self) -> int:
        """Requests of a full static pool."""
        most = self.pool.tokens // max(1, self.traffic.context_tokens)
        return max(1, min(MOST_REQUESTS, most))


@dataclass(frozen=True, slots=True)
class Lending:
    """One model on one GPU at one set of rates.

    batch                 requests that its static pool holds; its step is that of such a batch
    free_units            units it gives while active, its step no longer (freed: cycled less slots)
    idle_units            units it gives while inactive, its next first token not later
    tokens_others_idle    KV tokens it can have while the others are idle
    tokens_others_busy    the same while they are busy, each step as long as before
    step_s                a decode step of that batch
    prefill_s             of a mean prompt, alone
    lent_first_token_s    the same while all that it may lend is lent: fetches beside computation
    load_s                all weights over the host link: a cold start without MIRAGE
    """

    batch: int
    units: int
    free_units: int
    idle_units: int
    free_bytes: int
    idle_bytes: int
    tokens_others_idle: int
    tokens_others_busy: int
    step_s: float
    prefill_s: float
    lent_first_token_s: float
    load_s: float


def pool_size(tenant: Tenant, block_tokens: int, page_bytes: int) -> PoolSize:
    """The pool that fits beside the tenant's weights."""
    sizing = tenant.sizing
    layers = [cache.token_bytes for cache in sizing.caches() if cache.token_bytes]
    layer_bytes = max(layers, default=0) * block_tokens
    granule_blocks = blocks_of_a_granule(layer_bytes, page_bytes) if layer_bytes else 0
    block_bytes = sizing.kv_block_bytes(block_tokens)
    left_bytes = tenant.size_bytes - sizing.weight_bytes
    return PoolSize(
        page_bytes=page_bytes,
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        blocks=left_bytes // block_bytes if block_bytes else 0,
        granule_blocks=granule_blocks,
        granule_pages=max(1, len(layers) * granule_blocks * layer_bytes // page_bytes),
    )


def lend(members: Sequence[Member], rates: Hardware, grain: UnitGrain) -> list[Lending]:
    """Every member's give and take on one GPU, with all rates fixed as in ``rates``."""
    policy = Policy()
    engines = [_engine(member, rates, grain) for member in members]
    return [
        _lending(member, view, engines, rates, policy)
        for member, view in zip(members, engines, strict=True)
    ]


def _engine(member: Member, rates: Hardware, grain: UnitGrain) -> EngineView:
    """The model idle, all weights resident, its whole static pool spare."""
    pool, label = member.pool, member.tenant.wanted.label
    table = _plan_table(member, rates, grain)
    pages = pool.granules * pool.granule_pages
    return EngineView(
        engine=EngineId(label),
        model=ModelName(label),
        priority=member.tenant.wanted.priority,
        active=False,
        last_active_s=0.0,
        plan=RESIDENT,
        plan_table=table,
        pool_pages=pages,
        pool_spare_pages=pages,
        pool_min_pages=pool.pages_of_tokens(member.least_pool_tokens),
        floor_pages=cold_start_floor_pages(table, _prefill_s(member, rates)),
        granule_pages=pool.granule_pages,
    )


def _lending(
    member: Member,
    view: EngineView,
    engines: Sequence[EngineView],
    rates: Hardware,
    policy: Policy,
) -> Lending:
    pool, page_bytes = member.pool, member.pool.page_bytes
    free = most_lending_row(view, True, policy)
    idle = most_lending_row(view, False, policy)
    prefill_s = _prefill_s(member, rates)
    return Lending(
        batch=member.batch,
        units=len(view.unit_pages),
        free_units=_freed_units(free),
        idle_units=_freed_units(idle),
        free_bytes=free.freed_pages * page_bytes,
        idle_bytes=idle.freed_pages * page_bytes,
        tokens_others_idle=pool.tokens_of_pages(_most_pages(view, engines, policy, busy=False)),
        tokens_others_busy=pool.tokens_of_pages(_most_pages(view, engines, policy, busy=True)),
        step_s=view.plan_table.resident_step_s,
        prefill_s=prefill_s,
        lent_first_token_s=max(prefill_s, idle.transfer_s),
        load_s=member.tenant.sizing.weight_bytes / rates.h2d_bytes_per_s.typical,
    )


def _most_pages(
    borrower: EngineView, engines: Sequence[EngineView], policy: Policy, *, busy: bool
) -> int:
    """Pages of a pool that wants all there are, as Algorithm 1 finds them, its own included."""
    views = tuple(_running(view) if busy or view is borrower else view for view in engines)
    wanted = sum(sum(view.unit_pages) + view.pool_pages for view in engines)
    wanted -= wanted % borrower.granule_pages
    decision = plan_shortage(DeviceView(0, views), borrower.engine, wanted, policy, 0.0)
    return borrower.pool_pages + wanted - decision.short_pages


def _running(view: EngineView) -> EngineView:
    """The same engine, busy: its pool is in use."""
    return replace(view, active=True, pool_spare_pages=0)


def _freed_units(row: PlanRow) -> int:
    """Cycled units less the slots that they share."""
    return len(row.plan.cycled) - len(row.plan.slots)


def _plan_table(member: Member, rates: Hardware, grain: UnitGrain) -> PlanTable:
    sizing = member.tenant.sizing
    times = unit_times(sizing, grain, [Part(member.batch, member.traffic.context_tokens)], rates)
    units = sizing.units(grain)
    cost = StepCost(
        compute_s=times.layers_s,
        transfer_s=tuple(unit.size_bytes / rates.h2d_bytes_per_s.typical for unit in units),
        rest_s=times.rest_s,
    )
    pages = tuple(-(-unit.size_bytes // member.pool.page_bytes) for unit in units)
    return build_plan_table(cost, pages, SlotRule.BEST)


def _prefill_s(member: Member, rates: Hardware) -> float:
    prompt = Part(1, 0, member.traffic.prompt_tokens)
    return step_times(member.tenant.sizing, [prompt], rates).step_s
