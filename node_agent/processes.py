"""Processes of engines, told apart for ever: a pid is reused, a pid with its start time is not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """``start_ticks``: clock ticks since boot at which it started (/proc/PID/stat, field 22)."""

    pid: int
    start_ticks: int


def observe_process(pid: int) -> ProcessId | None:
    """The process that has ``pid`` now; None if there is none, or it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return ProcessId(pid, int(fields[19]))


def open_process(process: ProcessId) -> int | None:
    """A pidfd of ``process``; None if it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # The pidfd pins whichever process has the pid; only now is it sure which one that is.
    if observe_process(process.pid) != process:
        os.close(pidfd)
        return None
    return pidfd


def observe_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
