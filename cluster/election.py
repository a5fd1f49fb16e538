"""Who leads: one candidate's part in the election.

Three things keep two leaders from acting.  The store gives the lease to one holder at a time and
counts its end by its own clock.  The holder counts from *before* it asked, with a margin, and stops
by its own clock, whether the store answers or not.  And if both clocks are wrong, or the process
was stopped between looking at its clock and acting, the store refuses the older epoch's writes and
agents refuse the older epoch's directives.

    ask ─────────── granted ─────────────────────────────── lease ends (store's clock)
     └── lease_s - margin_s ──────────── stops leading (own clock)
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cluster.store.port import Fence, Lease, LeaseStore
from mirage_core.errors import ConfigError, HistoryLostError, StoreError
from mirage_core.ports import Clock

_log = logging.getLogger("mirage.election")


@dataclass(frozen=True, slots=True)
class Timing:
    """lease_s   without renewal the store gives leadership to another after this
    renew_s   between renewals; the others ask as often
    margin_s  the leader stops this long before its lease ends
    """

    lease_s: float = 2.0
    renew_s: float = 0.4
    margin_s: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.margin_s < self.lease_s or 2 * self.renew_s > self.lease_s - self.margin_s:
            raise ConfigError(
                f"a lease of {self.lease_s:g} s with a margin of {self.margin_s:g} s leaves no"
                f" two renewals every {self.renew_s:g} s: raise lease_s or lower renew_s"
            )


@dataclass(frozen=True, slots=True)
class Leading:
    """``until_s`` by the candidate's clock, unless the lease is renewed."""

    fence: Fence
    until_s: float


@dataclass(frozen=True, slots=True)
class Following:
    """leader   its address, as long as its lease is not known to have ended; None: unknown
    epoch    of the last lease that was seen
    renewed_s  when that lease was last renewed, by the candidate's clock, or a little earlier
    """

    leader: str | None
    epoch: int = 0
    renewed_s: float = -math.inf


Role = Leading | Following

HESITATION_S = 1.0
"""After a lease's end, of a candidate that no agent waits for yet.  Agents wait at one of the
standbys, and if that one is elected they need not connect to another, which costs more."""
_LOOK_S = 0.02


class Candidate:
    """``step`` asks once; ``run`` goes on asking.  ``role`` is right at any moment: it looks at
    the clock, so ask it before each act, not once."""

    def __init__(
        self,
        store: LeaseStore,
        clock: Clock,
        *,
        holder: str,
        address: str,
        timing: Timing,
        attended: Callable[[], bool] = lambda: True,
        on_change: Callable[[Role], None] = lambda _: None,
        on_history_lost: Callable[[HistoryLostError], Awaitable[None]] | None = None,
    ) -> None:
        """holder   one life of this process, never reused
        address  where callers find it when it leads
        clock    should count the time that the machine sleeps (CLOCK_BOOTTIME)
        attended  whether agents wait for this candidate; asked by ``run``
        on_change  called by ``run`` when the role, the epoch or the known leader changed
        on_history_lost  declares what is lost, since nobody can be elected before; None: raise
        """
        self._store = store
        self._clock = clock
        self._holder = holder
        self._address = address
        self._timing = timing
        self._attended = attended
        self._on_change = on_change
        self._on_history_lost = on_history_lost
        self._held: tuple[Lease, float] | None = None
        """the lease and when it ends by this clock; one value, for readers of other threads"""
        self._told: tuple[int | None, str | None] | None = None
        self._failing = False

    @property
    def role(self) -> Role:
        held = self._held
        if held is None:
            return Following(None)
        lease, until_s = held
        renewed_s = until_s - self._timing.lease_s
        if self._clock.monotonic_s() >= until_s:
            return Following(None, lease.epoch, renewed_s)
        if lease.holder == self._holder:
            return Leading(Fence(lease.epoch), until_s)
        return Following(lease.address, lease.epoch, renewed_s)

    @property
    def fence(self) -> Fence | None:
        """For the next write; None when this process does not lead."""
        role = self.role
        return role.fence if isinstance(role, Leading) else None

    async def step(self) -> Role:
        """Take or renew the lease, or learn who has it.  Raises StoreError; the role then stays
        what it was, until the clock ends it."""
        asked_s = self._clock.monotonic_s()
        lease = await self._store.campaign(
            self._holder, self._address, lease_s=self._timing.lease_s
        )
        mine = lease.holder == self._holder
        lasts_s = self._timing.lease_s - self._timing.margin_s if mine else lease.remaining_s
        self._held = (lease, asked_s + lasts_s)
        return self.role

    async def run(self) -> None:
        """Until cancelled; then resigns, so that another need not wait for the lease to end."""
        try:
            while True:
                await self._step_in_time()
                await self._pause()
        finally:
            await self._resign()

    async def _step_in_time(self) -> None:
        """One step, which a store that does not answer cannot keep from stepping down."""
        self._tell()
        role = self.role
        patience_s = self._timing.lease_s
        if isinstance(role, Leading):
            patience_s = role.until_s - self._clock.monotonic_s()
        try:
            async with asyncio.timeout(patience_s):
                await self.step()
            self._failing = False
        except HistoryLostError as error:
            self._held = None
            if self._on_history_lost is None:
                raise
            await self._recover(self._on_history_lost, error)
        except (StoreError, TimeoutError) as error:
            self._complain(error)
        self._tell()

    async def _recover(
        self, recover: Callable[[HistoryLostError], Awaitable[None]], error: HistoryLostError
    ) -> None:
        _log.warning("%s", error)
        self._tell()
        try:
            await recover(error)
        except StoreError as another:
            self._complain(another)

    def _complain(self, error: Exception) -> None:
        if not self._failing:  # once, not every renewal
            _log.warning("cannot campaign: %s", str(error) or "the store did not answer in time")
        self._failing = True

    async def _pause(self) -> None:
        """Until the next step; less if this or the leader's lease ends before it."""
        held = self._held
        left_s = held[1] - self._clock.monotonic_s() if held is not None else 0.0
        if held is None or not 0 < left_s <= self._timing.renew_s:
            await asyncio.sleep(self._timing.renew_s)
            return
        await asyncio.sleep(left_s)
        if held[0].holder != self._holder:
            until_s = self._clock.monotonic_s() + HESITATION_S
            while not self._attended() and self._clock.monotonic_s() < until_s:
                await asyncio.sleep(_LOOK_S)

    def _tell(self) -> None:
        role = self.role
        told = (role.fence.epoch, None) if isinstance(role, Leading) else (None, role.leader)
        if told != self._told:
            self._told = told
            _log.info("%s", role)
            self._on_change(role)

    async def _resign(self) -> None:
        mine = self._held is not None and self._held[0].holder == self._holder
        self._held = None
        self._tell()
        if mine:
            try:
                async with asyncio.timeout(self._timing.lease_s):  # it has ended by then
                    await self._store.resign(self._holder)
            except (StoreError, TimeoutError) as error:
                _log.warning("the lease ends by itself: %s", error)
