"""``python -m cluster.controller``: one controller, leader or standby as the election has it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from cluster.clocks import BootClock, SystemWallClock
from cluster.config import ControllerConfig, load_config
from cluster.controller.controller import Controller
from cluster.store.redis_store import RedisStore
from mirage_core.errors import MirageError
from mirage_core.telemetry.logs import set_up_logs


def main(
    config: Annotated[
        Path | None, typer.Option(help="YAML or JSON file of settings (cluster.config).")
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="redis://HOST:PORT, rediss:// or unix:///PATH.")
    ] = None,
    redis_password_file: Annotated[Path | None, typer.Option()] = None,
    redis_username: Annotated[str | None, typer.Option()] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the MIRAGE cluster.")] = None,
    admin_listen: Annotated[str | None, typer.Option(help="Operators' HOST:PORT.")] = None,
    agent_listen: Annotated[str | None, typer.Option(help="Agents' HOST:PORT.")] = None,
    admin_certificate: Annotated[Path | None, typer.Option()] = None,
    admin_key: Annotated[Path | None, typer.Option()] = None,
    admin_client_ca: Annotated[Path | None, typer.Option(help="Operators need mTLS.")] = None,
    agent_certificate: Annotated[Path | None, typer.Option()] = None,
    agent_key: Annotated[Path | None, typer.Option()] = None,
    agent_client_ca: Annotated[
        Path | None, typer.Option(help="Agents need mTLS; a certificate names their node.")
    ] = None,
    tokens: Annotated[Path | None, typer.Option(help="File of bearer tokens.")] = None,
    allow_insecure: Annotated[
        bool | None, typer.Option(help="Plain text or unknown callers beyond loopback.")
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus, loopback only.")] = None,
    otlp_endpoint: Annotated[str | None, typer.Option(help="OTLP collector, HOST:PORT.")] = None,
    json_logs: Annotated[bool | None, typer.Option()] = None,
) -> None:
    """Run one controller until it is told to stop."""
    given = {
        "admin_listen": admin_listen,
        "agent_listen": agent_listen,
        "tokens": tokens,
        "allow_insecure": allow_insecure,
        "metrics_port": metrics_port,
        "otlp_endpoint": otlp_endpoint,
        "json_logs": json_logs,
        "store": _given(
            url=redis,
            password_file=redis_password_file,
            username=redis_username,
            cluster=cluster,
        ),
        "admin_tls": _given(
            certificate=admin_certificate, key=admin_key, client_ca=admin_client_ca
        ),
        "agent_tls": _given(
            certificate=agent_certificate, key=agent_key, client_ca=agent_client_ca
        ),
    }
    overrides = {name: value for name, value in given.items() if value not in (None, {})}
    try:
        settings = load_config(config, overrides)
        set_up_logs(as_json=settings.json_logs)
        gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _OLD_ROUNDS)
        uvloop.run(run(settings))
    except MirageError as error:
        print(f"mirage controller: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


_YOUNG_OBJECTS, _YOUNG_ROUNDS, _OLD_ROUNDS = 50_000, 20, 100
"""How seldom Python looks for garbage cycles.  By its defaults a controller of a thousand agents
stops for a tenth of a second and more, several times a minute, to look through what it knows."""


async def run(settings: ControllerConfig) -> None:
    """Until SIGINT or SIGTERM; then gives leadership to another at once."""
    store = RedisStore(settings.store)
    controller = Controller(
        settings, store, BootClock(), SystemWallClock(), holder=uuid.uuid4().hex
    )
    try:
        await controller.start()
    except BaseException:
        await controller.stop()
        raise
    running = asyncio.create_task(controller.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        await controller.stop()


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


if __name__ == "__main__":
    typer.run(main)
