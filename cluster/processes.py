"""Processes that a process of the cluster starts, and that end with it, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with(owner: int) -> Callable[[], None]:
    """For the child, before it becomes another program (``preexec_fn``): SIGTERM when the thread
    of ``owner`` that started it ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != owner:  # it ended before the line above
            os._exit(1)

    return prepare
