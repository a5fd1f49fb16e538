"""Which controller to dial next.  Pure.

Controllers are tried in turn until one answers.  A standby names the leader, and the agent goes
there at once; but for as long as an election takes it names none, or the one that has just died.
Then the agent waits at that standby: asked again it costs no handshake, while a thousand agents
that went from one standby to the other would keep all of them busy with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_REDIRECTS = 4
"""In a row: controllers that name each other are left."""
MAX_WAITS = 8
"""In a row at one standby: then a leader that was lost is believed in again, and a standby that
knows none is left."""


class Route:
    def __init__(
        self, controllers: Sequence[str], turn: int, may_dial: Callable[[str], bool]
    ) -> None:
        """``turn``: which controller is the first."""
        self._controllers = controllers
        self._turn = turn
        self._may_dial = may_dial
        self._target = ""
        self._lost = ""
        self._redirects = self._waits = 0

    @property
    def address(self) -> str:
        return self._target or self._controllers[self._turn % len(self._controllers)]

    def take(self, leader: str | None) -> bool:
        """``address`` named ``leader``, empty if it knows none; None: it is lost, or of no use.

        Returns whether to go on at once.
        """
        if leader is None:
            self._lost = self.address
            self._go_on()
        elif self._follows(leader):
            self._target = leader
            self._redirects += 1
            return self._redirects == 1
        elif self._waits < MAX_WAITS:
            self._target = self.address
            self._waits += 1
            self._redirects = 0
        else:
            self._go_on()
        return False

    def _follows(self, leader: str) -> bool:
        if not leader or self._redirects >= MAX_REDIRECTS or not self._may_dial(leader):
            return False
        return leader != self._lost or self._waits >= MAX_WAITS

    def _go_on(self) -> None:
        left, self._target = self.address, ""
        self._redirects = self._waits = 0
        self._turn += 1
        if self.address == left:
            self._turn += 1
