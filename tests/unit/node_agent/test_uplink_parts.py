from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from mirage_core.cluster_model import DeviceObservation, EngineObservation, ObservationDelta
from mirage_core.model import EngineId, ModelName
from node_agent.uplink import MAX_BACKOFF_S, MAX_PATIENCE_S, backoff_s, patience_s
from node_agent.uplink_outbox import Outbox
from node_agent.uplink_reports import DeviceReport, Reporter
from node_agent.uplink_settings import UplinkSettings


def engine(name: str, pool_pages: int = 1) -> EngineObservation:
    return EngineObservation(EngineId(name), ModelName("m"), 0, 0, pool_pages, 0, 0)


def test_the_latest_of_a_key_replaces_the_others_and_keeps_their_place():
    async def check():
        outbox: Outbox[str] = Outbox()
        outbox.put("a", lambda: "a1")
        outbox.put("b", lambda: "b1")
        outbox.put("a", lambda: "a2")
        outbox.put("gone", lambda: None)
        outbox.put("c", lambda: "c1")
        assert [await outbox.take() for _ in range(3)] == ["a2", "b1", "c1"]

    asyncio.run(check())


def test_a_report_tells_all_once_and_then_what_changed():
    reporter = Reporter()
    first = DeviceReport(5, 0, (engine("a"), engine("b")))
    assert reporter.next(first) == DeviceObservation(1, 5, 0, first.engines)
    second = DeviceReport(4, 1, (engine("b", 2), engine("c")))
    delta = reporter.next(second)
    assert delta == ObservationDelta(2, 4, 1, (engine("b", 2), engine("c")), (EngineId("a"),))
    assert delta.apply(DeviceObservation(1, 5, 0, first.engines)) == DeviceObservation(
        2, 4, 1, second.engines
    )
    reporter.restart()
    assert reporter.next(second) == DeviceObservation(3, 4, 1, second.engines)


def test_waits_grow_to_a_bound_and_differ_between_agents():
    waits = [backoff_s(failures, 1.0) for failures in range(12)]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_BACKOFF_S
    assert backoff_s(3, 0.0) < backoff_s(3, 0.7) < backoff_s(3, 1.0)
    assert backoff_s(10**9, 0.0) > 0
    assert [patience_s(failures) for failures in (0, 1, 10**9)] == [3.0, 6.0, MAX_PATIENCE_S]


def test_plain_text_stays_on_this_machine_unless_allowed():
    UplinkSettings(controllers=("127.0.0.1:7070", "[::1]:1", "localhost:2"), node="n")
    with pytest.raises(ValidationError, match="allow_plaintext"):
        UplinkSettings(controllers=("127.0.0.1:1", "10.0.0.1:7070"), node="n")
    UplinkSettings(controllers=("10.0.0.1:7070",), node="n", allow_plaintext=True)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:99999", "h:x"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ValidationError, match="write host:port"):
        UplinkSettings(controllers=(address,), node="n")


def test_a_leader_that_would_be_reached_in_plain_text_is_not_followed():
    settings = UplinkSettings(controllers=("127.0.0.1:1",), node="n")
    assert settings.may_dial("127.0.0.1:2")
    assert not settings.may_dial("10.1.2.3:2")
    assert not settings.may_dial("nonsense")
