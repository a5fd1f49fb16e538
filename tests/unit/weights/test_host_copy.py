"""Host copies: written once, sealed, shared."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator

import pytest

from mirage_core.errors import DeviceError, MisuseError, ProtocolError, TransferError
from mirage_core.memory import libc
from mirage_core.model import UnitId
from mirage_core.weights.host_copy import (
    HostCopy,
    HostCopyWriter,
    checksum,
    host_copy_digest,
)
from mirage_core.weights.layout import Tensor, WeightLayout, lay_out

UNITS = (UnitId(0), UnitId(1))


def layout_of(*sizes_bytes: int) -> WeightLayout:
    return lay_out(
        4096,
        [
            (f"{unit}", [Tensor(f"{unit}.w", "uint8", (size,), size)])
            for unit, size in enumerate(sizes_bytes)
        ],
        [],
    )


LAYOUT = layout_of(5000, 100)


def write(layout: WeightLayout, fill: int = 1) -> HostCopyWriter:
    writer = HostCopyWriter(layout)
    for unit in layout.units:
        view = writer.buffer(unit.unit)
        view[:] = bytes([unit.unit + fill]) * len(view)
    return writer


@pytest.fixture
def copy() -> Iterator[HostCopy]:
    copy = write(LAYOUT).seal()
    yield copy
    copy.close()


def test_reader_sees_what_the_writer_wrote(copy: HostCopy) -> None:
    other = HostCopy.open(copy.fd, LAYOUT, copy.digest)
    assert [bytes(other.buffer(unit)) for unit in UNITS] == [b"\x01" * 5000, b"\x02" * 100]
    assert other.checksums == (checksum(b"\x01" * 5000), checksum(b"\x02" * 100))
    assert other.address(UNITS[0]) == ctypes.addressof(other.buffer(UNITS[0]))
    assert other.address(UNITS[1]) % 64 == 0
    other.verify()
    other.close()


def test_sealed_copy_cannot_be_changed(copy: HostCopy) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(copy.fd, b"x", 0)
    with pytest.raises(PermissionError):
        libc.map_file(4096, copy.fd, libc.PROT_READ_WRITE)


def test_digest_follows_the_bytes(copy: HostCopy) -> None:
    same, other = write(LAYOUT).seal(), write(LAYOUT, fill=9).seal()
    assert same.digest == copy.digest
    assert host_copy_digest(LAYOUT, copy.checksums) == copy.digest
    assert other.digest != copy.digest
    same.close()
    other.close()


def test_copy_of_other_weights_is_refused(copy: HostCopy) -> None:
    other = write(LAYOUT, fill=9).seal()
    with pytest.raises(ProtocolError, match="digest"):
        HostCopy.open(other.fd, LAYOUT, copy.digest)
    other.close()


@pytest.mark.parametrize("layout", [layout_of(5000), layout_of(5000, 9000), layout_of(4999, 100)])
def test_copy_of_another_layout_is_refused(copy: HostCopy, layout: WeightLayout) -> None:
    with pytest.raises(ProtocolError):
        HostCopy.open(copy.fd, layout, copy.digest)


def test_copy_that_is_not_sealed_is_refused(copy: HostCopy) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, os.pread(copy.fd, os.fstat(copy.fd).st_size, 0))
    with pytest.raises(ProtocolError, match="not sealed"):
        HostCopy.open(fd, LAYOUT, copy.digest)
    os.close(fd)


def test_writer_ends_once() -> None:
    writer = write(LAYOUT)
    writer.seal().close()
    for act in (writer.seal, lambda: writer.buffer(UNITS[0])):
        with pytest.raises(MisuseError):
            act()
    writer.close()


def test_writing_and_reading_leave_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    given_up = write(LAYOUT)
    given_up.close()
    copy = write(LAYOUT).seal()
    copy.close()
    copy.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(MisuseError):
        copy.buffer(UNITS[0])


def test_kernel_that_cannot_map_leaks_nothing(
    copy: HostCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(libc, "populate", refuse)
    with pytest.raises(DeviceError):
        HostCopy.open(copy.fd, LAYOUT, copy.digest)
    with pytest.raises(DeviceError):
        HostCopyWriter(LAYOUT)
    assert len(os.listdir("/proc/self/fd")) == before


def test_unit_of_another_model_is_misuse(copy: HostCopy) -> None:
    with pytest.raises(MisuseError):
        copy.buffer(UnitId(2))


def test_damage_is_found(copy: HostCopy) -> None:
    copy.checksums = (copy.checksums[0], copy.checksums[0])
    with pytest.raises(TransferError, match="unit 1"):
        copy.verify()
