"""Whoever connects to the agent, and whatever he sends, the agent lives and closes the link."""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import stat
import subprocess
import sys
import urllib.request

import pytest
from agent_node import WAIT_S, AgentProcess, Node, raw_socket, wait_until

from mirage_core.model import RESIDENT, EngineId, Holdings, ModelName, OperationId, PageId
from mirage_core.wire import codec
from mirage_core.wire import messages as m

PACKETS = 10_000


def open_fds(agent: AgentProcess) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


def open_sockets(agent: AgentProcess) -> int:
    assert agent.process is not None
    folder = f"/proc/{agent.process.pid}/fd"
    count = 0
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
    return count


def hello(role: m.Role, name: str = "stranger", version: int = m.PROTOCOL_VERSION) -> bytes:
    return codec.encode_engine_message(
        m.Hello(role, EngineId(name), ModelName("m"), protocol_version=version)
    )


def last_error(sock: socket.socket) -> m.Error:
    """What the agent said before it closed."""
    last: m.AgentMessage | None = None
    while packet := sock.recv(1 << 20):
        last = codec.decode_agent_message(packet)
    assert isinstance(last, m.Error)
    return last


def test_socket_is_private(node: Node) -> None:
    assert stat.S_IMODE(node.agent.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.agent.socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_process_of_another_user_is_sent_away(node: Node) -> None:
    # Root opens the way, as a careless operator might; the credentials still tell.
    for folder in node.agent.socket.parents:
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o011)
    node.agent.socket.chmod(0o666)
    program = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.connect(sys.argv[1])\n"
        "sys.exit(0 if s.recv(100) == b'' else 1)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(node.agent.socket)], timeout=WAIT_S, check=False
    )
    assert result.returncode == 0, "the agent must close without a word"
    assert "of user 65534 may not connect" in node.agent.log.read_text()


def test_other_protocol_version_is_named(node: Node) -> None:
    with contextlib.closing(raw_socket(node.agent)) as sock:
        sock.send(hello(m.Role.WORKER, version=99))
        error = last_error(sock)
    assert error.code is m.ErrorCode.VERSION
    assert "protocol 99" in error.message


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (m.Role.WORKER, m.Ask(1, 1)),
        (m.Role.SCHEDULER, m.Take(1, 1)),
        (m.Role.WORKER, m.HostCopyFilled("ab")),
        (m.Role.SCHEDULER, m.Ask(1, 1)),
        (m.Role.SCHEDULER, m.Done(OperationId(1), (PageId(1),), RESIDENT, 1)),
    ],
)
def test_message_out_of_place_costs_the_link(
    node: Node, role: m.Role, message: m.EngineMessage
) -> None:
    with contextlib.closing(raw_socket(node.agent)) as sock:
        sock.send(hello(role))
        sock.send(codec.encode_engine_message(message))
        assert last_error(sock).code is m.ErrorCode.PROTOCOL


def test_name_of_a_living_engine_cannot_be_taken(node: Node) -> None:
    node.start_engine(name="a", model="m")
    for role in m.Role:
        with contextlib.closing(raw_socket(node.agent)) as sock:
            sock.send(hello(role, name="a"))
            assert "already" in last_error(sock).message


def test_foreign_memory_file_is_no_device(node: Node) -> None:
    node.start_engine(name="a")
    with contextlib.closing(raw_socket(node.agent)) as sock:
        sock.send(hello(m.Role.WORKER))
        packet, fds, _, _ = socket.recv_fds(sock, 1 << 20, 4)
        for fd in fds:
            os.close(fd)
        welcome = codec.decode_agent_message(packet)
        assert isinstance(welcome, m.Welcome)
        scheduler = raw_socket(node.agent)
        scheduler.send(hello(m.Role.SCHEDULER))
        scheduler.close()
        wait_until(lambda: "scheduler stranger closed" in node.agent.log.read_text(), "link closed")
        with contextlib.closing(raw_socket(node.agent)) as scheduler:
            scheduler.send(hello(m.Role.SCHEDULER))
            rejoin = m.Rejoin(welcome.device, Holdings(pool=(PageId(99),)))
            foreign = os.memfd_create("foreign")
            socket.send_fds(scheduler, [codec.encode_engine_message(rejoin)], [foreign])
            os.close(foreign)
            assert last_error(scheduler).code is m.ErrorCode.DEVICE_MISMATCH


def test_descriptors_sent_unasked_are_closed(node: Node) -> None:
    before = open_fds(node.agent)
    for count in (1, 3, 30):
        for packet in (hello(m.Role.WORKER, name=f"s{count}"), b"\xff"):
            with contextlib.closing(raw_socket(node.agent)) as sock:
                fds = array.array("i", [0] * count)
                sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    # The engines that said hello were this process: its pidfd stays watched once.
    wait_until(lambda: open_fds(node.agent) <= before + 1, "all is closed")


def test_random_and_mutated_packets_never_kill_the_agent(node: Node) -> None:
    a = node.start_engine(name="a")
    chance = random.Random(7)
    seeds = [
        hello(m.Role.WORKER),
        hello(m.Role.SCHEDULER),
        *map(
            codec.encode_engine_message,
            (
                m.Take(1, 3),
                m.OpenHostCopy("ab", 100),
                m.HostCopyFilled("ab"),
                m.Describe(0, (3,) * 10, 2, 2, 40, 1),
                m.Report(1, active=True, pool_granules=3, unit_compute_s=(0.1,) * 10),
                m.Ask(1, 4),
                m.Done(OperationId(1), (PageId(5), PageId(6)), RESIDENT, 1),
                m.Refused(OperationId(1), "no", (PageId(7),)),
                m.GiveBack(tuple(map(PageId, range(9)))),
            ),
        ),
    ]
    before = open_sockets(node.agent)
    sent = 0
    number = 0
    while sent < PACKETS:
        number += 1
        with contextlib.closing(raw_socket(node.agent)) as sock:
            role = chance.choice(list(m.Role))
            # Unmutated, so that what follows reaches the arbiter too.
            packets = [hello(role, f"fuzz{number % 5}")] if chance.random() < 0.8 else []
            for _ in range(chance.randrange(1, 12)):
                packet = bytearray(chance.choice(seeds))
                if chance.random() < 0.1:
                    packet = bytearray(chance.randbytes(chance.randrange(1, 200)))
                elif chance.random() < 0.7:
                    for _ in range(chance.randrange(1, 4)):
                        packet[chance.randrange(len(packet))] = chance.randrange(256)
                packets.append(bytes(packet))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for each in packets:
                    sock.send(each)
                    sent += 1
    assert node.agent.alive, node.agent.log.read_text()[-3000:]
    assert a.do("status")["corrupt"] == 0
    wait_until(lambda: open_sockets(node.agent) <= before, "links are closed")
    with contextlib.closing(raw_socket(node.agent)) as sock:
        sock.send(hello(m.Role.WORKER, "after"))
        assert isinstance(codec.decode_agent_message(sock.recv(1 << 20)), m.Welcome)


def test_second_agent_is_refused(node: Node) -> None:
    command = [sys.executable, "-m", "node_agent", "--socket", str(node.agent.socket)]
    command += ["--device-bytes", "1MiB", "--page-bytes", "64KiB", "--state-dir"]
    for state, reason in (
        (node.agent.folder / "state", "another agent uses"),
        (node.agent.folder / "other", "another agent listens"),
    ):
        result = subprocess.run(
            [*command, str(state)], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert result.returncode == 2
        assert reason in result.stderr


def test_metrics_tell_pages_by_owner(node: Node) -> None:
    assert node.agent.stop() == 0
    assert not node.agent.socket.exists()
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node.agent.start("--metrics-port", str(port))
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    b.until(lambda s: s["cycled"], "b lends")

    def scraped() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as page:
            text = page.read().decode()
        return (
            'owner="slot"' in text
            and "mirage_remaps_total 1.0" in text
            and "mirage_ask_seconds_count 1.0" in text
        )

    wait_until(scraped, "the metrics show the remap")
