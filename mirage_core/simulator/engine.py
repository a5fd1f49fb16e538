"""One engine: vLLM V1's scheduling over counts of blocks, a step or many steps at a time.

Between two events the running batch does the same over and over: each decoding request computes
one token a step.  ``plan`` decides on a step as vLLM's ``schedule`` does and foresees how many
more will be like it; ``commit`` performs what of them was not cut short.  Stepping every step is
the same with one step a plan.

As in vLLM's synchronous scheduler: running requests first, in order of admission; then waiting
ones while tokens, seats and blocks last, none after a preemption; a new request must fit whole.
At most one running request is in the midst of its prompt, and it is the last: whoever cannot
finish a prompt has used the step's tokens up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirage_core.policy.when import Demand
from mirage_core.simulator.book import Book
from mirage_core.simulator.config import EngineSpec
from mirage_core.simulator.live import ArrivalQueue, Live, PriorityQueue, WaitingQueue
from mirage_core.simulator.memory_port import MemoryPort, StepMemory
from mirage_core.simulator.results import Status
from mirage_core.simulator.running import RunningRequests
from mirage_core.simulator.segment import Segment, decode_line, fewest_steps
from mirage_core.simulator.step_time import Batch
from mirage_core.simulator.units import NEVER_PS


class Engine:
    """See the module's docstring.  It is an ``EngineView`` for its memory port."""

    def __init__(
        self, index: int, spec: EngineSpec, book: Book, *, jump: bool, network_ps: int = 0
    ) -> None:
        self.index = index
        self.spec = spec
        self.book = book
        self.jump = jump
        self.network_ps = network_ps
        self.port: MemoryPort
        self.on_turn = True
        self.finished: Callable[[Engine, Live, int], None]
        """Called with each request that is done, and when."""

        limits = spec.limits
        self._block_tokens = limits.block_tokens
        self._max_tokens = limits.max_num_batched_tokens
        self._max_seqs = limits.max_num_seqs
        self._by_priority = limits.priority
        self._step_time = spec.step_time
        self.queue: WaitingQueue = PriorityQueue() if limits.priority else ArrivalQueue()
        self._running = RunningRequests(limits)

        self._memory: StepMemory | None = None
        self._changed = True
        self._woken = False
        self._quiet_steps = 0
        self._asked_at = -1

        self.segment: Segment | None = None
        self._prefills: list[tuple[Live, int]] = []
        """What of which prompts runs in the step under way."""
        self._stalled: list[Live] = []
        """Decoding requests that do not run in the step under way."""
        self.last_end_ps = 0
        self.batch = Batch(0, 0)
        self.step_ps = 0
        self.prefill_step_ps = 0
        self.preemptions = 0
        self.lone_preemptions = 0
        self.idle_since_ps = 0
        self.steps = 0

    # ---- what a port, a router or a device may ask

    @property
    def active(self) -> bool:
        return self.on_turn and self.unfinished

    @property
    def unfinished(self) -> bool:
        return len(self._running) > 0 or len(self.queue) > 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def used_blocks(self) -> int:
        return self._running.used_blocks

    def demands(self) -> Iterator[Demand]:
        tick = self._running.tick
        for request in self._running.requests.values():
            if request.decoding:
                computed = request.offset + tick
                yield Demand(computed, computed + 1, request.prompt + request.output)
            else:
                yield Demand(request.computed, request.known, request.prompt + request.output)
        for request in self.queue:
            yield Demand(0, request.known, request.prompt + request.output)

    @property
    def recheck_ps(self) -> int:
        return self._memory.recheck_ps if self._memory is not None else NEVER_PS

    @property
    def indifferent(self) -> bool:
        """A new request changes nothing before the steps under way are done."""
        memory = self._memory
        return (
            memory is not None
            and memory.quiet_steps == NEVER_PS
            and not self._by_priority
            and (len(self.queue) > 0 or len(self._running) >= self._max_seqs)
        )

    # ---- requests come and go

    def receive(self, request: Live) -> None:
        self.queue.push(request)
        self.book.engine[request.row] = self.index
        self._changed = True

    def refuses(self, request: Live) -> bool:
        """No pool that this engine could ever have holds the request."""
        tokens = request.prompt + request.output - 1
        return -(-tokens // self._block_tokens) > self.port.limit_blocks

    def wake(self) -> None:
        self._woken = True

    def drop_all(self, now_ps: int) -> list[Live]:
        """The device is lost: all requests, as they came, in order of arrival."""
        self.sync(now_ps)
        lost = [*self._running.requests.values(), *self.queue]
        for _ in range(len(self.queue)):
            self.queue.pop()
        self._running.forget_all()
        self._prefills, self._stalled, self.segment = [], [], None
        self._changed = self._woken = True
        for request in lost:
            request.known, request.late_from_ps = request.prompt, -1
        return sorted(lost, key=lambda request: request.row)

    # ---- scheduling

    def ask(self, now_ps: int) -> StepMemory:
        """The port's answer for the coming step; the port is asked only if it need be."""
        memory = self._memory
        if (
            memory is None
            or self._woken
            or (
                memory.quiet_steps != NEVER_PS
                and (
                    self._changed
                    or self._quiet_steps <= 0
                    or (not self.jump and self._asked_at != self._running.tick)
                    or now_ps >= memory.quiet_until_ps
                )
            )
        ):
            memory = self._memory = self.port.on_step(self, now_ps)
            self._quiet_steps = min(memory.quiet_steps, NEVER_PS - 1) + 1
            self._asked_at = self._running.tick
            self._woken = False
        self._changed = False
        return memory

    def begin_turn(self) -> None:
        self.on_turn = self._changed = True

    def end_turn(self) -> None:
        self.on_turn = False
        self._changed = True

    def _take_delay(self, memory: StepMemory) -> int:
        """The port's delay, for one step only."""
        if memory.delay_ps:
            self._memory = memory._replace(delay_ps=0)
            self._changed = True
        return memory.delay_ps

    def plan(self, now_ps: int, until_ps: int = NEVER_PS, slow_1024ths: int = 1024) -> bool:
        """Schedule the step that begins now and as many like it as can be foreseen.

        They end at ``until_ps`` or at the first boundary after; ``slow_1024ths`` is their time on
        a device that others use too.  False: there is nothing to compute, or it does not fit.
        """
        running = self._running
        while True:
            memory = self.ask(now_ps)
            capacity = memory.capacity_blocks
            if memory.preempt_to_blocks is not None:
                while running.used_blocks > memory.preempt_to_blocks and len(running):
                    self._preempt(self._victim())
            before = self.preemptions
            self._prefills = []
            stalled = self._grow_decodes(capacity)
            budget = self._max_tokens - running.growth.requests + len(stalled)
            if running.partial is not None and not stalled:
                budget -= self._continue_prompt(running.partial, budget, capacity)
            preempted = self.preemptions > before
            if not preempted:
                self._admit(budget, capacity, memory.headroom_steps)
            if running.growth.requests > len(stalled) or self._prefills:
                break
            if not preempted:
                return False
        if self._prefills or stalled:
            self._plan_single(now_ps, stalled, slow_1024ths, memory)
        else:
            self._plan_decode(now_ps, until_ps, slow_1024ths, memory, once=preempted)
        return True

    def _grow_decodes(self, capacity: int) -> list[Live]:
        """Give each decoding request its next block; returns those that do not run this step."""
        running = self._running
        if running.grant_all(capacity):
            return []
        requests = list(running.requests.values())
        for place, request in enumerate(requests):
            if running.needs_block(request):
                if not self._take(1, request, capacity):
                    # vLLM ends its loop here: whoever still runs after this one waits a step.
                    return [r for r in requests[place:] if r.decoding]
                request.granted_at = running.tick
        return []

    def _continue_prompt(self, request: Live, budget: int, capacity: int) -> int:
        chunk = min(request.known - request.computed, budget)
        blocks = -(-(request.computed + chunk) // self._block_tokens) - request.blocks
        if chunk <= 0 or not self._take(blocks, request, capacity):
            return 0
        request.blocks += blocks
        self._running.compute(request, chunk)
        self._prefills.append((request, chunk))
        return chunk

    def _admit(self, budget: int, capacity: int, headroom_steps: int) -> None:
        queue, running, size = self.queue, self._running, self._block_tokens
        headroom = -1
        while budget > 0 and len(running) < self._max_seqs and len(queue):
            request = queue.head()
            found, unheld = running.match(request)
            required = -(-request.known // size) - found + unheld
            if headroom_steps and len(running):
                if headroom < 0:
                    headroom = sum(
                        running.growth_of(r, headroom_steps) for r in running.requests.values()
                    )
                required += headroom
            if running.used_blocks + required > capacity:
                return
            queue.pop()
            chunk = min(request.known - found * size, budget)
            running.admit(request, found, unheld, chunk, capacity)
            self._prefills.append((request, chunk))
            self.book.counters["prefix_hit_tokens"] += found * size
            budget -= chunk
            if headroom_steps:
                headroom = max(0, headroom) + running.growth_of(request, headroom_steps)

    # ---- preemption

    def _take(self, blocks: int, request: Live, capacity: int) -> bool:
        """Take blocks for a running request, others giving way; False if it itself had to."""
        running = self._running
        while blocks and running.used_blocks + blocks > capacity:
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        running.take(blocks, capacity)
        return True

    def _victim(self) -> Live:
        requests = self._running.requests.values()
        if self._by_priority:
            return max(requests, key=lambda r: (r.priority, r.arrival_ps))
        return next(reversed(requests))

    def _preempt(self, request: Live) -> None:
        if request.decoding:
            request.late_from_ps = self.last_end_ps
        self.book.counters["recomputed_tokens"] += self._running.remove(request)
        request.preempted += 1
        self.book.preemptions[request.row] = request.preempted
        self.preemptions += 1
        if not len(self._running):
            self.lone_preemptions = request.preempted
        self.queue.push_back(request)
        self._changed = True

    # ---- steps

    def _plan_decode(
        self, now_ps: int, until_ps: int, slow_1024ths: int, memory: StepMemory, once: bool
    ) -> None:
        """Steps in which nothing but decoding happens, as many as can be foreseen."""
        running = self._running
        decodes = running.growth.requests
        context = running.context + decodes
        line = decode_line(
            self._step_time.decode_line(decodes, context), slow_1024ths, memory.stretch, context
        )
        segment = self.segment = Segment(
            now_ps,
            line.base_ps + line.slope_ps * context,
            line.slope_ps * decodes,
            1,
            decodes,
            0,
            self._seen(memory),
        )
        delay_ps = self._take_delay(memory)
        segment.first_ps += delay_ps
        if self.jump and not once and not delay_ps:
            steps = min(
                running.next_finish() - running.tick,
                self._quiet_steps,
                1 + (line.until_tokens - context) // decodes,
            )
            if steps > 1:
                free = max(0, memory.capacity_blocks - running.used_blocks)
                within = running.growth.steps_within(running.tick + 1, steps - 1, free)
                segment.steps = 1 + within
                segment.steps = segment.steps_to(min(until_ps, memory.quiet_until_ps))

    def _plan_single(
        self, now_ps: int, stalled: list[Live], slow_1024ths: int, memory: StepMemory
    ) -> None:
        """One step with prompts in it, or in which some decoding requests do not run."""
        running = self._running
        decodes = running.growth.requests - len(stalled)
        context = running.context + decodes - sum(running.computed(r) for r in stalled)
        tokens = pairs = prompt_context = 0
        for request, chunk in self._prefills:
            end = request.computed + chunk
            tokens += chunk
            prompt_context += end
            pairs += (end * (end + 1) - request.computed * (request.computed + 1)) // 2
        if self._prefills:
            batch = Batch(decodes, context, len(self._prefills), tokens, pairs, prompt_context)
            step_ps = self._step_time.mixed_step_ps(batch) * slow_1024ths >> 10
            if memory.stretch is not None:
                step_ps = memory.stretch.step_ps(step_ps, context + prompt_context)
            self.batch = batch
        else:
            plain = self._step_time.decode_line(decodes, context)
            line = decode_line(plain, slow_1024ths, memory.stretch, context)
            step_ps = line.base_ps + line.slope_ps * context
        self._stalled = stalled
        self._changed = True
        self.segment = Segment(
            now_ps,
            step_ps + self._take_delay(memory),
            0,
            1,
            decodes,
            tokens,
            self._seen(memory),
        )

    def _seen(self, memory: StepMemory) -> tuple[int, ...]:
        """What the log says of a segment's start."""
        return (
            len(self._running),
            len(self.queue),
            self.used_blocks,
            memory.capacity_blocks,
            self.preemptions,
            memory.stretch.base_ps if memory.stretch is not None else 0,
        )

    def sync(self, now_ps: int) -> None:
        """Account for the steps under way that ended before ``now_ps``."""
        segment = self.segment
        if segment is not None and segment.steps > 1:
            done = fewest_steps(segment.first_ps, segment.growth_ps, now_ps - segment.start_ps) - 1
            if 0 < done < segment.steps:
                self._advance(segment, done)
                segment.start_ps = segment.end_ps(done)
                segment.first_ps += segment.growth_ps * done
                segment.steps -= done
                self._running.grant_next()

    def commit(self) -> None:
        """All steps of the segment are done: tokens come out, requests end."""
        segment = self.segment
        assert segment is not None
        self.segment = None
        end_ps = segment.end_ps(segment.steps)
        self._advance(segment, segment.steps)
        for request in self._stalled:
            self._running.pass_over(request)
        self._stalled = []
        for request in self._running.done():
            self._finish(request, end_ps)
        if self._prefills:
            self.prefill_step_ps += (segment.first_ps - self.prefill_step_ps) // (
                8 if self.prefill_step_ps else 1
            )
            for request, chunk in self._prefills:
                request.computed += chunk
                if request.computed == request.known:
                    self._begin_decode(request, end_ps)
            self._prefills = []
        self.last_end_ps = end_ps
        if not self.unfinished:
            self.idle_since_ps = end_ps

    def _advance(self, segment: Segment, steps: int) -> None:
        """The first ``steps`` steps of the segment are done; log them."""
        decodes, end_ps = segment.decodes, segment.end_ps(steps)
        book = self.book
        if book.steps is not None:
            book.steps.extend(
                (
                    self.index,
                    segment.start_ps,
                    segment.first_ps,
                    segment.growth_ps,
                    steps,
                    segment.start_ps + segment.first_ps - self.last_end_ps,
                    decodes,
                    segment.prefill_tokens,
                    *segment.seen,
                )
            )
        assert self._memory is not None
        self._running.advance(steps, decodes, self._memory.capacity_blocks)
        self._quiet_steps -= steps
        self.steps += steps
        self.last_end_ps = end_ps
        self.step_ps = segment.first_ps + segment.growth_ps * (steps - 1)
        if not segment.prefill_tokens:
            self.batch = Batch(decodes, self._running.context)
        book.generated_tokens += decodes * steps

    def _begin_decode(self, request: Live, end_ps: int) -> None:
        """The prompt is computed and its first token, or the next one, is there."""
        book, row = self.book, request.row
        book.generated_tokens += 1
        if request.late_from_ps >= 0:
            book.late_gaps_ps.append(end_ps - request.late_from_ps)
            book.late_gap_request.append(row)
            request.late_from_ps = -1
        elif request.known == request.prompt:
            book.first_token_ps[row] = end_ps + self.network_ps
        left = request.output - (request.known - request.prompt) - 1
        if left == 0:
            self._finish(request, end_ps)
        else:
            self._running.start_decode(request, left)

    def _finish(self, request: Live, end_ps: int) -> None:
        book, row = self.book, request.row
        self._running.remove(request)
        self._changed = True
        self.lone_preemptions = 0
        book.finish_ps[row] = end_ps + self.network_ps
        book.status[row] = Status.FINISHED
        book.finished += 1
        self.finished(self, request, end_ps)
