"""The agent's loop: one thread, one selector, one arbiter.

It carries packets to the arbiter and the arbiter's actions to engines, and knows nothing of
policy.  Three facts it must get right by itself:

- an engine is dead when its worker process is (its pidfd says so), never when a socket closes:
  a live process may still touch its pages;
- an engine is written to the state file before it can get a page, so that a restarted agent knows
  whom to wait for;
- after such a restart the device is the memory file that the first of them brings back; every
  other engine must bring the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from opentelemetry import trace

from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    DirectiveBody,
    NodeName,
    Severity,
)
from mirage_core.control.arbiter_events import (
    Action,
    Directed,
    EngineDied,
    Event,
    Explain,
    Linked,
    Received,
    Tick,
    Unlinked,
)
from mirage_core.control.directed import directions_of
from mirage_core.errors import (
    ConfigError,
    DeviceError,
    LinkError,
    MisuseError,
    OwnershipError,
    ProtocolError,
)
from mirage_core.memory.host import HostDevice
from mirage_core.memory.identity import load_or_create_device_id
from mirage_core.model import DeviceGeometry, EngineId, ModelName
from mirage_core.ports import Clock
from mirage_core.wire import codec
from mirage_core.wire import messages as m
from mirage_core.wire.link import AgentLink, agent_link, open_peer_pidfd
from node_agent.config import AgentConfig
from node_agent.directives_file import DirectivesFile
from node_agent.event_log import Beginning, EventLog
from node_agent.host_copies import HostCopies, HostCopyAnswer
from node_agent.journal import JsonLines, Timeline
from node_agent.listener import listen, lock_folder, prepare_private_folder
from node_agent.metrics import Metrics
from node_agent.processes import ProcessId, observe_boot_id, observe_process, open_process
from node_agent.state import AgentState, RecordedDevice, RecordedEngine, load_state, save_state
from node_agent.uplink_thread import CAPABILITIES, UplinkThread

_log = logging.getLogger("mirage.agent")

TICK_S = 0.1
HELLO_PATIENCE_S = 10.0
"""A peer that connects and says nothing for so long is sent away."""
MAX_PEERS = 1024
MAX_OUTBOX_MESSAGES = 4096
"""An engine that lets so many wait is hung: its link is closed, its pages stay its own."""
_MAX_READS = 64
"""Packets read from one peer before the others have their turn."""

_WORKER_MESSAGES = (m.Take, m.OpenHostCopy, m.HostCopyFilled)
_SCHEDULER_MESSAGES = (m.Describe, m.Report, m.Ask, m.Done, m.Refused, m.Rejoin, m.GiveBack)


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection; ``hello`` is None until it has introduced itself."""

    link: AgentLink
    process: ProcessId
    pidfd: int
    since_s: float
    hello: m.Hello | None = None
    welcomed: bool = False
    outbox: deque[tuple[bytes, int | None]] = field(default_factory=deque)
    closed: bool = False


@dataclass(slots=True)
class _Engine:
    """What the loop knows of an engine; ``worker_pidfd`` is watched until it ends."""

    model: ModelName
    worker: ProcessId | None = None
    worker_pidfd: int | None = None
    peers: dict[m.Role, _Peer] = field(default_factory=dict)


class Agent:
    """The agent of one host device; ``run`` serves until ``stop``, ``close`` lets go of all."""

    def __init__(self, config: AgentConfig, clock: Clock) -> None:
        """Raises ConfigError if the settings, the machine or another agent stand against it."""
        self._config = config
        self._clock = clock
        self._incarnation = uuid.uuid4().hex
        self._closers: list[Callable[[], None]] = []
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        config = self._config
        prepare_private_folder(config.state_dir, "state folder")
        lock = lock_folder(config.state_dir)
        self._closers.append(lambda: os.close(lock))
        self._boot_id = observe_boot_id()
        self._state_path = config.state_dir / "state.json"
        self._geometry = DeviceGeometry(
            load_or_create_device_id(config.state_dir / "device_id"),
            config.page_bytes,
            config.pages,
        )
        self._selector = selectors.DefaultSelector()
        self._closers.append(self._selector.close)
        self._engines: dict[EngineId, _Engine] = {}
        self._closers.append(self._close_engines)
        self._peers: set[_Peer] = set()
        self._host_copies = HostCopies()
        self._closers.append(self._host_copies.close)
        self._device: HostDevice | None = None
        self._closers.append(self._close_device)
        self._outgoing: deque[Action] = deque()
        self._sending = False
        awaited = self._find_survivors()
        beginning = Beginning(
            pages=self._geometry.pages,
            policy=config.policy(),
            awaited=awaited,
            # Above the ids of every earlier incarnation of this boot: none gives one a microsecond.
            first_operation=int(self._clock.monotonic_s() * 1e6) + 1,
        )
        self._open_journals(beginning)
        self._arbiter = beginning.make_arbiter()
        if awaited:
            _log.warning("waiting for %s to rejoin", ", ".join(sorted(awaited)))
        else:
            self._create_device()
        self._listener = listen(config.socket)
        self._closers.append(self._close_listener)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._stopping = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._closers += [self._wake_reader.close, self._wake_writer.close]
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wake)
        self._posted: deque[Callable[[], None]] = deque()
        self._said: dict[EngineId, m.Report] = {}
        self._uplink = self._open_uplink()
        _log.info(
            "device %s, %d pages of %d bytes, listening at %s",
            self._geometry.device,
            self._geometry.pages,
            self._geometry.page_bytes,
            config.socket,
        )

    def _open_uplink(self) -> UplinkThread | None:
        """The way to the cluster controller, if there is one."""
        settings = self._config.uplink
        if settings is None:
            return None
        hello = AgentHello(
            node=NodeName(settings.node),
            device=self._geometry.device,
            incarnation=AgentIncarnation(self._incarnation),
            page_bytes=self._geometry.page_bytes,
            pages=self._geometry.pages,
            host_link=settings.host_link or settings.node,
            capabilities=CAPABILITIES,
        )
        store = DirectivesFile(self._config.state_dir / "directives.json")
        uplink = UplinkThread(hello, settings, store, self._clock, self._post, self._direct)
        self._metrics.watch_uplink(uplink.uplink)
        self._closers.append(uplink.close)
        uplink.start()
        return uplink

    def _open_journals(self, beginning: Beginning) -> None:
        config = self._config
        self._timeline: Timeline | None = None
        self._event_log: EventLog | None = None
        self._metrics = Metrics(self._geometry)
        self._closers.append(self._metrics.close)
        if config.otlp_endpoint is not None:
            # Slow to import, and seldom wanted.
            from mirage_core.telemetry.span_export import otlp_exporter, span_provider

            exporter = otlp_exporter(config.otlp_endpoint)
            provider = span_provider(exporter, "mirage-agent", self._incarnation)
            trace.set_tracer_provider(provider)
            self._closers.append(provider.shutdown)
        if config.metrics_port is not None:
            self._metrics.serve(config.metrics_port)
        if config.timeline is not None:
            lines = JsonLines(config.timeline)
            self._closers.append(lines.close)
            self._timeline = Timeline(lines)
        if config.event_log is not None:
            lines = JsonLines(config.event_log)
            self._closers.append(lines.close)
            self._event_log = EventLog(lines, beginning, self._clock.monotonic_s())

    # ---- life

    def run(self) -> None:
        """Serve until ``stop``."""
        next_tick_s = self._clock.monotonic_s()
        while not self._stopping:
            timeout_s = max(0.0, next_tick_s - self._clock.monotonic_s())
            for key, mask in self._selector.select(timeout_s):
                key.data(mask)
            if self._clock.monotonic_s() >= next_tick_s:
                next_tick_s = self._clock.monotonic_s() + TICK_S
                self._tick()

    def stop(self, *_: int | FrameType | None) -> None:
        """Let ``run`` return; safe in a signal handler."""
        self._stopping = True
        self._wake()

    def _post(self, call: Callable[[], None]) -> None:
        """Let the loop run ``call``; safe in any thread."""
        self._posted.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake already
            self._wake_writer.send(b"\0")

    def install_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

    def close(self) -> None:
        """Let go of everything.  Engines keep what they hold and wait for the next agent."""
        while self._closers:
            self._closers.pop()()

    def _drain_wake(self, _: int) -> None:
        self._wake_reader.recv(4096)
        while self._posted:
            self._posted.popleft()()

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        for peer in [p for p in self._peers if p.hello is None]:
            if now_s - peer.since_s > HELLO_PATIENCE_S:
                self._drop(peer, "said no hello")
        self._handle(Tick())
        summary = self._arbiter.summary(now_s)
        self._metrics.observe(summary, self._arbiter.counters)
        if self._uplink is not None:
            self._uplink.observe(summary, self._said)

    # ---- the device, and what an earlier agent left behind

    def _find_survivors(self) -> dict[EngineId, ModelName]:
        """Engines of an earlier agent whose workers are alive, and so hold pages."""
        state = load_state(self._state_path)
        if state is None or state.boot_id != self._boot_id:
            return {}
        for name, recorded in state.engines.items():
            pidfd = open_process(recorded.worker)
            if pidfd is not None:
                engine = _Engine(ModelName(recorded.model))
                self._engines[EngineId(name)] = engine
                self._watch_worker(EngineId(name), engine, recorded.worker, pidfd)
        if self._engines and state.device.geometry != self._geometry:
            raise ConfigError(
                f"{', '.join(sorted(self._engines))} hold pages of {state.device.geometry}:"
                f" start the agent with that size, or end them first (now {self._geometry})"
            )
        return {name: engine.model for name, engine in self._engines.items()}

    def _create_device(self) -> None:
        self._device = HostDevice.create(self._geometry)
        self._save_state()
        self._welcome_waiting()

    def _welcome_waiting(self) -> None:
        """The device is known: engines that came while it was not may have it."""
        for peer in [p for p in self._peers if p.hello is not None and not p.welcomed]:
            self._welcome(peer, rejoin=False)

    def _adopt_device(self, rejoin: m.Rejoin, fd: int) -> None:
        """The memory file that an engine brings is this device, or ProtocolError."""
        if rejoin.device != self._geometry:
            raise ProtocolError(f"rejoins with device {rejoin.device}, not {self._geometry}")
        if self._device is None:
            device = HostDevice.open(fd, self._geometry.device, self._geometry.page_bytes)
            if device.geometry != self._geometry:
                device.close()
                raise ProtocolError(f"the memory file is of {device.geometry}")
            self._device = device
            _log.info("device %s adopted", self._geometry.device)
            self._welcome_waiting()
        elif not os.path.sameopenfile(fd, self._device.fd):
            raise ProtocolError("the memory file is not that of this agent's device")

    def _save_state(self) -> None:
        save_state(
            self._state_path,
            AgentState(
                boot_id=self._boot_id,
                device=RecordedDevice.of(self._geometry),
                engines={
                    name: RecordedEngine(
                        model=engine.model,
                        worker_pid=engine.worker.pid,
                        worker_start_ticks=engine.worker.start_ticks,
                    )
                    for name, engine in self._engines.items()
                    if engine.worker is not None
                },
            ),
        )

    # ---- connections

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            sock.setblocking(False)
            link = agent_link(sock, self._geometry.pages)
            credentials = link.peer()
            if credentials.uid != os.getuid():
                raise LinkError(f"a process of user {credentials.uid} may not connect")
            if len(self._peers) >= MAX_PEERS:
                raise LinkError(f"more than {MAX_PEERS} connections")
            process = observe_process(credentials.pid)
            if process is None:
                raise LinkError(
                    f"process {credentials.pid} is not to be seen: run agent and engines in one"
                    " pid namespace"
                )
            pidfd = open_peer_pidfd(sock)
        except (LinkError, OSError) as error:
            _log.warning("connection refused: %s", error)
            sock.close()
            return
        peer = _Peer(link, process, pidfd, self._clock.monotonic_s())
        self._peers.add(peer)
        self._selector.register(
            link.fileno(), selectors.EVENT_READ, lambda mask: self._serve(peer, mask)
        )

    def _serve(self, peer: _Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(peer)
        for _ in range(_MAX_READS):
            if peer.closed:
                return
            try:
                message, fd = peer.link.receive()
            except BlockingIOError:
                return
            except ProtocolError as error:
                self._refuse(peer, m.ErrorCode.PROTOCOL, str(error))
                return
            except LinkError as error:
                self._drop(peer, str(error))
                return
            self._take_in(peer, message, fd)

    def _take_in(self, peer: _Peer, message: m.EngineMessage, fd: int | None) -> None:
        """Act on one message; a fault of the engine costs it its link, never its pages."""
        try:
            if peer.hello is None:
                self._greet(peer, message)
            else:
                fd = self._dispatch(peer, peer.hello, message, fd)
        except OwnershipError as error:
            self._refuse(peer, m.ErrorCode.OWNERSHIP, str(error))
        except (ProtocolError, MisuseError) as error:
            self._refuse(peer, m.ErrorCode.PROTOCOL, str(error))
        finally:
            if fd is not None:
                os.close(fd)

    def _greet(self, peer: _Peer, hello: m.EngineMessage) -> None:
        if not isinstance(hello, m.Hello):
            raise ProtocolError(f"{type(hello).__name__} before Hello")
        if hello.protocol_version != m.PROTOCOL_VERSION:
            self._refuse(
                peer,
                m.ErrorCode.VERSION,
                f"the engine speaks protocol {hello.protocol_version}, the agent"
                f" {m.PROTOCOL_VERSION}: upgrade both together",
            )
            return
        engine = self._engines.get(hello.engine)
        if engine is not None:
            self._require_same_engine(peer, hello, engine)
        else:
            engine = self._engines[hello.engine] = _Engine(hello.model)
        peer.hello = hello
        older = engine.peers.get(hello.role)
        if older is not None:
            self._drop(older, "connected anew")
        engine.peers[hello.role] = peer
        if hello.role is m.Role.WORKER and engine.worker is None:
            self._watch_worker(hello.engine, engine, peer.process, os.dup(peer.pidfd))
            self._save_state()
        rejoin = hello.role is m.Role.SCHEDULER and self._arbiter.must_rejoin(hello.engine)
        if self._device is not None or rejoin:
            self._welcome(peer, rejoin)
        # Otherwise it is welcomed once the device is known again.
        self._handle(Linked(hello.engine, hello.model, hello.role))
        _log.info("%s of %s (%s) connected", hello.role.value, hello.engine, hello.model)

    def _require_same_engine(self, peer: _Peer, hello: m.Hello, engine: _Engine) -> None:
        """An engine's name belongs to its processes for as long as they live."""
        if engine.model != hello.model:
            raise ProtocolError(f"engine {hello.engine} runs {engine.model}, not {hello.model}")
        known = engine.worker if hello.role is m.Role.WORKER else None
        older = engine.peers.get(hello.role)
        if older is not None:
            known = older.process
        if known is not None and known != peer.process:
            raise ProtocolError(
                f"engine {hello.engine} has a {hello.role.value} already, process {known.pid}"
            )

    def _welcome(self, peer: _Peer, rejoin: bool) -> None:
        peer.welcomed = True
        welcome = m.Welcome(
            self._incarnation, self._geometry, self._config.report_interval_s, rejoin
        )
        self._send(peer, welcome, self._device.fd if self._device is not None else None)

    def _dispatch(
        self, peer: _Peer, hello: m.Hello, message: m.EngineMessage, fd: int | None
    ) -> int | None:
        """Act on a message after Hello; the descriptor if it is not kept."""
        allowed = _WORKER_MESSAGES if hello.role is m.Role.WORKER else _SCHEDULER_MESSAGES
        if not isinstance(message, allowed):
            raise ProtocolError(f"{type(message).__name__} of a {hello.role.value}")
        if not peer.welcomed:
            raise ProtocolError(f"{type(message).__name__} before Welcome")
        match message:
            case m.OpenHostCopy():
                answer = self._host_copies.open(
                    hello.engine, message.weights_digest, message.size_bytes
                )
                self._answer_host_copies([answer] if answer is not None else [])
            case m.HostCopyFilled():
                answers = self._host_copies.filled(hello.engine, message.weights_digest, fd)
                self._answer_host_copies(answers)
                return None
            case m.Rejoin():
                self._rejoin(peer, hello, message, fd)
            case _:
                if isinstance(message, m.Ask):
                    now_s = self._clock.monotonic_s()
                    self._metrics.observe_ask(hello.engine, message.request_id, now_s)
                elif isinstance(message, m.Report):
                    self._metrics.observe_report(hello.engine, message)
                    self._said[hello.engine] = message
                elif isinstance(message, m.Describe):
                    self._tell("EngineReady", f"{hello.engine} of {hello.model} serves")
                self._handle(Received(hello.engine, message))
        return fd

    def _rejoin(self, peer: _Peer, hello: m.Hello, rejoin: m.Rejoin, fd: int | None) -> None:
        if fd is None:
            raise ProtocolError("Rejoin without the device's memory file")
        if self._engines[hello.engine].worker is None:
            raise ProtocolError(
                f"the worker of {hello.engine} is not known: its end would be missed"
            )
        try:
            self._adopt_device(rejoin, fd)
        except (ProtocolError, DeviceError) as error:
            self._refuse(peer, m.ErrorCode.DEVICE_MISMATCH, str(error))
            return
        self._handle(Received(hello.engine, rejoin))
        _log.info("%s rejoined with %d pages", hello.engine, len(rejoin.holdings.all()))

    def _answer_host_copies(self, answers: list[HostCopyAnswer]) -> None:
        for answer in answers:
            peer = self._peer_of(answer.engine, m.Role.WORKER)
            if peer is not None:
                self._send(peer, answer.message, answer.fd)

    # ---- sending

    def _send(self, peer: _Peer, message: m.AgentMessage, fd: int | None = None) -> None:
        packet = codec.encode_agent_message(message)
        peer.outbox.append((packet, fd))
        if len(peer.outbox) > MAX_OUTBOX_MESSAGES:
            self._drop(peer, f"left {MAX_OUTBOX_MESSAGES} messages unread")
        elif len(peer.outbox) == 1:
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        if peer.closed:
            return
        try:
            while peer.outbox:
                packet, fd = peer.outbox[0]
                peer.link.send_packet(packet, fd)
                peer.outbox.popleft()
        except BlockingIOError:
            pass
        except LinkError as error:
            self._drop(peer, str(error))
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outbox else 0)
        key = self._selector.get_key(peer.link.fileno())
        if key.events != events:
            self._selector.modify(peer.link.fileno(), events, key.data)

    def _refuse(self, peer: _Peer, code: m.ErrorCode, reason: str) -> None:
        """Tell the engine what is wrong with what it sent, and close the link."""
        if not peer.closed:
            self._send(peer, m.Error(code, reason))
        self._drop(peer, reason)

    def _drop(self, peer: _Peer, reason: str) -> None:
        if peer.closed:
            return
        peer.closed = True
        self._selector.unregister(peer.link.fileno())
        peer.link.close()
        os.close(peer.pidfd)
        self._peers.discard(peer)
        hello = peer.hello
        _log.info(
            "link of %s closed: %s",
            f"{hello.role.value} {hello.engine}" if hello else f"process {peer.process.pid}",
            reason,
        )
        if hello is None:
            return
        engine = self._engines.get(hello.engine)
        if engine is not None and engine.peers.get(hello.role) is peer:
            del engine.peers[hello.role]
            self._handle(Unlinked(hello.engine, hello.role))
            if engine.worker is None and not engine.peers:
                # Its worker was never seen: it holds no page.
                del self._engines[hello.engine]
                self._handle(EngineDied(hello.engine))

    def _peer_of(self, engine: EngineId, role: m.Role) -> _Peer | None:
        known = self._engines.get(engine)
        return known.peers.get(role) if known is not None else None

    # ---- processes

    def _watch_worker(self, name: EngineId, engine: _Engine, worker: ProcessId, pidfd: int) -> None:
        engine.worker, engine.worker_pidfd = worker, pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _: self._bury(name))

    def _bury(self, name: EngineId) -> None:
        """The worker has ended, and with it every mapping of the engine's pages."""
        engine = self._engines.pop(name)
        if engine.worker_pidfd is not None:
            self._selector.unregister(engine.worker_pidfd)
            os.close(engine.worker_pidfd)
        _log.warning("engine %s (%s) has died", name, engine.model)
        self._said.pop(name, None)
        self._tell("EngineDied", f"{name} of {engine.model} has ended", Severity.WARNING)
        for peer in list(engine.peers.values()):
            self._drop(peer, "the engine's worker has ended")
        self._metrics.forget_engine(name)
        self._answer_host_copies(self._host_copies.forget_engine(name))
        self._handle(EngineDied(name))
        if self._device is None and not self._arbiter.awaited:
            # Nobody is left who has the old memory file.
            self._create_device()
        else:
            self._save_state()

    # ---- the arbiter

    def _handle(self, event: Event) -> None:
        """Let the arbiter take in an event, and carry out what follows, in order.

        Sending may lose a link, which is an event too: its actions then come after these.
        """
        now_s = self._clock.monotonic_s()
        actions = self._arbiter.handle(event, now_s)
        if self._event_log is not None:
            self._event_log.observe_event(event, now_s)
        self._outgoing.extend(actions)
        if not self._sending:
            self._sending = True
            try:
                while self._outgoing:
                    self._carry_out(self._outgoing.popleft(), now_s)
            finally:
                self._sending = False
        if self._timeline is not None:
            self._timeline.observe(self._arbiter.summary(now_s), now_s)

    def _direct(self, bodies: tuple[DirectiveBody, ...], traceparent: str) -> None:
        self._handle(Directed(directions_of(bodies, self._geometry.page_bytes), traceparent))

    def _tell(self, kind: str, message: str, severity: Severity = Severity.INFO) -> None:
        """An event for the cluster's operators."""
        if self._uplink is not None:
            self._uplink.event(kind, message, severity)

    def _carry_out(self, action: Action, now_s: float) -> None:
        if isinstance(action, Explain):
            if self._uplink is not None:
                self._uplink.explain(action)
            if self._event_log is not None:
                self._event_log.observe_decision(action, now_s)
            return
        message = action.message
        if isinstance(message, m.Granted | m.Denied) and action.role is m.Role.SCHEDULER:
            self._metrics.observe_answer(action.engine, message.request_id, now_s)
        if isinstance(message, m.Denied):
            _log.info("%s denied: %s", action.engine, message.reason)
            if action.role is m.Role.WORKER:
                why = f"{action.engine} cannot start: {message.reason}"
                self._tell("StartDenied", why, Severity.WARNING)
        if isinstance(message, m.Shrink | m.ApplyPlan) and message.traceparent:
            _log.info(
                "%s is asked for %s, operation %d, as was directed",
                action.engine,
                type(message).__name__,
                message.operation,
                extra={"ids": {"traceparent": message.traceparent}},
            )
        peer = self._peer_of(action.engine, action.role)
        if peer is not None:
            # Without a link it is lost; the engine will say what it holds when it rejoins.
            self._send(peer, message)

    # ---- closing

    def _close_engines(self) -> None:
        for peer in list(self._peers):
            peer.closed = True
            peer.link.close()
            os.close(peer.pidfd)
        self._peers.clear()
        for engine in self._engines.values():
            if engine.worker_pidfd is not None:
                os.close(engine.worker_pidfd)
        self._engines.clear()

    def _close_device(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _close_listener(self) -> None:
        self._config.socket.unlink(missing_ok=True)
        self._listener.close()
