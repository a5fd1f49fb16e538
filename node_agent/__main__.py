"""``python -m node_agent``: the agent of one host device."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage_core.errors import MirageError
from mirage_core.policy.which_model import DonorOrder
from mirage_core.telemetry.logs import set_up_logs
from node_agent.agent import Agent
from node_agent.config import load_config
from node_agent.uplink_settings import UplinkSettings


class MonotonicClock:
    def monotonic_s(self) -> float:
        return time.monotonic()


def main(
    config: Annotated[
        Path | None, typer.Option(help="Settings in YAML or JSON; options here win.")
    ] = None,
    socket: Annotated[Path | None, typer.Option(help="Where engines connect.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Keeps the device's id and its engines across restarts.")
    ] = None,
    device_bytes: Annotated[
        str | None, typer.Option(help="Size of the device, as in 24GiB.")
    ] = None,
    page_bytes: Annotated[
        str | None, typer.Option(help="Size of a page, a power of two (2MiB).")
    ] = None,
    report_interval_s: Annotated[
        float | None, typer.Option(help="How often engines report (0.05).")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Prometheus metrics on this port of 127.0.0.1.")
    ] = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Spans go to the OTLP collector at HOST:PORT.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="File for each engine's pages over time, JSON lines.")
    ] = None,
    event_log: Annotated[
        Path | None, typer.Option(help="File for all events and decisions, JSON lines.")
    ] = None,
    json_logs: Annotated[
        bool | None, typer.Option("--json-logs/--text-logs", help="Form of the log.")
    ] = None,
    controller: Annotated[
        list[str] | None,
        typer.Option(help="Address of a cluster controller, host:port; may be repeated."),
    ] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node (its host name).")] = None,
    host_link: Annotated[
        str | None, typer.Option(help="Domain of the host link (the node's name).")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Authority of the controllers' certificates, PEM.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="This agent's own, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Key of the certificate, PEM.")] = None,
    server_name: Annotated[
        str | None, typer.Option(help="Name in the controllers' certificate.")
    ] = None,
    token: Annotated[Path | None, typer.Option(help="File with a bearer token.")] = None,
    allow_plaintext: Annotated[
        bool, typer.Option("--allow-plaintext", help="Let plain text leave this machine.")
    ] = False,
    order: Annotated[DonorOrder | None, typer.Option(help="Who lends first (mru).")] = None,
    weights_move: Annotated[
        bool | None,
        typer.Option(
            "--weights-move/--no-weights-move", help="Whether weights are lent at all (yes)."
        ),
    ] = None,
    cap_share: Annotated[
        float | None, typer.Option(help="Part of its units that a model lends at most (1.0).")
    ] = None,
    max_added_share: Annotated[
        float | None,
        typer.Option(help="Part by which lending may lengthen an active model's step (0.0)."),
    ] = None,
    reversion: Annotated[
        bool | None,
        typer.Option("--reversion/--no-reversion", help="Whether lent pages go back (yes)."),
    ] = None,
    reversion_margin_share: Annotated[
        float | None, typer.Option(help="Part of its use that a pool keeps beyond it (0.1).")
    ] = None,
    reversion_hold_s: Annotated[
        float | None, typer.Option(help="How long pages must have been spare (1.0).")
    ] = None,
    recall: Annotated[
        bool | None,
        typer.Option(
            "--recall/--no-recall",
            help="Whether a model that woke gets its lent pages back from pools in use (yes).",
        ),
    ] = None,
    recall_share: Annotated[
        float | None,
        typer.Option(help="From which added part of its step on (0.25)."),
    ] = None,
) -> None:
    """Share one host device among the engines of this node."""
    given: dict[str, Any] = dict(locals())
    os.umask(0o077)
    path = given.pop("config")
    given["controllers"] = given.pop("controller") or None
    given["allow_plaintext"] = given["allow_plaintext"] or None
    overrides = {name: value for name, value in given.items() if value is not None}
    uplink = {
        name: overrides.pop(name) for name in UplinkSettings.model_fields if name in overrides
    }
    if uplink:
        overrides["uplink"] = uplink
    try:
        settings = load_config(path, overrides)
        set_up_logs(as_json=settings.json_logs)
        agent = Agent(settings, MonotonicClock())
        try:
            agent.install_signals()
            agent.run()
        finally:
            agent.close()
    except MirageError as error:
        print(f"node_agent: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
