"""One engine in time: it plans a step or many steps at a time, and commits what was not cut short.

Between two events the running batch does the same over and over: each decoding request computes
one token a step.  ``plan`` has a step scheduled and foresees how many more will be like it;
``commit`` performs them.  Stepping every step is the same with one step a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirage_core.policy.when import Demand
from mirage_core.simulator.book import Book
from mirage_core.simulator.config import EngineSpec
from mirage_core.simulator.live import Live
from mirage_core.simulator.memory_port import MemoryPort, StepMemory
from mirage_core.simulator.results import Status
from mirage_core.simulator.scheduler import Scheduler
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

        self._step_time = spec.step_time
        self._scheduler = Scheduler(spec.limits, book)
        self._running = self._scheduler.running
        self._queue = self._scheduler.queue

        self._memory: StepMemory | None = None
        self._changed = True
        self._woken = False
        self._quiet_steps = 0
        self._asked_at = -1
        self._asked_preemptions = 0

        self.segment: Segment | None = None
        self.last_end_ps = 0
        self.batch = Batch(0, 0)
        self.step_ps = 0
        self.prefill_step_ps = 0
        self.idle_since_ps = 0
        self.steps = 0

    # ---- what a port, a router or a device may ask

    @property
    def active(self) -> bool:
        return self.on_turn and self.unfinished

    @property
    def unfinished(self) -> bool:
        return len(self._running) > 0 or len(self._queue) > 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def preemptions(self) -> int:
        return self._scheduler.preemptions

    @property
    def lone_preemptions(self) -> int:
        return self._scheduler.lone_preemptions

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
        for request in self._queue:
            yield Demand(0, request.known, request.prompt + request.output)

    @property
    def recheck_ps(self) -> int:
        return self._memory.recheck_ps if self._memory is not None else NEVER_PS

    @property
    def indifferent(self) -> bool:
        """A new request changes nothing before the steps under way are done."""
        memory = self._memory
        return memory is not None and memory.quiet_steps == NEVER_PS and self._scheduler.blocked

    # ---- requests come and go

    def receive(self, request: Live) -> None:
        self._queue.push(request)
        self.book.engine[request.row] = self.index
        self._changed = True

    def refuses(self, request: Live) -> bool:
        """No pool that this engine could ever have holds the request."""
        tokens = request.prompt + request.output - 1
        return -(-tokens // self.spec.limits.block_tokens) > self.port.limit_blocks

    def wake(self) -> None:
        self._woken = True

    def drop_all(self, now_ps: int) -> list[Live]:
        """The device is lost: all requests, as they came, in order of arrival."""
        self.sync(now_ps)
        self.segment = None
        self._changed = self._woken = True
        return self._scheduler.drop_all()

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
                    or self._asked_preemptions != self.preemptions
                    or self._quiet_steps <= 0
                    or (not self.jump and self._asked_at != self._running.tick)
                    or now_ps >= memory.quiet_until_ps
                )
            )
        ):
            memory = self._memory = self.port.on_step(self, now_ps)
            self._quiet_steps = min(memory.quiet_steps, NEVER_PS - 1) + 1
            self._asked_at = self._running.tick
            self._asked_preemptions = self.preemptions
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
        scheduler = self._scheduler
        while not scheduler.schedule(memory := self.ask(now_ps), self.last_end_ps):
            if not scheduler.preempted:
                return False
        if scheduler.prefills or scheduler.stalled:
            self._plan_single(now_ps, slow_1024ths, memory)
        else:
            self._plan_decode(now_ps, until_ps, slow_1024ths, memory, once=scheduler.preempted)
        return True

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

    def _plan_single(self, now_ps: int, slow_1024ths: int, memory: StepMemory) -> None:
        """One step with prompts in it, or in which some decoding requests do not run."""
        scheduler, running = self._scheduler, self._running
        prefills, decodes = scheduler.prefills, scheduler.decodes
        context = running.context + decodes
        context -= sum(running.computed(request) for request in scheduler.stalled)
        tokens = pairs = prompt_context = 0
        for request, chunk in prefills:
            end = request.computed + chunk
            tokens += chunk
            prompt_context += end
            pairs += (end * (end + 1) - request.computed * (request.computed + 1)) // 2
        if prefills:
            batch = Batch(decodes, context, len(prefills), tokens, pairs, prompt_context)
            step_ps = self._step_time.mixed_step_ps(batch) * slow_1024ths >> 10
            if memory.stretch is not None:
                step_ps = memory.stretch.step_ps(step_ps, context + prompt_context)
            self.batch = batch
        else:
            plain = self._step_time.decode_line(decodes, context)
            line = decode_line(plain, slow_1024ths, memory.stretch, context)
            step_ps = line.base_ps + line.slope_ps * context
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
            len(self._queue),
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
        scheduler = self._scheduler
        for request in scheduler.stalled:
            self._running.pass_over(request)
        scheduler.stalled = []
        for request in self._running.done():
            self._finish(request, end_ps)
        if scheduler.prefills:
            self.prefill_step_ps += (segment.first_ps - self.prefill_step_ps) // (
                8 if self.prefill_step_ps else 1
            )
            for request, chunk in scheduler.prefills:
                request.computed += chunk
                if request.computed == request.known:
                    self._begin_decode(request, end_ps)
            scheduler.prefills = []
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
        self._scheduler.lone_preemptions = 0
        book.finish_ps[row] = end_ps + self.network_ps
        book.status[row] = Status.FINISHED
        book.finished += 1
        self.finished(self, request, end_ps)
