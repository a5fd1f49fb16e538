"""``mirage up`` with three models on one host device: what operators set is what engines do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml
from otlp_collector import Collector

pytest.importorskip("vllm")

from benchmarks.models import Family, ModelSpec, build, native_dtype
from cluster.cli.up import _free_ports

pytestmark = pytest.mark.engines

PAGE_BYTES = 64 << 10
SPARE_PAGES = 24
MODELS = ("a", "b", "c")
POOL_TOKENS = 256
REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 6, 40, 80
PATIENCE_S = 240.0


class Up:
    """``mirage up``, its commands and its engines; leaving it is Ctrl-C."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.collector = Collector()
        self.config = folder / "client.yaml"
        self.ports = dict(zip(MODELS, _free_ports(len(MODELS)), strict=True))
        self.log = folder / "up.log"
        settings = {
            "state_dir": str(folder / "state"),
            "page_bytes": PAGE_BYTES,
            "admin_port": 0,
            "agent_port": 0,
            "otlp_endpoint": self.collector.address,
            "models": [self._model(number, name) for number, name in enumerate(MODELS)],
        }
        weights = sum(
            sum(file.stat().st_size for file in Path(each["folder"]).glob("*.safetensors"))
            for each in settings["models"]  # type: ignore[attr-defined]
        )
        pools = len(MODELS) * POOL_TOKENS * SPEC_KV_BYTES
        # Pools are whole granules, half as much again; the burst does not fit into what is left.
        settings["device_bytes"] = weights + pools * 3 // 2 + SPARE_PAGES * PAGE_BYTES
        (folder / "up.yaml").write_text(yaml.safe_dump(settings))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [self._mirage, "up", "--config", str(folder / "up.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MIRAGE_CONFIG": str(self.config)},
            )

    def _model(self, number: int, name: str) -> dict[str, Any]:
        folder = build(_spec(number))
        return {
            "name": name,
            "folder": str(folder.absolute()),
            "port": self.ports[name],
            "pool_tokens": POOL_TOKENS,
            "max_model_len": 512,
            "max_num_seqs": 16,
            "dtype": native_dtype(),
        }

    @property
    def _mirage(self) -> str:
        return str(Path(sys.executable).with_name("mirage"))

    def await_ready(self) -> None:
        self.until(lambda: "Ctrl-C ends all" in self.log.read_text(), "mirage up")

    def until(self, holds: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until_s, f"{what}: {self.log.read_text()}"
            time.sleep(0.1)

    def mirage(self, *words: str) -> Any:
        """A command's document."""
        done = subprocess.run(
            [self._mirage, *words, "-o", "json"],
            capture_output=True,
            text=True,
            env={**os.environ, "MIRAGE_CONFIG": str(self.config)},
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def burst(self, name: str) -> list[list[int]]:
        """As many requests at once as do not fit into the model's own pool; their tokens."""
        prompts = [
            [3 + (r * 131 + i * 17) % 4000 for i in range(PROMPT_TOKENS)] for r in range(REQUESTS)
        ]
        with ThreadPoolExecutor(REQUESTS) as clients:
            return list(clients.map(lambda prompt: self._complete(name, prompt), prompts))

    def _complete(self, name: str, prompt: list[int]) -> list[int]:
        body = {
            "model": name,
            "prompt": prompt,
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        url = f"http://127.0.0.1:{self.ports[name]}/v1/completions"
        answer = requests.post(url, json=body, timeout=PATIENCE_S)
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    def engines(self) -> dict[str, dict[str, Any]]:
        device = self.mirage("device", "list")[0]
        return {each["model"]: each for each in device["observation"]["engines"]}

    def lent(self) -> dict[str, int]:
        return {name: each.get("lent_pages", 0) for name, each in self.engines().items()}

    def first_remap(self, borrower: str, since_unix_s: float) -> dict[str, Any]:
        """The first decision since then that took weights for ``borrower``."""
        found = self.mirage("explain", borrower, "--limit", "50")["explanations"]
        return next(
            each
            for each in reversed(found)
            if each.get("borrower") == borrower
            and each["at_unix_s"] >= since_unix_s
            and any(move["action"] == "remap" for move in each["moves"])
        )

    def let_pages_go_back(self) -> None:
        self.until(lambda: not any(self.lent().values()), "lent pages to go back")

    def controllers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [each for each in children if "cluster.controller" in each.cmdline()]

    def connected(self) -> int:
        """Agents that the leader hears; 0 without one."""
        done = subprocess.run(
            [self._mirage, "status", "-o", "json"],
            capture_output=True,
            text=True,
            env={**os.environ, "MIRAGE_CONFIG": str(self.config)},
            timeout=PATIENCE_S,
        )
        return json.loads(done.stdout)["connected_agents"] if done.returncode == 0 else 0


def _spec(seed: int) -> ModelSpec:
    return ModelSpec(
        family=Family.LLAMA,
        hidden=192,
        layers=6,
        heads=3,
        kv_heads=3,
        ffn=512,
        dtype=native_dtype(),
        seed=seed,
    )


SPEC_KV_BYTES = _spec(0).kv_bytes_per_token


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("up"))
    started: list[psutil.Process] = []
    try:
        up.await_ready()
        started = psutil.Process(up.process.pid).children(recursive=True)
        yield up
    finally:
        up.process.send_signal(signal.SIGINT)
        code = up.process.wait(timeout=60)
        up.collector.close()
    assert code == 0, up.log.read_text()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive, "Ctrl-C ends all that it started"


@pytest.fixture(scope="module")
def calm(up: Up) -> list[list[int]]:
    """What model a answers to the burst."""
    return up.burst("a")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("lends", "keeps"), [("c", "b"), ("b", "c")])
def test_priority_decides_which_model_lends_in_the_next_burst_and_explain_says_so(
    up: Up, calm: list[list[int]], lends: str, keeps: str
) -> None:
    up.mirage("model", "set-priority", "a", "100", "--wait", "30")
    up.mirage("model", "set-priority", keeps, "10", "--wait", "30")
    up.mirage("model", "set-priority", lends, "-10", "--wait", "30")
    up.let_pages_go_back()
    began_unix_s = time.time()
    assert up.burst("a") == calm
    explained = up.first_remap("a", began_unix_s)
    assert {move["model"] for move in explained["moves"]} == {lends}
    seen = {each["model"]: each["priority"] for each in explained["inputs"]}
    assert seen[lends] == -10
    assert seen[keeps] == 10
    assert any("priority -10" in rule["why"] for rule in explained["rules"])


@pytest.mark.timeout(600)
def test_model_lends_what_an_operator_wants_of_it_in_one_trace_from_call_to_engine(
    up: Up, calm: list[list[int]]
) -> None:
    answers = up.burst("b")
    up.let_pages_go_back()
    least_bytes = 4 * PAGE_BYTES
    up.mirage("model", "lend", "b", "--at-least", str(least_bytes), "--wait", "30")
    up.until(lambda: up.lent()["b"] * PAGE_BYTES >= least_bytes, "b to lend unasked")
    assert {name: pages for name, pages in up.lent().items() if pages} == {"b": up.lent()["b"]}
    newest = up.mirage("explain", "b", "--limit", "50")["explanations"]
    why = [rule["why"] for each in newest for rule in each["rules"]]
    assert any("an operator wants" in each for each in why), why
    assert up.burst("b") == answers, "it streams what it lends"
    assert up.burst("a") == calm
    up.until(lambda: up.collector.named("SetModelLending"), "the call's span, sent in batches")
    (call,) = up.collector.named("SetModelLending")
    trace = call.trace_id.hex()
    steps = ("directive lend/b", "apply directive", "apply plan")
    up.until(lambda: all(up.collector.of(trace, step) for step in steps), "the trace's spans")
    services = [up.collector.of(trace, step)[0][0] for step in steps]
    assert services == ["mirage-controller", "mirage-agent", "mirage-engine"]
    up.mirage("model", "lend", "b", "--auto", "--wait", "30")
    up.let_pages_go_back()


@pytest.mark.timeout(600)
def test_freeze_stops_all_movement_while_requests_go_on(up: Up, calm: list[list[int]]) -> None:
    up.let_pages_go_back()
    up.mirage("freeze", "--wait", "30")
    before = up.engines()
    began_unix_s = time.time()
    assert up.burst("a") == calm
    after = up.engines()
    for name in MODELS:
        assert after[name]["lent_pages"] == before[name]["lent_pages"]
        assert after[name]["resident_pages"] == before[name]["resident_pages"]
    newest = up.mirage("explain", "a")["explanations"][0]
    assert newest["effect"] == "frozen"
    assert newest["at_unix_s"] >= began_unix_s
    up.mirage("thaw", "--wait", "30")
    assert up.burst("a") == calm


@pytest.mark.timeout(600)
def test_client_sees_nothing_of_a_controller_that_is_killed(up: Up, calm: list[list[int]]) -> None:
    (controller,) = up.controllers()
    with ThreadPoolExecutor(1) as background:
        answers = background.submit(up.burst, "a")
        controller.kill()
        assert answers.result() == calm
    assert up.burst("b")
    up.until(lambda: up.connected() == 1, "a new controller that the agent follows")
    assert [each.pid for each in up.controllers()] != [controller.pid]
    assert up.mirage("model", "get", "b")["wish"]["priority"] in (10, -10)
