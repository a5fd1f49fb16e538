"""The few calls of libc that mapping pages needs, with errno turned into OSError.

Python's ``mmap`` module chooses addresses itself and cannot map at a fixed one, so these go
through ctypes.  Every call here releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

PROT_NONE = 0
PROT_READ = mmap.PROT_READ
PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_RESERVATION = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value

# Python 3.11's fcntl lacks the last one.
F_SEAL_SEAL = 0x1
F_SEAL_SHRINK = 0x2
F_SEAL_GROW = 0x4
F_SEAL_WRITE = 0x8
F_SEAL_FUTURE_WRITE = 0x10

OS_PAGE_BYTES = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def reserve_addresses(size_bytes: int, alignment_bytes: int) -> int:
    """Reserve ``size_bytes`` of addresses without memory; return the first, aligned."""
    slack_bytes = alignment_bytes - OS_PAGE_BYTES
    start = _mmap(None, size_bytes + slack_bytes, PROT_NONE, _RESERVATION, -1, 0)
    base = -(-start // alignment_bytes) * alignment_bytes
    if base > start:
        unmap(start, base - start)
    if slack_bytes > base - start:
        unmap(base + size_bytes, slack_bytes - (base - start))
    return base


def map_nothing_at(address: int, size_bytes: int) -> None:
    """Put bare reserved addresses in place of what is mapped there.

    The kernel checks its limits before it removes the old mapping, so a failure changes nothing.
    """
    _mmap(address, size_bytes, PROT_NONE, _RESERVATION | _MAP_FIXED, -1, 0)


def map_file_at(address: int, size_bytes: int, fd: int, offset_bytes: int) -> None:
    """Map a part of a file, shared and without access, in place of what is mapped there."""
    _mmap(address, size_bytes, PROT_NONE, mmap.MAP_SHARED | _MAP_FIXED, fd, offset_bytes)


def map_file(size_bytes: int, fd: int, protection: int) -> int:
    """Map a whole file, shared, where the kernel likes."""
    return _mmap(None, size_bytes, protection, mmap.MAP_SHARED, fd, 0)


def unmap(address: int, size_bytes: int) -> None:
    _check(_libc.munmap(address, size_bytes))


def protect(address: int, size_bytes: int, protection: int) -> None:
    _check(_libc.mprotect(address, size_bytes, protection))


def allocate(address: int, size_bytes: int) -> None:
    """Give every page of a writable mapping its memory now; OSError where there is none left."""
    try:
        _check(_libc.madvise(address, size_bytes, _MADV_POPULATE_WRITE))
    except OSError as error:
        if not _lacks_populate(error):
            raise
        ctypes.memset(address, 0, size_bytes)


def populate(address: int, size_bytes: int) -> None:
    """Enter a mapping whose memory exists into the page tables, so that no touch faults later.

    Reading serves writers too, because a shared memory file needs no notice of a first write; and
    it is four times faster than populating for writing, because the kernel then enters sixteen
    pages at a fault.
    """
    try:
        _check(_libc.madvise(address, size_bytes, _MADV_POPULATE_READ))
    except OSError as error:
        if not _lacks_populate(error):
            raise
        for offset_bytes in range(0, size_bytes, OS_PAGE_BYTES):
            _ = ctypes.c_ubyte.from_address(address + offset_bytes).value


def fill(address: int, size_bytes: int, byte: int) -> None:
    ctypes.memset(address, byte, size_bytes)


def is_filled_with(address: int, size_bytes: int, byte: int) -> bool:
    """Whether every byte is ``byte``: the first is, and each equals the next."""
    if ctypes.c_ubyte.from_address(address).value != byte:
        return False
    return bool(_libc.memcmp(address, address + 1, size_bytes - 1) == 0)


def bytes_at(address: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    """A view, not a copy; it must not outlive the mapping."""
    return (ctypes.c_ubyte * size_bytes).from_address(address)


def _mmap(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, size, protection, flags, fd, offset)
    if result is None or result == _MAP_FAILED:
        raise _last_error()
    return int(result)


def _check(result: int) -> None:
    if result != 0:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _lacks_populate(error: OSError) -> bool:
    """Linux before 5.14 does not know the advice."""
    return error.errno == errno.EINVAL
