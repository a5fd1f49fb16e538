"""KV cache in host memory beside the device's: what KV swapping and attention on the CPU share.

Each step reads all its context.  What exceeds the device's pool is in host memory, and every token
of it costs so much of some resource of the host that works beside the device: a step takes

    max(plain, (context - device tokens) * time a token)

Requests are admitted as long as the host's part hides behind the step of the present batch
(``adaptive``: both systems hold back where they would slow down), or up to the host's memory.
Those that run go on whatever becomes of the batch.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage_core.simulator.batch_watch import BatchWatch
from mirage_core.simulator.config import EngineSpec
from mirage_core.simulator.memory_port import EngineView, StepMemory
from mirage_core.simulator.quiet import QUIET_STEPS
from mirage_core.simulator.step_time import Stretch
from mirage_core.simulator.units import PS_PER_S

GROWTH_STEPS = 64
"""Running requests have room for so many steps."""


class HostKvPort:
    """A pool of ``spec.pool_blocks`` on the device and ``host_blocks`` beside it.

    ``token_s()`` is the time that a token of the host's part costs a step.
    """

    def __init__(
        self,
        spec: EngineSpec,
        host_blocks: int,
        token_s: Callable[[], float],
        *,
        adaptive: bool,
        streams: Callable[[bool], None] = lambda streams: None,
    ) -> None:
        """``streams`` hears whether the host's part is in use."""
        self._device_blocks = spec.pool_blocks
        self._host_blocks = host_blocks
        self._block_tokens = spec.limits.block_tokens
        self._token_s = token_s
        self._adaptive = adaptive
        self._streams = streams
        self._batch = BatchWatch(spec.step_time)
        self._token_ps = max(1, round(token_s() * PS_PER_S))

    @property
    def limit_blocks(self) -> int:
        return self._device_blocks + self._host_blocks

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        if self._batch.observe(view):
            self._streams(view.active and view.used_blocks > self._device_blocks)
            self._token_ps = max(1, round(self._token_s() * PS_PER_S))
        stretch = Stretch(
            base_ps=-self._device_blocks * self._block_tokens * self._token_ps,
            per_context_ps=self._token_ps,
        )
        host_part, quiet_steps = self._host_part(view)
        return StepMemory(
            self._device_blocks + host_part,
            headroom_steps=GROWTH_STEPS,
            stretch=stretch,
            quiet_steps=quiet_steps,
        )

    def _host_part(self, view: EngineView) -> tuple[int, int]:
        """Blocks in host memory that the present batch hides, and for how many steps that stands;
        the first request always fits, and those that run have room to grow."""
        if not self._adaptive or not view.unfinished:
            return self._host_blocks, QUIET_STEPS
        hidden = int(self._batch.plain_s * PS_PER_S) // self._token_ps // self._block_tokens
        first = -(-next(view.demands()).final_tokens // self._block_tokens)
        worth = max(hidden, first - self._device_blocks)
        growth = view.running * -(-GROWTH_STEPS // self._block_tokens)
        beyond = view.used_blocks + growth - self._device_blocks - worth
        quiet_steps = QUIET_STEPS
        if view.running:
            # In so many steps each request takes a block, at the most often.
            quiet_steps = max(0, -beyond) // view.running * self._block_tokens
        return min(self._host_blocks, worth + max(0, beyond)), quiet_steps
