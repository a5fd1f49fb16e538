"""The engine's client against a peer that follows a script over a real socket."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirage_core.errors import ConfigError, LinkError, MisuseError, ProtocolError
from mirage_core.model import (
    RESIDENT,
    DeviceGeometry,
    DeviceId,
    EngineId,
    Holdings,
    ModelName,
    OperationId,
    PageId,
)
from mirage_core.wire import client as client_module
from mirage_core.wire import messages as m
from mirage_core.wire.client import AgentClient, LinkLost, LinkRestored
from mirage_core.wire.link import AgentLink, agent_link

GEOMETRY = DeviceGeometry(DeviceId("HOST-test"), 4096, 64)
HELLO = m.Hello(m.Role.SCHEDULER, EngineId("e1"), ModelName("small"))
WORKER_HELLO = m.Hello(m.Role.WORKER, EngineId("e1"), ModelName("small"))
WAIT_S = 30.0


class ScriptedAgent:
    """A listening socket whose links the test itself reads and writes."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.device = os.memfd_create("device")
        self.links: list[AgentLink] = []
        self.listen()

    def listen(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(self.path)
        self.sock.listen()
        self.sock.settimeout(WAIT_S)

    def welcome(self, *, rejoin: bool = False, device: DeviceGeometry = GEOMETRY) -> AgentLink:
        link = self.accept()
        link.receive()
        link.send(m.Welcome("incarnation", device, 0.05, rejoin), self.device)
        return link

    def accept(self) -> AgentLink:
        sock, _ = self.sock.accept()
        sock.settimeout(WAIT_S)
        link = agent_link(sock, GEOMETRY.pages)
        self.links.append(link)
        return link

    def stop(self) -> None:
        self.sock.close()
        for link in self.links:
            link.close()
        self.links.clear()
        Path(self.path).unlink(missing_ok=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    tmp_path.chmod(0o700)
    before = len(os.listdir("/proc/self/fd"))
    scripted = ScriptedAgent(tmp_path / "agent.sock")
    yield scripted
    scripted.stop()
    os.close(scripted.device)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor leaked"


class InThread:
    """Runs the engine's blocking side while the test plays the agent."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._result: queue.SimpleQueue[object] = queue.SimpleQueue()

        def work() -> None:
            try:
                self._result.put(run())
            except Exception as error:
                self._result.put(error)

        threading.Thread(target=work, daemon=True).start()

    def result(self) -> object:
        return self._result.get(timeout=WAIT_S)


def connected(agent: ScriptedAgent, hello: m.Hello = HELLO) -> tuple[AgentClient, AgentLink]:
    opening = InThread(lambda: AgentClient(agent.path, hello))
    link = agent.welcome()
    client = opening.result()
    assert isinstance(client, AgentClient)
    return client, link


def test_welcome_brings_geometry_and_device(agent: ScriptedAgent) -> None:
    client, _ = connected(agent)
    assert client.geometry == GEOMETRY
    fd = client.take_device_fd()
    assert os.fstat(fd).st_ino == os.fstat(agent.device).st_ino
    os.close(fd)
    with pytest.raises(MisuseError):
        client.take_device_fd()
    client.close()


def test_worker_takes_pages_or_learns_why_not(agent: ScriptedAgent) -> None:
    client, link = connected(agent, WORKER_HELLO)
    taking = InThread(lambda: client.take(2))
    assert link.receive() == (m.Take(1, 2), None)
    link.send(m.Granted(1, (PageId(4), PageId(9))))
    assert taking.result() == (PageId(4), PageId(9))

    taking = InThread(lambda: client.take(99))
    assert link.receive() == (m.Take(2, 99), None)
    link.send(m.Denied(2, "35 pages short"))
    assert taking.result() == m.Denied(2, "35 pages short")
    client.close()


def test_worker_that_loses_the_agent_while_starting_fails_clearly(agent: ScriptedAgent) -> None:
    client, link = connected(agent, WORKER_HELLO)
    taking = InThread(lambda: client.take(2))
    link.receive()
    link.close()
    assert isinstance(taking.result(), LinkError)
    client.close()


def test_first_engine_fills_the_host_copy_and_hands_it_over(agent: ScriptedAgent) -> None:
    client, link = connected(agent, WORKER_HELLO)
    opening = InThread(lambda: client.open_host_copy("ab", 7))
    assert link.receive() == (m.OpenHostCopy("ab", 7), None)
    link.send(m.HostCopy("ab", m.HostCopyState.FILL, 7))
    assert opening.result() is None
    client.host_copy_filled("ab", agent.device)
    message, fd = link.receive()
    assert message == m.HostCopyFilled("ab")
    assert fd is not None
    os.close(fd)
    client.close()


def test_host_copy_that_is_ready_comes_with_its_memory_file(agent: ScriptedAgent) -> None:
    client, link = connected(agent, WORKER_HELLO)
    opening = InThread(lambda: client.open_host_copy("ab", 7))
    link.receive()
    link.send(m.HostCopy("ab", m.HostCopyState.READY, 7), agent.device)
    fd = opening.result()
    assert isinstance(fd, int)
    os.close(fd)

    opening = InThread(lambda: client.open_host_copy("ab", 7))
    link.receive()
    link.send(m.HostCopy("ab", m.HostCopyState.READY, 7))
    assert isinstance(opening.result(), ProtocolError)
    client.close()


def test_refused_version_is_the_operators_error(agent: ScriptedAgent) -> None:
    opening = InThread(lambda: AgentClient(agent.path, HELLO))
    link = agent.accept()
    link.receive()
    link.send(m.Error(m.ErrorCode.VERSION, "this agent speaks protocol 2"))
    assert isinstance(opening.result(), ConfigError)


def test_messages_reach_the_inbox_and_wake_the_scheduler(agent: ScriptedAgent) -> None:
    client, link = connected(agent)
    woken = threading.Semaphore(0)
    client.start(wake=lambda: woken.release())
    link.send(m.Shrink(OperationId(5), 4, 1.0))
    link.send(m.Limits(60, 30))
    assert woken.acquire(timeout=WAIT_S)
    assert woken.acquire(timeout=WAIT_S)
    assert client.inbox.get_nowait() == m.Shrink(OperationId(5), 4, 1.0)
    assert client.inbox.get_nowait() == m.Limits(60, 30)
    assert client.send(m.Ask(1, 3))
    assert link.receive() == (m.Ask(1, 3), None)
    client.close()


def test_slow_agent_loses_reports_but_nothing_else(agent: ScriptedAgent) -> None:
    client, link = connected(agent)
    client.start()
    report = m.Report(1, active=True, pool_granules=1)
    reports = 0
    while client.send(report):
        reports += 1
    done = [m.Done(OperationId(n), (), RESIDENT, 1) for n in range(100)]
    for message in done:
        assert client.send(message)
    assert not client.send(report), "a Report must not overtake or wait"
    for _ in range(reports):
        assert link.receive() == (report, None)
    for message in done:
        assert link.receive() == (message, None)
    assert not client.disconnected.is_set()
    client.close()


def test_hung_agent_counts_as_lost(agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_OUTBOX_MESSAGES", 4)
    client, _ = connected(agent)
    client.start()
    while client.send(m.Ask(1, 1)):
        pass
    assert client.disconnected.wait(WAIT_S)
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkLost)
    client.close()


def test_rejoin_after_a_loss_states_holdings_before_anything_else(agent: ScriptedAgent) -> None:
    client, link = connected(agent)
    device = client.take_device_fd()
    client.start()
    link.send(m.Granted(1, (PageId(1),)))
    agent.stop()
    assert client.inbox.get(timeout=WAIT_S) == m.Granted(1, (PageId(1),))
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkLost)
    assert client.disconnected.is_set()
    assert not client.send(m.GiveBack((PageId(1),))), "nothing is kept for a later agent"
    assert not client.rejoin(Holdings(), device)

    agent.listen()
    link = agent.welcome(rejoin=True)
    restored = client.inbox.get(timeout=WAIT_S)
    assert isinstance(restored, LinkRestored)
    assert not client.send(m.Ask(2, 1)), "the agent must hear Rejoin first"
    assert client.rejoin(Holdings(pool=(PageId(3),)), device)
    assert client.send(m.Ask(3, 1))
    message, fd = link.receive()
    assert message == m.Rejoin(GEOMETRY, Holdings(pool=(PageId(3),)))
    assert fd is not None
    assert os.fstat(fd).st_ino == os.fstat(agent.device).st_ino
    os.close(fd)
    assert link.receive() == (m.Ask(3, 1), None)
    assert not client.disconnected.is_set()
    os.close(device)
    client.close()


def test_worker_comes_back_without_rejoin(agent: ScriptedAgent) -> None:
    client, link = connected(agent, WORKER_HELLO)
    client.start()
    link.close()
    agent.welcome()
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkLost)
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkRestored)
    client.close()


def test_agent_with_another_device_is_left_alone(
    agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BACKOFF_S", 0.05)
    client, link = connected(agent)
    client.start()
    link.close()
    link = agent.welcome(rejoin=True, device=DeviceGeometry(DeviceId("HOST-other"), 4096, 64))
    with pytest.raises(LinkError):
        link.receive()
    link = agent.welcome(rejoin=True)
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkLost)
    assert isinstance(client.inbox.get(timeout=WAIT_S), LinkRestored)
    client.close()


def test_blocking_calls_after_start_are_misuse(agent: ScriptedAgent) -> None:
    client, _ = connected(agent)
    client.start()
    with pytest.raises(MisuseError):
        client.take(1)
    with pytest.raises(MisuseError):
        client.start()
    client.close()


def test_closed_client_drops_what_it_is_given(agent: ScriptedAgent) -> None:
    client, _ = connected(agent)
    client.start()
    client.close()
    client.close()
    assert not client.send(m.Ask(1, 1))
