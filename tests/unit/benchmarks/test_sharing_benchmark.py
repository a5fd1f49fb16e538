"""The order of a run, with scripts that answer like engines in place of vLLM."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.sharing.arms import Setup, preemptions, static_engines
from benchmarks.sharing.benchmark import Benchmark
from benchmarks.sharing.client import Done
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.servers import Engine, EngineSpec, ServerError

ENGINE = """
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    served = 0

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        self.answer('vllm:num_requests_running{e="0"} 0\\n'
                    'vllm:num_requests_waiting{e="0"} 0\\n'
                    'vllm:num_preemptions_total{e="0"} %d\\n' % Handler.served)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if not body:
            return self.answer('{"success": true}')
        Handler.served += 1
        tokens = [(sum(body["prompt"]) + i) % 97 for i in range(body["max_tokens"])]
        events = [{"choices": [{"token_ids": [token]}]} for token in tokens]
        self.answer("".join(f"data: {json.dumps(e)}\\n\\n" for e in events) + "data: [DONE]\\n")

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass(frozen=True)
class PluginArm:
    """Two arms with equal setups: the second takes over the first one's processes."""

    name: str
    entered: list[str]
    same_kernels: bool = True

    def setup(self, conditions: Conditions) -> Setup:
        engines = static_engines(conditions, 0.4)
        return Setup(tuple(replace(e, extra_arguments=("--worker-cls", "w")) for e in engines))

    async def enter(self, engines: Mapping[str, Engine]) -> None:
        self.entered.append(self.name)

    async def counters(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        return {"preemptions": await preemptions(engines), "remaps": len(self.entered)}


class Log:
    """What the benchmark told of its progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def starting(self, what: str) -> None:
        self.lines.append(what)

    def running(self, what: str, requests: int) -> Done:
        self.lines.append(what)
        return lambda _: None


@pytest.fixture
def short(conditions: Conditions, monkeypatch: pytest.MonkeyPatch) -> Conditions:
    monkeypatch.setattr(
        EngineSpec, "command", lambda self, port: [sys.executable, "-c", ENGINE, str(port)]
    )
    return replace(
        conditions, saturation_s=0.4, horizon_s=0.2, period_s=0.1, loads=(0.01, 0.02), eager=True
    )


def test_all_arms_serve_the_same_requests_under_all_loads(
    short: Conditions, tmp_path: Path
) -> None:
    log, entered = Log(), []
    arms = [PluginArm("passive", entered), PluginArm("mirage", entered)]

    async def main() -> Benchmark:
        async with Benchmark(short, tmp_path, log) as benchmark:
            await benchmark.measure(arms)
            await benchmark.measure_calm(arms[1])
            return benchmark

    result = asyncio.run(main()).result

    assert set(result.splits) == set(short.splits)
    for load in short.loads:
        names = [each.arm.name for each in result.loads[load]]
        assert names == ["stock", "passive", "mirage"]
        asked = [[o.request for o in each.run.outcomes] for each in result.loads[load]]
        assert asked[0] == asked[1] == asked[2]
        for each in result.loads[load]:
            assert each.figures.failed == 0
            assert each.figures.preemptions == each.figures.completed
    records = {path.name.split("-")[0] for path in (tmp_path / "runs").glob("*.jsonl")}
    assert records == {"stock", "passive", "mirage"}
    read = result.as_json()
    assert read["outputs_identical"] is True
    assert read["stock_divergence"] == 0
    assert result.no_pressure_ratio is not None
    assert result.no_pressure_ratio > 0

    assert entered == ["passive"] * 2 + ["mirage"] * 3
    starts = [line for line in log.lines if line.endswith("starting engines")]
    switches = 1 if result.best_split == short.splits[-1] else 2
    of_stock = len(short.splits) - 1 + switches
    assert [line.split(":")[0] for line in starts] == [
        *["stock"] * of_stock,
        "passive",
        "stock",
        "mirage",
    ]


def test_an_engine_that_dies_ends_the_run(short: Conditions, tmp_path: Path) -> None:
    class Killer(Log):
        def running(self, what: str, requests: int) -> Done:
            (server, _) = benchmark._stage._servers
            server.kill()
            return lambda _: None

    async def main() -> None:
        async with benchmark:
            await benchmark.measure([])

    benchmark = Benchmark(short, tmp_path, Killer())
    with pytest.raises(ServerError, match="engine small ended with status -9"):
        asyncio.run(main())
