"""A node to break: one agent and vLLM servers with the plug-in, each restartable alone.

Engines "a" and "b" serve two models; "a2" is a replica of "a".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import requests

from benchmarks.models import Family, ModelSpec, build, native_dtype
from benchmarks.sharing.servers import EngineSpec, free_ports

PAGE_BYTES = 64 << 10
DEVICE_PAGES = 620
ENGINES = ("a", "b", "a2")
POOL_TOKENS = 64
"""Fewer than one request takes: an engine whose agent is gone must remap its own layers."""
START_LIMIT_S = 240.0


class Node:
    """Use as a context: leaving ends every process that it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "run" / "agent.sock"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = dict(zip(("agent", *ENGINES), free_ports(1 + len(ENGINES)), strict=True))
        self._starts = 0
        self._clients = ThreadPoolExecutor(32)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)
        self._clients.shutdown(cancel_futures=True)

    # ---- processes

    def start_agent(self) -> None:
        command = [sys.executable, "-m", "node_agent", "--socket", str(self._socket)]
        command += ["--state-dir", str(self._folder / "state")]
        command += ["--device-bytes", str(DEVICE_PAGES * PAGE_BYTES)]
        command += ["--page-bytes", str(PAGE_BYTES), "--metrics-port", str(self._ports["agent"])]
        self._start("agent", command, {})
        self._wait("agent", lambda: self._answers(f"{self._url('agent')}/metrics"))

    def start_engine(self, name: str, wait: bool = True) -> None:
        spec = ModelSpec(
            family=Family.LLAMA,
            hidden=192,
            layers=6,
            heads=3,
            kv_heads=3,
            ffn=512,
            dtype=native_dtype(),
            seed="ab".index(name[0]),
        )
        settings = {
            "agent": str(self._socket),
            "pool_tokens": POOL_TOKENS,
            "grain": "half",
            "verify": True,
        }
        engine = EngineSpec(
            name=name,
            model=build(spec),
            cores=("ab".index(name[0]) % (os.cpu_count() or 1),),
            kv_bytes=1 << 20,
            dtype=native_dtype(),
            block_size=32,
            max_num_seqs=16,
            max_model_len=512,
            eager=True,
            extra_arguments=(
                *("--worker-cls", "mirage_core.engines.vllm.worker.MirageWorker"),
                *("--scheduler-cls", "mirage_core.engines.vllm.scheduler.MirageScheduler"),
                *("--additional-config", json.dumps({"mirage": settings})),
            ),
        )
        self._start(name, engine.command(self._ports[name]), engine.environment())
        if wait:
            self.wait_engine(name)

    def wait_engine(self, name: str) -> None:
        self._wait(name, lambda: self._answers(f"{self._url(name)}/health"))

    def kill(self, name: str) -> None:
        """kill -9 of the process and all its children, and of nothing else."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        with (self._folder / f"{self._starts:02d}-{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def _wait(self, name: str, ready: object) -> None:
        until_s = time.monotonic() + START_LIMIT_S
        while not ready():  # type: ignore[operator]
            assert self._processes[name].poll() is None, f"{name} ended: see {self._folder}"
            assert time.monotonic() < until_s, f"{name} does not start: see {self._folder}"
            time.sleep(0.1)

    def _url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    @staticmethod
    def _answers(url: str) -> bool:
        try:
            return requests.get(url, timeout=5).status_code == 200
        except requests.RequestException:
            return False

    # ---- requests

    def ask(self, name: str, prompts: list[list[int]], tokens: int) -> list[Future[list[int]]]:
        """Send all prompts at once; the answers' token ids, or the error of a dead engine."""
        return [self._clients.submit(self._complete, name, prompt, tokens) for prompt in prompts]

    def _complete(self, name: str, prompt: list[int], tokens: int) -> list[int]:
        body = {
            "model": name,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = requests.post(f"{self._url(name)}/v1/completions", json=body, timeout=120)
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    # ---- the device

    def pages(self) -> dict[tuple[str, str], int]:
        """Pages by owner kind and model, as the agent's metrics say."""
        found: dict[tuple[str, str], int] = {}
        for line in requests.get(f"{self._url('agent')}/metrics", timeout=5).text.splitlines():
            if line.startswith("mirage_pages{"):
                labels = dict(
                    part.split("=", 1) for part in line[13 : line.index("}")].split(",") if part
                )
                key = (labels["owner"].strip('"'), labels["model"].strip('"'))
                found[key] = found.get(key, 0) + int(float(line.rsplit(" ", 1)[1]))
        return found

    def host_copies(self) -> int:
        """Memory files with weights that the agent holds."""
        folder = Path(f"/proc/{self._processes['agent'].pid}/fd")
        return sum("mirage-host-copy" in os.readlink(fd) for fd in folder.iterdir())

    def remaps(self) -> int:
        """Plans that freed pages, since the agent started."""
        text = requests.get(f"{self._url('agent')}/metrics", timeout=5).text
        lines = [line for line in text.splitlines() if line.startswith("mirage_remaps_total ")]
        return int(float(lines[0].rsplit(" ", 1)[1]))

    def wait_pages_of(self, models: set[str], within_s: float = 30.0) -> None:
        """Wait until just ``models`` hold pages, and every page of the device has its owner."""
        until_s = time.monotonic() + within_s
        while True:
            pages = self.pages()
            holders = {model for (_, model), count in pages.items() if model and count}
            if holders == models and sum(pages.values()) == DEVICE_PAGES:
                return
            assert time.monotonic() < until_s, f"pages {pages}, expected holders {models}"
            time.sleep(0.1)
