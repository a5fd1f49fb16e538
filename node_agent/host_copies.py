"""Host copies of weights, one for each digest, shared by all engines of a model on the node.

The first engine that opens a copy makes and seals its memory file, and sends it; the others wait
for it.  If the one that fills it dies, the next that waits fills it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from mirage_core.errors import ProtocolError
from mirage_core.memory import libc
from mirage_core.memory.file import seals_of
from mirage_core.model import EngineId
from mirage_core.wire.messages import HostCopy, HostCopyState

_SEALS = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_WRITE


@dataclass(slots=True)
class _Copy:
    digest: str
    size_bytes: int
    filler: EngineId | None
    """None once it is filled"""
    fd: int | None = None
    waiting: list[EngineId] = field(default_factory=list)
    users: set[EngineId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class HostCopyAnswer:
    """``fd`` is the memory file of a copy that is ready; it stays ours."""

    engine: EngineId
    message: HostCopy
    fd: int | None


class HostCopies:
    """All host copies that this agent knows; one is let go when its last user dies."""

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}

    def open(self, engine: EngineId, digest: str, size_bytes: int) -> HostCopyAnswer | None:
        """The answer, or None while another engine fills the copy."""
        copy = self._copies.setdefault(digest, _Copy(digest, size_bytes, filler=engine))
        copy.users.add(engine)
        if copy.filler is None or copy.filler == engine:
            return _answer(copy, engine)
        if engine not in copy.waiting:
            copy.waiting.append(engine)
        return None

    def filled(self, engine: EngineId, digest: str, fd: int | None) -> list[HostCopyAnswer]:
        """``engine`` has filled the copy at ``fd``, which is ours on success: who waits gets it.

        Raises ProtocolError unless it was to fill it, and nobody can change it any more.
        """
        copy = self._copies.get(digest)
        if copy is None or copy.filler != engine:
            raise ProtocolError(f"engine {engine} does not fill host copy {digest}")
        if fd is None or seals_of(fd) & _SEALS != _SEALS:
            raise ProtocolError("a filled host copy comes with its sealed memory file")
        copy.fd = fd
        copy.size_bytes = os.fstat(fd).st_size
        copy.filler = None
        waiting, copy.waiting = copy.waiting, []
        return [_answer(copy, waiter) for waiter in waiting]

    def forget_engine(self, engine: EngineId) -> list[HostCopyAnswer]:
        """``engine`` has died: drop what nobody uses, let the next one fill what it did not."""
        answers = []
        for copy in list(self._copies.values()):
            copy.users.discard(engine)
            copy.waiting = [waiter for waiter in copy.waiting if waiter != engine]
            if not copy.users:
                self._drop(copy)
            elif copy.filler == engine:
                copy.filler = copy.waiting.pop(0)
                answers.append(_answer(copy, copy.filler))
        return answers

    def close(self) -> None:
        for copy in list(self._copies.values()):
            self._drop(copy)

    def _drop(self, copy: _Copy) -> None:
        del self._copies[copy.digest]
        if copy.fd is not None:
            os.close(copy.fd)


def _answer(copy: _Copy, engine: EngineId) -> HostCopyAnswer:
    state = HostCopyState.READY if copy.filler is None else HostCopyState.FILL
    return HostCopyAnswer(engine, HostCopy(copy.digest, state, copy.size_bytes), copy.fd)
