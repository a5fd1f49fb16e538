"""Files that an operator may change while the process runs: tokens, certificates."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from mirage_core.errors import ConfigError

_log = logging.getLogger("mirage.files")

T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int], ...]


class Watched(Generic[T]):
    """A value read from files, read again when one of them changed.

    The first reading must succeed; a later one that fails keeps the last good value and is logged
    once a change.  Replace files by a rename: a half-written file is then never seen.
    """

    def __init__(self, paths: tuple[Path, ...], read: Callable[[], T]) -> None:
        """Raises ConfigError, from ``read`` or because a file is missing."""
        self._paths = paths
        self._read = read
        self._stamp = self._observe_stamp()
        self._value = read()

    @property
    def value(self) -> T:
        return self._value

    def refresh(self) -> bool:
        """Read again if a file changed; whether the value is a new one."""
        try:
            stamp = self._observe_stamp()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            self._value = self._read()
        except ConfigError as error:
            _log.error("kept what was read before: %s", error)
            return False
        _log.info("read again: %s", ", ".join(map(str, self._paths)))
        return True

    def _observe_stamp(self) -> _Stamp:
        try:
            stats = [path.stat() for path in self._paths]
        except OSError as error:
            raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None
        return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)


def read_bytes(path: Path) -> bytes:
    """The file's bytes; ConfigError names it if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
