"""The controller's process: one event loop that composes all of it.

Every controller, leader or standby, follows the store (``Mirror``), stands in the election and
answers operators.  While it leads there is a ``Term``; agents are taken only then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, replace

from cluster.admin.reader import Reader
from cluster.admin.service import AdminService
from cluster.admin.watch import EVENT, Watches
from cluster.admin.writer import Writer
from cluster.config import ControllerConfig
from cluster.controller.changes import Changes
from cluster.controller.election_thread import ElectionThread
from cluster.controller.mirror import Mirror, Seen
from cluster.controller.servers import Health, admin_server, agent_server, listen
from cluster.controller.sessions import AgentSessions
from cluster.controller.term import Term, TermSettings, WallClock, history_lost_event
from cluster.election import Following, Leading, Role
from cluster.metrics import ControllerMetrics
from cluster.records import CLUSTER
from cluster.rpc.guard import Guard
from cluster.rpc.limits import RateLimit
from cluster.security import watch_tokens
from cluster.store.port import Position, Store
from cluster.store.redis_store import RedisStore
from cluster.tracing import Tracing
from mirage_core.cluster_model import Event
from mirage_core.errors import HistoryLostError, OutOfRangeError, ProtocolError, StoreError
from mirage_core.ports import Clock
from mirage_core.wire import cluster_codec
from mirage_core.wire.v1 import common_pb2

_log = logging.getLogger("mirage.controller")

_EVENTS_KEPT = 2000
_RETRY_S = 0.5
_CHECK_S = 60.0
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where operators and agents reach a controller; as one text in the leader's lease."""

    admin: str
    agents: str

    def encode(self) -> str:
        return f"{self.admin},{self.agents}"

    @classmethod
    def parse(cls, text: str | None) -> Addresses:
        admin, _, agents = (text or "").partition(",")
        return cls(admin, agents)


class Controller:
    """``start``, then ``run`` until cancelled, then ``stop``."""

    def __init__(
        self, config: ControllerConfig, store: Store, clock: Clock, wall: WallClock, holder: str
    ) -> None:
        """``holder``: this process's life, never used again.

        Raises ConfigError if a token file or certificate cannot be read.
        """
        self.config = config
        self._store = store
        self._clock = clock
        self._wall = wall
        self._holder = holder
        self.metrics = ControllerMetrics()
        self._tracing = Tracing.to(config.otlp_endpoint, holder)
        self.mirror = Mirror(store, self._see_wishes, self._see_position)
        self._changes = Changes(_EVENTS_KEPT)
        self._events: OrderedDict[int, Event] = OrderedDict()
        self._weaknesses: tuple[str, ...] = ()
        self._election: ElectionThread | None = None
        self._role_changed = asyncio.Event()
        self.term: Term | None = None
        self._health = Health()
        limits = config.limits
        self.sessions = AgentSessions(
            clock,
            heartbeat_s=config.heartbeat_s,
            agents=limits.agents,
            messages_per_s=limits.agent_messages_per_s,
            role=self._role,
            leader_address=lambda: self.leader().agents,
            bind_certificates=config.agent_tls is not None
            and config.agent_tls.client_ca is not None,
        )
        self.metrics.watch_sessions(self.sessions.counters)
        admin_leader = self._admin_leader
        reader = Reader(
            self.mirror, self._leading_term, clock, wall, lambda: self._weaknesses, admin_leader
        )
        writer = Writer(store, self.mirror, self._leading_term, admin_leader, wall)
        watches = Watches(
            reader, self._changes, self.mirror, self._events.get, clock, limits.watches
        )
        service = AdminService(reader, writer, watches, store, self._leading_term, admin_leader)
        guard = Guard(
            tokens=watch_tokens(config.tokens) if config.tokens is not None else None,
            rate=RateLimit(limits.calls_per_s, limits.calls_burst),
            call_s=limits.call_s,
            clock=clock,
            metrics=self.metrics,
            tracing=self._tracing,
            leader_address=admin_leader,
        )
        self._admin = admin_server(service, guard, self._health, limits.message_bytes)
        self._agents = agent_server(self.sessions, limits.message_bytes)
        self.addresses = Addresses("", "")

    # ---- life

    async def start(self) -> None:
        """Open the store and the ports.  Raises ConfigError and StoreError."""
        config = self.config
        await self._store.open()
        self._weaknesses = (await self._store.durability()).weaknesses
        admin_port = listen(self._admin, config.admin_listen, config.admin_tls, "admin_listen")
        agent_port = listen(self._agents, config.agent_listen, config.agent_tls, "agent_listen")
        self.addresses = Addresses(
            config.admin_address or _with_port(config.admin_listen, admin_port),
            config.agent_address or _with_port(config.agent_listen, agent_port),
        )
        self._election = ElectionThread(
            RedisStore(config.store),
            self._clock,
            holder=self._holder,
            address=self.addresses.encode(),
            timing=config.timing(),
            attended=lambda: self.sessions.waiting > 0,
            on_change=self._see_role,
            history_lost_event=self._history_lost_event,
            on_history_lost=self._adopt_history,
        )
        if config.metrics_port is not None:
            self.metrics.serve(config.metrics_port)
        await self._health.start()
        await self._admin.start()
        await self._agents.start()
        _log.info("operators: %s, agents: %s", self.addresses.admin, self.addresses.agents)

    async def run(self) -> None:
        """Until cancelled; a task that fails ends the process, which is better than half of it."""
        assert self._election is not None, "start comes first"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.mirror.follow())
            tasks.create_task(self._election.run())
            tasks.create_task(self.sessions.watch_over())
            tasks.create_task(self._lead_when_elected())
            tasks.create_task(self._follow_events())
            tasks.create_task(self._check_forever())

    async def stop(self) -> None:
        self.sessions.end_all()
        await asyncio.gather(self._admin.stop(_GRACE_S), self._agents.stop(_GRACE_S))
        self._tracing.close()
        self.metrics.close()
        await self._store.close()

    # ---- leadership

    def leader(self) -> Addresses:
        """Empty addresses if no leader is known."""
        role = self._role()
        if isinstance(role, Leading):
            return self.addresses
        return Addresses.parse(role.leader)

    def _admin_leader(self) -> str:
        return self.leader().admin

    def _role(self) -> Role:
        return self._election.role if self._election is not None else Following(None)

    def _leads(self, epoch: int) -> bool:
        role = self._role()
        return isinstance(role, Leading) and role.fence.epoch == epoch

    def _leading_term(self) -> Term | None:
        return self.term if self.term is not None and self.term.leads() else None

    def _see_role(self, role: Role) -> None:
        self._role_changed.set()
        self.sessions.look_again()
        if self.term is not None and not self._leads(self.term.fence.epoch):
            self._end_term()

    def _end_term(self) -> None:
        if self.term is not None:
            self.term.end()
            self.term = None
            self.sessions.end_all()
            self.metrics.leading.set(0)

    async def _lead_when_elected(self) -> None:
        led = 0
        while True:
            await self._role_changed.wait()
            self._role_changed.clear()
            role = self._role()
            if not isinstance(role, Leading) or role.fence.epoch == led:
                continue
            led = role.fence.epoch
            try:
                await self._lead(role)
            except StoreError as error:
                _log.warning("the term of epoch %d is over: %s", led, error)
            finally:
                self._end_term()

    async def _lead(self, role: Leading) -> None:
        fence = role.fence
        lineage = await self._store.lineage()
        while self._leads(fence.epoch):
            try:
                async with asyncio.timeout(_RETRY_S):
                    await self.mirror.reached(Position(lineage.incarnation, fence.epoch))
                break
            except TimeoutError:
                continue
        if not self._leads(fence.epoch):
            return
        config = self.config
        self._changes.restart(self.mirror.position.revision if self.mirror.position else 0)
        term = Term(
            self._store,
            fence,
            lineage,
            self.mirror,
            self.sessions,
            self._changes,
            leads=lambda: self._leads(fence.epoch),
            clock=self._clock,
            wall=self._wall,
            settings=TermSettings(
                self._holder,
                self.addresses.agents,
                config.heartbeat_s,
                config.report_interval_s,
                config.flush_s,
                config.reconciler(),
            ),
            metrics=self.metrics,
            tracing=self._tracing,
        )
        self.term = term
        self.sessions.begin(term)
        self.metrics.leading.set(1)
        self.metrics.epoch.set(fence.epoch)
        await term.run()

    def _history_lost_event(self, error: HistoryLostError) -> bytes:
        return history_lost_event(str(error), self._wall.unix_s())

    async def _adopt_history(self) -> None:
        """The candidate has declared a new history; this loop's store is to know it too."""
        self._end_term()
        lineage = await self._store.declare_lost_history()
        _log.warning("history %s stands in place of what was lost", lineage.incarnation)

    # ---- what the store says

    def _see_wishes(self, wishes: list[Seen]) -> None:
        for seen in wishes:
            self._changes.touch(seen.kind, seen.name)
        self._changes.touch(CLUSTER, CLUSTER)
        if self.term is not None:
            self.term.take_wishes(wishes)

    def _see_position(self, position: Position) -> None:
        self._changes.see(position.revision)

    async def _follow_events(self) -> None:
        after: int | None = None
        while True:
            try:
                if after is None:
                    last = await self._store.last_events(1)
                    after = last[-1].sequence if last else 0
                async with aclosing(self._store.follow_events(after)) as stored:
                    async for each in stored:
                        after = each.sequence
                        self._keep_event(each.sequence, each.payload)
            except OutOfRangeError:
                after = None
            except StoreError:
                await asyncio.sleep(_RETRY_S)

    def _keep_event(self, sequence: int, payload: bytes) -> None:
        try:
            event = cluster_codec.decode_event(common_pb2.Event.FromString(payload))
        except ProtocolError as error:
            _log.error("event %d cannot be read: %s", sequence, error)
            return
        self._events[sequence] = replace(event, sequence=sequence)
        if len(self._events) > _EVENTS_KEPT:
            self._events.popitem(last=False)
        self._changes.touch(EVENT, str(sequence))

    async def _check_forever(self) -> None:
        """Readiness each half second; the store's durability each minute."""
        checked_s = self._clock.monotonic_s()
        while True:
            ready = self.mirror.position is not None and bool(self.leader().admin)
            await self._health.set_ready(ready)
            await asyncio.sleep(_RETRY_S)
            if self._clock.monotonic_s() - checked_s >= _CHECK_S:
                checked_s = self._clock.monotonic_s()
                try:
                    self._weaknesses = (await self._store.durability()).weaknesses
                except StoreError as error:
                    _log.warning("cannot check the store's durability: %s", error)


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
