"""A TCP proxy that loses replies after the server has done the work, or goes silent.

What a client sees is what a network does to it: the request arrived and was carried out, and the
answer never came.  Nothing is lost by chance: a reply is dropped after it was read from the
server, which is the proof that the request was done.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self

_CHUNK = 1 << 16


class ReplyDroppingProxy:
    """Listens on a loopback port of its own and forwards to ``target``.

    drop_every  of so many chunks of reply one is dropped and its connection closed; 0: none
    silent      while set nothing passes in either direction, and connections stay open
    """

    def __init__(self, target: tuple[str, int] | str, *, tls: ssl.SSLContext | None = None) -> None:
        """target  (host, port) or the path of a unix socket
        tls     for clients; the way to the target stays plain"""
        self._target = target
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._replies = 0
        self.drop_every = 0
        self.dropped = 0

    @property
    def port(self) -> int:
        assert self._server is not None, "started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def silent(self) -> bool:
        return not self._open.is_set()

    @silent.setter
    def silent(self, value: bool) -> None:
        if value:
            self._open.clear()
        else:
            self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        writers = [client_writer]
        try:
            if isinstance(self._target, str):
                reader, writer = await asyncio.open_unix_connection(self._target)
            else:
                reader, writer = await asyncio.open_connection(*self._target)
            writers.append(writer)
            ways = [
                asyncio.ensure_future(self._pump(client_reader, writer, droppable=False)),
                asyncio.ensure_future(self._pump(reader, client_writer, droppable=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the target is gone, or the proxy ends: the client sees a closed connection
        finally:
            for each in writers:
                each.transport.abort()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, droppable: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._open.wait()
                if droppable and self._drops():
                    return
                writer.write(chunk)
                await writer.drain()

    def _drops(self) -> bool:
        self._replies += 1
        if not self.drop_every or self._replies % self.drop_every:
            return False
        self.dropped += 1
        return True
