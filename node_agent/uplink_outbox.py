"""What waits to be written to one stream: bounded, and the latest of a key replaces the others.

Values are made when their turn comes, not when they are put: a report that waited behind a slow
link then tells of the present.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """One reader; any number of writers of the same event loop."""

    def __init__(self) -> None:
        self._makers: dict[Hashable, Callable[[], T | None]] = {}
        self._filled = asyncio.Event()

    def put(self, key: Hashable, make: Callable[[], T | None]) -> None:
        """``make`` returns None if there is nothing to be said any more."""
        self._makers[key] = make
        self._filled.set()

    async def take(self) -> T:
        """The next value: keys in the order in which they were first put."""
        while True:
            await self._filled.wait()
            key = next(iter(self._makers))
            value = self._makers.pop(key)()
            if not self._makers:
                self._filled.clear()
            if value is not None:
                return value
