"""A real agent process with engines, led by a controller whose words the test chooses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_node import PAGE_BYTES, PAGES, EngineProcess, Node
from scripted_leader import Conversation, ScriptedLeader, serving

from mirage_core.cluster_model import (
    DeviceObservation,
    DirectDevice,
    DirectModel,
    Effect,
    ObservationDelta,
    Outcome,
)
from mirage_core.model import ModelName
from mirage_core.wire import agent_codec
from node_agent.replay import replay

do = asyncio.to_thread


@asynccontextmanager
async def led_node(folder: Path, leader: ScriptedLeader) -> AsyncIterator[Node]:
    node = Node(folder)
    try:
        await do(node.agent.start, "--controller", leader.address, "--node", "node-1")
        yield node
        await do(node.check)
    finally:
        await do(node.close)


async def start(node: Node, name: str, **spec: Any) -> EngineProcess:
    return await do(lambda: node.start_engine(name=name, model=name, **spec))


async def ask(engine: EngineProcess, granules: int, holds: Callable[[Any], Any]) -> dict[str, Any]:
    await do(lambda: engine.do("ask", granules=granules))
    return await do(engine.until, holds, "the ask is answered")


async def seen(talk: Conversation, holds: Callable[[DeviceObservation], Any]) -> DeviceObservation:
    """The device as a controller knows it, once ``holds`` is true of it."""
    known: DeviceObservation | None = None
    at = 0

    def advance(_: Any) -> bool:
        nonlocal known, at
        for message in talk.heard[at:]:
            at += 1
            if message.HasField("snapshot"):
                known = agent_codec.decode_observation(message.snapshot)
            elif message.HasField("delta"):
                delta: ObservationDelta = agent_codec.decode_delta(message.delta)
                assert known is not None
                known = delta.apply(known)
                assert known is not None, "a report is missing"
            if known is not None and holds(known):
                return True
        return False

    await talk.until(advance)
    assert known is not None
    return known


def test_directives_change_what_real_engines_give_and_explanations_say_why(tmp_path):
    """Two idle models of equal rights: the one that is directed to matter more lends nothing."""

    async def check():
        async with serving(ScriptedLeader(epoch=7)) as leader, led_node(tmp_path, leader) as node:
            talk = await leader.meet()
            assert (talk.hello.pages, talk.hello.page_bytes) == (PAGES, PAGE_BYTES)
            a, b = await start(node, "a", priority=5), await start(node, "b", priority=1)
            both = await seen(talk, lambda d: len(d.engines) == 2 and d.engines[1].unit_pages)
            assert {e.model: e.priority for e in both.engines} == {"a": 5, "b": 1}
            assert both.engines[0].free_kv_tokens is None, "these engines do not tell"

            frozen = leader.directive("freeze", 2, DirectDevice(freeze=True))
            await talk.snapshot(leader.authority, frozen)
            assert (await talk.answer(frozen)).outcome is Outcome.APPLIED
            status = await ask(a, 25, lambda s: s["denied"])
            assert "frozen" in status["denied"][-1]
            assert (await do(b.do, "status"))["cycled"] == 0

            thawed = leader.directive("thaw", 3, DirectDevice())
            raised = leader.directive("raise", 4, DirectModel(ModelName("b"), priority=9))
            await talk.direct(thawed, raised)
            await talk.answer(raised)
            await seen(talk, lambda d: any(e.priority == 9 for e in d.engines))
            await ask(a, 3, lambda s: s["pool_granules"] > status["pool_granules"])
            await seen(talk, lambda d: any(e.model == "b" and e.lent_pages for e in d.engines))
            told = await talk.until(lambda m: m.explanation.moves and m.explanation.effect == 1)
            why = agent_codec.decode_explanation(told.explanation)
            assert (why.effect, why.borrower) == (Effect.PERFORMED, "a")
            assert why.models() == ("b", "a")
            assert {each.model: each.priority for each in why.inputs} == {"a": 5, "b": 9}
            assert why.authority is not None
            assert why.authority.epoch == 7
            withheld = await talk.until(lambda m: m.explanation.effect == 3)
            assert agent_codec.decode_explanation(withheld.explanation).effect is Effect.FROZEN

            node.kill(b)
            died = await talk.until(lambda m: m.event.kind == "EngineDied")
            assert died.event.subject == f"device/{talk.hello.device}"
            await seen(talk, lambda d: [e.model for e in d.engines] == ["a"])
        assert replay(tmp_path / "events.jsonl").difference is None

    asyncio.run(check())


def test_agent_without_its_controller_serves_on_and_holds_to_what_it_was_told(tmp_path):
    async def check():
        leader = ScriptedLeader(epoch=7)
        node = Node(tmp_path)
        options = ("--node", "node-1")
        try:
            async with serving(leader):
                await do(node.agent.start, "--controller", leader.address, *options)
                talk = await leader.meet()
                a, b = await start(node, "a"), await start(node, "b")
                frozen = leader.directive("freeze", 2, DirectDevice(freeze=True))
                await talk.direct(frozen)
                await talk.answer(frozen)
            await do(node.agent.kill)
            await do(node.agent.start, "--controller", leader.address, *options)
            for engine in (a, b):
                await do(engine.until, lambda s: s["rejoins"], "it has rejoined")
            status = await ask(a, 25, lambda s: any("frozen" in why for why in s["denied"]))
            assert status["corrupt"] == 0
            await do(node.check)
        finally:
            await do(node.close)

    asyncio.run(check())


def test_faults_of_the_uplinks_settings_are_named(tmp_path):
    base = ["--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")]
    base += ["--device-bytes", "64MiB"]
    for options, said in (
        (["--controller", "10.0.0.1:7070"], "allow_plaintext"),
        (["--controller", "nowhere"], "write host:port"),
        (["--ca", "ca.pem"], "uplink.controllers"),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "node_agent", *base, *options],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 2
        assert said in run.stderr
        assert run.stderr.count("\n") == 1
