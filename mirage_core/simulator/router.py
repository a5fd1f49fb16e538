"""Which replica a request goes to."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from mirage_core.simulator.config import Routing
from mirage_core.simulator.engine import Engine
from mirage_core.simulator.live import Live


class Router:
    """The replicas of one model that are in service.

    Requests under way are counted here, as a controller would, and the least loaded replica is
    the top of a heap whose stale entries are skipped: a choice among ten thousand is as quick as
    among ten.
    """

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._load: dict[int, int] = {}
        self._engines: dict[int, Engine] = {}
        self._heap: list[tuple[int, int]] = []
        self._next = 0
        self.requests = 0
        """Under way, at all replicas."""
        self._homes: dict[int, int] = {}
        """Prefix group to the replica that served it last."""

    def add(self, engine: Engine) -> None:
        self._engines[engine.index] = engine
        self._load.setdefault(engine.index, 0)
        heappush(self._heap, (self._load[engine.index], engine.index))

    def remove(self, engine: Engine) -> None:
        """Out of service: nothing new goes there."""
        self._engines.pop(engine.index, None)

    def load(self, engine: Engine) -> int:
        return self._load.get(engine.index, 0)

    def choose(self, request: Live) -> Engine | None:
        """The replica for ``request``, which is counted there; None if none is in service."""
        if not self._engines:
            return None
        index = None
        if self._routing is Routing.ROUND_ROBIN:
            indices = list(self._engines)
            index = indices[self._next % len(indices)]
            self._next += 1
        elif self._routing is Routing.PREFIX and request.group >= 0:
            index = self._homes.get(request.group)
        if index is None or index not in self._engines:
            index = self._least()
        if self._routing is Routing.PREFIX and request.group >= 0:
            self._homes[request.group] = index
        self._count(index, 1)
        return self._engines[index]

    def done(self, engine: Engine) -> None:
        """One of its requests ended, or was taken away."""
        self._count(engine.index, -1)

    def _count(self, index: int, change: int) -> None:
        self.requests += change
        load = self._load[index] = self._load[index] + change
        if index in self._engines and self._routing is not Routing.ROUND_ROBIN:
            heappush(self._heap, (load, index))
            if len(self._heap) > 64 + 4 * len(self._engines):
                # Stale entries of loads that do not come back would pile up.
                self._heap = [(self._load[i], i) for i in self._engines]
                heapify(self._heap)

    def _least(self) -> int:
        heap = self._heap
        while True:
            load, index = heap[0]
            if index in self._engines and self._load[index] == load:
                return index
            heappop(heap)
