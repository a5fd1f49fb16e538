"""One engine: vLLM V1's scheduling over counts of blocks, a step or many steps at a time.

Between two events the running batch does the same over and over: each decoding request computes
one token a step.  So decoding requests are advanced together, by the engine's count of steps
(*tick*); a request's own state is its offset to it.  ``plan`` decides on a step as vLLM's
``schedule`` does and foresees how many more will be like it; ``commit`` performs what of them was
not cut short.  Stepping every step is the same with one step a plan.

As in vLLM's synchronous scheduler: running requests first, in order of admission; then waiting
ones while tokens, seats and blocks last, none after a preemption; a new request must fit whole.
At most one running request is in the midst of its prompt, and it is the last: whoever cannot
finish a prompt has used the step's tokens up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from mirage_core.policy.when import Demand
from mirage_core.simulator.book import Book
from mirage_core.simulator.config import EngineSpec
from mirage_core.simulator.live import ArrivalQueue, Live, PriorityQueue, WaitingQueue
from mirage_core.simulator.memory_port import MemoryPort, StepMemory
from mirage_core.simulator.pool import DecodeGrowth, PrefixCache
from mirage_core.simulator.results import Status
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
        self._cache = PrefixCache() if limits.prefix_caching else None
        self._step_time = spec.step_time

        self.queue: WaitingQueue = PriorityQueue() if limits.priority else ArrivalQueue()
        self._running: dict[int, Live] = {}
        """In order of admission."""
        self._partial: Live | None = None
        """The running request that is in the midst of its prompt, always the last one."""
        self._tick = 0
        self._growth = DecodeGrowth(limits.block_tokens)
        self._context = 0
        """Computed tokens of all decoding requests."""
        self._finishing: list[tuple[int, int]] = []
        """Heap of (finish_at, row) of decoding requests; stale entries are skipped."""
        self.used_blocks = 0
        self._granted_at = -1
        """The tick at which every decoding request has the block that it needs."""

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
        return bool(self._running) or len(self.queue) > 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def demands(self) -> Iterator[Demand]:
        for request in self._running.values():
            if request.decoding:
                computed = request.offset + self._tick
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

    def drop_all(self) -> list[Live]:
        """The device is lost: all requests, as they came, in order of arrival."""
        lost = [*self._running.values(), *self.queue]
        for _ in range(len(self.queue)):
            self.queue.pop()
        for request in list(self._running.values()):
            self._release(request)
        self._running.clear()
        self._partial = None
        self._finishing.clear()
        self._prefills.clear()
        self.segment = None
        self._cache = PrefixCache() if self._cache is not None else None
        self._changed = self._woken = True
        for request in lost:
            request.known, request.computed, request.blocks = request.prompt, 0, 0
            request.decoding, request.late_from_ps = False, -1
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
                    or (not self.jump and self._asked_at != self._tick)
                    or now_ps >= memory.quiet_until_ps
                )
            )
        ):
            memory = self._memory = self.port.on_step(self, now_ps)
            self._quiet_steps = min(memory.quiet_steps, NEVER_PS - 1) + 1
            self._asked_at = self._tick
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
        while True:
            memory = self.ask(now_ps)
            capacity = memory.capacity_blocks
            before = self.preemptions
            if memory.preempt_to_blocks is not None:
                while self.used_blocks > memory.preempt_to_blocks and self._running:
                    self._preempt(self._victim())
                before = self.preemptions
            self._prefills = []
            stalled = self._grow_decodes(capacity)
            budget = self._max_tokens - self._growth.requests + len(stalled)
            if self._partial is not None and not stalled:
                budget -= self._continue_prompt(self._partial, budget, capacity)
            preempted = self.preemptions > before
            if not preempted:
                self._admit(budget, capacity, memory.headroom_steps)
            if self._growth.requests > len(stalled) or self._prefills:
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
        growth, tick = self._growth, self._tick
        self._granted_at = -1
        need = growth.phases[tick % self._block_tokens]
        if self.used_blocks + need <= capacity:
            self.used_blocks += need
            self._granted_at = tick
            self._trim(capacity)
            return []
        requests = list(self._running.values())
        for place, request in enumerate(requests):
            if not request.decoding or (request.offset + tick) % self._block_tokens:
                continue
            if not self._take(1, request, capacity):
                # vLLM ends its loop here: whoever still runs after this one waits a step.
                return [r for r in requests[place:] if r.decoding]
            request.granted_at = tick
        self._granted_at = tick
        return []

    def _continue_prompt(self, request: Live, budget: int, capacity: int) -> int:
        chunk = min(request.known - request.computed, budget)
        blocks = -(-(request.computed + chunk) // self._block_tokens) - request.blocks
        if chunk <= 0 or not self._take(blocks, request, capacity):
            return 0
        request.blocks += blocks
        self._compute(request, chunk)
        return chunk

    def _compute(self, request: Live, chunk: int) -> None:
        """A part of a prompt runs in this step; its blocks are held."""
        if self._cache is not None:
            self._hold(request, (request.computed + chunk) // self._block_tokens)
        self._prefills.append((request, chunk))
        self._partial = request if request.computed + chunk < request.known else None

    def _admit(self, budget: int, capacity: int, headroom_steps: int) -> None:
        queue, running, size = self.queue, self._running, self._block_tokens
        headroom = -1
        while budget > 0 and len(running) < self._max_seqs and len(queue):
            request = queue.head()
            found, unheld = 0, 0
            if self._cache is not None:
                found, unheld = self._cache.match(
                    request.row, request.group, request.shared_blocks, (request.known - 1) // size
                )
            required = -(-request.known // size) - found + unheld
            if headroom_steps and running:
                if headroom < 0:
                    headroom = sum(self._growth_of(r, headroom_steps) for r in running.values())
                required += headroom
            if self.used_blocks + required > capacity:
                return
            queue.pop()
            chunk = min(request.known - found * size, budget)
            request.computed = found * size
            request.blocks = -(-(request.computed + chunk) // size)
            self.used_blocks += request.blocks - found + unheld
            if self._cache is not None:
                self._hold(request, found)
                self.book.counters["prefix_hit_tokens"] += request.computed
            running[request.row] = request
            self._compute(request, chunk)
            self._trim(capacity)
            budget -= chunk
            if headroom_steps:
                headroom = max(0, headroom) + self._growth_of(request, headroom_steps)

    def _growth_of(self, request: Live, steps: int) -> int:
        """Blocks that a running request will take within ``steps`` steps after this one, as
        ``policy.when.admission_headroom_blocks`` counts them: not beyond its last token."""
        size = self._block_tokens
        known = request.offset + self._tick + 1 if request.decoding else request.known
        soon = min(known + steps, request.prompt + request.output)
        return max(0, -(-soon // size) - -(-known // size))

    # ---- preemption

    def _take(self, blocks: int, request: Live, capacity: int) -> bool:
        """Take blocks for a running request, others giving way; False if it itself had to."""
        while blocks and self.used_blocks + blocks > capacity:
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        self.used_blocks += blocks
        self._trim(capacity)
        return True

    def _victim(self) -> Live:
        if self._by_priority:
            return max(self._running.values(), key=lambda r: (r.priority, r.arrival_ps))
        return next(reversed(self._running.values()))

    def _preempt(self, request: Live) -> None:
        del self._running[request.row]
        lost = self._release(request)
        self.book.counters["recomputed_tokens"] += lost
        request.preempted += 1
        self.preemptions += 1
        if not self._running:
            self.lone_preemptions = request.preempted
        self.queue.push_back(request)
        self._changed = True

    def _release(self, request: Live) -> int:
        """Give a running request's blocks back; returns its computed tokens."""
        size, tick = self._block_tokens, self._tick
        if request.decoding:
            computed = request.offset + tick
            blocks = -(-computed // size)
            if computed % size == 0 and tick in (request.granted_at, self._granted_at):
                blocks += 1
            self._growth.remove(-request.offset % size)
            self._context -= computed
            request.known = computed + 1
            request.late_from_ps = self.last_end_ps
            request.decoding = False
            if self._cache is not None:
                self._hold(request, computed // size)
        else:
            computed, blocks = request.computed, request.blocks
            if request is self._partial:
                self._partial = None
        if self._cache is None:
            self.used_blocks -= blocks
        else:
            freed = self._cache.release(
                request.row, request.group, request.shared_blocks, request.held
            )
            self.used_blocks -= blocks - request.held + freed
            request.held = 0
        request.computed = request.blocks = 0
        return computed

    def _hold(self, request: Live, whole: int) -> None:
        """The prefix cache learns of the request's whole blocks up to ``whole``."""
        assert self._cache is not None
        cache, group, shared = self._cache, request.group, request.shared_blocks
        cache.hold(request.row, group, shared, request.held, whole)
        request.held = max(request.held, whole)

    def _trim(self, capacity: int) -> None:
        if self._cache is not None:
            self._cache.trim(capacity - self.used_blocks)

    # ---- steps

    def _plan_decode(
        self, now_ps: int, until_ps: int, slow_1024ths: int, memory: StepMemory, once: bool
    ) -> None:
        """Steps in which nothing but decoding happens, as many as can be foreseen."""
        tick, decodes = self._tick, self._growth.requests
        context = self._context + decodes
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
                self._next_finish() - tick,
                self._quiet_steps,
                1 + (line.until_tokens - context) // decodes,
            )
            if steps > 1:
                free = max(0, memory.capacity_blocks - self.used_blocks)
                segment.steps = 1 + self._growth.steps_within(tick + 1, steps - 1, free)
                segment.steps = segment.steps_to(min(until_ps, memory.quiet_until_ps))

    def _plan_single(
        self, now_ps: int, stalled: list[Live], slow_1024ths: int, memory: StepMemory
    ) -> None:
        """One step with prompts in it, or in which some decoding requests do not run."""
        decodes = self._growth.requests - len(stalled)
        context = self._context + decodes
        for request in stalled:
            context -= request.offset + self._tick
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

    def _next_finish(self) -> int:
        """The tick at which the first decoding request is done."""
        heap, running = self._finishing, self._running
        while True:
            finish_at, row = heap[0]
            request = running.get(row)
            if request is not None and request.decoding and request.finish_at == finish_at:
                return finish_at
            heappop(heap)

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
                self.used_blocks += self._growth.blocks(self._tick, 1)
                self._granted_at = self._tick

    def commit(self) -> None:
        """All steps of the segment are done: tokens come out, requests end."""
        segment = self.segment
        assert segment is not None
        self.segment = None
        end_ps = segment.end_ps(segment.steps)
        self._advance(segment, segment.steps)
        for request in self._stalled:
            self._growth.remove(-request.offset % self._block_tokens)
            request.offset -= 1
            request.finish_at += 1
            self._growth.add(-request.offset % self._block_tokens)
            heappush(self._finishing, (request.finish_at, request.row))
        self._stalled = []
        self._finish_decodes(end_ps)
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
        if not self._running and not len(self.queue):
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
        if steps > 1:
            self.used_blocks += self._growth.blocks(self._tick + 1, steps - 1)
            assert self._memory is not None
            self._trim(self._memory.capacity_blocks)
        self._tick += steps
        self._context += decodes * steps
        self._quiet_steps -= steps
        self.steps += steps
        self.last_end_ps = end_ps
        self.step_ps = segment.first_ps + segment.growth_ps * (steps - 1)
        if not segment.prefill_tokens:
            self.batch = Batch(decodes, self._context)
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
            return
        tick = self._tick
        request.decoding = True
        request.offset = request.computed - tick
        request.finish_at = tick + left
        self._growth.add(-request.offset % self._block_tokens)
        self._context += request.computed
        heappush(self._finishing, (request.finish_at, row))

    def _finish_decodes(self, end_ps: int) -> None:
        heap, running, tick = self._finishing, self._running, self._tick
        done: list[Live] = []
        while heap and heap[0][0] <= tick:
            finish_at, row = heappop(heap)
            request = running.get(row)
            if request is None or not request.decoding or request.finish_at != finish_at:
                continue
            if not done or done[-1] is not request:  # an entry may be there twice
                done.append(request)
        if len(done) > 1 and self._cache is not None:
            rows = {request.row for request in done}
            done = [request for request in running.values() if request.row in rows]
        for request in done:
            self._finish(request, end_ps)

    def _finish(self, request: Live, end_ps: int) -> None:
        book, row = self.book, request.row
        del self._running[row]
        self._release(request)
        self._changed = True
        self.lone_preemptions = 0
        book.finish_ps[row] = end_ps + self.network_ps
        book.preemptions[row] = request.preempted
        book.status[row] = Status.FINISHED
        book.finished += 1
        self.finished(self, request, end_ps)
