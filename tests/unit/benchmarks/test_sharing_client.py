"""The client against a small HTTP server that streams as vLLM does."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from benchmarks.sharing.client import Run, closed_loop, replay
from benchmarks.sharing.workload import Request

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT_S = 30.0


def request(number: int, arrival_s: float = 0.0, tokens: int = 3, model: str = "m") -> Request:
    return Request(number, model, arrival_s, (10 + number, 20), tokens)


def served(handler: Handler, use: Callable[[str], Awaitable[Run]]) -> Run:
    """Result of ``use(url)`` while ``handler`` answers completions at ``url``."""

    async def main() -> Run:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            return await use(f"http://127.0.0.1:{port}")
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def nothing(_: object) -> None:
    pass


async def events(asked: web.Request, chunks: list[list[int]]) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(asked)
    for token_ids in chunks:
        event = {"choices": [{"text": "", "token_ids": token_ids}]}
        await answer.write(f"data: {json.dumps(event)}\n\n".encode())
    await answer.write(b"data: [DONE]\n\n")
    return answer


def test_each_token_has_its_id_and_time() -> None:
    bodies = []

    async def handler(asked: web.Request) -> web.StreamResponse:
        bodies.append(await asked.json())
        return await events(asked, [[7], [8, 9]])

    run = served(handler, lambda url: replay([request(0)], {"m": url}, LIMIT_S, nothing))

    (outcome,) = run.outcomes
    assert outcome.finished
    assert outcome.error is None
    assert outcome.token_ids == [7, 8, 9]
    assert outcome.token_times_s == sorted(outcome.token_times_s)
    assert outcome.token_times_s[1] == outcome.token_times_s[2]
    assert outcome.gaps_s[1] == 0
    assert run.makespan_s == outcome.token_times_s[-1]
    assert bodies == [
        {
            "model": "m",
            "prompt": [10, 20],
            "max_tokens": 3,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
    ]


def test_a_request_is_sent_at_its_time_though_an_earlier_one_is_not_done() -> None:
    second_came = asyncio.Event()

    async def handler(asked: web.Request) -> web.StreamResponse:
        first = (await asked.json())["prompt"][0] == 10
        if first:
            await second_came.wait()
        else:
            second_came.set()
        return await events(asked, [[1], [2], [3]])

    requests = [request(0), request(1, arrival_s=0.05)]
    run = served(handler, lambda url: replay(requests, {"m": url}, LIMIT_S, nothing))

    first, second = run.outcomes
    assert first.finished
    assert second.finished
    assert first.ttft_s is not None
    assert first.ttft_s >= 0.05


def test_ttft_counts_from_the_scheduled_arrival() -> None:
    async def handler(asked: web.Request) -> web.StreamResponse:
        return await events(asked, [[1], [2], [3]])

    requests = [request(0, arrival_s=0.1)]
    run = served(handler, lambda url: replay(requests, {"m": url}, LIMIT_S, nothing))

    (outcome,) = run.outcomes
    assert outcome.ttft_s == pytest.approx(outcome.token_times_s[0] - 0.1)


def test_an_error_stays_with_its_request() -> None:
    async def handler(asked: web.Request) -> web.StreamResponse:
        match (await asked.json())["prompt"][0]:
            case 10:
                return web.Response(status=400, text="too long")
            case 11:
                return await events(asked, [[1]])
            case 12:
                answer = web.StreamResponse()
                await answer.prepare(asked)
                await answer.write(b'data: {"error": {"message": "engine is dead"}}\n\n')
                return answer
            case _:
                return await events(asked, [[1], [2], [3]])

    done = []
    run = served(
        handler,
        lambda url: replay([request(i) for i in range(4)], {"m": url}, LIMIT_S, done.append),
    )

    errors = [outcome.error for outcome in run.outcomes]
    assert errors[0] == "HTTP 400: too long"
    assert errors[1] == "1 of 3 tokens came"
    assert errors[2] is not None
    assert "engine is dead" in errors[2]
    assert errors[3] is None
    assert [outcome.finished for outcome in run.outcomes] == [False, False, False, True]
    assert sorted(outcome.request.request_id for outcome in done) == [0, 1, 2, 3]


def test_an_engine_that_is_gone_fails_its_requests_only() -> None:
    async def handler(asked: web.Request) -> web.StreamResponse:
        return await events(asked, [[1], [2], [3]])

    requests = [request(0), request(1, model="gone")]
    run = served(
        handler,
        lambda url: replay(requests, {"m": url, "gone": "http://127.0.0.1:1"}, LIMIT_S, nothing),
    )

    assert run.outcomes[0].finished
    assert run.outcomes[1].error is not None


def test_what_is_unfinished_at_the_limit_has_failed_with_the_tokens_that_came() -> None:
    async def handler(asked: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(asked)
        await answer.write(b'data: {"choices": [{"token_ids": [5]}]}\n\n')
        await asyncio.Event().wait()
        return answer

    run = served(handler, lambda url: replay([request(0)], {"m": url}, 0.3, nothing))

    (outcome,) = run.outcomes
    assert not outcome.finished
    assert outcome.token_ids == [5]
    assert outcome.error is not None
    assert "not finished" in outcome.error


def test_closed_loop_keeps_to_its_concurrency_for_each_model() -> None:
    going: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0}

    async def handler(asked: web.Request) -> web.StreamResponse:
        model = (await asked.json())["model"]
        going[model] += 1
        most[model] = max(most[model], going[model])
        await asyncio.sleep(0)
        answer = await events(asked, [[1], [2]])
        going[model] -= 1
        return await events_end(answer)

    async def events_end(answer: web.StreamResponse) -> web.StreamResponse:
        await answer.write_eof()
        return answer

    requests = [request(i, arrival_s=99.0, tokens=2, model="ab"[i % 2]) for i in range(20)]
    run = served(
        handler,
        lambda url: closed_loop(requests, {"a": url, "b": url}, LIMIT_S, nothing, 2),
    )

    assert all(outcome.finished for outcome in run.outcomes)
    assert max(most.values()) <= 2
