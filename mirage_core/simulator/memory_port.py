"""Between one simulated engine and whoever manages its memory.

The engine asks at every step boundary, in step order, exactly as vLLM's scheduler with the
plug-in does: ``on_step`` is ``before_step`` of the real thing, and what was ordered with one step
has been performed when the next one asks.  An arm (static, elastic, MIRAGE ...) is whatever makes
one port for each engine of a device.

Jumping between events asks less often than stepping every step; the answer says for how long it
stands (``quiet_steps``, ``quiet_until_ps``).  A port that promises too much makes the two modes
differ, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mirage_core.policy.when import Demand
from mirage_core.simulator.step_time import Batch, Stretch
from mirage_core.simulator.units import NEVER_PS

if TYPE_CHECKING:
    from mirage_core.simulator.config import DeviceSpec
    from mirage_core.simulator.link import LinkDomain


class EngineView(Protocol):
    """What a port may know of its engine, at a step boundary.  Read only; cheap but ``demands``."""

    @property
    def active(self) -> bool:
        """There are running or waiting requests, and it is the engine's turn (temporal sharing)."""
        ...

    @property
    def unfinished(self) -> bool:
        """There are running or waiting requests, whoever's turn it is."""
        ...

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def used_blocks(self) -> int:
        """Blocks that live requests hold; cached free blocks do not count, nor the null block."""
        ...

    @property
    def preemptions(self) -> int:
        """Since the start."""
        ...

    @property
    def lone_preemptions(self) -> int:
        """Preemptions of the request that last gave way with no other running (then it does not
        fit); 0 once a request finished."""
        ...

    @property
    def idle_since_ps(self) -> int:
        """When the last request left; meaningless while active."""
        ...

    @property
    def batch(self) -> Batch:
        """The last step's batch: what its time depends on."""
        ...

    @property
    def step_ps(self) -> int:
        """How long the last step took, waiting for weights included."""
        ...

    @property
    def prefill_step_ps(self) -> int:
        """How long a step with a prompt in it takes, an exponential mean; 0 until there was one."""
        ...

    def demands(self) -> Iterator[Demand]:
        """Each request's claim on the pool, running ones first (for ``policy.when``)."""
        ...


class StepMemory(NamedTuple):
    """A port's answer: what holds for the coming step, and for how many more.

    capacity_blocks   blocks that may be held in all; may be below what is held (no new ones then)
    headroom_steps    new requests leave room for what running ones take within so many steps
                      (vLLM's watermark, as the plug-in sets it)
    stretch           what streaming adds to the step; None: nothing
    delay_ps          added to this one step (mapping pages, say)
    preempt_to_blocks running requests give way, the last first, until no more is held
    quiet_steps       unless a request comes, goes, is preempted or computes its prompt, or the
                      port wakes the engine, the answer would be the same for so many further steps
                      and need not be asked for (0: ask at every step)
    quiet_until_ps    nor would it change at boundaries before this moment
    recheck_ps        if nothing can be scheduled although requests wait: ask again then
    """

    capacity_blocks: int
    headroom_steps: int = 0
    stretch: Stretch | None = None
    delay_ps: int = 0
    preempt_to_blocks: int | None = None
    quiet_steps: int = NEVER_PS
    quiet_until_ps: int = NEVER_PS
    recheck_ps: int = NEVER_PS


class MemoryPort(Protocol):
    """The memory of one simulated engine."""

    @property
    def limit_blocks(self) -> int:
        """The most blocks it could ever have: a longer request fails at once, with an error."""
        ...

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        """A step boundary: of a busy engine before each step, of an idle one when it falls idle
        and when it was woken (then nothing is scheduled, and only the asking counts)."""
        ...


class Site(Protocol):
    """What the simulator offers to a device's memory manager."""

    @property
    def now_ps(self) -> int: ...

    @property
    def link(self) -> LinkDomain:
        """The host link that the device is on, shared with the other devices of its domain."""
        ...

    def call_at(self, time_ps: int, call: Callable[[], None]) -> None:
        """Run ``call`` then (at once if that is past); equal times run in order of asking."""
        ...

    def wake(self, engine: int) -> None:
        """Have engine ``engine`` (index on this device) ask its port: at once if idle or stuck,
        at the end of the step in flight if busy."""
        ...

    def view(self, engine: int) -> EngineView: ...


class Arm(Protocol):
    """One way of sharing a device's memory: a factory of ports."""

    @property
    def name(self) -> str: ...

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[MemoryPort]:
        """One port for each of ``device.engines``, in their order.

        Raises ConfigError if the models do not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class StaticPool:
    """Stock vLLM: the pool of the start, for good."""

    blocks: int

    @property
    def limit_blocks(self) -> int:
        return self.blocks

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        return StepMemory(self.blocks)


@dataclass(frozen=True, slots=True)
class StaticArm:
    """Each engine keeps the pool that its spec gives it."""

    name: str = "static"

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[MemoryPort]:
        return [StaticPool(engine.pool_blocks) for engine in device.engines]
