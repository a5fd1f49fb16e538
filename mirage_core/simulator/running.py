"""The running requests of an engine: their order, their tokens and their blocks.

Decoding requests are advanced together, by the engine's count of steps (*tick*): a request's own
state is its offset to it.  So a thousand steps cost as much as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from mirage_core.policy.when import Demand
from mirage_core.simulator.config import SchedulerLimits
from mirage_core.simulator.live import Live
from mirage_core.simulator.pool import DecodeGrowth, PrefixCache


class RunningRequests:
    """Books only; who runs is the engine's decision.

    requests     by row, in order of admission
    partial      the request that is in the midst of its prompt, always the last one
    tick         steps done since the start
    growth       when decoding requests take their next block
    context      computed tokens of all decoding requests
    used_blocks  blocks that requests hold; what is only cached does not count
    changes      counts who came and who went
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.requests: dict[int, Live] = {}
        self.partial: Live | None = None
        self.tick = 0
        self.growth = DecodeGrowth(limits.block_tokens)
        self.context = 0
        self.used_blocks = 0
        self.changes = 0
        self._block_tokens = limits.block_tokens
        self._cache = PrefixCache() if limits.prefix_caching else None
        self._finishing: list[tuple[int, int]] = []
        """Heap of (finish_at, row) of decoding requests; stale entries are skipped."""
        self._granted_at = -1
        """The tick for which every decoding request has the block that it needs."""

    def __len__(self) -> int:
        return len(self.requests)

    def computed(self, request: Live) -> int:
        """Tokens of a decoding request in the KV cache."""
        return request.offset + self.tick

    # ---- prompts

    def match(self, request: Live) -> tuple[int, int]:
        """Leading blocks of a waiting request that are cached, and how many of them none holds."""
        if self._cache is None:
            return 0, 0
        most = (request.known - 1) // self._block_tokens
        return self._cache.match(request.row, request.group, request.shared_blocks, most)

    def admit(self, request: Live, found: int, unheld: int, chunk: int, capacity: int) -> None:
        """It runs now: ``chunk`` tokens of its prompt in this step, after the ``found`` blocks."""
        self.changes += 1
        request.computed = found * self._block_tokens
        request.blocks = -(-(request.computed + chunk) // self._block_tokens)
        self.used_blocks += request.blocks - found + unheld
        self.requests[request.row] = request
        self._hold(request, found)
        self.compute(request, chunk)
        self._trim(capacity)

    def compute(self, request: Live, chunk: int) -> None:
        """``chunk`` tokens of its prompt run in this step, their blocks taken already."""
        self._hold(request, (request.computed + chunk) // self._block_tokens)
        self.partial = request if request.computed + chunk < request.known else None

    def start_decode(self, request: Live, left: int) -> None:
        """Its prompt is computed, ``left`` tokens are still to come."""
        request.decoding = True
        request.offset = request.computed - self.tick
        request.finish_at = self.tick + left
        self.growth.add(-request.offset % self._block_tokens)
        self.context += request.computed
        heappush(self._finishing, (request.finish_at, request.row))

    # ---- blocks

    def take(self, blocks: int, capacity: int) -> None:
        self.used_blocks += blocks
        self._trim(capacity)

    def grant_all(self, capacity: int) -> bool:
        """Give each decoding request the block that it needs for this step, if all can have it."""
        need = self.growth.phases[self.tick % self._block_tokens]
        if self.used_blocks + need > capacity:
            self._granted_at = -1
            return False
        self.take(need, capacity)
        self._granted_at = self.tick
        return True

    def needs_block(self, request: Live) -> bool:
        return request.decoding and self.computed(request) % self._block_tokens == 0

    def demands(self) -> Iterator[Demand]:
        """Each request's claim on the pool, this step's blocks taken already."""
        for request in self.requests.values():
            if request.decoding:
                known = held = self.computed(request) + 1
            else:
                known, held = request.known, request.blocks * self._block_tokens
            yield Demand(min(held, known), known, request.prompt + request.output)

    def remove(self, request: Live) -> int:
        """It runs no longer: its blocks are free; returns its computed tokens."""
        self.changes += 1
        del self.requests[request.row]
        size, tick = self._block_tokens, self.tick
        if request.decoding:
            computed = request.offset + tick
            blocks = -(-computed // size)
            if computed % size == 0 and tick in (request.granted_at, self._granted_at):
                blocks += 1
            self.growth.remove(-request.offset % size)
            self.context -= computed
            request.known = computed + 1
            request.decoding = False
            self._hold(request, computed // size)
        else:
            computed, blocks = request.computed, request.blocks
            if request is self.partial:
                self.partial = None
        if self._cache is not None:
            freed = self._cache.release(
                request.row, request.group, request.shared_blocks, request.held
            )
            blocks += freed - request.held
            request.held = 0
        self.used_blocks -= blocks
        request.computed = request.blocks = 0
        return computed

    def _hold(self, request: Live, whole: int) -> None:
        """The prefix cache learns of the request's whole blocks up to ``whole``."""
        if self._cache is not None and whole > request.held:
            self._cache.hold(request.row, request.group, request.shared_blocks, request.held, whole)
            request.held = whole

    def _trim(self, capacity: int) -> None:
        if self._cache is not None:
            self._cache.trim(capacity - self.used_blocks)

    def forget_all(self) -> None:
        """The device is lost, with what it cached."""
        for request in list(self.requests.values()):
            self.remove(request)
        self._finishing.clear()
        if self._cache is not None:
            self._cache = PrefixCache()

    # ---- steps

    def next_finish(self) -> int:
        """The tick at which the first decoding request is done; there is one."""
        heap, requests = self._finishing, self.requests
        while True:
            finish_at, row = heap[0]
            request = requests.get(row)
            if request is not None and request.decoding and request.finish_at == finish_at:
                return finish_at
            heappop(heap)

    def advance(self, steps: int, decodes: int, capacity: int) -> None:
        """``steps`` steps are done, the first one's blocks taken already."""
        if steps > 1:
            self.take(self.growth.blocks(self.tick + 1, steps - 1), capacity)
        self.tick += steps
        self.context += decodes * steps

    def grant_next(self) -> None:
        """One more foreseen step is under way: its blocks are taken."""
        self.used_blocks += self.growth.blocks(self.tick, 1)
        self._granted_at = self.tick

    def pass_over(self, request: Live) -> None:
        """A decoding request did not run in the step that was just done."""
        self.growth.remove(-request.offset % self._block_tokens)
        request.offset -= 1
        request.finish_at += 1
        self.growth.add(-request.offset % self._block_tokens)
        heappush(self._finishing, (request.finish_at, request.row))

    def done(self) -> list[Live]:
        """Decoding requests that have all their tokens now, each of them once."""
        heap, requests, tick = self._finishing, self.requests, self.tick
        done: list[Live] = []
        while heap and heap[0][0] <= tick:
            finish_at, row = heappop(heap)
            request = requests.get(row)
            if request is None or not request.decoding or request.finish_at != finish_at:
                continue
            if not done or done[-1] is not request:  # an entry may be there twice
                done.append(request)
        if len(done) > 1 and self._cache is not None:
            # The order in which blocks are freed is the order in which they are evicted.
            rows = {request.row for request in done}
            done = [request for request in requests.values() if request.row in rows]
        return done
