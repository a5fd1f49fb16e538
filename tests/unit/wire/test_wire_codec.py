"""The codec gives back what it was given, and refuses everything else."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import DEVICE_PAGES, agent_messages, engine_messages, page_lists

from mirage_core.errors import ProtocolError
from mirage_core.model import OperationId, PageId
from mirage_core.wire import codec
from mirage_core.wire import messages as m
from mirage_core.wire.v1 import engine_pb2 as pb


@settings(max_examples=60)
@given(engine_messages)
def test_every_engine_message_survives_the_wire(message: m.EngineMessage) -> None:
    packet = codec.encode_engine_message(message)
    assert codec.decode_engine_message(packet, DEVICE_PAGES) == message


@given(agent_messages)
def test_every_agent_message_survives_the_wire(message: m.AgentMessage) -> None:
    assert codec.decode_agent_message(codec.encode_agent_message(message)) == message


@given(page_lists)
def test_pages_keep_their_order_and_consecutive_ones_share_a_run(
    pages: tuple[PageId, ...],
) -> None:
    runs = codec.encode_pages(pages)
    assert codec.decode_pages(runs, DEVICE_PAGES) == pages
    breaks = sum(b != a + 1 for a, b in itertools.pairwise(pages))
    assert len(runs) == (breaks + 1 if pages else 0)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([(0, 0)], "no pages"),
        ([(0, 5), (4, 1)], "overlap"),
        ([(4, 1), (0, 5)], "overlap"),
        ([(299, 2)], "exceeds"),
        ([(2**32 - 1, 2**32 - 1)], "exceeds"),
        ([(0, 300)] * 1000, "overlap"),
    ],
)
def test_runs_that_are_no_set_of_pages_are_refused(
    runs: list[tuple[int, int]], reason: str
) -> None:
    packet = pb.EngineMessage(
        give_back=pb.GiveBack(pages=[pb.PageRun(first=f, count=c) for f, c in runs])
    ).SerializeToString()
    with pytest.raises(ProtocolError, match=reason):
        codec.decode_engine_message(packet, DEVICE_PAGES)


@pytest.mark.parametrize(
    "slots",
    [[[1]], [[]], [[2, 1]], [[1, 1]], [[1, 2], [2, 3]]],
    ids=["one unit", "no unit", "descending", "a unit twice", "a unit in two slots"],
)
def test_slots_that_are_no_plan_are_refused(slots: list[list[int]]) -> None:
    plan = pb.RemapPlan(slots=[pb.Slot(units=units) for units in slots])
    packet = pb.AgentMessage(apply_plan=pb.ApplyPlan(plan=plan)).SerializeToString()
    with pytest.raises(ProtocolError, match="plan"):
        codec.decode_agent_message(packet)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "hello",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
        "0" * 100_000,
    ],
)
def test_traceparent_that_is_no_trace_context_is_refused(traceparent: str) -> None:
    shrink = pb.Shrink(pages=1, traceparent=traceparent)
    plan = pb.ApplyPlan(traceparent=traceparent)
    for body in (pb.AgentMessage(shrink=shrink), pb.AgentMessage(apply_plan=plan)):
        with pytest.raises(ProtocolError, match="trace context"):
            codec.decode_agent_message(body.SerializeToString())


def test_peer_without_the_traceparent_field_is_understood_and_understands() -> None:
    """Field 4 of Shrink and ApplyPlan is unknown to an older engine, unset by an older agent."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    old = pb.AgentMessage(shrink=pb.Shrink(operation_id=1, pages=2, deadline_s=3.0))
    message = codec.decode_agent_message(old.SerializeToString())
    assert message == m.Shrink(OperationId(1), 2, 3.0)
    assert codec.encode_agent_message(message) == old.SerializeToString()
    new = codec.encode_agent_message(m.Shrink(OperationId(1), 2, 3.0, trace))
    unknown = new.replace(b"\x22\x37" + trace.encode(), b"\x7a\x37" + trace.encode())
    assert unknown != new, "field 4 is made field 15, which no version knows"
    assert codec.decode_agent_message(unknown) == message


@given(agent_messages, st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_packets_to_an_engine_are_a_message_or_a_protocol_error(
    message: m.AgentMessage, seed: int, flips: int
) -> None:
    chance = random.Random(seed)
    packet = bytearray(codec.encode_agent_message(message))
    for _ in range(flips):
        packet[chance.randrange(len(packet))] = chance.randrange(256)
    with contextlib.suppress(ProtocolError):
        decoded = codec.decode_agent_message(bytes(packet), DEVICE_PAGES)
        assert len(getattr(decoded, "traceparent", "")) in (0, 55)


_HELLO = {"protocol_version": 1, "role": pb.ROLE_WORKER, "engine_id": "e", "model_name": "m"}
_DESCRIBE = {
    "unit_pages": [3, 3],
    "granule_pages": 1,
    "pool_max_granules": 4,
    "pool_min_granules": 1,
}


@pytest.mark.parametrize(
    "body",
    [
        pb.EngineMessage(),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "role": 0})),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "role": 77})),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "engine_id": ""})),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "engine_id": "x" * 1000})),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "model_name": "a\nb"})),
        pb.EngineMessage(hello=pb.Hello(**{**_HELLO, "weights_digest": "../x"})),
        pb.EngineMessage(take=pb.Take(request_id=1)),
        pb.EngineMessage(open_host_copy=pb.OpenHostCopy(weights_digest="", size_bytes=1)),
        pb.EngineMessage(open_host_copy=pb.OpenHostCopy(weights_digest="ab")),
        pb.EngineMessage(ask=pb.Ask(request_id=1)),
        pb.EngineMessage(report=pb.Report(unit_compute_s=[float("nan")])),
        pb.EngineMessage(report=pb.Report(idle_s=float("inf"))),
        pb.EngineMessage(report=pb.Report(stall_s=-1.0)),
        pb.EngineMessage(describe=pb.Describe(**{**_DESCRIBE, "unit_pages": []})),
        pb.EngineMessage(describe=pb.Describe(**{**_DESCRIBE, "unit_pages": [0, 1]})),
        pb.EngineMessage(describe=pb.Describe(**{**_DESCRIBE, "granule_pages": 0})),
        pb.EngineMessage(describe=pb.Describe(**{**_DESCRIBE, "pool_min_granules": 5})),
        pb.EngineMessage(describe=pb.Describe(**{**_DESCRIBE, "pool_min_granules": 0})),
        pb.EngineMessage(
            describe=pb.Describe(**_DESCRIBE, plan=pb.RemapPlan(slots=[pb.Slot(units=[0, 1, 2])]))
        ),
        pb.EngineMessage(rejoin=pb.Rejoin(device=pb.DeviceGeometry(device_id="d"))),
        pb.EngineMessage(
            rejoin=pb.Rejoin(
                device=pb.DeviceGeometry(device_id="d", page_bytes=4096, pages=9),
                holdings=pb.Holdings(
                    unit=[pb.PageRun(first=0, count=2)], pool=[pb.PageRun(first=1, count=1)]
                ),
            )
        ),
    ],
)
def test_malformed_messages_are_refused(body: pb.EngineMessage) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_engine_message(body.SerializeToString(), DEVICE_PAGES)


@given(st.binary(max_size=300))
def test_random_bytes_are_a_message_or_a_protocol_error(packet: bytes) -> None:
    for decode in (
        lambda: codec.decode_engine_message(packet, DEVICE_PAGES),
        lambda: codec.decode_agent_message(packet, DEVICE_PAGES),
    ):
        with contextlib.suppress(ProtocolError):
            decode()


@settings(max_examples=60)
@given(engine_messages, st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_packets_are_a_message_or_a_protocol_error(
    message: m.EngineMessage, seed: int, flips: int
) -> None:
    chance = random.Random(seed)
    packet = bytearray(codec.encode_engine_message(message))
    for _ in range(flips):
        packet[chance.randrange(len(packet))] = chance.randrange(256)
    with contextlib.suppress(ProtocolError):
        codec.decode_engine_message(bytes(packet), DEVICE_PAGES)
