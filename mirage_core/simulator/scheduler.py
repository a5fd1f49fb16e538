"""Who runs in a step: vLLM V1's scheduling over counts of blocks.

As in vLLM's synchronous scheduler (0.29.0): running requests first, in order of admission; then
waiting ones while tokens, seats and blocks last, none after a preemption; a new request must fit
whole.  At most one running request is in the midst of its prompt, and it is the last: whoever
cannot finish a prompt has used the step's tokens up.
"""

from __future__ import annotations

from mirage_core.policy.when import Demand, admission_headroom_blocks
from mirage_core.simulator.book import Book
from mirage_core.simulator.config import SchedulerLimits
from mirage_core.simulator.live import ArrivalQueue, Live, PriorityQueue, WaitingQueue
from mirage_core.simulator.memory_port import StepMemory
from mirage_core.simulator.running import RunningRequests


class Scheduler:
    """Running and waiting requests of one engine, and what the step under way computes.

    prefills    which prompts, and how many tokens of each
    stalled     decoding requests that do not run in it
    preempted   somebody gave way in it
    preemptions, lone_preemptions   as ``memory_port.EngineView`` says
    """

    def __init__(self, limits: SchedulerLimits, book: Book) -> None:
        self.queue: WaitingQueue = PriorityQueue() if limits.priority else ArrivalQueue()
        self.running = RunningRequests(limits)
        self.prefills: list[tuple[Live, int]] = []
        self.stalled: list[Live] = []
        self.preempted = False
        self.preemptions = 0
        self.lone_preemptions = 0
        self._book = book
        self._block_tokens = limits.block_tokens
        self._max_tokens = limits.max_num_batched_tokens
        self._max_seqs = limits.max_num_seqs
        self._by_priority = limits.priority
        self._blocked: tuple[int, int, int] | None = None
        """In which situation the head of the queue did not fit with room to grow."""

    @property
    def decodes(self) -> int:
        """Requests that compute one token in the step."""
        return self.running.growth.requests - len(self.stalled)

    @property
    def blocked(self) -> bool:
        """One more request would wait, whatever it is."""
        return not self._by_priority and (
            len(self.queue) > 0 or len(self.running) >= self._max_seqs
        )

    def schedule(self, memory: StepMemory, last_token_ps: int) -> bool:
        """Decide on the next step; False if it is empty.

        ``last_token_ps``: when decoding requests had their last token, for those that give way.
        """
        running, capacity = self.running, memory.capacity_blocks
        if memory.preempt_to_blocks is not None:
            while running.used_blocks > memory.preempt_to_blocks and len(running):
                self._preempt(self._victim(), last_token_ps)
        before = self.preemptions
        self.prefills = []
        self.stalled = self._grow_decodes(capacity, last_token_ps)
        budget = self._max_tokens - self.decodes
        if running.partial is not None and not self.stalled:
            budget -= self._continue_prompt(running.partial, budget, capacity, last_token_ps)
        self.preempted = self.preemptions > before
        if not self.preempted:
            self._admit(budget, capacity, memory.headroom_steps)
        return self.decodes > 0 or len(self.prefills) > 0

    def drop_all(self) -> list[Live]:
        """The device is lost: all requests, as they came, in order of arrival."""
        lost = [*self.running.requests.values(), *self.queue]
        for _ in range(len(self.queue)):
            self.queue.pop()
        self.running.forget_all()
        self.prefills, self.stalled = [], []
        for request in lost:
            request.known, request.late_from_ps = request.prompt, -1
        return sorted(lost, key=lambda request: request.row)

    # ---- running requests

    def _grow_decodes(self, capacity: int, last_token_ps: int) -> list[Live]:
        """Give each decoding request its next block; returns those that do not run this step."""
        running = self.running
        if running.grant_all(capacity):
            return []
        requests = list(running.requests.values())
        for place, request in enumerate(requests):
            if running.needs_block(request):
                if not self._take(1, request, capacity, last_token_ps):
                    # vLLM ends its loop here: whoever still runs after this one waits a step.
                    return [r for r in requests[place:] if r.decoding]
                request.granted_at = running.tick
        return []

    def _continue_prompt(
        self, request: Live, budget: int, capacity: int, last_token_ps: int
    ) -> int:
        chunk = min(request.known - request.computed, budget)
        blocks = -(-(request.computed + chunk) // self._block_tokens) - request.blocks
        if chunk <= 0 or not self._take(blocks, request, capacity, last_token_ps):
            return 0
        request.blocks += blocks
        self.running.compute(request, chunk)
        self.prefills.append((request, chunk))
        return chunk

    # ---- waiting requests

    def _admit(self, budget: int, capacity: int, headroom_steps: int) -> None:
        queue, running, size = self.queue, self.running, self._block_tokens
        if not len(queue) or (headroom_steps and self._blocked == self._situation(capacity)):
            return
        headroom = self._headroom(capacity, headroom_steps)
        while budget > 0 and len(running) < self._max_seqs and len(queue):
            request = queue.head()
            found, unheld = running.match(request)
            required = -(-request.known // size) - found + unheld
            if len(running):
                required += headroom
            if running.used_blocks + required > capacity:
                self._blocked = self._situation(capacity)
                return
            queue.pop()
            chunk = min(request.known - found * size, budget)
            running.admit(request, found, unheld, chunk, capacity)
            self.prefills.append((request, chunk))
            self._book.counters["prefix_hit_tokens"] += found * size
            budget -= chunk

    def _headroom(self, capacity: int, headroom_steps: int) -> int:
        if not headroom_steps:
            return 0
        return admission_headroom_blocks(
            self.running.demands(),
            (Demand(0, r.known, r.prompt + r.output) for r in self.queue),
            free_blocks=max(0, capacity - self.running.used_blocks),
            block_tokens=self._block_tokens,
            max_running=self._max_seqs,
            horizon_steps=headroom_steps,
        )

    def _situation(self, capacity: int) -> tuple[int, int, int]:
        """While it is the same, who had to wait for room to grow waits on: the product looks at
        every step, here only what can make a difference is looked at, so that steps can be jumped.
        """
        return self.running.changes, capacity, self.queue.head().row

    # ---- preemption

    def _take(self, blocks: int, request: Live, capacity: int, last_token_ps: int) -> bool:
        """Take blocks for a running request, others giving way; False if it itself had to."""
        running = self.running
        while blocks and running.used_blocks + blocks > capacity:
            victim = self._victim()
            self._preempt(victim, last_token_ps)
            if victim is request:
                return False
        running.take(blocks, capacity)
        return True

    def _victim(self) -> Live:
        requests = self.running.requests.values()
        if self._by_priority:
            return max(requests, key=lambda r: (r.priority, r.arrival_ps))
        return next(reversed(requests))

    def _preempt(self, request: Live, last_token_ps: int) -> None:
        """Its blocks are free and it waits, to be computed anew."""
        if request.decoding:
            request.late_from_ps = last_token_ps
        self._book.counters["recomputed_tokens"] += self.running.remove(request)
        request.preempted += 1
        self._book.preemptions[request.row] = request.preempted
        self.preemptions += 1
        if not len(self.running):
            self.lone_preemptions = request.preempted
        self.queue.push_back(request)
