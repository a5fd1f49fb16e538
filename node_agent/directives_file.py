"""What an agent holds to, on disk: replaced whole, and durable before it is applied."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from mirage_core.cluster_model import DirectiveSnapshot, StoreIncarnation
from mirage_core.errors import ConfigError, ProtocolError
from mirage_core.wire.agent_codec import decode_directive_snapshot, encode_directive_snapshot
from mirage_core.wire.v1 import agent_pb2
from node_agent.directives import NOTHING_HELD, Held

_FORMAT = 1


class DirectivesFile:
    """``path`` in the agent's state folder, which nobody else may write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Held:
        """What the last agent held to.  ConfigError if it cannot be read."""
        try:
            values: dict[str, Any] = json.loads(self._path.read_text())
            if values["format"] != _FORMAT:
                raise ConfigError(
                    f"{self._path} is of format {values['format']}, this agent reads {_FORMAT}:"
                    " start the version that wrote it, or remove the file"
                )
            message = json_format.ParseDict(values["snapshot"], agent_pb2.DirectiveSnapshot())
            snapshot = decode_directive_snapshot(message)
            retired = frozenset(map(StoreIncarnation, values["retired"]))
        except FileNotFoundError:
            return NOTHING_HELD
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            ProtocolError,
            json_format.ParseError,
        ) as error:
            raise ConfigError(
                f"cannot read the directives {self._path}: {error}; remove the file, and the"
                " controller will send them again"
            ) from None
        return Held(snapshot.authority, retired, snapshot.directives)

    def save(self, held: Held) -> None:
        """Raises OSError if the disk refuses: then nothing must be applied."""
        if held.latest is None:
            return
        snapshot = encode_directive_snapshot(DirectiveSnapshot(held.latest, held.directives))
        values = {
            "format": _FORMAT,
            "retired": sorted(held.retired),
            "snapshot": json_format.MessageToDict(snapshot, preserving_proto_field_name=True),
        }
        aside = self._path.with_suffix(".new")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(values, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class DirectivesInMemory:
    """For simulated agents, whose restarts are not what is tried."""

    def __init__(self, held: Held = NOTHING_HELD) -> None:
        self._held = held

    def load(self) -> Held:
        return self._held

    def save(self, held: Held) -> None:
        self._held = held
