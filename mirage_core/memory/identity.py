"""The host device's id: a UUID of its own, kept on disk so that it survives its agent."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from mirage_core.errors import ConfigError
from mirage_core.model import DeviceId

_PREFIX = "HOST-"


def load_or_create_device_id(path: Path) -> DeviceId:
    """Return the id at ``path``, made on first use; of several racing callers one makes it.

    The file is complete from the moment it is visible (written aside, then linked), with mode
    0600.  Raises ConfigError if it cannot be read or written, or does not hold an id.
    """
    try:
        if not path.exists():
            _create(path)
        text = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot keep the device id at {path}: {error.strerror}") from error
    try:
        uuid.UUID(text.removeprefix(_PREFIX))
    except ValueError as error:
        raise ConfigError(f"{path} holds no device id; remove it to make a new one") from error
    return DeviceId(text)


def _create(path: Path) -> None:
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(f"{_PREFIX}{uuid.uuid4()}\n")
            file.flush()
            os.fsync(file.fileno())
        # link, not rename: it never replaces the id of a caller that was faster
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        os.unlink(aside)
