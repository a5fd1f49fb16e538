"""What waits to be written to one agent: of each key the latest alone.

gRPC allows one write at a time on a stream, so all that is for an agent goes through its outbox
and one task writes it.  A slow agent costs memory for each key, not for each change.
"""

from __future__ import annotations

import asyncio

from mirage_core.wire.v1 import agent_pb2 as pb

WELCOME, SNAPSHOT, HEARTBEAT, WANTED, LAST = "welcome", "snapshot", "heartbeat", "wanted", "last"
_DIRECTIVE = "directive:"


class Outbox:
    def __init__(self, limit: int) -> None:
        """``limit``: messages that may wait at once."""
        self._limit = limit
        self._messages: dict[str, pb.SessionResponse] = {}
        self._wake = asyncio.Event()
        self.closed = False
        """no more is taken; what waits is still to be written"""

    def put(self, key: str, message: pb.SessionResponse) -> bool:
        """False if too much waits already, and the agent is to be given up."""
        if self.closed:
            return True
        if key == SNAPSHOT:
            self._drop_directives()
        self._messages[key] = message
        self._wake.set()
        return len(self._messages) <= self._limit

    def put_directive(self, key: str, message: pb.SessionResponse) -> bool:
        return self.put(_DIRECTIVE + key, message)

    def close(self, last: pb.SessionResponse | None = None) -> None:
        """Nothing but ``last`` is written from now on."""
        if not self.closed:
            self._messages = {} if last is None else {LAST: last}
            self.closed = True
            self._wake.set()

    async def take(self) -> list[pb.SessionResponse]:
        """What waits, in order; empty once it is closed."""
        while not self._messages and not self.closed:
            self._wake.clear()
            await self._wake.wait()
        taken, self._messages = list(self._messages.values()), {}
        return taken

    def _drop_directives(self) -> None:
        """A snapshot is all that holds, and goes behind what else waits."""
        self._messages = {
            key: message
            for key, message in self._messages.items()
            if key != SNAPSHOT and not key.startswith(_DIRECTIVE)
        }
