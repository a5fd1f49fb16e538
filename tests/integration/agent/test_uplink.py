"""The uplink against a real gRPC server, over a fake device."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from certificates import authority, issue
from scripted_leader import STORE, ScriptedLeader, serving

from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    Authority,
    DirectDevice,
    DirectiveBody,
    DirectLending,
    DirectModel,
    Effect,
    EngineObservation,
    Event,
    Explanation,
    NodeName,
    Outcome,
    StoreIncarnation,
)
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2, common_pb2
from node_agent import uplink as uplink_module
from node_agent.directives_file import DirectivesFile, DirectivesInMemory
from node_agent.uplink import Uplink
from node_agent.uplink_reports import DeviceReport
from node_agent.uplink_settings import UplinkSettings

CHAT = ModelName("chat")
ENGINE = EngineObservation(
    EngineId("e1"), CHAT, 30, 0, 10, 4, 0, active=True, unit_pages=30, lent_pages=0
)


class Clock:
    def monotonic_s(self) -> float:
        return time.monotonic()


class FakeDevice:
    def __init__(self) -> None:
        self.applied: list[tuple[DirectiveBody, ...]] = []
        self.now = DeviceReport(60, 0, (ENGINE,))

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        self.applied.append(bodies)

    def report(self) -> DeviceReport:
        return self.now


def is_snapshot(message: agent_pb2.SessionRequest) -> bool:
    """The agent's first word after it took the leader's welcome."""
    return message.HasField("snapshot")


HELLO = AgentHello(
    NodeName("node-1"), DeviceId("dev-1"), AgentIncarnation("life-1"), 10, 100, "node-1"
)


@asynccontextmanager
async def uplink_to(*leaders: ScriptedLeader, store=None, **settings) -> AsyncIterator:
    device = FakeDevice()
    uplink = Uplink(
        HELLO,
        UplinkSettings(
            controllers=tuple(leader.address for leader in leaders), node="node-1", **settings
        ),
        device,
        store or DirectivesInMemory(),
        Clock(),
        random.Random(1),
    )
    task = asyncio.create_task(uplink.run())
    try:
        yield uplink, device
    finally:
        task.cancel()
        ended = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), ended


def test_agent_greets_reports_obeys_and_answers():
    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader) as (_, device):
            talk = await leader.meet()
            assert talk.hello == HELLO
            first = await talk.until(is_snapshot)
            assert agent_codec.decode_observation(first.snapshot).engines == (ENGINE,)
            busy = replace(ENGINE, pool_pages=12, free_kv_tokens=77)
            device.now = DeviceReport(58, 0, (busy,))
            delta = await talk.until(lambda m: m.delta.changed)
            assert agent_codec.decode_delta(delta.delta).changed == (busy,)
            priority = leader.directive("op-1", 5, DirectModel(CHAT, priority=7))
            await talk.direct(priority)
            answer = await talk.answer(priority)
            assert (answer.outcome, answer.key) == (Outcome.APPLIED, "model/chat")
            assert device.applied[-1] == (DirectModel(CHAT, priority=7),)
            await talk.direct(leader.directive("op-0", 4, DirectModel(CHAT, priority=1)))
            stale = await talk.until(lambda m: m.acknowledgement.operation_id == "op-0")
            assert stale.acknowledgement.outcome == common_pb2.DIRECTIVE_OUTCOME_STALE
            assert device.applied[-1] == (DirectModel(CHAT, priority=7),)

    asyncio.run(check())


def test_bound_on_lending_is_applied_only_when_the_engine_lends_so_much():
    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader) as (_, device):
            talk = await leader.meet()
            lend = leader.directive("op-1", 5, DirectLending(CHAT, at_least_bytes=95))
            await talk.direct(lend)
            assert (await talk.answer(lend)).outcome is Outcome.ACCEPTED
            device.now = DeviceReport(70, 0, (replace(ENGINE, lent_pages=10),))
            applied = await talk.answer(lend, common_pb2.DIRECTIVE_OUTCOME_APPLIED)
            assert applied.outcome is Outcome.APPLIED

    asyncio.run(check())


def test_directives_hold_after_a_restart_without_a_controller(tmp_path):
    file = DirectivesFile(tmp_path / "directives.json")
    frozen = DirectDevice(freeze=True)

    async def check():
        leader = ScriptedLeader(epoch=4)
        async with serving(leader), uplink_to(leader, store=file):
            talk = await leader.meet()
            directive = leader.directive("op-1", 5, frozen)
            await talk.snapshot(leader.authority, directive)
            await talk.answer(directive)
        async with uplink_to(leader, store=file) as (uplink, device):
            while not device.applied:
                await asyncio.sleep(0)
            assert device.applied == [(frozen,)]
            port = int(leader.address.rpartition(":")[2])
            async with serving(ScriptedLeader(epoch=3), port=port) as deposed:
                while deposed.greeted < 2:
                    await asyncio.sleep(0.01)
                assert deposed.met.qsize() >= 1
                assert not uplink.counters.connected
                assert uplink.counters.sessions == 0, "a leader of an earlier epoch is not obeyed"

    asyncio.run(check())


def test_silent_leader_is_left_and_the_standby_leads_to_the_next():
    async def check():
        silent, standby, heir = ScriptedLeader(), ScriptedLeader(), ScriptedLeader(epoch=2)
        silent.beats = False
        async with serving(silent), serving(standby), serving(heir):
            standby.redirect = heir.address
            async with uplink_to(silent, standby) as (uplink, _):
                talk = await heir.meet()
                assert talk.hello.device == "dev-1"
                await talk.until(is_snapshot)
                assert uplink.keeper.held.latest == heir.authority

    asyncio.run(check())


def test_agents_that_wait_for_an_election_ask_again_on_one_connection():
    async def check():
        async with serving(ScriptedLeader()) as leader:
            leader.redirect = ""
            async with uplink_to(leader) as (uplink, _):
                while leader.greeted < 4:
                    await asyncio.sleep(0.01)
                assert uplink.counters.sessions == 0
                leader.redirect = None
                talk = await leader.meet()
                await talk.until(is_snapshot)
                assert uplink.counters.dials == len(leader.peers) == 1

    asyncio.run(check())


def test_store_that_lost_its_history_is_obeyed_once_it_declares_so():
    async def check():
        new = StoreIncarnation("store-2")
        leader = ScriptedLeader(epoch=9)
        async with serving(leader), uplink_to(leader) as (uplink, device):
            talk = await leader.meet()
            old = leader.directive("op-1", 900, DirectModel(CHAT, priority=7))
            await talk.direct(old)
            await talk.answer(old)
            leader.authority, leader.retired = Authority(new, 1, 1), ()
            await talk.say(agent_pb2.SessionResponse(not_leader=agent_pb2.NotLeader()))
            undeclared = await leader.meet()
            await undeclared.closed.wait()
            assert undeclared.hello.latest == Authority(STORE, 9, 900)
            leader.retired = (STORE,)
            while True:
                talk = await leader.meet()
                if not talk.closed.is_set():
                    break
            fresh = leader.directive("op-2", 1, DirectModel(CHAT, priority=1))
            await talk.snapshot(leader.authority, fresh)
            assert (await talk.answer(fresh)).outcome is Outcome.APPLIED
            assert device.applied[-1] == (DirectModel(CHAT, priority=1),)
            assert uplink.keeper.held.retired == {STORE}

    asyncio.run(check())


def test_directive_that_this_version_does_not_know_is_refused_and_others_are_obeyed():
    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader) as (_, device):
            talk = await leader.meet()
            known = leader.directive("op-1", 5, DirectModel(CHAT, priority=7))
            snapshot = agent_pb2.DirectiveSnapshot(
                authority=common_pb2.Authority(store_incarnation=STORE, epoch=1, revision=5),
                directives=[
                    common_pb2.Directive(
                        operation_id="op-9",
                        authority=common_pb2.Authority(
                            store_incarnation=STORE, epoch=1, revision=5
                        ),
                    )
                ],
            )
            snapshot.directives.append(cluster_codec.encode_directive(known))
            await talk.say(agent_pb2.SessionResponse(directives=snapshot))
            assert (await talk.answer(known)).outcome is Outcome.APPLIED
            refused = await talk.until(lambda m: m.acknowledgement.operation_id == "op-9")
            assert refused.acknowledgement.outcome == common_pb2.DIRECTIVE_OUTCOME_REFUSED
            assert "no body that this version knows" in refused.acknowledgement.reason
            assert device.applied[-1] == (DirectModel(CHAT, priority=7),)

    asyncio.run(check())


def test_explanations_are_told_again_to_the_next_leader_and_events_once():
    explanation = Explanation(DeviceId("dev-1"), 1, 5.0, Effect.PERFORMED, CHAT, 0, 3, (), (), ())

    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader) as (uplink, _):
            talk = await leader.meet()
            await talk.until(is_snapshot)
            uplink.tell(explanation)
            uplink.tell(Event("EngineDied", "device/dev-1", "e1 has ended", 6.0))
            await talk.until(lambda m: m.HasField("event"))
            await talk.until(lambda m: m.HasField("explanation"))
            await talk.say(agent_pb2.SessionResponse(not_leader=agent_pb2.NotLeader()))
            talk = await leader.meet()
            again = await talk.until(lambda m: m.HasField("explanation"))
            told = agent_codec.decode_explanation(again.explanation)
            assert told == replace(explanation, authority=leader.authority)
            await talk.until(lambda m: m.HasField("delta"))
            assert not any(m.HasField("event") for m in talk.heard)

    asyncio.run(check())


def test_missing_report_brings_a_snapshot():
    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader):
            talk = await leader.meet()
            await talk.until(lambda m: m.HasField("delta"))
            wanted = agent_pb2.SessionResponse(snapshot_wanted=agent_pb2.SnapshotWanted())
            await talk.say(wanted)
            await talk.until(lambda m: m.HasField("snapshot") and m.snapshot.sequence > 1)

    asyncio.run(check())


def test_leader_of_a_version_too_far_is_left_and_the_agent_goes_on(caplog, monkeypatch):
    monkeypatch.setattr(uplink_module, "REJECTED_BACKOFF_S", 0.05)
    caplog.set_level("INFO")

    async def check():
        leader = ScriptedLeader()
        leader.version = 9
        async with serving(leader), uplink_to(leader) as (uplink, _):
            while leader.greeted < 2:
                await asyncio.sleep(0.01)
            assert uplink.counters.sessions == 0
            leader.version = 2
            await asyncio.sleep(0)
            while not uplink.counters.connected:
                await asyncio.sleep(0.01)

    asyncio.run(check())
    assert "upgrade the older one" in caplog.text


def test_token_goes_with_the_call_and_is_read_anew(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")

    async def check():
        async with serving(ScriptedLeader()) as leader, uplink_to(leader, token=token):
            talk = await leader.meet()
            assert talk.metadata["authorization"] == "Bearer first"
            token.write_text("second\n")
            await talk.say(agent_pb2.SessionResponse(not_leader=agent_pb2.NotLeader()))
            talk = await leader.meet()
            assert talk.metadata["authorization"] == "Bearer second"

    asyncio.run(check())


@pytest.mark.parametrize("known", [True, False])
def test_certificates_are_checked_both_ways(tmp_path, known):
    ours, others = authority("ours"), authority("others")
    server_key, server_certificate = issue(ours, "controller", "127.0.0.1")
    agent_key, agent_certificate = issue(ours if known else others, "node-1")
    for name, pem in (
        ("ca", ours.certificate),
        ("certificate", agent_certificate),
        ("key", agent_key),
    ):
        (tmp_path / name).write_bytes(pem)
    credentials = grpc.ssl_server_credentials(
        [(server_key, server_certificate)], ours.certificate, require_client_auth=True
    )
    files = {name: tmp_path / name for name in ("ca", "certificate", "key")}

    async def check():
        leader = ScriptedLeader()
        async with serving(leader, credentials), uplink_to(leader, **files) as (uplink, _):
            if known:
                await leader.meet()
                return
            while uplink.counters.dials < 3:
                await asyncio.sleep(0.01)
            assert leader.greeted == 0

    asyncio.run(check())
