"""Block counting: what decoding requests take over many steps at once, and the prefix cache.

Blocks of one engine are alike, so counts suffice; only a cached prefix has an identity.
"""

from __future__ import annotations

from collections import OrderedDict

BlockKey = tuple[int, int]
"""(prefix group, or -2 - row for tokens of one request alone; place of the block in it)"""


class DecodeGrowth:
    """When decoding requests need their next block, for all of them together.

    All decoding requests compute one token a step, so a request needs a block in every
    ``block_tokens``-th step: the steps whose count, modulo that, is the request's *phase*.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.phases = [0] * block_tokens
        self.requests = 0

    def add(self, phase: int) -> None:
        self.phases[phase] += 1
        self.requests += 1

    def remove(self, phase: int) -> None:
        self.phases[phase] -= 1
        self.requests -= 1

    def blocks(self, tick: int, steps: int) -> int:
        """Blocks that the ``steps`` steps from number ``tick`` on take."""
        size = self.block_tokens
        rounds, rest = divmod(steps, size)
        first = tick % size
        phases = self.phases
        if first + rest <= size:
            return rounds * self.requests + sum(phases[first : first + rest])
        return rounds * self.requests + sum(phases[first:]) + sum(phases[: first + rest - size])

    def steps_within(self, tick: int, steps: int, blocks: int) -> int:
        """The most steps from ``tick`` on, up to ``steps``, that take no more than ``blocks``."""
        if self.blocks(tick, steps) <= blocks:
            return steps
        size = self.block_tokens
        rounds = blocks // self.requests  # above 0: with no request no step takes a block
        within, left = rounds * size, blocks - rounds * self.requests
        while (taken := self.phases[(tick + within) % size]) <= left:
            left -= taken
            within += 1
        return within


class PrefixCache:
    """vLLM's prefix cache for requests that share whole leading blocks.

    A block is *live* while a request holds it and stays *cached* afterwards, the least recently
    used evicted first, as soon as its place is needed.  A request's last blocks are evicted
    before its first ones.
    """

    def __init__(self) -> None:
        self._live: dict[BlockKey, int] = {}
        self._cached: OrderedDict[BlockKey, None] = OrderedDict()

    @staticmethod
    def _key(row: int, group: int, shared_blocks: int, place: int) -> BlockKey:
        return (group, place) if place < shared_blocks else (-2 - row, place)

    def match(self, row: int, group: int, shared_blocks: int, most: int) -> tuple[int, int]:
        """Leading blocks that are there (``most`` at most), and how many of them none holds."""
        unheld = 0
        for place in range(most):
            key = self._key(row, group, shared_blocks, place)
            if key not in self._live:
                if key not in self._cached:
                    return place, unheld
                unheld += 1
        return most, unheld

    def hold(self, row: int, group: int, shared_blocks: int, first: int, last: int) -> None:
        """The request holds its whole blocks ``first`` to ``last - 1``, found or computed."""
        for place in range(first, last):
            key = self._key(row, group, shared_blocks, place)
            self._cached.pop(key, None)
            self._live[key] = self._live.get(key, 0) + 1

    def release(self, row: int, group: int, shared_blocks: int, whole: int) -> int:
        """The request gives up its ``whole`` blocks; returns how many nobody else holds."""
        freed = 0
        for place in reversed(range(whole)):
            key = self._key(row, group, shared_blocks, place)
            holders = self._live[key] - 1
            if holders:
                self._live[key] = holders
            else:
                del self._live[key]
                self._cached[key] = None
                freed += 1
        return freed

    def trim(self, free_blocks: int) -> None:
        """No more than ``free_blocks`` can be cached beside what is held."""
        while len(self._cached) > free_blocks:
            self._cached.popitem(last=False)
