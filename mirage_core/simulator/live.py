"""A request inside an engine, and the queues that vLLM keeps them in."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol


class Live:
    """One request from its arrival at an engine to its end.

    prompt, output   tokens of the prompt; tokens to generate
    known            tokens that it has: its prompt and what was generated before it last waited
    computed, blocks while it computes these: tokens in the KV cache, and the blocks they hold
    offset           while it decodes: computed tokens less the engine's count of steps
    finish_at        while it decodes: the count of steps at which it is done
    granted_at       the count of steps at which it last took a block out of turn
    held             leading whole blocks that the prefix cache knows it to hold
    late_from_ps     when it was preempted: the time of its last token; -1: it had none
    """

    __slots__ = (
        "arrival_ps",
        "blocks",
        "computed",
        "decoding",
        "finish_at",
        "granted_at",
        "group",
        "held",
        "known",
        "late_from_ps",
        "offset",
        "output",
        "preempted",
        "priority",
        "prompt",
        "row",
        "shared_blocks",
    )

    def __init__(
        self,
        row: int,
        arrival_ps: int,
        prompt: int,
        output: int,
        priority: int = 0,
        group: int = -1,
        shared_blocks: int = 0,
    ) -> None:
        self.row = row
        self.arrival_ps = arrival_ps
        self.prompt = prompt
        self.output = output
        self.priority = priority
        self.group = group
        self.shared_blocks = shared_blocks
        self.known = prompt
        self.computed = 0
        self.blocks = 0
        self.offset = 0
        self.finish_at = 0
        self.granted_at = -1
        self.held = 0
        self.late_from_ps = -1
        self.preempted = 0
        self.decoding = False

    @property
    def rank(self) -> tuple[int, int, int]:
        """vLLM's order under the priority policy: the least goes first, the greatest gives way."""
        return self.priority, self.arrival_ps, self.row


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Live]: ...

    def push(self, request: Live) -> None:
        """A new request."""
        ...

    def push_back(self, request: Live) -> None:
        """A preempted request."""
        ...

    def head(self) -> Live: ...

    def pop(self) -> Live: ...


class ArrivalQueue:
    """vLLM's policy "fcfs": preempted requests go to the front."""

    def __init__(self) -> None:
        self._requests: deque[Live] = deque()
        self.push = self._requests.append
        self.push_back = self._requests.appendleft
        self.pop = self._requests.popleft

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._requests)

    def head(self) -> Live:
        return self._requests[0]


class PriorityQueue:
    """vLLM's policy "priority": by ``Live.rank``, preempted or new."""

    def __init__(self) -> None:
        self._requests: list[Live] = []
        """The next one last."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Live]:
        return reversed(self._requests)

    def push(self, request: Live) -> None:
        insort(self._requests, request, key=lambda r: tuple(-part for part in r.rank))

    push_back = push

    def head(self) -> Live:
        return self._requests[-1]

    def pop(self) -> Live:
        return self._requests.pop()
