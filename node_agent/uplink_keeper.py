"""Keeps what an agent is told: judged, written to disk, applied to the device, then answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from mirage_core.cluster_model import (
    Acknowledgement,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    DirectLending,
    LeaderWelcome,
    Outcome,
)
from mirage_core.telemetry.traces import context_of
from mirage_core.wire.agent_codec import MAX_HELD
from mirage_core.wire.cluster_codec import decode_authority, decode_directive
from mirage_core.wire.fields import FieldError, bounded, read_name
from mirage_core.wire.v1 import agent_pb2, common_pb2
from node_agent.directives import (
    Held,
    applied,
    hear_welcome,
    lending_reached,
    take_directive,
    take_snapshot,
)
from node_agent.uplink_reports import DeviceReport

_log = logging.getLogger("mirage.uplink")
_tracer = trace.get_tracer("mirage.agent")

_UNKNOWN_KEY = DirectiveKey("unknown")


class UplinkDevice(Protocol):
    """The device whose agent this is."""

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        """Let ``bodies``, and nothing else, be directed from now on; return when they hold.

        OpenTelemetry's current span is that of the directive that changed them, if one did.
        """
        ...

    def report(self) -> DeviceReport:
        """The device as it is."""
        ...


class DirectivesStore(Protocol):
    def load(self) -> Held: ...

    def save(self, held: Held) -> None:
        """Durably, or OSError."""
        ...


class Keeper:
    """Raises ConfigError if the store cannot be read."""

    def __init__(self, device: UplinkDevice, store: DirectivesStore, page_bytes: int) -> None:
        self._device = device
        self._store = store
        self._page_bytes = page_bytes
        self.held = store.load()
        self._lending: dict[DirectiveKey, Directive] = {}
        self.outcomes = dict.fromkeys(Outcome, 0)

    async def restore(self) -> None:
        """Apply what the last agent held to."""
        await self._device.apply(self.held.bodies())

    def welcome(self, welcome: LeaderWelcome) -> str | None:
        """Why the leader is not obeyed; None if it is.  OSError if that cannot be kept."""
        after = hear_welcome(self.held, welcome)
        if isinstance(after, str):
            return after
        self._keep(after)
        return None

    async def obey(self, message: common_pb2.Directive) -> list[Acknowledgement]:
        """Answers to one directive.

        OSError if it cannot be kept, ProtocolError if it cannot even be answered.
        """
        parent = context_of(message.traceparent)
        with _tracer.start_as_current_span("apply directive", parent, SpanKind.CONSUMER) as span:
            directives, answers = _read([message])
            held = self.held
            for directive in directives:
                held, answer = take_directive(held, directive)
                answers.append(answer)
            await self._enforce(held, answers)
            for answer in answers:
                _log_answer(answer, message.traceparent)
                span.set_attribute("mirage.operation", answer.operation)
                span.set_attribute("mirage.key", answer.key)
                span.set_attribute("mirage.outcome", answer.outcome.value)
                if answer.outcome not in (Outcome.ACCEPTED, Outcome.APPLIED):
                    span.set_status(Status(StatusCode.ERROR, answer.reason))
        return answers

    async def obey_all(self, message: agent_pb2.DirectiveSnapshot) -> list[Acknowledgement]:
        """Answers to a snapshot, as ``obey``; without spans: most of it was obeyed before."""
        authority = decode_authority(message.authority, "directives.authority")
        directives, refusals = _read(message.directives)
        snapshot = DirectiveSnapshot(authority, tuple(directives))
        held, taken = take_snapshot(self.held, snapshot)
        answers = [*refusals, *taken]
        await self._enforce(held, answers)
        traces = {each.operation: each.traceparent for each in directives}
        for answer in answers:
            _log_answer(answer, traces.get(answer.operation, ""))
        return answers

    def reached(self, report: DeviceReport) -> list[Acknowledgement]:
        """Bounds on lending that have been reached since they were accepted."""
        answers = []
        for key, directive in list(self._lending.items()):
            body = directive.body
            assert isinstance(body, DirectLending)
            lent = (e.lent_pages for e in report.engines if e.model == body.model)
            if lending_reached(body, lent, self._page_bytes):
                del self._lending[key]
                answers.append(applied(directive))
        self._count(answers)
        return answers

    async def _enforce(self, held: Held, answers: Iterable[Acknowledgement]) -> None:
        before = self.held.bodies()
        self._keep(held)
        if held.bodies() != before:
            await self._device.apply(held.bodies())
        accepted = {each.key for each in answers if each.outcome is Outcome.ACCEPTED}
        held_keys = {each.key: each for each in held.directives}
        self._lending = {
            key: held_keys[key] for key in accepted | self._lending.keys() if key in held_keys
        }
        self._count(answers)

    def _keep(self, held: Held) -> None:
        if held != self.held:
            self._store.save(held)
            self.held = held

    def _count(self, answers: Iterable[Acknowledgement]) -> None:
        for answer in answers:
            self.outcomes[answer.outcome] += 1


def _log_answer(answer: Acknowledgement, traceparent: str) -> None:
    _log.info(
        "directive %s of revision %d: %s%s",
        answer.key,
        answer.authority.revision,
        answer.outcome.value,
        f", {answer.reason}" if answer.reason else "",
        extra={"ids": {"operation_id": answer.operation, "traceparent": traceparent}},
    )


def _read(messages: Iterable[Any]) -> tuple[list[Directive], list[Acknowledgement]]:
    """Directives that this version understands, and refusals of the others."""
    directives: list[Directive] = []
    refusals = []
    for message, path in bounded(messages, "directives", MAX_HELD):
        try:
            directives.append(decode_directive(message, path))
        except FieldError as error:
            refusals.append(
                Acknowledgement(
                    DirectiveId(read_name(message.operation_id, f"{path}.operation_id")),
                    _UNKNOWN_KEY,
                    decode_authority(message.authority, f"{path}.authority"),
                    Outcome.REFUSED,
                    reason=str(error),
                )
            )
    return directives, refusals
