"""The candidate in a thread of its own, with its own event loop and its own way to the store.

On the controller's loop a renewal would wait its turn behind a thousand agents' answers, some of
them five turns in a row, and a leader that is merely busy would be deposed.  Here it waits for
nothing but the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from cluster.election import Candidate, Following, Role, Timing
from cluster.store.port import Store
from mirage_core.errors import HistoryLostError
from mirage_core.ports import Clock


class ElectionThread:
    """``run`` on the controller's loop; ``role`` may be read from any thread at any moment."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        holder: str,
        address: str,
        timing: Timing,
        attended: Callable[[], bool],
        on_change: Callable[[Role], None],
        history_lost_event: Callable[[HistoryLostError], bytes],
        on_history_lost: Callable[[], Awaitable[None]],
    ) -> None:
        """store            used by this thread alone; closed at the end
        attended            see ``Candidate``; called on this thread
        on_change           called on the controller's loop
        history_lost_event  for the event stream, when this candidate declares history lost
        on_history_lost     called then on the controller's loop, whose store has to adopt it
        """
        self._store = store
        self._on_change = on_change
        self._event = history_lost_event
        self._on_history_lost = on_history_lost
        self._controller: asyncio.AbstractEventLoop | None = None
        self._candidate = Candidate(
            store,
            clock,
            holder=holder,
            address=address,
            timing=timing,
            attended=attended,
            on_change=self._tell,
            on_history_lost=self._declare_lost,
        )

    @property
    def role(self) -> Role:
        return self._candidate.role if self._controller is not None else Following(None)

    async def run(self) -> None:
        """Until cancelled; then resigns.  Raises what ends the candidate."""
        self._controller = asyncio.get_running_loop()
        ended = self._controller.create_future()
        begun: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = (
            self._controller.create_future()
        )
        thread = threading.Thread(
            target=self._serve, args=(begun, ended), name="election", daemon=True
        )
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            loop, task = await begun
            if not ended.done():
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.wait((ended,))
            thread.join()

    def _serve(
        self,
        begun: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]],
        ended: asyncio.Future[None],
    ) -> None:
        """The thread."""
        controller = self._controller
        assert controller is not None, "run sets it"

        async def campaign() -> None:
            task = asyncio.current_task()
            assert task is not None, "it runs in one"
            loop = asyncio.get_running_loop()
            controller.call_soon_threadsafe(begun.set_result, (loop, task))
            try:
                await self._store.open()
                await self._candidate.run()
            finally:
                await self._store.close()

        try:
            asyncio.run(campaign())
        except asyncio.CancelledError:
            controller.call_soon_threadsafe(ended.set_result, None)
        except BaseException as error:
            controller.call_soon_threadsafe(ended.set_exception, error)

    def _tell(self, role: Role) -> None:
        assert self._controller is not None, "run sets it"
        self._controller.call_soon_threadsafe(self._on_change, role)

    async def _declare_lost(self, error: HistoryLostError) -> None:
        assert self._controller is not None, "run sets it"
        await self._store.declare_lost_history(event=self._event(error))
        adopted = asyncio.run_coroutine_threadsafe(self._adopt(), self._controller)
        await asyncio.wrap_future(adopted)

    async def _adopt(self) -> None:
        await self._on_history_lost()
