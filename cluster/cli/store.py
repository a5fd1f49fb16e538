"""``mirage store``: the metadata store as a whole.  These talk to Redis, not to a controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cluster.cli.options import run
from cluster.store.archive import export_store, import_store
from cluster.store.migration import migrate
from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from mirage_core.errors import ConfigError

app = typer.Typer(help="The metadata store: migrate, export, import.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Option(
        "--redis", help="redis://HOST:PORT, rediss:// or unix:///PATH.", envvar="MIRAGE_REDIS"
    ),
]
Cluster = Annotated[str, typer.Option(help="Name of the MIRAGE cluster in it.")]
Username = Annotated[str, typer.Option(help="ACL user.")]
PasswordFile = Annotated[Path | None, typer.Option(help="Its first line is the password.")]
Ca = Annotated[Path | None, typer.Option(help="Authority of the server's certificate, PEM.")]


@app.command("migrate")
def migrate_command(
    redis: Url,
    cluster: Cluster = "default",
    username: Username = "",
    password_file: PasswordFile = None,
    ca: Ca = None,
) -> None:
    """Rewrite the data in this version's schema: stop all controllers and copy the data first."""

    def action() -> None:
        settings = _settings(redis, cluster, username, password_file, ca)
        found, now = asyncio.run(migrate(settings))
        print(f"schema {now} already" if found == now else f"schema {found} is now {now}")

    run(action)


@app.command("export")
def export_command(
    file: Annotated[Path, typer.Argument(help="Where to; replaced at once or not at all.")],
    redis: Url,
    cluster: Cluster = "default",
    username: Username = "",
    password_file: PasswordFile = None,
    ca: Ca = None,
) -> None:
    """Write all wishes and directives to a file; controllers may go on."""

    async def export(settings: StoreSettings) -> int:
        store = RedisStore(settings)
        try:
            await store.open()
            return await export_store(store, file)
        finally:
            await store.close()

    def action() -> None:
        settings = _settings(redis, cluster, username, password_file, ca)
        print(f"{asyncio.run(export(settings))} records in {file}")

    run(action)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="An export.")],
    redis: Url,
    cluster: Cluster = "default",
    username: Username = "",
    password_file: PasswordFile = None,
    ca: Ca = None,
) -> None:
    """Fill an empty store from an export; agents of the old one follow."""

    def action() -> None:
        settings = _settings(redis, cluster, username, password_file, ca)
        print(f"{asyncio.run(import_store(settings, file))} records from {file}")

    run(action)


def _settings(
    url: str, cluster: str, username: str, password_file: Path | None, ca: Path | None
) -> StoreSettings:
    try:
        return StoreSettings(
            url=url, cluster=cluster, username=username, password_file=password_file, ca_file=ca
        )
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"store settings: {faults}") from None
