"""What every metadata store does (``cluster.store.port.Store``).

``open_store`` opens the same store each time it is called, empty for each test; keyword arguments
replace settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest

from cluster.store.port import (
    ABSENT,
    Change,
    Check,
    Delete,
    Fence,
    Position,
    Put,
    Request,
    Snapshot,
    Store,
)
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.errors import (
    FencedError,
    MisuseError,
    OutOfRangeError,
    RequestReusedError,
    StaleRevisionError,
)

OpenStore = Callable[..., Awaitable[Store]]


def request(number: int, fingerprint: bytes = b"") -> Request:
    return Request(f"request-{number}", "operator@example", fingerprint)


async def put(store: Store, name: str, payload: bytes, number: int) -> int:
    written = await store.commit([Put("model", name, payload, None)], request(number))
    return written.revision


async def changes_after(store: Store, position: Position, count: int) -> list[Change]:
    found: list[Change] = []
    async with aclosing(store.watch(position)) as watch:
        async for change in watch:
            assert isinstance(change, Change)
            found.append(change)
            if len(found) == count:
                break
    return found


@pytest.mark.anyio
class StoreContract:
    # ---- compare and set

    async def test_record_reads_back_with_who_wrote_it(self, open_store: OpenStore) -> None:
        store = await open_store()
        payload = bytes(range(256)) * 2
        written = await store.commit([Put("model", "a/ü b", payload, ABSENT)], request(1))
        record = await store.read("model", "a/ü b")
        assert record is not None
        assert (record.payload, record.revision) == (payload, written.revision)
        assert record.actor == "operator@example"
        assert record.unix_ms > 0
        assert await store.read("device", "a/ü b") is None

    async def test_stale_revision_changes_nothing_and_names_the_record(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        first = await put(store, "a", b"1", 1)
        second = await put(store, "a", b"2", 2)
        with pytest.raises(StaleRevisionError) as stale:
            await store.commit(
                [Put("model", "b", b"3", ABSENT), Put("model", "a", b"3", first)], request(3)
            )
        assert (stale.value.kind, stale.value.name) == ("model", "a")
        assert stale.value.actual_revision == second
        assert await store.read("model", "b") is None
        assert (await store.lineage()).revision == second

    async def test_record_that_must_be_absent_is_created_once(self, open_store: OpenStore) -> None:
        store = await open_store()
        await store.commit([Put("model", "a", b"1", ABSENT)], request(1))
        with pytest.raises(StaleRevisionError):
            await store.commit([Put("model", "a", b"2", ABSENT)], request(2))

    async def test_deleted_record_is_absent_and_may_come_again(self, open_store: OpenStore) -> None:
        store = await open_store()
        first = await put(store, "a", b"1", 1)
        await store.commit([Delete("model", "a", first)], request(2))
        assert await store.read("model", "a") is None
        with pytest.raises(StaleRevisionError) as stale:
            await store.commit([Delete("model", "a", first)], request(3))
        assert stale.value.actual_revision == ABSENT
        again = await store.commit([Put("model", "a", b"2", ABSENT)], request(4))
        assert again.revision == first + 2

    async def test_operations_of_a_commit_share_one_revision(self, open_store: OpenStore) -> None:
        store = await open_store()
        await put(store, "old", b"", 1)
        written = await store.commit(
            [
                Put("model", "a", b"1", ABSENT),
                Put("directive", "a", b"2", ABSENT),
                Delete("model", "old", None),
            ],
            request(2),
        )
        for kind in ("model", "directive"):
            record = await store.read(kind, "a")
            assert record is not None
            assert record.revision == written.revision
        assert await store.read("model", "old") is None

    async def test_check_guards_a_commit_without_touching_its_record(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        wish = await put(store, "wish", b"1", 1)
        await store.commit(
            [Check("model", "wish", wish), Put("directive", "d", b"", None)], request(2)
        )
        await put(store, "wish", b"2", 3)
        with pytest.raises(StaleRevisionError):
            await store.commit(
                [Check("model", "wish", wish), Put("directive", "d", b"", None)], request(4)
            )

    async def test_what_no_store_takes_is_refused_before_it_is_sent(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        refused = [
            [],
            [Put("Model", "a", b"", None)],
            [Put("model", "", b"", None)],
            [Put("model", "a\nb", b"", None)],
            [Put("model", "x" * 513, b"", None)],
            [Put("model", "a", b"x" * (1 << 20) + b"y", None)],
            [Put("model", "a", b"", None), Delete("model", "a", None)],
            [Put("model", str(number), b"", None) for number in range(1025)],
        ]
        for operations in refused:
            with pytest.raises(MisuseError):
                await store.commit(operations, request(1))
        with pytest.raises(MisuseError):
            await store.list("model", limit=0)
        assert (await store.lineage()).revision == 0

    # ---- requests

    async def test_retry_gets_the_first_answer_and_changes_nothing(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        first = await store.commit([Put("model", "a", b"1", ABSENT)], request(1, b"\n f"))
        await put(store, "b", b"", 2)
        again = await store.commit([Put("model", "a", b"1", ABSENT)], request(1, b"\n f"))
        assert not first.replayed
        assert again == replace(first, replayed=True)
        assert await store.recall(request(1, b"\n f")) == again
        assert (await store.lineage()).revision == 2

    async def test_request_id_for_something_else_is_refused(self, open_store: OpenStore) -> None:
        store = await open_store()
        await store.commit([Put("model", "a", b"1", None)], request(1, b"one"))
        with pytest.raises(RequestReusedError):
            await store.commit([Put("model", "a", b"2", None)], request(1, b"two"))
        with pytest.raises(RequestReusedError):
            await store.recall(request(1, b"two"))
        record = await store.read("model", "a")
        assert record is not None
        assert record.payload == b"1"

    async def test_refused_request_may_be_repeated(self, open_store: OpenStore) -> None:
        store = await open_store()
        with pytest.raises(StaleRevisionError):
            await store.commit([Put("model", "a", b"", 7)], request(1))
        assert await store.recall(request(1)) is None
        assert (await store.commit([Put("model", "a", b"", ABSENT)], request(1))).revision == 1

    async def test_forgotten_request_is_a_new_one_which_its_expected_revision_still_guards(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store(answers_kept_s=0.05)
        create = [Put("model", "a", b"1", ABSENT)]
        await store.commit(create, request(1))
        while await store.recall(request(1)) is not None:
            pass
        with pytest.raises(StaleRevisionError):
            await store.commit(create, request(1))

    # ---- pages

    async def test_pages_hold_each_name_once_in_the_order_of_bytes(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        names = [*(f"m{number}" for number in range(25)), "é", "z-last"]
        names.sort(key=str.encode)
        await store.commit([Put("model", name, b"", None) for name in reversed(names)], request(1))
        await store.commit([Put("other", "m", b"", None)], request(2))
        seen: list[str] = []
        more = True
        while more:
            page = await store.list("model", after=seen[-1] if seen else "", limit=10)
            assert len(page.records) <= 10
            assert page.revision == 2
            seen += [record.name for record in page.records]
            more = page.more
        assert seen == names

    async def test_page_goes_on_after_a_name_that_was_deleted(self, open_store: OpenStore) -> None:
        store = await open_store()
        for number, name in enumerate("abc"):
            await put(store, name, b"", number)
        await store.commit([Delete("model", "b", None)], request(9))
        page = await store.list("model", after="b")
        assert [record.name for record in page.records] == ["c"]

    # ---- watches

    async def test_watch_begins_with_a_snapshot_and_goes_on_with_every_change(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        await put(store, "a", b"1", 1)
        await put(store, "b", b"1", 2)
        seen: list[Snapshot | Change] = []
        async with aclosing(store.watch()) as watch:
            async for each in watch:
                seen.append(each)
                if isinstance(each, Snapshot):
                    await store.commit(
                        [Put("model", "a", b"2", None), Delete("model", "b", None)], request(3)
                    )
                    await put(store, "c", b"3", 4)
                if len(seen) == 3:
                    break
        snapshot, first, second = seen
        assert isinstance(snapshot, Snapshot)
        assert isinstance(first, Change)
        assert isinstance(second, Change)
        assert [(record.name, record.revision) for record in snapshot.records] == [
            ("a", 1),
            ("b", 2),
        ]
        assert [snapshot.position.revision, first.position.revision, second.position.revision] == [
            2,
            3,
            4,
        ]
        assert [(record.name, record.payload) for record in first.put] == [("a", b"2")]
        assert first.deleted == (("model", "b"),)
        assert (first.actor, first.request_id) == ("operator@example", "request-3")
        assert first.put[0] == await store.read("model", "a")

    async def test_watch_resumes_where_another_ended(self, open_store: OpenStore) -> None:
        store = await open_store()
        begin = (await store.lineage()).position
        for number in range(5):
            await put(store, "a", b"", number)
        first = await changes_after(store, begin, 2)
        rest = await changes_after(store, first[-1].position, 3)
        assert [change.position.revision for change in [*first, *rest]] == [1, 2, 3, 4, 5]

    async def test_watch_behind_the_trimmed_end_is_out_of_range(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store(changes_kept=3)
        begin = (await store.lineage()).position
        for number in range(5):
            await put(store, "a", b"", number)
        with pytest.raises(OutOfRangeError):
            await changes_after(store, replace(begin, revision=1), 1)
        oldest = await changes_after(store, replace(begin, revision=2), 3)
        assert [change.position.revision for change in oldest] == [3, 4, 5]

    async def test_watch_beyond_the_end_or_of_another_history_is_out_of_range(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        await put(store, "a", b"", 1)
        here = (await store.lineage()).position
        with pytest.raises(OutOfRangeError):
            await changes_after(store, replace(here, revision=2), 1)
        with pytest.raises(OutOfRangeError):
            await changes_after(store, Position(StoreIncarnation("another"), 0), 1)

    # ---- events and observations

    async def test_events_come_in_order_and_with_their_commit(self, open_store: OpenStore) -> None:
        store = await open_store()
        assert await store.append_events([b"one", b"two"]) == 2
        await store.commit([Put("model", "a", b"", None)], request(1), events=[b"three"])
        await store.commit([Put("model", "a", b"", None)], request(1), events=[b"three"])
        assert [(e.sequence, e.payload) for e in await store.events(after=0)] == [
            (1, b"one"),
            (2, b"two"),
            (3, b"three"),
        ]
        assert [e.payload for e in await store.events(after=1, limit=1)] == [b"two"]
        assert [e.payload for e in await store.last_events(2)] == [b"two", b"three"]
        assert await store.events(after=3) == []
        with pytest.raises(OutOfRangeError):
            await store.events(after=4)
        with pytest.raises(StaleRevisionError):
            await store.commit([Put("model", "a", b"", 99)], request(2), events=[b"never"])
        assert await store.events(after=3) == []

    async def test_trimmed_events_are_out_of_range_but_the_oldest_kept_can_be_had(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store(events_kept=3)
        await store.append_events([b"%d" % number for number in range(1, 6)])
        assert [e.sequence for e in await store.events(after=0)] == [3, 4, 5]
        with pytest.raises(OutOfRangeError):
            await store.events(after=1)

    async def test_followed_events_go_on_as_they_come(self, open_store: OpenStore) -> None:
        store = await open_store()
        await store.append_events([b"one"])
        seen: list[bytes] = []
        async with aclosing(store.follow_events(0)) as events:
            async for event in events:
                seen.append(event.payload)
                if len(seen) == 3:
                    break
                await store.append_events([b"more"])
        assert seen == [b"one", b"more", b"more"]

    async def test_observations_are_last_values_without_a_revision(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        await store.observe("device", {"a": b"1", "b": b"1", "c": b"1"})
        await store.observe("device", {"b": b"2", "a": None})
        assert await store.observations("device") == {"b": b"2", "c": b"1"}
        assert await store.observations("device", after="b", limit=1) == {"c": b"1"}
        assert await store.observations("model") == {}
        assert (await store.lineage()).revision == 0

    # ---- leadership

    async def test_lease_has_one_holder_until_it_resigns(self, open_store: OpenStore) -> None:
        store = await open_store()
        assert await store.leader() is None
        first = await store.campaign("one", "host:1", lease_s=60)
        assert (first.holder, first.address) == ("one", "host:1")
        other = await store.campaign("two", "host:2", lease_s=60)
        assert (other.holder, other.epoch, other.address) == ("one", first.epoch, "host:1")
        renewed = await store.campaign("one", "host:1", lease_s=60)
        assert renewed.epoch == first.epoch
        await store.resign("two")
        assert await store.leader() is not None
        await store.resign("one")
        second = await store.campaign("two", "host:2", lease_s=60)
        assert second.holder == "two"
        assert second.epoch > first.epoch

    async def test_lease_ends_by_itself(self, open_store: OpenStore) -> None:
        store = await open_store()
        first = await store.campaign("one", "host:1", lease_s=0.1)
        lease = first
        while lease.holder == "one":
            lease = await store.campaign("two", "host:2", lease_s=60)
        assert lease.epoch > first.epoch
        with pytest.raises(FencedError):
            await store.observe("device", {"a": b""}, fence=Fence(first.epoch))

    async def test_deposed_leader_writes_nothing(self, open_store: OpenStore) -> None:
        store, deposed = await open_store(), await open_store()
        old = Fence((await deposed.campaign("one", "host:1", lease_s=60)).epoch)
        await deposed.commit([Put("model", "a", b"1", None)], request(1), fence=old)
        await store.resign("one")
        with pytest.raises(FencedError):  # the lease ended, though nobody has it yet
            await deposed.commit([Put("model", "a", b"2", None)], request(2), fence=old)
        new = Fence((await store.campaign("two", "host:2", lease_s=60)).epoch)
        for attempt in (
            lambda: deposed.commit([Put("model", "a", b"2", None)], request(3), fence=old),
            lambda: deposed.commit([Put("model", "a", b"1", None)], request(1), fence=old),
            lambda: deposed.append_events([b""], fence=old),
            lambda: deposed.observe("device", {"a": b""}, fence=old),
        ):
            with pytest.raises(FencedError, match="host:2"):
                await attempt()
        record = await store.read("model", "a")
        assert record is not None
        assert record.payload == b"1"
        assert await store.observations("device") == {}
        assert await store.events(after=0) == []
        await store.commit([Put("model", "a", b"2", record.revision)], request(4), fence=new)

    async def test_election_is_a_change_that_watches_see(self, open_store: OpenStore) -> None:
        store = await open_store()
        begin = (await store.lineage()).position
        lease = await store.campaign("one", "host:1", lease_s=60)
        await store.campaign("one", "host:1", lease_s=60)
        await put(store, "a", b"", 1)
        elected, written = await changes_after(store, begin, 2)
        assert (elected.actor, elected.put, elected.deleted) == ("one", (), ())
        assert elected.position.revision == lease.epoch
        assert written.position.revision == lease.epoch + 1

    # ---- history

    async def test_history_stays_the_same_when_the_store_is_opened_again(
        self, open_store: OpenStore
    ) -> None:
        first = await open_store()
        await put(first, "a", b"", 1)
        lineage = await (await open_store()).lineage()
        assert lineage.incarnation == (await first.lineage()).incarnation
        assert (lineage.revision, lineage.retired) == (1, ())

    async def test_history_that_is_not_lost_is_not_declared_lost(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        await put(store, "a", b"", 1)
        before = await store.lineage()
        assert await store.declare_lost_history(before.position, event=b"lost") == before
        assert await store.events(after=0) == []

    async def test_agent_ahead_of_the_store_proves_lost_history(
        self, open_store: OpenStore
    ) -> None:
        store, standby = await open_store(), await open_store()
        await put(store, "a", b"", 1)
        before = await store.lineage()
        old = Fence((await store.campaign("one", "host:1", lease_s=60)).epoch)
        seen = replace(before.position, revision=50)
        declared = await store.declare_lost_history(seen, event=b"lost")
        assert declared.incarnation != before.incarnation
        assert declared.retired == (before.incarnation,)
        assert declared.revision > seen.revision
        again = await standby.declare_lost_history(seen, event=b"lost")
        assert again == declared
        assert [event.payload for event in await store.events(after=0)] == [b"lost"]
        with pytest.raises(FencedError):
            await store.commit([Put("model", "b", b"", None)], request(2), fence=old)
        with pytest.raises(OutOfRangeError):
            await changes_after(store, before.position, 1)
        record = await store.read("model", "a")
        assert record is not None
        assert (await put(store, "b", b"", 3)) == declared.revision + 1

    async def test_agent_of_a_history_that_the_store_never_had_is_retired(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store()
        before = await store.lineage()
        strange = StoreIncarnation("0" * 32)
        declared = await store.declare_lost_history(Position(strange, 5), event=b"lost")
        assert declared == replace(before, retired=(strange,))
        assert await store.declare_lost_history(Position(strange, 7), event=b"lost") == declared
        assert len(await store.events(after=0)) == 1
