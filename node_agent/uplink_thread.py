"""The uplink beside the agent's loop: an event loop in a thread of its own.

The agent's loop never waits for it.  What the controller directs is posted to the agent's loop and
answered from there; what the device is like is a value that the agent's loop replaces at each tick
and the uplink reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping

from opentelemetry import trace

from mirage_core.cluster_model import (
    AgentHello,
    DirectiveBody,
    Event,
    Explanation,
    Severity,
)
from mirage_core.control.arbiter_events import Explain
from mirage_core.control.device_summary import DeviceSummary
from mirage_core.model import EngineId
from mirage_core.ports import Clock
from mirage_core.telemetry.traces import traceparent_of
from mirage_core.wire.messages import Report
from node_agent.directives_file import DirectivesFile
from node_agent.uplink import Uplink
from node_agent.uplink_reports import DeviceReport, explanation_of, report_of
from node_agent.uplink_settings import UplinkSettings

_log = logging.getLogger("mirage.uplink")

CAPABILITIES = ("model", "lending", "device", "placement")
"""Kinds of directive that this agent understands."""


class UplinkThread:
    """``post`` runs a function in the agent's loop, ``direct`` lets the arbiter hear directives
    and the trace context of the one that changed them, empty if it has none.

    Raises ConfigError if what the last agent held to cannot be read.
    """

    def __init__(
        self,
        hello: AgentHello,
        settings: UplinkSettings,
        store: DirectivesFile,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        direct: Callable[[tuple[DirectiveBody, ...], str], None],
    ) -> None:
        self._device = hello.device
        self._post = post
        self._direct = direct
        self._report = DeviceReport(hello.pages, 0, ())
        self._explained = 0
        self.uplink = Uplink(hello, settings, self, store, clock, random.Random())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="uplink", daemon=True)
        self._stop = asyncio.Event()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the stream and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._loop.close()

    # ---- for the agent's loop

    def observe(self, summary: DeviceSummary, said: Mapping[EngineId, Report]) -> None:
        self._report = report_of(summary, said)

    def explain(self, explain: Explain) -> None:
        self._explained += 1
        self._tell(explanation_of(explain, self._device, self._explained, time.time()))

    def event(
        self, kind: str, message: str, severity: Severity = Severity.INFO, **attributes: str
    ) -> None:
        self._tell(
            Event(
                kind,
                f"device/{self._device}",
                message,
                time.time(),
                severity,
                actor="agent",
                attributes=tuple(sorted(attributes.items())),
            )
        )

    def _tell(self, item: Event | Explanation) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self.uplink.tell, item)

    # ---- UplinkDevice, for the uplink's loop

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        done = self._loop.create_future()
        traceparent = traceparent_of(trace.get_current_span())

        def in_agent() -> None:
            self._direct(bodies, traceparent)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_finish, done)

        self._post(in_agent)
        await done

    def report(self) -> DeviceReport:
        return self._report

    # ---- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            # The engines are served without it; the log says why no controller is heard.
            _log.exception("the uplink has failed; the agent goes on without a controller")

    async def _serve(self) -> None:
        serving = asyncio.create_task(self.uplink.run())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        serving.cancel()
        stopping.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
