"""The event loop: requests arrive, steps end, timers run; one run from requests to results.

Events at one moment are taken in a fixed order (arrivals, then calls in order of asking, then
step boundaries by engine), so a run depends on its configuration alone, and stepping every step
gives what jumping gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush

import numpy as np

from mirage_core.errors import ConfigError
from mirage_core.simulator.book import Book
from mirage_core.simulator.config import DeviceSpec, Failure, RunConfig
from mirage_core.simulator.controller import Controller
from mirage_core.simulator.device import Device
from mirage_core.simulator.engine import Engine
from mirage_core.simulator.link import LinkDomain
from mirage_core.simulator.live import Live
from mirage_core.simulator.memory_port import EngineView
from mirage_core.simulator.request import Requests
from mirage_core.simulator.results import Results, Status
from mirage_core.simulator.router import Router
from mirage_core.simulator.units import NEVER_PS, to_ps

CHUNK = 65_536
"""Rows turned into Python's own integers at a time."""
GIVE_UP_PS = to_ps(3600.0)
"""A run in which no step ends for so long, with requests waiting, ends: they never will fit."""

_ARRIVAL, _CALL, _BOUNDARY = range(3)


def simulate(
    config: RunConfig, requests: Requests, progress: Callable[[int], None] | None = None
) -> Results:
    """Serve ``requests`` as ``config`` says; ``progress`` gets the requests done, now and then.

    Raises ConfigError if requests name a model that is not there, or the models do not fit.
    """
    if len(requests) and int(requests.model.max()) >= len(config.models):
        row = int((requests.model >= len(config.models)).argmax())
        raise ConfigError(
            f"request {row} is for model {requests.model[row]}, there are {len(config.models)}"
        )
    return Run(config, requests).run(progress)


class Run:
    """One simulation; made for one ``run``."""

    def __init__(self, config: RunConfig, requests: Requests) -> None:
        self.config = config
        self.requests = requests
        self.now_ps = 0
        self.book = Book(requests, record_steps=config.record_steps)
        self._network_ps = to_ps(config.network_s)
        self._heap: list[tuple[int, int, int, int, Callable[[], None] | None]] = []
        self._calls = 0
        self._boundary_ps: list[int] = []
        """When each engine's steps under way end; NEVER_PS: none are."""
        self._done = 0
        self._followers = _followers(requests)
        self._coming = 0
        """Followers whose time is set."""
        self._links = {link.name: LinkDomain(link) for link in config.links}
        self.devices: list[Device] = []
        self._device_of: list[Device] = []
        self._engines: list[Engine] = []
        self._models = {model: index for index, model in enumerate(config.models)}
        self._held: list[list[Live]] = [[] for _ in config.models]
        """Requests of each model for which no replica was there."""
        self._limits = [
            next(e.limits for d in config.devices for e in d.engines if e.model == model)
            for model in config.models
        ]
        self._routers = [Router(config.routing) for _ in config.models]
        self._router_of: list[Router] = []
        for spec in config.devices:
            self._add_device(spec)
        self.controller: Controller | None = None
        if config.controller is not None:
            routers = dict(zip(config.models, self._routers, strict=True))
            self.controller = Controller(config.controller, self, self.devices, routers)
        for failure in config.failures:
            self._add_failure(failure)

    def _add_device(self, spec: DeviceSpec) -> None:
        engines: list[Engine] = []
        for engine_spec in spec.engines:
            engine = Engine(
                len(self._engines),
                engine_spec,
                self.book,
                jump=self.config.jump,
                network_ps=self._network_ps,
            )
            engine.finished = self._finished
            engines.append(engine)
            self._engines.append(engine)
            self._boundary_ps.append(NEVER_PS)
            router = self._routers[self._models[engine_spec.model]]
            if self.config.controller is None:
                router.add(engine)
            self._router_of.append(router)
        device = Device(spec, engines, self)
        self.devices.append(device)
        self._device_of.extend([device] * len(engines))
        link = self._links.get(spec.link)
        for engine, port in zip(
            engines, self.config.arm.attach(spec, _Site(self, device, link)), strict=True
        ):
            engine.port = port

    # ---- what devices and sites need

    def at_boundary(self, time_ps: int, engine: Engine) -> None:
        self._boundary_ps[engine.index] = time_ps
        heappush(self._heap, (time_ps, _BOUNDARY, engine.index, 0, None))

    def call_at(self, time_ps: int, call: Callable[[], None]) -> None:
        self._calls += 1
        heappush(self._heap, (max(time_ps, self.now_ps), _CALL, self._calls, 0, call))

    # ---- the loop

    def run(self, progress: Callable[[int], None] | None = None) -> Results:
        config, heap, total = self.config, self._heap, len(self.requests)
        until_ps = NEVER_PS if config.until_s is None else to_ps(config.until_s)
        arrivals = self._arrivals()
        arrival = next(arrivals, None)
        arrival_ps = NEVER_PS if arrival is None else arrival[1]
        boundary_ps, device_of, engines = self._boundary_ps, self._device_of, self._engines
        end_ps = 0
        while self._done + self.book.finished < total:
            event_ps = heap[0][0] if heap else NEVER_PS
            if arrival is not None and arrival_ps <= event_ps:
                if arrival_ps > until_ps:
                    break
                self.now_ps = arrival_ps
                self._arrive(*arrival)
                arrival = next(arrivals, None)
                arrival_ps = NEVER_PS if arrival is None else arrival[1]
                continue
            if event_ps > until_ps or not heap:
                break
            time_ps, kind, index, _, call = heappop(heap)
            if kind == _BOUNDARY:
                if boundary_ps[index] != time_ps:
                    continue
                boundary_ps[index] = NEVER_PS
                self.now_ps = end_ps = time_ps
                device_of[index].boundary(engines[index], time_ps)
                if progress is not None:
                    progress(self.book.finished)
            else:
                if kind == _ARRIVAL:
                    self._coming -= 1
                elif time_ps - end_ps > GIVE_UP_PS and arrival is None and not self._coming:
                    break
                self.now_ps = time_ps
                assert call is not None
                call()
        for engine in engines:
            self.book.counters["steps"] += engine.steps
            self.book.counters["preemptions"] += engine.preemptions
        if self.controller is not None:
            for name in ("commits", "directives", "reports"):
                self.book.counters[f"controller_{name}"] = getattr(self.controller, name)
        return self.book.results(min(until_ps, end_ps + self._network_ps))

    def _arrivals(self) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
        """The rows that await no other, as ``_arrive`` takes them."""
        requests = self.requests
        for first in range(0, len(requests), CHUNK):
            part = slice(first, first + CHUNK)
            after = requests.after[part]
            rows = np.flatnonzero(after < 0) + first
            yield from zip(
                rows.tolist(),
                (requests.arrival_ps[rows] + self._network_ps).tolist(),
                requests.prompt_tokens[rows].tolist(),
                requests.output_tokens[rows].tolist(),
                requests.model[rows].tolist(),
                requests.priority[rows].tolist(),
                requests.prefix_group[rows].tolist(),
                requests.prefix_tokens[rows].tolist(),
                strict=True,
            )

    # ---- requests

    def _arrive(
        self,
        row: int,
        arrival_ps: int,
        prompt: int,
        output: int,
        model: int,
        priority: int,
        group: int,
        shared: int,
    ) -> None:
        limits = self._limits[model]
        self.book.arrival_ps[row] = arrival_ps - self._network_ps
        if prompt >= limits.max_model_len:
            self._end(row, Status.REJECTED)
            return
        output = min(output, limits.max_model_len - prompt)
        shared_blocks = min(shared, prompt - 1) // limits.block_tokens if group >= 0 else 0
        request = Live(row, arrival_ps, prompt, output, priority, group, shared_blocks)
        self._route(request, model)

    def _route(self, request: Live, model: int) -> None:
        router = self._routers[model]
        engine = router.choose(request)
        if engine is None:
            if self.controller is not None:
                self._held[model].append(request)
            else:
                self._end(request.row, Status.LOST)
        elif engine.refuses(request):
            router.done(engine)
            self._end(request.row, Status.REJECTED)
        else:
            self._device_of[engine.index].receive(engine, request, self.now_ps)

    def in_service(self, engine: Engine) -> None:
        """A replica is there: requests that waited for one go on."""
        model = self._models[engine.spec.model]
        held, self._held[model] = self._held[model], []
        for request in held:
            self._route(request, model)

    def _end(self, row: int, status: Status) -> None:
        """A request ends without being served; so do those that await it."""
        self.book.status[row] = status
        self._done += 1
        for follower in self._followers.get(row, ()):
            self._end(follower, status)

    def _finished(self, engine: Engine, request: Live, end_ps: int) -> None:
        self._router_of[engine.index].done(engine)
        for row in self._followers.get(request.row, ()):
            earliest_ps = int(self.requests.arrival_ps[row])
            arrival_ps = max(
                earliest_ps + self._network_ps,
                end_ps + 2 * self._network_ps + int(self.requests.think_ps[row]),
            )
            call = partial(self._arrive, row, arrival_ps, *self._columns(row))
            self._coming += 1
            heappush(self._heap, (arrival_ps, _ARRIVAL, row, 0, call))

    def _columns(self, row: int) -> tuple[int, int, int, int, int, int]:
        requests = self.requests
        return (
            int(requests.prompt_tokens[row]),
            int(requests.output_tokens[row]),
            int(requests.model[row]),
            int(requests.priority[row]),
            int(requests.prefix_group[row]),
            int(requests.prefix_tokens[row]),
        )

    # ---- failures

    def _add_failure(self, failure: Failure) -> None:
        device = next(d for d in self.devices if d.spec.name == failure.device)
        self.call_at(to_ps(failure.at_s), lambda: self._fail(device))
        self.call_at(to_ps(failure.at_s + failure.for_s), lambda: self._recover(device))

    def _fail(self, device: Device) -> None:
        for engine in device.engines:
            self._boundary_ps[engine.index] = NEVER_PS
            self._router_of[engine.index].remove(engine)
        if self.controller is not None:
            self.controller.lost(device)
        for engine, lost in device.fail(self.now_ps):
            for request in lost:
                self._router_of[engine.index].done(engine)
                self.book.counters["rerouted"] += 1
                self._route(request, int(self.requests.model[request.row]))

    def _recover(self, device: Device) -> None:
        device.recover()
        if self.controller is not None:
            self.controller.back(device)
            return
        for engine in device.engines:
            self._router_of[engine.index].add(engine)


class _Site:
    """One device's memory manager's view of the run (``memory_port.Site``)."""

    def __init__(self, run: Run, device: Device, link: LinkDomain | None) -> None:
        self._run = run
        self._device = device
        self._link = link

    @property
    def now_ps(self) -> int:
        return self._run.now_ps

    @property
    def link(self) -> LinkDomain:
        if self._link is None:
            raise ConfigError(f"device {self._device.spec.name} is on no host link: give it one")
        return self._link

    def call_at(self, time_ps: int, call: Callable[[], None]) -> None:
        self._run.call_at(time_ps, call)

    def wake(self, engine: int) -> None:
        woken = self._device.engines[engine]
        self._run.call_at(self._run.now_ps, lambda: self._device.woken(woken, self._run.now_ps))

    def view(self, engine: int) -> EngineView:
        found = self._device.engines[engine]
        found.sync(self._run.now_ps)
        return found


def _followers(requests: Requests) -> dict[int, list[int]]:
    """Rows that await each row."""
    awaited: dict[int, list[int]] = {}
    for row in np.flatnonzero(requests.after >= 0).tolist():
        awaited.setdefault(int(requests.after[row]), []).append(row)
    return awaited
