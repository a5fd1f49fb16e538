"""``mirage up``: all of it on one machine.

A redis-server of its own, a controller, the agent of one host device, and a vLLM server for each
model.  Each is a process with a log; the controller and the agent, which may end at any moment
without a request noticing, are started again when they do.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from cluster.cli.children import Child, ChildSpec
from cluster.cli.client import Client, ClientSettings, await_leader
from cluster.cli.faults import CONFLICT, UNREACHABLE, CommandError
from cluster.cli.options import default_config, run
from cluster.cli.up_settings import UpModel, UpSettings, load_up_settings, parse_model
from cluster.store.server import embedded_redis
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

_READY_S = 60.0
_ENGINE_READY_S = 600.0
_PLACED_S = 30.0
_RESTART_PAUSE_S = 1.0


def up(
    model: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER of a model; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings in YAML (cluster.cli.up_settings).")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Wishes, logs and sockets (~/.local/state/mirage).")
    ] = None,
    device_bytes: Annotated[
        str | None, typer.Option(help="Size of the host device, as in 4GiB.")
    ] = None,
    page_bytes: Annotated[str | None, typer.Option(help="Size of a page (256KiB).")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Controller's, for operators.")] = None,
    agent_port: Annotated[int | None, typer.Option(help="Controller's, for agents.")] = None,
    eager: Annotated[
        bool | None, typer.Option("--eager/--compiled", help="How vLLM runs models (eager).")
    ] = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Spans of all go to the OTLP collector at HOST:PORT.")
    ] = None,
    client_config: Annotated[
        Path | None,
        typer.Option(
            help="Gets what other commands need to reach this cluster.", envvar="MIRAGE_CONFIG"
        ),
    ] = None,
) -> None:
    """A whole cluster on this machine: store, controller, agent and engines. Ctrl-C ends it."""

    def action() -> None:
        settings = load_up_settings(
            config,
            {
                "models": [parse_model(each) for each in model or ()],
                "state_dir": state_dir,
                "device_bytes": device_bytes,
                "page_bytes": page_bytes,
                "admin_port": admin_port,
                "agent_port": agent_port,
                "eager": eager,
                "otlp_endpoint": otlp_endpoint,
            },
        )
        asyncio.run(Laptop(settings, client_config or default_config()).run())

    run(action)


class Laptop:
    """All processes of one machine; ``run`` until SIGINT or SIGTERM."""

    def __init__(self, settings: UpSettings, client_config: Path) -> None:
        """Raises ConfigError if a model has no weights or the device does not fit."""
        self._settings = settings
        self._client_config = client_config
        self._state = settings.state_dir.absolute()
        self._device_bytes = settings.sized()
        self._weights = {model.name: model.weights_bytes for model in settings.models}
        free = iter(_free_ports(2 + len(settings.models)))
        self._admin = f"127.0.0.1:{settings.admin_port or next(free)}"
        self._agents = f"127.0.0.1:{settings.agent_port or next(free)}"
        self._ports = {model.name: model.port or next(free) for model in settings.models}
        self._redis, self._redis_url = embedded_redis(self._state)
        self._console = Console(highlight=False, soft_wrap=True)
        self._children: list[Child] = []
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()

    async def run(self) -> None:
        """Raises CommandError, with the end of a log, if something does not start."""
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._state.chmod(0o700)
        self._logs.mkdir(exist_ok=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._redis.stop)
            stack.push_async_callback(self._end)
            starting = asyncio.create_task(self._start())
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait((starting,))
                return
            starting.result()
            await stopping
            self._console.print("ending; engines finish what they have begun")

    @property
    def _logs(self) -> Path:
        return self._state / "logs"

    @property
    def _socket(self) -> Path:
        return self._state / "agent" / "run" / "agent.sock"

    @property
    def _spans_option(self) -> list[str]:
        endpoint = self._settings.otlp_endpoint
        return [] if endpoint is None else ["--otlp-endpoint", endpoint]

    # ---- one after the other

    async def _start(self) -> None:
        with self._console.status("") as status:
            await self._step(status, "redis-server", self._redis.start())
            client_settings = self._write_client_settings()
            await self._step(status, "controller", self._start_controller(client_settings))
            with Client(client_settings) as client:
                for model in self._settings.models:
                    await asyncio.to_thread(self._register, client, model)
                await self._step(status, "agent", self._start_agent())
                await self._step(status, "placement", self._await_placed(client))
            async with asyncio.TaskGroup() as tasks:
                for number, model in enumerate(self._settings.models):
                    what = f"engine {model.name}"
                    tasks.create_task(self._step(status, what, self._start_engine(model, number)))
        self._show()

    async def _step(self, status: Status, what: str, work: Awaitable[None]) -> None:
        status.update(f"starting {escape(what)} ...")
        await work
        self._console.print(f"[green]ready[/green] {escape(what)}")

    async def _start_controller(self, client_settings: ClientSettings) -> None:
        command = [sys.executable, "-m", "cluster.controller", "--redis", self._redis_url]
        command += ["--admin-listen", self._admin, "--agent-listen", self._agents]
        command += ["--tokens", str(self._state / "tokens.yaml"), *self._spans_option]
        child = await self._supervise(
            ChildSpec("controller", command, self._logs / "controller.log")
        )

        def ready() -> None:
            with Client(client_settings) as client:
                await_leader(client, 0.0)

        await self._until(child, ready, _READY_S)

    async def _start_agent(self) -> None:
        folder = self._state / "agent"
        command = [sys.executable, "-m", "node_agent", "--socket", str(self._socket)]
        command += ["--state-dir", str(folder / "state")]
        command += ["--device-bytes", str(self._device_bytes)]
        command += ["--page-bytes", str(self._settings.page_bytes)]
        command += ["--event-log", str(folder / "events.jsonl")]
        command += ["--controller", self._agents, *self._spans_option]
        folder.mkdir(exist_ok=True, mode=0o700)
        self._socket.unlink(missing_ok=True)
        child = await self._supervise(ChildSpec("agent", command, self._logs / "agent.log"))

        def ready() -> None:
            if not self._socket.exists():
                raise CommandError("its socket is not there", UNREACHABLE)

        await self._until(child, ready, _READY_S)

    async def _start_engine(self, model: UpModel, number: int) -> None:
        port = self._ports[model.name]
        cores = sorted(os.sched_getaffinity(0))
        own = model.cores or (cores[number % len(cores)],)
        environment = {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, own)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if self._settings.otlp_endpoint is not None:
            collector = f"http://{self._settings.otlp_endpoint}"
            environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = collector
            environment["OTEL_SERVICE_NAME"] = "mirage-engine"
        spec = ChildSpec(
            f"engine {model.name}",
            model.command(sys.executable, port, self._socket, eager=self._settings.eager),
            self._logs / f"engine-{model.name}.log",
            environment,
        )
        child = await Child.start(spec)
        self._children.append(child)
        await self._until(child, lambda: _require_health(port), _ENGINE_READY_S)
        self._background(self._tell_end(child))

    async def _until(self, child: Child, ready: Callable[[], None], patience_s: float) -> None:
        """Until ``ready`` does not raise; CommandError if the child ends or it takes too long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while True:
            try:
                await asyncio.to_thread(ready)
                return
            except CommandError as error:
                if error.exit_code != UNREACHABLE:
                    raise
                why = str(error)
            child.require_running()
            if loop.time() > until_s:
                raise child.error(f"was not ready after {patience_s:g} s ({why})")
            await asyncio.sleep(0.1)

    # ---- models

    def _register(self, client: Client, model: UpModel) -> None:
        """A wish that is kept from before stays as its operator left it."""
        wish = common.ModelWish(
            name=model.name,
            weights_digest=model.weights_digest(),
            priority=model.priority,
            spec=common.ModelSpec(weights_bytes=self._weights[model.name]),
        )
        try:
            client.call("RegisterModel", pb.RegisterModelRequest(wish=wish))
        except CommandError as error:
            if error.exit_code != CONFLICT:
                raise

    async def _await_placed(self, client: Client) -> None:
        """Engines of models that are not placed here are refused by the agent."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _PLACED_S
        while True:
            listed = await asyncio.to_thread(
                client.list_all, "ListModels", pb.ListModelsRequest(), "models"
            )
            mine = [each for each in listed if each.wish.name in self._ports]
            homeless = [each for each in mine if not each.replicas]
            if not homeless:
                return
            if loop.time() > until_s:
                why = "; ".join(
                    f"{each.wish.name}: {condition.message or condition.reason}"
                    for each in homeless
                    for condition in each.status.conditions
                    if condition.kind == "Placed"
                )
                raise CommandError(
                    f"no room for {why}", CONFLICT, "give a larger --device-bytes, or fewer models"
                )
            await asyncio.sleep(0.2)

    # ---- ends

    async def _supervise(self, spec: ChildSpec) -> Child:
        """Start it, and again whenever it ends."""
        child = await Child.start(spec)
        self._children.append(child)
        self._background(self._start_again(child))
        return child

    async def _start_again(self, child: Child) -> None:
        while True:
            status = await child.wait()
            if self._ended.is_set():
                return
            await asyncio.sleep(_RESTART_PAUSE_S)
            if self._ended.is_set():
                return
            self._console.print(
                f"[yellow]{child.spec.name}[/yellow] ended with status {status}: started again"
                f" (log {escape(str(child.spec.log))})"
            )
            self._children.remove(child)
            child = await Child.start(child.spec)
            self._children.append(child)

    async def _tell_end(self, child: Child) -> None:
        status = await child.wait()
        if not self._ended.is_set():
            self._console.print(
                f"[red]{escape(child.spec.name)}[/red] ended with status {status}: see"
                f" {escape(str(child.spec.log))}"
            )

    def _background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        """Engines first, so that nobody is left without those that it needs."""
        self._ended.set()
        engines = [each for each in self._children if each.spec.name.startswith("engine ")]
        await asyncio.gather(*(each.stop() for each in engines))
        for child in [each for each in reversed(self._children) if each not in engines]:
            await child.stop()

    # ---- how others reach it

    def _write_client_settings(self) -> ClientSettings:
        """A fresh token for each run: whoever can read the owner's files may operate."""
        token = secrets.token_urlsafe(32)
        digest = hashlib.sha256(token.encode()).hexdigest()
        operator = {"name": "operator", "role": "operate", "sha256": digest}
        token_file = self._state / "token"
        _write_private(token_file, token + "\n")
        _write_private(self._state / "tokens.yaml", yaml.safe_dump({"tokens": [operator]}))
        values = {"servers": [self._admin], "token_file": str(token_file)}
        self._client_config.parent.mkdir(parents=True, exist_ok=True)
        _write_private(self._client_config, yaml.safe_dump(values))
        return ClientSettings(servers=(self._admin,), token_file=token_file)

    def _show(self) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("WHAT", "WHERE", "PROCESS", "LOG"):
            table.add_column(title, overflow="fold")
        where = {
            "controller": self._admin,
            "agent": str(self._socket),
            **{f"engine {name}": f"http://127.0.0.1:{p}/v1" for name, p in self._ports.items()},
        }
        for child in self._children:
            name = child.spec.name
            table.add_row(name, where[name], str(child.pid), str(child.spec.log))
        self._console.print(table)
        export = ""
        if self._client_config != default_config():
            export = f"export MIRAGE_CONFIG={self._client_config}; "
        self._console.print(
            f"device of {self._device_bytes >> 20} MiB; try [bold]{escape(export)}mirage top[/bold]"
            " and [bold]mirage model list[/bold]; Ctrl-C ends all"
        )


def _require_health(port: int) -> None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2.0) as answer:
            if answer.status == 200:
                return
            why = f"status {answer.status}"
    except (urllib.error.URLError, OSError) as error:
        why = str(error)
    raise CommandError(why, UNREACHABLE)


def _write_private(file: Path, text: str) -> None:
    """Replaced at once, and never readable by others."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    aside.replace(file)


def _free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
