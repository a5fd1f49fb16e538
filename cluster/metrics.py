"""Prometheus metrics of one controller, on the loopback address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import HTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirage_core.errors import ConfigError

_SHORT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class SessionCounters:
    """connected is now, the rest since the process began.

    rejected  greetings that were refused;  silent  sessions given up for missed heartbeats
    """

    connected: int = 0
    opened: int = 0
    rejected: int = 0
    silent: int = 0
    reports: int = 0
    directives: int = 0


class _Sessions(Collector):
    def __init__(self, counters: SessionCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        counters = self._counters
        yield GaugeMetricFamily(
            "mirage_agents_connected", "Connected agents", value=counters.connected
        )
        for name, what, value in (
            ("opened", "Sessions opened", counters.opened),
            ("rejected", "Greetings refused", counters.rejected),
            ("silent", "Sessions given up because the agent was silent", counters.silent),
            ("reports", "Reports taken in", counters.reports),
            ("directives", "Directives given to a session", counters.directives),
        ):
            yield CounterMetricFamily(f"mirage_session_{name}", what, value=value)


class ControllerMetrics:
    """Counters that the loop moves; all on one registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.leading = Gauge("mirage_leading", "1 while this controller leads", registry=registry)
        self.epoch = Gauge("mirage_leader_epoch", "Epoch of the last term", registry=registry)
        self.calls = Counter(
            "mirage_calls", "Calls by method and status", ["method", "code"], registry=registry
        )
        self.call_s = Histogram(
            "mirage_call_seconds",
            "Time of a call",
            ["method"],
            buckets=_SHORT_S,
            registry=registry,
        )
        self.answers = Counter(
            "mirage_directive_answers", "Agents' answers", ["outcome"], registry=registry
        )
        self.answer_s = Histogram(
            "mirage_directive_answer_seconds",
            "From a directive's sending to its answer",
            buckets=_SHORT_S,
            registry=registry,
        )
        self.directives_written = Counter(
            "mirage_directives_written", "Directives stored", registry=registry
        )
        self.commit_s = Histogram(
            "mirage_directive_commit_seconds",
            "Time to store a batch of directives",
            buckets=_SHORT_S,
            registry=registry,
        )
        self.store_errors = Counter(
            "mirage_store_errors", "Errors of the store", ["kind"], registry=registry
        )
        self.loop_lag_s = Histogram(
            "mirage_loop_lag_seconds",
            "How late the event loop is",
            buckets=_SHORT_S,
            registry=registry,
        )
        self._server: tuple[HTTPServer, threading.Thread] | None = None

    def watch_sessions(self, counters: SessionCounters) -> None:
        """Show what the sessions count; they count in plain integers, being the hot path."""
        self.registry.register(_Sessions(counters))

    def serve(self, port: int) -> None:
        """Raises ConfigError if the port is taken."""
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
