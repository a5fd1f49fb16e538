"""What an agent holds to, and whom it obeys: a pure state machine.

Three rules keep a deposed leader, a late message and a lost store from doing harm:

1. within one store incarnation an epoch never falls, and under one key neither does a revision of
   one epoch;
2. another store incarnation is obeyed only if its leader declares that it stands in place of the
   one that the agent holds to; what was replaced is never obeyed again;
3. what is held is on disk before it is applied, and applied before it is acknowledged so.

Rule 2 is what keeps agents from being stuck above a leader whose store lost its history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mirage_core.cluster_model import (
    Acknowledgement,
    Authority,
    Directive,
    DirectiveBody,
    DirectiveKey,
    DirectiveSnapshot,
    DirectLending,
    LeaderWelcome,
    Outcome,
    StoreIncarnation,
)


@dataclass(frozen=True, slots=True)
class Held:
    """latest: the highest authority heard; None before the first leader.

    retired: store incarnations that are never obeyed again.
    """

    latest: Authority | None = None
    retired: frozenset[StoreIncarnation] = frozenset()
    directives: tuple[Directive, ...] = ()

    def bodies(self) -> tuple[DirectiveBody, ...]:
        return tuple(each.body for each in self.directives)

    def under(self, key: DirectiveKey) -> Directive | None:
        return next((each for each in self.directives if each.key == key), None)


NOTHING_HELD = Held()


def hear_welcome(held: Held, welcome: LeaderWelcome) -> Held | str:
    """What is held once ``welcome`` was heard, or why its leader is not obeyed."""
    theirs, ours = welcome.authority, held.latest
    if theirs.store in held.retired:
        return f"store {theirs.store} was replaced: its leader is of the past"
    if ours is None or theirs.store == ours.store:
        if ours is not None and theirs.epoch < ours.epoch:
            return f"epoch {theirs.epoch} is over: epoch {ours.epoch} was heard"
        return replace(held, latest=_highest(ours, theirs))
    if ours.store not in welcome.retired:
        return (
            f"store {theirs.store} is not {ours.store}, and does not declare to stand in its place"
        )
    # Directives stay in force until the snapshot that follows replaces them.
    retired = held.retired | {ours.store} | (set(welcome.retired) - {theirs.store})
    return replace(held, latest=theirs, retired=frozenset(retired))


def take_snapshot(
    held: Held, snapshot: DirectiveSnapshot
) -> tuple[Held, tuple[Acknowledgement, ...]]:
    """Hold to ``snapshot`` and to nothing else, but for what is newer than it."""
    stale = _fenced(held, snapshot.authority)
    if stale:
        return held, tuple(_stale(each, held, stale) for each in snapshot.directives)
    kept = held
    answers = []
    for directive in snapshot.directives:
        kept, answer = take_directive(kept, directive)
        answers.append(answer)
    named = {each.key for each in snapshot.directives}
    directives = tuple(
        each
        for each in kept.directives
        if each.key in named or _newer(each.authority, snapshot.authority)
    )
    latest = _highest(kept.latest, snapshot.authority)
    return replace(kept, latest=latest, directives=directives), tuple(answers)


def take_directive(held: Held, directive: Directive) -> tuple[Held, Acknowledgement]:
    """Hold to ``directive`` unless it is stale; the answer, once what is held is in force."""
    stale = _fenced(held, directive.authority)
    if stale:
        return held, _stale(directive, held, stale)
    before = held.under(directive.key)
    if before is not None and _newer(before.authority, directive.authority):
        why = f"revision {before.authority.revision} of {directive.key} is held"
        return held, _stale(directive, held, why)
    others = tuple(each for each in held.directives if each.key != directive.key)
    latest = _highest(held.latest, directive.authority)
    return replace(held, latest=latest, directives=(*others, directive)), _in_force(directive)


def _in_force(directive: Directive) -> Acknowledgement:
    """Settings hold at once; a bound on lending is reached when engines have moved."""
    under_way = isinstance(directive.body, DirectLending)
    return Acknowledgement(
        directive.operation,
        directive.key,
        directive.authority,
        Outcome.ACCEPTED if under_way else Outcome.APPLIED,
    )


def lending_reached(body: DirectLending, lent_pages: Iterable[int | None], page_bytes: int) -> bool:
    """Whether the model's engines lend within the bounds; not while one has not said."""
    for pages in lent_pages:
        if pages is None or pages * page_bytes < body.at_least_bytes:
            return False
        if body.at_most_bytes is not None and pages * page_bytes > body.at_most_bytes:
            return False
    return True


def applied(directive: Directive) -> Acknowledgement:
    return replace(_in_force(directive), outcome=Outcome.APPLIED)


# ---- parts


def _fenced(held: Held, authority: Authority) -> str:
    """Why whoever speaks with ``authority`` is not obeyed; empty if it is."""
    latest = held.latest
    if latest is None or authority.store != latest.store:
        return f"store {authority.store} is not the one that welcomed this agent"
    if authority.epoch < latest.epoch:
        return f"epoch {authority.epoch} is over: epoch {latest.epoch} was heard"
    return ""


def _newer(one: Authority, other: Authority) -> bool:
    """Of two that speak under one key; what another store directed is never newer.

    A later leader's word counts even below a revision that an earlier one spoke with: its store
    may have lost the last writes when it failed over.
    """
    return one.store == other.store and _rank(one) > _rank(other)


def _highest(ours: Authority | None, theirs: Authority) -> Authority:
    return ours if ours is not None and _newer(ours, theirs) else theirs


def _rank(authority: Authority) -> tuple[int, int]:
    return (authority.epoch, authority.revision)


def _stale(directive: Directive, held: Held, why: str) -> Acknowledgement:
    return Acknowledgement(
        directive.operation,
        directive.key,
        directive.authority,
        Outcome.STALE,
        reason=why,
        latest=held.latest,
    )
