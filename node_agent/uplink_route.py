"""Which controller to dial next.  Pure.

Controllers are tried in turn until one answers; all agents go on from a leader that died to the
same one, its successor in the list.  A standby holds an agent until it knows who leads, and names
that one, to which the agent goes at once; if it has learnt of none in its patience, the agent asks
it again, on the connection that it has, and only then goes on to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_REDIRECTS = 4
"""In a row: controllers that name each other are left."""
MAX_WAITS = 2
"""In a row at one standby that knows no leader."""


class Route:
    def __init__(
        self, controllers: Sequence[str], turn: int, may_dial: Callable[[str], bool]
    ) -> None:
        """``turn``: which controller is the first."""
        self._controllers = controllers
        self._turn = turn
        self._may_dial = may_dial
        self._target = ""
        self._redirects = self._waits = 0

    @property
    def address(self) -> str:
        return self._target or self._controllers[self._turn % len(self._controllers)]

    def take(self, leader: str | None) -> bool:
        """``address`` named ``leader``, empty if it knows none; None: it is lost, or of no use.

        Returns whether to go on at once.
        """
        if leader and self._redirects < MAX_REDIRECTS and self._may_dial(leader):
            self._target = leader
            self._redirects += 1
            self._waits = 0
            return self._redirects == 1
        if leader is not None and self._waits < MAX_WAITS:
            self._target = self.address
            self._waits += 1
            self._redirects = 0
        else:
            self._go_on()
        return False

    def _go_on(self) -> None:
        left, self._target = self.address, ""
        self._redirects = self._waits = 0
        if left in self._controllers:
            self._turn = self._controllers.index(left)
        self._turn += 1
        if self.address == left:
            self._turn += 1
