"""Memory files: anonymous memory that processes share by passing a descriptor, under seals."""

from __future__ import annotations

import fcntl
import os

from mirage_core.errors import DeviceError, ProtocolError
from mirage_core.memory import libc
from mirage_core.memory.limits import require_room


def create_memory_file(name: str, size_bytes: int, purpose: str) -> int:
    """Make a memory file with all its memory allocated and zeroed; return its descriptor.

    Raises ConfigError if the machine lacks the room (``purpose`` names the file to people), and
    DeviceError if the kernel gives out while allocating; either leaves nothing behind.
    """
    require_room(size_bytes, purpose)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _allocate(fd, size_bytes)
    except OSError as error:
        os.close(fd)
        raise DeviceError(
            f"the kernel gave up allocating {purpose} of {size_bytes} bytes ({error.strerror}); "
            "configure a smaller one"
        ) from error
    return fd


def seal_memory_file(fd: int, seals: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        raise DeviceError(f"cannot seal a memory file: {error.strerror}") from error


def seals_of(fd: int) -> int:
    """Seals of a descriptor that a peer passed; ProtocolError if it is no memory file."""
    try:
        return int(fcntl.fcntl(fd, fcntl.F_GET_SEALS))
    except OSError as error:
        raise ProtocolError(f"the descriptor is no memory file: {error.strerror}") from error


def duplicate(fd: int) -> int:
    """A descriptor of our own for a file that a peer passed."""
    try:
        return os.dup(fd)
    except OSError as error:
        raise DeviceError(f"cannot keep a memory file open: {error.strerror}") from error


def _allocate(fd: int, size_bytes: int) -> None:
    """Two passes: the first gets the memory or fails without a trace, the second zeroes it, which
    the kernel would otherwise put off until each page is first touched."""
    os.ftruncate(fd, size_bytes)
    os.posix_fallocate(fd, 0, size_bytes)
    address = libc.map_file(size_bytes, fd, libc.PROT_READ_WRITE)
    try:
        libc.allocate(address, size_bytes)
    finally:
        libc.unmap(address, size_bytes)
