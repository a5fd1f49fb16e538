"""Host copies: all units of a model in one memory file, shared by its engines on the node.

    | header: magic, version, layout digest, one checksum a unit | unit 0 | unit 1 | ...
      (padded to a whole page of the system)                       at layout.host_offsets_bytes

One engine writes the copy and seals it; from then on the kernel lets nobody change a byte, so a
checksum taken before sealing stays true, and readers map it without checking all of it again.
The digest of a copy names its bytes: layout digest and checksums together.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import struct
from collections.abc import Sequence

from mirage_core.errors import DeviceError, MisuseError, ProtocolError, TransferError
from mirage_core.memory import libc
from mirage_core.memory.file import create_memory_file, duplicate, seal_memory_file, seals_of
from mirage_core.model import UnitId
from mirage_core.weights.layout import WeightLayout

CHECKSUM_BYTES = 16

_HEADER = struct.Struct("<8sII16s")
"""magic, version, number of units, layout digest"""
_MAGIC = b"MIRAGEHC"
_VERSION = 1
_SEALS = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_WRITE | libc.F_SEAL_SEAL


def checksum(data: ctypes.Array[ctypes.c_ubyte] | bytes) -> bytes:
    """The checksum that host copies keep of each unit."""
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


class HostCopyWriter:
    """A host copy that is being written; ``seal`` ends the writing, ``close`` gives it up."""

    def __init__(self, layout: WeightLayout) -> None:
        """Allocate the copy; ConfigError or DeviceError if the machine lacks the memory."""
        self._layout = layout
        self._size_bytes = host_copy_bytes(layout)
        fd = create_memory_file("mirage-host-copy", self._size_bytes, "a host copy of weights")
        self._base = _map_or_close(fd, self._size_bytes, libc.PROT_READ_WRITE)
        self._fd: int | None = fd

    def buffer(self, unit: UnitId) -> ctypes.Array[ctypes.c_ubyte]:
        """The unit's bytes, to be written; the view must not be used after ``seal``."""
        if self._fd is None:
            raise MisuseError("the host copy is sealed or closed")
        return _unit_bytes(self._layout, self._base, unit)

    def seal(self) -> HostCopy:
        """Take the checksums, make the copy unchangeable, and open it for reading."""
        if self._fd is None:
            raise MisuseError("the host copy is sealed or closed")
        checksums = [checksum(self.buffer(unit.unit)) for unit in self._layout.units]
        header = _header(self._layout, checksums)
        ctypes.memmove(self._base, header, len(header))
        libc.unmap(self._base, self._size_bytes)
        fd, self._fd = self._fd, None
        try:
            seal_memory_file(fd, _SEALS)
            return HostCopy.open(fd, self._layout, _digest(header))
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._fd is not None:
            libc.unmap(self._base, self._size_bytes)
            os.close(self._fd)
            self._fd = None


class HostCopy:
    """A sealed host copy, mapped for reading; made by ``HostCopyWriter.seal`` or ``open``."""

    def __init__(self, fd: int, layout: WeightLayout, base: int, header: bytes) -> None:
        self._fd = fd
        self._layout = layout
        self._base = base
        self._closed = False
        self.digest = _digest(header)
        table = header[_HEADER.size :]
        self.checksums = tuple(
            table[start : start + CHECKSUM_BYTES] for start in range(0, len(table), CHECKSUM_BYTES)
        )
        """by UnitId"""

    @classmethod
    def open(cls, fd: int, layout: WeightLayout, digest: str) -> HostCopy:
        """Map the copy behind a descriptor that a peer passed; ``fd`` stays the caller's.

        Raises ProtocolError if it is not a sealed copy of this layout with this digest.
        """
        if seals_of(fd) & _SEALS != _SEALS:
            raise ProtocolError("the host copy may still change: it is not sealed")
        size_bytes = host_copy_bytes(layout)
        if os.fstat(fd).st_size != size_bytes:
            raise ProtocolError(
                f"the host copy has {os.fstat(fd).st_size} bytes, its layout {size_bytes}"
            )
        header = os.pread(fd, _header_bytes(layout), 0)
        if header[: _HEADER.size] != _fixed_header(layout):
            raise ProtocolError("the host copy's header is of another version, layout or kind")
        if not hmac.compare_digest(_digest(header), digest):
            raise ProtocolError(f"the host copy has digest {_digest(header)}, not {digest}")
        own_fd = duplicate(fd)
        base = _map_or_close(own_fd, size_bytes, libc.PROT_READ)
        return cls(own_fd, layout, base, header)

    @property
    def fd(self) -> int:
        """The memory file, to be passed beside a message (SCM_RIGHTS)."""
        return self._fd

    def address(self, unit: UnitId) -> int:
        """Where the unit's bytes start; reading only, writing is SIGSEGV."""
        return ctypes.addressof(self.buffer(unit))

    def buffer(self, unit: UnitId) -> ctypes.Array[ctypes.c_ubyte]:
        """The unit's bytes (a view that ctypes takes for writable: do not write)."""
        if self._closed:
            raise MisuseError("the host copy is closed")
        return _unit_bytes(self._layout, self._base, unit)

    def verify(self) -> None:
        """Raise TransferError unless all bytes match their checksums (about 1 s a GB)."""
        for unit in self._layout.units:
            if checksum(self.buffer(unit.unit)) != self.checksums[unit.unit]:
                raise TransferError(f"the host copy of unit {unit.name} is damaged")

    def close(self) -> None:
        """Let the mapping go; views of it must not be used any more."""
        if not self._closed:
            libc.unmap(self._base, host_copy_bytes(self._layout))
            os.close(self._fd)
            self._closed = True


def _map_or_close(fd: int, size_bytes: int, protection: int) -> int:
    """Map a host copy and enter it into the page tables, so that no fetch faults."""
    base = None
    try:
        base = libc.map_file(size_bytes, fd, protection)
        libc.populate(base, size_bytes)
    except OSError as error:
        if base is not None:
            libc.unmap(base, size_bytes)
        os.close(fd)
        raise DeviceError(
            f"cannot map a host copy of {size_bytes} bytes: {error.strerror}"
        ) from error
    return base


def host_copy_digest(layout: WeightLayout, checksums: Sequence[bytes]) -> str:
    """The digest of the copy whose units have these checksums, before it is written."""
    return _digest(_header(layout, checksums))


def _fixed_header(layout: WeightLayout) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, len(layout.parts), bytes.fromhex(layout.digest))


def _header(layout: WeightLayout, checksums: Sequence[bytes]) -> bytes:
    return _fixed_header(layout) + b"".join(checksums)


def _header_bytes(layout: WeightLayout) -> int:
    return _HEADER.size + CHECKSUM_BYTES * len(layout.parts)


def _digest(header: bytes) -> str:
    return hashlib.blake2b(header, digest_size=16).hexdigest()


def _units_start_bytes(layout: WeightLayout) -> int:
    return -(-_header_bytes(layout) // libc.OS_PAGE_BYTES) * libc.OS_PAGE_BYTES


def host_copy_bytes(layout: WeightLayout) -> int:
    """Size of a host copy's memory file, header included."""
    return _units_start_bytes(layout) + layout.host_size_bytes


def _unit_bytes(layout: WeightLayout, base: int, unit: UnitId) -> ctypes.Array[ctypes.c_ubyte]:
    if not 0 <= unit < len(layout.parts):
        raise MisuseError(f"unit {unit} of a model of {len(layout.parts)}")
    start = base + _units_start_bytes(layout) + layout.host_offsets_bytes[unit]
    return libc.bytes_at(start, layout.parts[unit].size_bytes)
