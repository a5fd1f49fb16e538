"""Export to a file and import from one: wishes with their revisions, actors and times.

A file is lines of JSON: a header, one line a record, and a trailer with their number and a SHA-256
of all lines before it, so that half a file is told from a whole one.  Events and observations are
left out: the first are history, the second are seen again.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis import exceptions as redis_errors

from cluster.store.calls import Caller
from cluster.store.port import Position, Record, RecordStore, Snapshot
from cluster.store.scripts import SCHEMA, Keys
from cluster.store.settings import StoreSettings, connect
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.errors import ConfigError, SchemaError

_FORMAT = "mirage-store"


class _Json(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class _Header(_Json):
    format: str
    store_schema: int
    incarnation: str
    retired: tuple[str, ...]
    revision: int = Field(ge=0)


class _Line(_Json):
    kind: str
    name: str
    revision: int = Field(ge=1)
    actor: str
    unix_ms: int
    payload: bytes


class _Trailer(_Json):
    records: int
    sha256: str


J = TypeVar("J", bound=_Json)


@dataclass(frozen=True, slots=True)
class Archive:
    """What a file holds.  retired: as of ``port.Lineage``."""

    snapshot: Snapshot
    retired: tuple[StoreIncarnation, ...]


async def export_store(store: RecordStore, file: Path) -> int:
    """Write all records of an open store to ``file``, replacing it at once or not at all; how
    many.  Raises ConfigError if it cannot be written."""
    snapshot = await store.snapshot()
    lineage = await store.lineage()
    lines = _encode(Archive(snapshot, lineage.retired))
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as out:
            out.writelines(lines)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None
    return len(snapshot.records)


async def import_store(settings: StoreSettings, file: Path) -> int:
    """Fill an empty store from ``file``; how many records.

    The store begins a new incarnation in place of the exported one, one revision after it.

    Raises ConfigError if the file is not whole or the store not empty, SchemaError if the file is
    of another version.
    """
    archive = read_archive(file)
    caller = Caller(connect(settings), Keys(settings.cluster), settings)
    try:
        await caller.guard(lambda: _fill(caller, archive))
    finally:
        await caller.client.aclose(close_connection_pool=True)
    return len(archive.snapshot.records)


async def _fill(caller: Caller, archive: Archive) -> None:
    keys, position = caller.keys, archive.snapshot.position
    occupied = ConfigError(
        f"{caller.settings.where} is not empty for cluster {caller.settings.cluster!r}: stop its"
        " controllers, and import into another cluster name or an empty server"
    )
    async with caller.client.pipeline(transaction=True) as pipe:
        await pipe.watch(keys.meta, keys.kinds, keys.lease)
        found: Any = await pipe.exists(keys.kinds, keys.lease)
        meta: Any = await pipe.hmget(keys.meta, ["incarnation", "revision"])
        if found:
            raise occupied
        retired = [*archive.retired, position.incarnation]
        if meta[0] is not None:
            retired.append(StoreIncarnation(meta[0].decode()))
        pipe.multi()  # type: ignore[no-untyped-call]
        pipe.delete(keys.meta, keys.changes)
        pipe.hset(
            keys.meta,
            mapping={
                "schema": SCHEMA,
                "incarnation": uuid.uuid4().hex,
                "revision": max(position.revision, int(meta[1] or 0)) + 1,
                "retired": " ".join(retired),
            },
        )
        for each in archive.snapshot.records:
            actor = each.actor.encode()
            head = f"{each.revision} {each.unix_ms} {len(actor)}\n".encode()
            pipe.hset(keys.records(each.kind), each.name, head + actor + each.payload)
            pipe.zadd(keys.index(each.kind), {each.name: 0})
            pipe.sadd(keys.kinds, each.kind)
        try:
            await pipe.execute()
        except redis_errors.WatchError:
            raise occupied from None


def read_archive(file: Path) -> Archive:
    """Raises ConfigError, which names the line at fault, and SchemaError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {file}: {reason}") from None
    if len(lines) < 2:
        raise ConfigError(f"{file} is no export of a store, or not whole")
    header = _parse(_Header, lines[0], file, 1)
    if header.format != _FORMAT:
        raise ConfigError(f"{file} is no export of a store: its format is {header.format!r}")
    if header.store_schema != SCHEMA:
        raise SchemaError(
            f"{file} is of schema {header.store_schema}, and this MIRAGE speaks {SCHEMA}:"
            " import it with the MIRAGE that wrote it, then migrate"
        )
    trailer = _parse(_Trailer, lines[-1], file, len(lines))
    if trailer.records != len(lines) - 2 or trailer.sha256 != _digest(lines[:-1]):
        raise ConfigError(f"{file} is damaged or not whole: export it again")
    records = tuple(
        _record(_parse(_Line, line, file, number)) for number, line in enumerate(lines[1:-1], 2)
    )
    position = Position(StoreIncarnation(header.incarnation), header.revision)
    return Archive(
        Snapshot(position, records), tuple(StoreIncarnation(each) for each in header.retired)
    )


def _encode(archive: Archive) -> list[str]:
    position = archive.snapshot.position
    header = _Header(
        format=_FORMAT,
        store_schema=SCHEMA,
        incarnation=position.incarnation,
        retired=archive.retired,
        revision=position.revision,
    )
    body = [
        _Line(
            kind=each.kind,
            name=each.name,
            revision=each.revision,
            actor=each.actor,
            unix_ms=each.unix_ms,
            payload=each.payload,
        )
        for each in archive.snapshot.records
    ]
    lines = [line.model_dump_json() + "\n" for line in (header, *body)]
    trailer = _Trailer(records=len(body), sha256=_digest(lines))
    return [*lines, trailer.model_dump_json() + "\n"]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _parse(kind: type[J], line: str, file: Path, number: int) -> J:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors(include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "line"
        raise ConfigError(f"{file}, line {number}: {where}: {fault['msg']}") from None


def _record(line: _Line) -> Record:
    return Record(line.kind, line.name, line.revision, line.payload, line.actor, line.unix_ms)
