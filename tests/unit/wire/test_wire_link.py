"""Packets and descriptors between two ends, and who may connect."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage_core.errors import ConfigError, LinkError, ProtocolError
from mirage_core.model import PageId
from mirage_core.wire import messages as m
from mirage_core.wire.link import (
    MAX_PACKET_BYTES,
    AgentLink,
    EngineLink,
    agent_link,
    check_socket_path,
    connect,
    engine_link,
    open_peer_pidfd,
)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def ends() -> Iterator[tuple[EngineLink, AgentLink]]:
    before = open_fds()
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine, agent = engine_link(a), agent_link(b, device_pages=200_000)
    yield engine, agent
    engine.close()
    agent.close()
    assert open_fds() == before, "a descriptor leaked"


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, AgentLink]]:
    before = open_fds()
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = agent_link(b, device_pages=10)
    yield a, agent
    a.close()
    agent.close()
    assert open_fds() == before, "a descriptor leaked"


Ends = tuple[EngineLink, AgentLink]


def test_message_and_descriptor_arrive_together(ends: Ends) -> None:
    engine, agent = ends
    file = os.memfd_create("sent")
    agent.send(m.HostCopy("ab", m.HostCopyState.READY, 5), file)
    message, fd = engine.receive()
    assert message == m.HostCopy("ab", m.HostCopyState.READY, 5)
    assert fd is not None
    assert os.fstat(fd).st_ino == os.fstat(file).st_ino
    assert not os.get_inheritable(fd)
    os.close(fd)
    os.close(file)


def test_largest_fragmented_grant_fits_in_a_packet(ends: Ends) -> None:
    engine, agent = ends
    every_second_page = tuple(map(PageId, range(0, 80_000, 2)))
    agent.send(m.Granted(1, every_second_page))
    assert engine.receive() == (m.Granted(1, every_second_page), None)


def test_message_above_the_limit_is_refused_before_it_is_sent(ends: Ends) -> None:
    engine, agent = ends
    with pytest.raises(LinkError, match="the limit is"):
        agent.send_packet(bytes(MAX_PACKET_BYTES + 1))
    agent.send(m.Limits(1, 2))
    assert engine.receive() == (m.Limits(1, 2), None)


def test_packet_above_the_limit_is_a_protocol_error(
    raw: tuple[socket.socket, AgentLink],
) -> None:
    peer, agent = raw
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_PACKET_BYTES)
    peer.sendmsg([bytes(MAX_PACKET_BYTES + 10)])
    with pytest.raises(ProtocolError, match="more than"):
        agent.receive()


@pytest.mark.parametrize("count", [2, 8, 40])
def test_surplus_descriptors_are_closed(raw: tuple[socket.socket, AgentLink], count: int) -> None:
    peer, agent = raw
    fds = array.array("i", [0] * count)
    peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    before = open_fds()
    with pytest.raises(ProtocolError, match="more descriptors"):
        agent.receive()
    assert open_fds() == before


def test_descriptor_beside_a_malformed_packet_is_closed(
    raw: tuple[socket.socket, AgentLink],
) -> None:
    peer, agent = raw
    fds = array.array("i", [0])
    peer.sendmsg([b"\xff\xff"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    before = open_fds()
    with pytest.raises(ProtocolError):
        agent.receive()
    assert open_fds() == before


def test_closed_peer_is_a_link_error_for_reader_and_writer(ends: Ends) -> None:
    engine, agent = ends
    agent.close()
    with pytest.raises(LinkError, match="closed"):
        engine.receive()
    with pytest.raises(LinkError, match="gone"):
        engine.send(m.Ask(1, 1))


def test_link_that_does_not_block_says_so(ends: Ends) -> None:
    engine, _ = ends
    engine.settimeout(0)
    with pytest.raises(BlockingIOError):
        engine.receive()

    def send_until_full() -> None:
        while True:
            engine.send(m.Ask(1, 1))

    with pytest.raises(BlockingIOError):
        send_until_full()


def test_peer_is_known_by_its_pidfd(ends: Ends) -> None:
    engine, agent = ends
    assert agent.peer().pid == os.getpid()
    assert engine.peer().uid == os.getuid()
    with contextlib.closing(socket.socket(fileno=os.dup(agent.fileno()))) as sock:
        pidfd = open_peer_pidfd(sock)
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        assert f"Pid:\t{os.getpid()}\n" in info
        os.close(pidfd)


# ---- who may connect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_absent_socket_says_how_to_start_the_agent(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.*node_agent --socket"):
        connect(str(folder / "agent.sock"))


def test_file_in_place_of_the_socket_is_refused(folder: Path) -> None:
    (folder / "agent.sock").touch()
    with pytest.raises(ConfigError, match="not a socket"):
        connect(str(folder / "agent.sock"))


def test_symbolic_link_in_place_of_the_socket_is_refused(folder: Path) -> None:
    with contextlib.closing(listen(folder / "real.sock")):
        (folder / "agent.sock").symlink_to(folder / "real.sock")
        with pytest.raises(ConfigError, match="not a socket"):
            connect(str(folder / "agent.sock"))


def test_socket_in_a_folder_that_all_can_write_is_refused(folder: Path) -> None:
    with contextlib.closing(listen(folder / "agent.sock")):
        folder.chmod(0o777)
        with pytest.raises(ConfigError, match="every user can write"):
            connect(str(folder / "agent.sock"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_socket_of_another_user_is_refused(folder: Path) -> None:
    with contextlib.closing(listen(folder / "agent.sock")):
        os.chown(folder / "agent.sock", 65534, 65534)
        with pytest.raises(ConfigError, match="owned by another user"):
            connect(str(folder / "agent.sock"))


def test_path_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceeds"):
        check_socket_path("/" + "x" * 200)


def test_socket_nobody_listens_at_is_a_link_error(folder: Path) -> None:
    listen(folder / "agent.sock").close()
    assert stat.S_ISSOCK((folder / "agent.sock").stat().st_mode)
    with pytest.raises(LinkError, match="no agent listens"):
        connect(str(folder / "agent.sock"))
