"""Any order of writes, retries, elections and reads, held against a dictionary."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cluster.store.port import (
    ABSENT,
    Change,
    Check,
    Delete,
    Fence,
    Operation,
    Position,
    Put,
    Request,
    Written,
)
from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from mirage_core.errors import FencedError, RequestReusedError, StaleRevisionError
from tests.contract.redis_deployments import embedded

T = TypeVar("T")

names = st.sampled_from(["a", "b", "c/1"])
kinds = st.sampled_from(["model", "device"])
guesses = st.sampled_from(["right", "any", "absent", "stale"])
payloads = st.binary(max_size=12)
changes = st.lists(
    st.tuples(kinds, names, guesses, st.one_of(st.none(), payloads, st.just("check"))),
    min_size=1,
    max_size=4,
    unique_by=lambda change: change[:2],
)


@dataclass
class Model:
    """What the store should hold: (kind, name) -> (revision, payload)."""

    revision: int = 0
    records: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    answers: dict[str, tuple[list[Operation], Written]] = field(default_factory=dict)
    epoch: int | None = None
    deposed: list[int] = field(default_factory=list)

    def at(self, key: tuple[str, str]) -> int:
        return self.records[key][0] if key in self.records else ABSENT

    def apply(self, operations: list[Operation]) -> None:
        self.revision += 1
        for each in operations:
            match each:
                case Put():
                    self.records[each.kind, each.name] = (self.revision, each.payload)
                case Delete():
                    self.records.pop((each.kind, each.name), None)


class StoreMachine(RuleBasedStateMachine):
    runner: ClassVar[asyncio.Runner]
    server: ClassVar[StoreSettings]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.requests = 0
        self.store = RedisStore(self.server.model_copy(update={"cluster": uuid.uuid4().hex}))
        self.begin = self.run(self.store.open()).position

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.store.close())

    @rule(wanted=changes, fenced=st.booleans())
    def commit(self, wanted: list[tuple[str, str, str, Any]], fenced: bool) -> None:
        operations = [self.operation(*each) for each in wanted]
        self.requests += 1
        request = Request(f"r{self.requests}", "someone", repr(operations).encode())
        fence = Fence(self.model.epoch) if fenced and self.model.epoch else None
        stale = any(
            each.expected_revision not in (None, self.model.at((each.kind, each.name)))
            for each in operations
        )
        attempt = self.store.commit(operations, request, fence=fence)
        if stale:
            with pytest.raises(StaleRevisionError) as error:
                self.run(attempt)
            named = (error.value.kind, error.value.name)
            assert error.value.actual_revision == self.model.at(named)
            return
        written = self.run(attempt)
        self.model.apply(operations)
        assert written == Written(self.model.revision)
        self.model.answers[request.id] = (operations, written)

    def operation(self, kind: str, name: str, guess: str, what: Any) -> Operation:
        now = self.model.at((kind, name))
        expected = {"right": now, "any": None, "absent": ABSENT, "stale": now + 1}[guess]
        if what == "check":
            return Check(kind, name, now if expected is None else expected)
        if what is None:
            return Delete(kind, name, expected)
        return Put(kind, name, what, expected)

    @precondition(lambda self: self.model.answers)
    @rule(data=st.data(), same=st.booleans())
    def repeat(self, data: st.DataObject, same: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.answers)))
        operations, written = self.model.answers[id]
        fingerprint = repr(operations).encode() if same else b"another"
        attempt = self.store.commit(operations, Request(id, "someone", fingerprint))
        if same:
            assert self.run(attempt) == replace(written, replayed=True)
        else:
            with pytest.raises(RequestReusedError):
                self.run(attempt)

    @rule(holder=st.sampled_from(["one", "two"]))
    def elect(self, holder: str) -> None:
        leader = self.run(self.store.leader())
        if leader is not None and leader.holder != holder:
            assert self.model.epoch is not None
            self.run(self.store.resign(leader.holder))
            self.model.deposed.append(self.model.epoch)
            leader = None
        lease = self.run(self.store.campaign(holder, "host:1", lease_s=600))
        if leader is None:
            self.model.revision += 1
            self.model.epoch = self.model.revision
        assert (lease.holder, lease.epoch) == (holder, self.model.epoch)

    @precondition(lambda self: self.model.deposed)
    @rule(data=st.data())
    def write_as_a_deposed_leader(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.model.deposed))
        with pytest.raises(FencedError):
            self.run(
                self.store.commit(
                    [Put("model", "a", b"deposed", None)],
                    Request("deposed", "someone"),
                    fence=Fence(epoch),
                )
            )

    @rule(kind=kinds, after=st.sampled_from(["", "a", "bb"]), limit=st.integers(1, 3))
    def read_a_page(self, kind: str, after: str, limit: int) -> None:
        page = self.run(self.store.list(kind, after=after, limit=limit))
        here = sorted(name for k, name in self.model.records if k == kind and name > after)
        assert [record.name for record in page.records] == here[:limit]
        assert page.more == (len(here) > limit)
        assert page.revision == self.model.revision

    @rule()
    def replay_all_changes(self) -> None:
        replayed: dict[tuple[str, str], tuple[int, bytes]] = {}
        for change in self.run(self.changes(self.begin, self.model.revision)):
            for key in change.deleted:
                replayed.pop(key, None)
            replayed.update(
                {(each.kind, each.name): (each.revision, each.payload) for each in change.put}
            )
        assert replayed == self.model.records

    async def changes(self, after: Position, last: int) -> list[Change]:
        found: list[Change] = []
        if last:
            async with aclosing(self.store.watch(after)) as watch:
                async for change in watch:
                    assert isinstance(change, Change)
                    found.append(change)
                    if change.position.revision == last:
                        break
        return found

    @invariant()
    def snapshot_is_the_model(self) -> None:
        snapshot = self.run(self.store.snapshot())
        assert snapshot.position.revision == self.model.revision
        assert {
            (each.kind, each.name): (each.revision, each.payload) for each in snapshot.records
        } == self.model.records


@pytest.fixture
def machine(tmp_path: Any) -> Iterator[type[StoreMachine]]:
    with asyncio.Runner() as runner:
        server = embedded(tmp_path)
        StoreMachine.runner = runner
        StoreMachine.server = runner.run(server.__aenter__())
        yield StoreMachine
        runner.run(server.__aexit__(None, None, None))


def test_store_is_a_dictionary_with_a_history(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
