from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.cluster_model import (
    Authority,
    DirectDevice,
    Directive,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    DirectLending,
    DirectModel,
    LeaderWelcome,
    Outcome,
    StoreIncarnation,
    agreed_version,
)
from mirage_core.errors import ConfigError
from mirage_core.model import ModelName
from node_agent.directives import (
    NOTHING_HELD,
    Held,
    hear_welcome,
    lending_reached,
    take_directive,
    take_snapshot,
)
from node_agent.directives_file import DirectivesFile

A, B = StoreIncarnation("a"), StoreIncarnation("b")
CHAT = ModelName("chat")


def authority(epoch: int = 1, revision: int = 1, store: StoreIncarnation = A) -> Authority:
    return Authority(store, epoch, revision)


def welcome(said: Authority, *retired: StoreIncarnation) -> LeaderWelcome:
    return LeaderWelcome(said, "leader:1", 1.0, 1.0, retired=retired)


def priority(value: int, said: Authority, operation: str = "") -> Directive:
    name = DirectiveId(operation or f"op-{said.epoch}-{said.revision}-{value}")
    return Directive(name, said, DirectModel(CHAT, priority=value))


def welcomed(said: Authority) -> Held:
    held = hear_welcome(NOTHING_HELD, welcome(said))
    assert isinstance(held, Held)
    return held


def test_a_lower_epoch_is_not_obeyed():
    held = welcomed(authority(epoch=3))
    assert "epoch 2 is over" in hear_welcome(held, welcome(authority(epoch=2)))
    same, answer = take_directive(held, priority(5, authority(epoch=2, revision=9)))
    assert (same, answer.outcome) == (held, Outcome.STALE)
    assert answer.latest == authority(epoch=3)


def test_a_lower_revision_of_a_key_is_stale_and_other_keys_are_free():
    held, _ = take_directive(welcomed(authority()), priority(5, authority(revision=9)))
    same, answer = take_directive(held, priority(1, authority(revision=8)))
    assert (same, answer.outcome) == (held, Outcome.STALE)
    frozen = Directive(DirectiveId("f"), authority(revision=2), DirectDevice(freeze=True))
    after, answer = take_directive(held, frozen)
    assert answer.outcome is Outcome.APPLIED
    assert DirectDevice(freeze=True) in after.bodies()


def test_the_same_directive_is_answered_again_and_changes_nothing():
    directive = priority(5, authority(revision=9))
    held, first = take_directive(welcomed(authority()), directive)
    again, second = take_directive(held, directive)
    assert (again, second) == (held, first)


def test_a_later_leader_counts_even_below_a_revision_of_an_earlier_one():
    held, _ = take_directive(welcomed(authority()), priority(5, authority(1, 9)))
    held, answer = take_directive(held, priority(6, authority(2, 7)))
    assert answer.outcome is Outcome.APPLIED
    assert held.bodies() == (DirectModel(CHAT, priority=6),)


def test_a_snapshot_replaces_what_is_held_but_for_what_is_newer():
    held, _ = take_directive(welcomed(authority()), priority(5, authority(revision=9)))
    frozen = Directive(DirectiveId("f"), authority(revision=4), DirectDevice(freeze=True))
    held, _ = take_directive(held, frozen)
    after, answers = take_snapshot(held, DirectiveSnapshot(authority(revision=6), ()))
    assert (after.bodies(), answers) == ((DirectModel(CHAT, priority=5),), ())
    after, _ = take_snapshot(held, DirectiveSnapshot(authority(revision=12), ()))
    assert after.bodies() == ()


def test_another_store_is_obeyed_only_when_it_declares_the_old_one_lost():
    held, _ = take_directive(welcomed(authority(9, 900)), priority(5, authority(9, 900)))
    other = authority(1, 1, B)
    assert "does not declare" in hear_welcome(held, welcome(other))
    after = hear_welcome(held, welcome(other, A))
    assert isinstance(after, Held)
    assert after.bodies() == held.bodies(), "what is directed holds until the snapshot comes"
    assert "was replaced" in hear_welcome(after, welcome(authority(99, 9999)))
    after, _ = take_snapshot(after, DirectiveSnapshot(other, (priority(1, other),)))
    assert after.bodies() == (DirectModel(CHAT, priority=1),)
    _, answer = take_directive(after, priority(7, authority(99, 9999)))
    assert answer.outcome is Outcome.STALE


def test_nobody_is_obeyed_before_a_welcome():
    held, answer = take_directive(NOTHING_HELD, priority(1, authority()))
    assert (held, answer.outcome) == (NOTHING_HELD, Outcome.STALE)


authorities = st.builds(Authority, st.sampled_from([A, B]), st.integers(1, 3), st.integers(1, 5))
steps = st.lists(
    st.one_of(
        st.builds(lambda a, r: welcome(a, *r), authorities, st.sets(st.sampled_from([A, B]))),
        st.builds(priority, st.integers(0, 3), authorities),
        st.builds(
            lambda a, values: DirectiveSnapshot(a, tuple(priority(v, a) for v in values)),
            authorities,
            st.lists(st.integers(0, 3), max_size=1),
        ),
    ),
    max_size=20,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_whatever_is_heard_neither_epoch_nor_a_replaced_store_comes_back(heard):
    held = NOTHING_HELD
    for message in heard:
        before = held
        if isinstance(message, LeaderWelcome):
            after = hear_welcome(held, message)
            held = held if isinstance(after, str) else after
        elif isinstance(message, Directive):
            held, _ = take_directive(held, message)
        else:
            held, _ = take_snapshot(held, message)
        assert before.retired <= held.retired
        if held.latest is not None:
            assert held.latest.store not in held.retired
        if before.latest is not None and held.latest.store == before.latest.store:
            assert held.latest.epoch >= before.latest.epoch
        keys = [each.key for each in held.directives]
        assert len(set(keys)) == len(keys)


def test_a_bound_is_reached_when_all_engines_lend_within_it():
    body = DirectLending(CHAT, at_least_bytes=100, at_most_bytes=200)
    assert lending_reached(body, [15, 20], page_bytes=10)
    assert not lending_reached(body, [15, 9], page_bytes=10)
    assert not lending_reached(body, [21], page_bytes=10)
    assert not lending_reached(body, [15, None], page_bytes=10), "unknown is not reached"
    assert lending_reached(body, [], page_bytes=10)


def test_what_is_held_survives_a_restart(tmp_path):
    held, _ = take_directive(welcomed(authority()), priority(-5, authority(revision=9)))
    held = replace(held, retired=frozenset({B}))
    file = DirectivesFile(tmp_path / "directives.json")
    assert file.load() == NOTHING_HELD
    file.save(held)
    assert DirectivesFile(tmp_path / "directives.json").load() == held
    assert list(tmp_path.iterdir()) == [tmp_path / "directives.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "retired": []}'])
def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path, text):
    path = tmp_path / "directives.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="remove the file"):
        DirectivesFile(path).load()


def test_versions_one_apart_speak_the_lower_one():
    assert agreed_version(3, 4) == 3
    assert agreed_version(5, 4) == 4
    assert agreed_version(4, 4) == 4
    assert agreed_version(2, 4) is None
    assert agreed_version(0, 1) is None


def test_a_key_names_what_its_directive_is_about():
    assert priority(1, authority()).key == DirectiveKey("model/chat")
