"""The agent's socket: private to its user, and one agent at it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path

from mirage_core.errors import ConfigError

_BACKLOG = 256


def prepare_private_folder(path: Path, purpose: str) -> None:
    """Make a folder of mode 0700, or accept one that others cannot write."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot make the {purpose} {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"the {purpose} {path} is not a folder")
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"the {purpose} {path} must be ours alone to write: choose another, or set its mode"
            " to 0700"
        )


def lock_folder(path: Path) -> int:
    """A descriptor whose lock keeps other agents away from ``path`` until it is closed."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(f"another agent uses the state folder {path}") from None
    return fd


def listen(path: Path) -> socket.socket:
    """A listening socket of mode 0600; replaces one that nobody listens at any more."""
    prepare_private_folder(path.parent, "folder of the agent's socket")
    _remove_dead(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        mask = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen at {path}: {error}") from None
    return sock


def _remove_dead(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} exists and is not a socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError as error:
            raise ConfigError(f"cannot tell who listens at {path}: {error}") from None
        else:
            raise ConfigError(f"another agent listens at {path}")
