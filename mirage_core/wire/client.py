"""An engine process's connection to its agent.

The worker uses it while the engine starts, and blocks: ``take``, ``open_host_copy``,
``host_copy_filled``.  Then both processes call ``start``: from then on a thread reads, writes what
would have blocked, and connects again after a loss, so that no step ever waits for the agent.

What a loss of the link means.  A message on a lost link may or may not have arrived, so nobody
tries to deliver it again: while the link is down, and until ``rejoin``, what is sent is dropped,
and ``rejoin`` then states everything that the engine holds.  The inbox keeps the order: whatever
the old agent granted comes before LinkLost, that before LinkRestored.  So a scheduler that handles
its inbox in order, from one thread, and on LinkRestored calls ``rejoin`` with what it holds at
that moment, then sends Describe, Report and any Ask anew, is always right.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from mirage_core.errors import ConfigError, LinkError, MisuseError, ProtocolError
from mirage_core.model import DeviceGeometry, Holdings, PageId
from mirage_core.wire import codec
from mirage_core.wire import messages as m
from mirage_core.wire.link import EngineLink, connect

_log = logging.getLogger("mirage.link")

HELLO_TIMEOUT_S = 30.0
TAKE_TIMEOUT_S = 120.0
"""An agent may first reclaim pages from running engines."""
HOST_COPY_TIMEOUT_S = 1800.0
"""Another engine may be reading the same weights from a slow disk."""
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
MAX_OUTBOX_MESSAGES = 1024
"""An agent that lets so many wait is hung: the link counts as lost."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The agent is gone or has closed the link; the engine keeps what it holds and goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """A link to an agent that must learn what this engine holds: call ``rejoin``."""

    welcome: m.Welcome


FromAgent: TypeAlias = m.AgentMessage | LinkLost | LinkRestored


class AgentClient:
    """One process's link to the agent at ``path``, opened with ``hello``.

    Construction connects and raises ConfigError (path, owner, version) or LinkError (no agent).
    ``send`` and ``rejoin`` may be called from any thread; the blocking calls only before
    ``start``.
    """

    def __init__(self, path: str, hello: m.Hello, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._path = path
        self._hello = hello
        self._request_id = 0
        link = _dial(path, hello, timeout_s)
        welcome, device_fd = _receive_welcome(link, path, timeout_s)
        self.welcome = welcome
        """What the agent said first: the device's geometry and the report interval."""
        self.inbox: queue.SimpleQueue[FromAgent] = queue.SimpleQueue()
        """What the agent sent since ``start``, in order, with losses of the link between."""
        self.disconnected = threading.Event()
        self._device_fd = device_fd
        self._lock = threading.Lock()
        """guards the four below"""
        self._link: EngineLink | None = link
        self._outbox: deque[bytes] = deque()
        self._dropping = False
        """until ``rejoin``"""
        self._overflowed = False
        self._wake: Callable[[], None] = lambda: None
        self._closed = threading.Event()
        self._poke_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    # ---- while the engine starts

    @property
    def geometry(self) -> DeviceGeometry:
        return self.welcome.device

    def take_device_fd(self) -> int:
        """The device's memory file, once; it is then the caller's to close."""
        if self._device_fd is None:
            raise MisuseError("the device's descriptor was taken already, or never came")
        fd, self._device_fd = self._device_fd, None
        return fd

    def take(self, pages: int, timeout_s: float = TAKE_TIMEOUT_S) -> tuple[PageId, ...] | m.Denied:
        """``pages`` pages for the weights and the first granules, or why not: all or nothing."""
        self._request_id += 1
        link = self._blocking_link()
        link.send(m.Take(self._request_id, pages))
        answer, fd = _receive(link, timeout_s)
        _discard(fd)
        if isinstance(answer, m.Denied):
            return answer
        if not isinstance(answer, m.Granted) or answer.request_id != self._request_id:
            raise _out_of_place(answer)
        if len(answer.pages) != pages:
            raise ProtocolError(f"took {pages} pages, the agent gave {len(answer.pages)}")
        return answer.pages

    def open_host_copy(
        self, weights_digest: str, size_bytes: int, timeout_s: float = HOST_COPY_TIMEOUT_S
    ) -> int | None:
        """The memory file of the model's sealed host copy, the caller's to close.

        None: it is this engine's to fill, and to hand over by ``host_copy_filled``.  Waits while
        another engine fills it.
        """
        link = self._blocking_link()
        link.send(m.OpenHostCopy(weights_digest, size_bytes))
        answer, fd = _receive(link, timeout_s)
        if not isinstance(answer, m.HostCopy) or answer.weights_digest != weights_digest:
            _discard(fd)
            raise _out_of_place(answer)
        if (fd is not None) != (answer.state is m.HostCopyState.READY):
            _discard(fd)
            raise ProtocolError("a host copy comes with its memory file once it is ready")
        return fd

    def host_copy_filled(self, weights_digest: str, fd: int) -> None:
        """Share the sealed memory file ``fd`` (which stays the caller's) with other engines."""
        self._blocking_link().send(m.HostCopyFilled(weights_digest), fd)

    # ---- from then on

    def start(self, wake: Callable[[], None] = lambda: None) -> None:
        """Read in a thread from now on; ``wake`` is called there after each item of ``inbox``.

        If the agent's first Welcome asked for it, LinkRestored is the first item.
        """
        if self._thread is not None:
            raise MisuseError("the client was started already")
        self._wake = wake
        if self.welcome.rejoin:
            self._dropping = True
            self._deliver(LinkRestored(self.welcome))
        self._thread = threading.Thread(target=self._run, name="mirage-link", daemon=True)
        self._thread.start()

    def send(self, message: m.EngineMessage) -> bool:
        """Send or keep for sending, never wait; False if it was dropped.

        Dropped are all messages while the link is down or not yet rejoined, and Reports while
        the agent is slow to read (the next one says more).
        """
        with self._lock:
            if self._link is None or self._dropping:
                return False
            packet = codec.encode_engine_message(message)
            if not self._outbox and self._try_send(self._link, packet):
                return True
            if isinstance(message, m.Report):
                return False
            if len(self._outbox) >= MAX_OUTBOX_MESSAGES:
                self._overflowed = True
            else:
                self._outbox.append(packet)
        self._poke()
        return not self._overflowed

    def rejoin(self, holdings: Holdings, device_fd: int) -> bool:
        """Answer LinkRestored: all that this engine holds, and the device's memory file.

        False if the link was lost again: another LinkRestored will come.
        """
        message = m.Rejoin(self.welcome.device, holdings)
        with self._lock:
            if self._link is None or not self._dropping:
                return False
            # Nothing was sent on this link but Hello, so the packet finds an empty buffer.
            if not self._try_send(self._link, codec.encode_engine_message(message), device_fd):
                return False
            self._dropping = False
        return True

    def close(self) -> None:
        """End the link and the thread.  To the agent the engine lives until its worker ends."""
        self._closed.set()
        self._poke()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            if self._link is not None:
                self._link.close()
            self._link = None
        _discard(self._device_fd)
        self._device_fd = None
        if self._poke_fd >= 0:
            os.close(self._poke_fd)
            self._poke_fd = -1

    # ---- blocking calls

    def _blocking_link(self) -> EngineLink:
        if self._thread is not None or self._link is None:
            raise MisuseError("blocking calls are for before start()")
        return self._link

    # ---- the thread

    def _run(self) -> None:
        backoff_s = MIN_BACKOFF_S
        while not self._closed.is_set():
            link = self._link
            if link is None:
                self._closed.wait(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                self._reconnect()
                continue
            started_s = time.monotonic()
            reason = self._serve(link)
            if time.monotonic() - started_s > MAX_BACKOFF_S:
                backoff_s = MIN_BACKOFF_S
            if reason is not None:
                self._lose(link, reason)

    def _serve(self, link: EngineLink) -> str | None:
        """Read and write until the link is lost (return why) or the client is closed (None)."""
        link.settimeout(0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._poke_fd, selectors.EVENT_READ)
            selector.register(link.fileno(), selectors.EVENT_READ)
            while not self._closed.is_set():
                with self._lock:
                    try:
                        waiting = self._flush(link)
                    except LinkError as error:
                        return str(error)
                    if self._overflowed:
                        return f"the agent left {MAX_OUTBOX_MESSAGES} messages unread"
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
                selector.modify(link.fileno(), events)
                selector.select()
                self._drain_pokes()
                reason = self._read(link)
                if reason is not None:
                    return reason
        return None

    def _read(self, link: EngineLink) -> str | None:
        """Deliver what has come; return why if the link is lost."""
        while True:
            try:
                message, fd = link.receive()
            except BlockingIOError:
                return None
            except LinkError as error:
                return str(error)
            _discard(fd)
            if isinstance(message, m.Error):
                return f"the agent refused: {message.message}"
            self._deliver(message)

    def _flush(self, link: EngineLink) -> bool:
        """Send what waits; whether some of it must wait on."""
        while self._outbox:
            if not self._try_send(link, self._outbox[0]):
                return True
            self._outbox.popleft()
        return False

    def _try_send(self, link: EngineLink, packet: bytes, fd: int | None = None) -> bool:
        """False if it would block.  A link found dead counts as sent: the thread will notice."""
        try:
            link.send_packet(packet, fd)
        except (BlockingIOError, TimeoutError):
            return False
        except LinkError:
            self._poke()
        return True

    def _lose(self, link: EngineLink, reason: str) -> None:
        with self._lock:
            self._link = None
            self._outbox.clear()
            self._overflowed = False
            link.close()
        self.disconnected.set()
        _log.warning("agent at %s lost: %s", self._path, reason)
        self._deliver(LinkLost(reason))

    def _reconnect(self) -> None:
        try:
            link = _dial(self._path, self._hello, HELLO_TIMEOUT_S)
            if not self._wait_readable(link, HELLO_TIMEOUT_S):
                link.close()
                return
            welcome, fd = _receive_welcome(link, self._path, HELLO_TIMEOUT_S)
        except (LinkError, ConfigError) as error:
            _log.debug("agent at %s: %s", self._path, error)
            return
        _discard(fd)
        if welcome.device != self.welcome.device:
            link.close()
            _log.error(
                "the agent at %s now has device %s, this engine holds pages of %s: start the"
                " agent with its state folder, or start the engine again",
                self._path,
                welcome.device,
                self.welcome.device,
            )
            return
        with self._lock:
            link.settimeout(0)
            self._link = link
            self._dropping = self._hello.role is m.Role.SCHEDULER
        self.disconnected.clear()
        _log.info("agent at %s restored, incarnation %s", self._path, welcome.agent_incarnation)
        self._deliver(LinkRestored(welcome))

    def _wait_readable(self, link: EngineLink, timeout_s: float) -> bool:
        """Whether the agent answered in time; False at once when the client is closed."""
        deadline_s = time.monotonic() + timeout_s
        while not self._closed.is_set():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            ready, _, _ = select.select([link.fileno(), self._poke_fd], [], [], left_s)
            if link.fileno() in ready:
                return True
            self._drain_pokes()
        return False

    def _drain_pokes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._poke_fd)

    def _deliver(self, item: FromAgent) -> None:
        self.inbox.put(item)
        self._wake()

    def _poke(self) -> None:
        if self._poke_fd >= 0:
            os.eventfd_write(self._poke_fd, 1)


def _dial(path: str, hello: m.Hello, timeout_s: float) -> EngineLink:
    """Connect and say hello."""
    link = connect(path, timeout_s)
    try:
        link.send(hello)
    except BaseException:
        link.close()
        raise
    return link


def _receive_welcome(link: EngineLink, path: str, timeout_s: float) -> tuple[m.Welcome, int | None]:
    """The answer to hello; its descriptor may be absent only if the agent asks to rejoin.

    On any error the link is closed.
    """
    try:
        welcome, fd = _receive(link, timeout_s)
        if not isinstance(welcome, m.Welcome):
            _discard(fd)
            raise _out_of_place(welcome)
        if welcome.protocol_version != m.PROTOCOL_VERSION or (fd is None and not welcome.rejoin):
            _discard(fd)
            raise ProtocolError(
                f"the agent at {path} speaks protocol {welcome.protocol_version}, this engine"
                f" {m.PROTOCOL_VERSION}, or it sent no device: upgrade both together"
            )
    except BaseException:
        link.close()
        raise
    return welcome, fd


def _receive(link: EngineLink, timeout_s: float) -> tuple[m.AgentMessage, int | None]:
    """The next message, unless it is an Error: that raises."""
    link.settimeout(timeout_s)
    try:
        message, fd = link.receive()
    except TimeoutError:
        raise LinkError(f"the agent did not answer within {timeout_s:g} s") from None
    if isinstance(message, m.Error):
        _discard(fd)
        raise _error_of(message)
    return message, fd


def _error_of(error: m.Error) -> ConfigError | LinkError:
    if error.code is m.ErrorCode.VERSION:
        return ConfigError(error.message)
    return LinkError(f"the agent refused: {error.message}")


def _out_of_place(message: m.AgentMessage) -> ProtocolError:
    return ProtocolError(f"the agent sent {type(message).__name__} out of place")


def _discard(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
