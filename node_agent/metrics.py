"""Prometheus metrics of one device, on the loopback address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import HTTPServer

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mirage_core.control.device_summary import Counters, DeviceSummary
from mirage_core.errors import ConfigError
from mirage_core.model import DeviceGeometry, EngineId, OwnerKind
from mirage_core.wire.messages import Report
from node_agent.uplink import Uplink

_ASK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


_REPORTED: tuple[tuple[str, str, Callable[[Report], float]], ...] = (
    ("fetches", "Units fetched", lambda r: r.fetches),
    ("fetched_bytes", "Bytes fetched", lambda r: r.fetched_bytes),
    ("fetch_busy_seconds", "Time during which the link carried a fetch", lambda r: r.fetch_busy_s),
    ("stall_seconds", "Time that computing waited for a fetch", lambda r: r.stall_s),
    ("preemptions", "Requests preempted", lambda r: r.preemptions),
)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    summary: DeviceSummary
    counters: Counters


class Metrics:
    """The loop hands over snapshots; the server's threads read the latest."""

    def __init__(self, geometry: DeviceGeometry) -> None:
        self._geometry = geometry
        self._snapshot: _Snapshot | None = None
        self._reports: dict[EngineId, Report] = {}
        self._asked_s: dict[tuple[EngineId, int], float] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._ask_latency_s = Histogram(
            "mirage_ask_seconds",
            "From an ask to its first pages, or to its denial",
            buckets=_ASK_BUCKETS_S,
            registry=self.registry,
        )
        self._uplink: Uplink | None = None
        self._server: tuple[HTTPServer, threading.Thread] | None = None

    def serve(self, port: int) -> None:
        try:
            self._server = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise ConfigError(f"metrics_port {port}: {error.strerror}") from None

    def close(self) -> None:
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None

    def watch_uplink(self, uplink: Uplink) -> None:
        self._uplink = uplink

    def observe(self, summary: DeviceSummary, counters: Counters) -> None:
        self._snapshot = _Snapshot(summary, counters)

    def observe_report(self, engine: EngineId, report: Report) -> None:
        self._reports = {**self._reports, engine: report}

    def observe_ask(self, engine: EngineId, request_id: int, now_s: float) -> None:
        self._asked_s = {key: at for key, at in self._asked_s.items() if key[0] != engine}
        self._asked_s[engine, request_id] = now_s

    def observe_answer(self, engine: EngineId, request_id: int, now_s: float) -> None:
        asked_s = self._asked_s.pop((engine, request_id), None)
        if asked_s is not None:
            self._ask_latency_s.observe(now_s - asked_s)

    def forget_engine(self, engine: EngineId) -> None:
        self._reports = {key: r for key, r in self._reports.items() if key != engine}
        self._asked_s = {key: at for key, at in self._asked_s.items() if key[0] != engine}

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        yield from self._of_uplink()
        snapshot = self._snapshot
        if snapshot is None:
            return
        summary, counters = snapshot.summary, snapshot.counters
        pages = GaugeMetricFamily(
            "mirage_pages",
            "Pages by kind of owner",
            labels=("device", "owner", "engine", "model"),
        )
        units = GaugeMetricFamily(
            "mirage_cycled_units", "Units without pages of their own", labels=("engine", "model")
        )
        device = self._geometry.device
        pages.add_metric((device, OwnerKind.FREE.value, "", ""), summary.free_pages)
        for engine in summary.engines:
            names = (engine.engine, engine.model)
            for kind, count in (
                (OwnerKind.UNIT, engine.resident_pages),
                (OwnerKind.SLOT, engine.slot_pages),
                (OwnerKind.POOL, engine.pool_pages),
                (OwnerKind.IN_FLIGHT, engine.in_flight_pages),
            ):
                pages.add_metric((device, kind.value, *names), count)
            units.add_metric(names, engine.cycled_units)
        yield pages
        yield units
        yield from self._fetching(summary)
        yield GaugeMetricFamily(
            "mirage_page_bytes", "Size of a page", value=self._geometry.page_bytes
        )
        for name, text, value in (
            ("asks", "Asks of running engines", counters.asks),
            ("takes", "Takes of starting engines", counters.takes),
            ("granted_pages", "Pages granted", counters.granted_pages),
            ("denials", "Asks and takes denied, wholly or in part", counters.denials),
            ("remaps", "Plans applied that freed pages", counters.remaps),
            ("reversions", "Plans applied that took pages back", counters.reversions),
            ("shrinks", "Pool pages asked back", counters.shrinks),
            ("refusals", "Operations that engines refused", counters.refusals),
        ):
            yield CounterMetricFamily(f"mirage_{name}", text, value=value)

    def _of_uplink(self) -> Iterator[Metric]:
        if self._uplink is None:
            return
        counters = self._uplink.counters
        yield GaugeMetricFamily(
            "mirage_uplink_connected", "Whether a leader is heard", value=float(counters.connected)
        )
        for name, text, value in (
            ("uplink_dials", "Connections tried to controllers", counters.dials),
            ("uplink_sessions", "Sessions with a leader", counters.sessions),
        ):
            yield CounterMetricFamily(f"mirage_{name}", text, value=value)
        directives = CounterMetricFamily(
            "mirage_directives", "Directives answered", labels=("outcome",)
        )
        for outcome, count in self._uplink.keeper.outcomes.items():
            directives.add_metric((outcome.value,), count)
        yield directives

    def _fetching(self, summary: DeviceSummary) -> Iterator[Metric]:
        """What each engine last reported of its fetches and preemptions."""
        families = [
            CounterMetricFamily(f"mirage_{name}", text, labels=("engine", "model"))
            for name, text, _ in _REPORTED
        ]
        reports = self._reports
        for engine in summary.engines:
            report = reports.get(engine.engine)
            if report is not None:
                for family, (_, _, read) in zip(families, _REPORTED, strict=True):
                    family.add_metric((engine.engine, engine.model), read(report))
        yield from families
