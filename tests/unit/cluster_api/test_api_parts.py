"""Small parts of the controller, each alone: tokens, limits, outboxes, changes, pages, settings."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.admin import pages
from cluster.config import load_config
from cluster.controller.changes import Changes
from cluster.controller.outbox import HEARTBEAT, SNAPSHOT, WELCOME, Outbox
from cluster.files import Watched
from cluster.rpc.errors import ApiError, as_api_error
from cluster.rpc.limits import RateLimit
from cluster.security import (
    Principal,
    Role,
    TlsFiles,
    Tokens,
    bearer_token,
    check_transport,
    is_loopback,
    read_tokens,
)
from mirage_core.errors import (
    ConfigError,
    FencedError,
    MisuseError,
    OutOfRangeError,
    StaleRevisionError,
    StoreUnreachableError,
)
from mirage_core.wire.v1 import admin_pb2, agent_pb2, common_pb2


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def test_token_stands_for_its_principal_and_no_other_text_does() -> None:
    alice = Principal("alice", Role.OPERATE)
    tokens = Tokens([(digest("right"), alice), (digest("other"), Principal("bob", Role.VIEW))])
    assert tokens.principal_of("right") == alice
    assert tokens.principal_of("wrong") is None
    assert tokens.principal_of("") is None
    assert tokens.principal_of(digest("right")) is None, "the file's text is no token"


@pytest.mark.parametrize(
    "text",
    [
        "tokens: [{name: a, role: root, sha256: " + "0" * 64 + "}]",
        "tokens: [{name: a, role: view, sha256: secret}]",
        "tokens: [{name: a, role: view, token: secret}]",
        "- not a mapping",
        "{",
    ],
)
def test_faulty_token_file_is_refused_without_showing_what_is_in_it(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigError, match="token file") as caught:
        read_tokens(path)
    assert "secret" not in str(caught.value)


def test_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    entry = "{name: a, role: view, sha256: " + "0" * 64 + "}"
    path.write_text(f"tokens: [{entry}, {entry}]")
    with pytest.raises(ConfigError, match="twice"):
        read_tokens(path)


def test_bearer_token_is_found_in_metadata() -> None:
    assert bearer_token([("x", "y"), ("authorization", "bearer  abc ")]) == "abc"
    assert bearer_token([("authorization", "Basic abc")]) is None
    assert bearer_token([("authorization", "Bearer ")]) is None


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/run/x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_loopback_is_told_from_what_others_can_reach(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_open_address_is_refused_unless_it_is_asked_for() -> None:
    tls = TlsFiles(certificate=Path("c"), key=Path("k"))

    def check(address: str, files: TlsFiles | None, known: bool, insecure: bool) -> None:
        check_transport(
            address, what="admin", tls=files, callers_known=known, allow_insecure=insecure
        )

    check("127.0.0.1:1", None, False, False)
    check("10.0.0.1:1", tls, True, False)
    check("10.0.0.1:1", None, False, True)
    with pytest.raises(ConfigError, match="no TLS"):
        check("10.0.0.1:1", None, True, False)
    with pytest.raises(ConfigError, match="let anyone in"):
        check("10.0.0.1:1", tls, False, False)


def test_changed_file_is_read_again_and_a_broken_one_keeps_the_last_value(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")

    def read() -> int:
        try:
            return int(path.read_text())
        except ValueError:
            raise ConfigError("no number") from None

    watched = Watched((path,), read)
    assert not watched.refresh()
    for text, value in (("22", 22), ("broken", 22), ("333", 333)):
        path.write_text(text)
        watched.refresh()
        assert watched.value == value
    path.unlink()
    watched.refresh()
    assert watched.value == 333


def test_caller_has_a_burst_and_then_its_rate() -> None:
    limit = RateLimit(per_s=2.0, burst=3)
    assert [limit.wait_s("a", 0.0) for _ in range(3)] == [0.0] * 3
    assert limit.wait_s("a", 0.0) == 0.5
    assert limit.wait_s("b", 0.0) == 0.0, "others are not held up"
    assert limit.wait_s("a", 0.5) == 0.0
    assert limit.wait_s("a", 0.5) > 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 3), max_size=60))
def test_caller_never_gets_more_than_burst_and_rate_allow(pauses_s: list[float]) -> None:
    limit, now_s, allowed = RateLimit(per_s=2.0, burst=3), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        allowed += limit.wait_s("a", now_s) == 0.0
    assert allowed <= 3 + 2.0 * now_s + 1e-6


def message(text: str) -> agent_pb2.SessionResponse:
    directive = common_pb2.Directive(operation_id=text)
    return agent_pb2.SessionResponse(directive=directive)


def test_outbox_keeps_the_latest_of_each_key_in_order() -> None:
    async def run() -> list[str]:
        outbox = Outbox(10)
        outbox.put(WELCOME, message("welcome"))
        for text in ("a1", "b1", "a2"):
            outbox.put_directive(text[0], message(text))
        return [each.directive.operation_id for each in await outbox.take()]

    assert asyncio.run(run()) == ["welcome", "a2", "b1"]


def test_snapshot_replaces_directives_that_wait_and_later_ones_come_after_it() -> None:
    async def run() -> list[str]:
        outbox = Outbox(10)
        outbox.put_directive("a", message("a1"))
        outbox.put(SNAPSHOT, message("all"))
        outbox.put_directive("b", message("b1"))
        outbox.put(SNAPSHOT, message("all again"))
        outbox.put_directive("a", message("a2"))
        return [each.directive.operation_id for each in await outbox.take()]

    assert asyncio.run(run()) == ["all again", "a2"]


def test_full_outbox_says_so_and_a_closed_one_gives_its_last_word() -> None:
    async def run() -> None:
        outbox = Outbox(2)
        assert outbox.put(HEARTBEAT, message("1"))
        assert outbox.put_directive("a", message("2"))
        assert not outbox.put_directive("b", message("3"))
        outbox.close(message("last"))
        outbox.put_directive("c", message("late"))
        assert [each.directive.operation_id for each in await outbox.take()] == ["last"]
        assert await outbox.take() == []

    asyncio.run(run())


def test_watch_is_told_each_subject_once_at_its_latest() -> None:
    changes = Changes(events_kept=2)
    changes.restart(10)
    count = changes.count
    for name in ("a", "b", "a"):
        changes.touch("model", name)
    assert changes.since(count) == [("model", "b"), ("model", "a")]
    assert changes.since(changes.count) == []


def test_watch_resumes_at_a_revision_or_is_told_that_it_cannot() -> None:
    changes = Changes(events_kept=10)
    changes.restart(10)
    changes.touch("model", "a")
    changes.see(11)
    changes.touch("model", "b")
    changes.see(12)
    changes.touch("model", "c")
    assert changes.resume(9) is None, "before what is known"
    assert changes.resume(13) is None, "not reached yet"
    count = changes.resume(11)
    assert count is not None
    assert changes.since(count) == [("model", "b"), ("model", "c")]
    count = changes.resume(12)
    assert count is not None
    assert changes.since(count) == [("model", "c")]


def test_old_events_are_trimmed_and_other_subjects_are_not() -> None:
    changes = Changes(events_kept=2)
    changes.restart(1)
    changes.touch("model", "a")
    for number in range(5):
        changes.touch("event", str(number))
    assert changes.since(0) == [("model", "a"), ("event", "3"), ("event", "4")]


def test_waiter_wakes_at_a_change_and_not_for_older_ones() -> None:
    async def run() -> bool:
        changes = Changes(events_kept=2)
        changes.restart(1)
        changes.touch("model", "a")
        waiting = asyncio.create_task(changes.wait(changes.count, 60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        changes.touch("model", "b")
        await waiting
        await changes.wait(0, 60.0)
        return True

    assert asyncio.run(run())


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=5)), st.integers(1, 4))
def test_pages_hold_every_name_once_in_order(names: set[str], size: int) -> None:
    seen: list[str] = []
    token = ""
    while True:
        options = admin_pb2.PageOptions(page_size=size, page_token=token)
        page, token = pages.page_of(names, options)
        assert len(page) <= size
        seen += page
        if not token:
            break
    assert seen == sorted(names)


def test_store_errors_become_statuses_that_say_what_to_do() -> None:
    stale = as_api_error(StaleRevisionError("model", "a", 7))
    assert (stale.code.name, stale.detail.current_revision) == ("ABORTED", 7)
    lost = as_api_error(StoreUnreachableError("gone"))
    assert (lost.code.name, lost.detail.retryable) == ("UNAVAILABLE", True)
    assert "request_id" in lost.detail.advice
    fenced = as_api_error(FencedError("x"), leader_address="1.2.3.4:5")
    assert fenced.detail.leader_address == "1.2.3.4:5"
    assert as_api_error(OutOfRangeError("x")).code.name == "OUT_OF_RANGE"
    assert as_api_error(MisuseError("secret inside")).message.startswith("a fault of the")
    known = ApiError(stale.code, common_pb2.ERROR_REASON_INVALID, "x")
    assert as_api_error(known) is known


def test_settings_of_the_command_line_are_merged_into_the_files(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("store: {url: 'redis://a:1', cluster: prod}\nlimits: {agents: 5}\n")
    config = load_config(path, {"store": {"url": "redis://b:2"}, "heartbeat_s": 2.0})
    assert (config.store.url, config.store.cluster) == ("redis://b:2", "prod")
    assert (config.limits.agents, config.heartbeat_s) == (5, 2.0)
    path.write_text("[")
    with pytest.raises(ConfigError, match="neither YAML nor JSON"):
        load_config(path, {})
