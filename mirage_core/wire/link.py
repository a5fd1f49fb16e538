"""A link: whole messages and single descriptors over a SOCK_SEQPACKET unix socket.

Descriptors are the trap here.  The kernel installs whatever a peer sent into our table as soon
as we read the packet, wanted or not, so every path of ``receive`` either hands the descriptor to
its caller or closes it.  Access rests on the file system and the kernel, not on the peer's word:
``connect`` looks at the socket's owner and folder before it connects, and both sides check the
peer's credentials.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mirage_core.errors import ConfigError, LinkError, ProtocolError
from mirage_core.wire import codec
from mirage_core.wire.messages import AgentMessage, EngineMessage

MAX_PACKET_BYTES = 1 << 20
_MAX_PATH_BYTES = 107
_SO_PEERPIDFD = 77
"""Linux 6.5; absent from Python 3.11's socket module."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33

_Out = TypeVar("_Out")
_In = TypeVar("_In")


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """Who connected, as the kernel saw it then."""

    pid: int
    uid: int


class SeqpacketLink(Generic[_Out, _In]):
    """One end of a link; it sends ``_Out`` and receives ``_In``.

    Blocking or not as its socket is: with a socket that does not block, ``send`` and ``receive``
    raise BlockingIOError; with a time limit they raise TimeoutError.
    """

    def __init__(
        self, sock: socket.socket, encode: Callable[[_Out], bytes], decode: Callable[[bytes], _In]
    ) -> None:
        if sock.type != socket.SOCK_SEQPACKET or sock.family != socket.AF_UNIX:
            raise ProtocolError("a link needs a SOCK_SEQPACKET unix socket")
        self._sock = sock
        self._encode = encode
        self._decode = decode
        self._buffer = bytearray(MAX_PACKET_BYTES)
        _grow_buffers(sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        self._sock.settimeout(timeout_s)

    def peer(self) -> PeerCredentials:
        return peer_credentials(self._sock)

    def send(self, message: _Out, fd: int | None = None) -> None:
        """Send one message, and beside it a descriptor that stays the caller's.

        Raises LinkError if the peer is gone or the message exceeds MAX_PACKET_BYTES.
        """
        self.send_packet(self._encode(message), fd)

    def send_packet(self, packet: bytes, fd: int | None = None) -> None:
        """``send`` for a message that is encoded already."""
        if len(packet) > MAX_PACKET_BYTES:
            raise LinkError(f"a message of {len(packet)} bytes, the limit is {MAX_PACKET_BYTES}")
        beside = []
        if fd is not None:
            beside.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])))
        try:
            self._sock.sendmsg([packet], beside, socket.MSG_NOSIGNAL)
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise LinkError(f"the peer is gone: {error}") from None

    def receive(self) -> tuple[_In, int | None]:
        """The next message and the descriptor beside it, which is then the caller's.

        Raises LinkError when the peer has closed, ProtocolError for a packet that is no message;
        after either the link is of no more use.
        """
        try:
            size, beside, flags, _ = self._sock.recvmsg_into(
                [self._buffer], socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise LinkError(f"the peer is gone: {error}") from None
        fds = _descriptors(beside)
        try:
            if flags & socket.MSG_CTRUNC or len(fds) > 1:
                raise ProtocolError("more descriptors than a message may carry")
            if flags & socket.MSG_TRUNC:
                raise ProtocolError(f"a message of more than {MAX_PACKET_BYTES} bytes")
            if size == 0:
                raise LinkError("the peer has closed the link")
            message = self._decode(bytes(memoryview(self._buffer)[:size]))
        except BaseException:
            close_all(fds)
            raise
        return message, fds[0] if fds else None

    def close(self) -> None:
        self._sock.close()


EngineLink = SeqpacketLink[EngineMessage, AgentMessage]
AgentLink = SeqpacketLink[AgentMessage, EngineMessage]


def engine_link(sock: socket.socket) -> EngineLink:
    """The engine's end over a connected socket."""
    return SeqpacketLink(sock, codec.encode_engine_message, codec.decode_agent_message)


def agent_link(sock: socket.socket, device_pages: int) -> AgentLink:
    """The end of the agent of a device with ``device_pages`` pages."""

    def decode(packet: bytes) -> EngineMessage:
        return codec.decode_engine_message(packet, device_pages)

    return SeqpacketLink(sock, codec.encode_agent_message, decode)


def connect(path: str, timeout_s: float | None = None) -> EngineLink:
    """A link to the agent that listens at ``path``.

    Raises ConfigError if the path is no socket of ours (or root's) in a folder that others may
    not write, LinkError if the agent does not answer.
    """
    check_socket_path(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if timeout_s is not None:
            _limit_connect(sock, timeout_s)
        try:
            sock.connect(path)
        except OSError as error:
            raise LinkError(
                f"no agent listens at {path} ({error}): start it with"
                f" `python -m node_agent --socket {path}`"
            ) from None
        uid = peer_credentials(sock).uid
        if uid not in (os.getuid(), 0):
            raise ConfigError(f"the agent at {path} runs as user {uid}, not as ours or root")
        sock.settimeout(timeout_s)
        return engine_link(sock)
    except BaseException:
        sock.close()
        raise


def check_socket_path(path: str) -> None:
    """ConfigError unless ``path`` is a socket that only we or root can have put there."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ConfigError(f"agent socket path exceeds {_MAX_PATH_BYTES} bytes: {path}")
    try:
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(
            f"agent socket {path} is absent ({error.strerror}): start the agent with"
            f" `python -m node_agent --socket {path}`"
        ) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"agent socket {path} is not a socket")
    if found.st_uid not in (os.getuid(), 0):
        raise ConfigError(f"agent socket {path} is owned by another user (uid {found.st_uid})")
    folder = os.path.dirname(os.path.abspath(path))
    if os.stat(folder).st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"agent socket {path} lies in a folder that every user can write:"
            " move it to one with mode 0700"
        )


def peer_credentials(sock: socket.socket) -> PeerCredentials:
    """SO_PEERCRED of a connected unix socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return PeerCredentials(pid, uid)


def open_peer_pidfd(sock: socket.socket) -> int:
    """A pidfd of the process that connected; LinkError if that process is dead already.

    SO_PEERPIDFD names the very process; before Linux 6.5 its pid could, in theory, be another's
    by now.
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    pid = peer_credentials(sock).pid
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise LinkError(f"process {pid} has ended: {error}") from None


def close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    fds: array.array[int] = array.array("i")
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def _limit_connect(sock: socket.socket, timeout_s: float) -> None:
    """Wait no longer than ``timeout_s`` for a place in the agent's queue.

    Python's own time limit makes the socket one that does not block, and then a full queue is an
    error at once.
    """
    whole_s = int(timeout_s)
    limit = struct.pack("ll", whole_s, int((timeout_s - whole_s) * 1e6) or 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _grow_buffers(sock: socket.socket) -> None:
    """Room for a largest packet; beyond the system's limit only root may, and may not need it."""
    for force, usual in (
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
    ):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, 2 * MAX_PACKET_BYTES)
        except OSError:
            sock.setsockopt(socket.SOL_SOCKET, usual, 2 * MAX_PACKET_BYTES)
