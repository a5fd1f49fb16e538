"""An engine without a model, as a process: it maps real pages and checks what it wrote to them.

Its behaviour is that of ``SimulatedEngine``; here every page that it owns is mapped and carries
the engine's pattern, so a page with two owners is found by its bytes.  Commands come as JSON lines
on standard input; each is answered by one JSON line on standard output.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "control_arbiter"))

from simulated_engine import SimulatedEngine

from mirage_core.engines.vllm.traces import MoveTraces
from mirage_core.memory.host import HostDevice
from mirage_core.model import EngineId, Holdings, ModelName, PageId
from mirage_core.wire import messages as m
from mirage_core.wire.client import AgentClient, LinkLost, LinkRestored


class Idle:
    """A fence: nothing but this loop touches the pages."""

    def passed(self) -> bool:
        return True


class FakeEngine:
    def __init__(self, path: str, spec: dict[str, Any]) -> None:
        name, model = EngineId(spec["name"]), ModelName(spec.get("model", "small"))
        self.corrupt = 0
        self.links = 0
        self.lost = 0
        self.hold_answers = False
        description = m.Describe(
            priority=spec.get("priority", 0),
            unit_pages=tuple(spec.get("unit_pages", [3] * 10)),
            static_pages=2,
            granule_pages=2,
            pool_max_granules=1000,
            pool_min_granules=1,
            pinned=spec.get("pinned", False),
        )
        self.logic = SimulatedEngine(name, description)
        self.traces = MoveTraces(name)
        self.worker = AgentClient(path, m.Hello(m.Role.WORKER, name, model))
        self.fd = self.worker.take_device_fd()
        geometry = self.worker.geometry
        self.device = HostDevice.open(self.fd, geometry.device, geometry.page_bytes)
        self.range = self.device.reserve(geometry.pages)
        self.page_bytes = geometry.page_bytes
        taken = self.worker.take(self.logic.start_pages)
        if isinstance(taken, m.Denied):
            say({"denied": taken.reason})
            sys.exit(0)
        self.logic.pages.extend(taken)
        self.map(taken)
        self.worker.start()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.scheduler = AgentClient(path, m.Hello(m.Role.SCHEDULER, name, model))
        os.close(self.scheduler.take_device_fd())
        self.scheduler.start(lambda: os.eventfd_write(self.wake, 1))
        self.introduce()
        say({"started": sorted(taken)})

    # ---- memory: page p is mapped at place p

    def pattern(self, page: PageId) -> bytes:
        return hashlib.sha256(f"{self.logic.name}:{page}".encode()).digest() * 2

    def map(self, pages: tuple[PageId, ...]) -> None:
        for page in pages:
            self.range.map(page, [page])
            self.range.set_access(page, 1)
            self.range.zero(page, 1)
            self.bytes_of(page)[:64] = self.pattern(page)  # type: ignore[call-overload]

    def unmap(self, pages: tuple[PageId, ...]) -> None:
        for page in pages:
            self.check(page)
            self.range.fill(page, 1, 0xFF)
            self.range.unmap(page, 1, Idle())

    def check(self, page: PageId) -> None:
        self.corrupt += bytes(self.bytes_of(page)[:64]) != self.pattern(page)

    def bytes_of(self, page: PageId) -> Any:
        return self.range.buffer(page * self.page_bytes, self.page_bytes)

    # ---- messages

    def introduce(self) -> None:
        from dataclasses import replace

        self.scheduler.send(replace(self.logic.description, plan=self.logic.plan))
        self.scheduler.send(self.logic.report())

    def read_inbox(self) -> None:
        while not self.scheduler.inbox.empty():
            if self.hold_answers:
                return
            item = self.scheduler.inbox.get()
            if isinstance(item, LinkLost):
                self.lost += 1
            elif isinstance(item, LinkRestored):
                self.rejoin(self.logic.holdings())
            else:
                self.obey(item)

    def obey(self, message: m.AgentMessage) -> None:
        before = set(self.logic.pages)
        if isinstance(message, m.Shrink | m.ApplyPlan):
            self.traces.received(message)
        self.logic.arrived.append(message)
        answer = self.logic.read()
        after = set(self.logic.pages)
        self.unmap(tuple(sorted(before - after)))
        self.map(tuple(sorted(after - before)))
        if answer is not None:
            self.scheduler.send(answer)
        if isinstance(answer, m.Done | m.Refused):
            self.traces.answered(answer.operation, getattr(answer, "reason", ""))

    def rejoin(self, holdings: Holdings) -> None:
        if self.scheduler.rejoin(holdings, self.fd):
            self.links += 1
            self.introduce()

    # ---- commands

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([sys.stdin, self.wake], [], [])
            if self.wake in ready:
                os.eventfd_read(self.wake)
            self.read_inbox()
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                say(self.command(json.loads(line)))

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "ask":
                self.logic.active = True
                self.logic.live_granules = self.logic.pool_granules
                self.scheduler.send(self.logic.report())
                self.scheduler.send(self.logic.ask(command["granules"]))
            case "load":
                self.logic.active = command["active"]
                self.logic.live_granules = min(command["live"], self.logic.pool_granules)
                self.scheduler.send(self.logic.report())
            case "hold":
                self.hold_answers = command["value"]
                self.read_inbox()
            case "claim":
                # Dishonest: says that it holds these pages.
                pages = tuple(map(PageId, command["pages"]))
                self.logic.pages = list(pages)
            case "give_back_foreign":
                self.scheduler.send(m.GiveBack(tuple(map(PageId, command["pages"]))))
            case "status":
                pass
        for page in self.logic.pages:
            if self.range.mapped(page) is not None:
                self.check(page)
        return {
            "pages": sorted(self.logic.pages),
            "pool_granules": self.logic.pool_granules,
            "cycled": len(self.logic.plan.cycled),
            "denied": [denied.reason for denied in self.logic.denied],
            "corrupt": self.corrupt,
            "rejoins": self.links,
            "lost": self.lost,
            "connected": not self.scheduler.disconnected.is_set(),
            "limits": None
            if self.logic.limits is None
            else [self.logic.limits.pool_limit_pages, self.logic.limits.allowance_pages],
        }


def say(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from vllm.tracing import maybe_init_worker_tracer  # as vLLM's engine core does

        maybe_init_worker_tracer("vllm.engine_core", "engine_core", "EngineCore")
    FakeEngine(sys.argv[1], json.loads(sys.argv[2])).run()
