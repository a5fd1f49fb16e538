"""Client of vLLM's completions: open loop by time of arrival, or closed loop by concurrency.

In open loop each request is sent at its time, whatever has become of the others.  Times are
seconds from the start of the run, on the event loop's clock, which is Linux's monotonic clock and
so the same in all processes of the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from benchmarks.sharing.workload import Request, at_once

_LEAD_S = 0.2
"""from the call to the first arrival, so that the first requests are not late"""


@dataclass(slots=True)
class Outcome:
    """What became of one request."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    """one a token; tokens that came in one chunk share its time"""
    finished: bool = False
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled arrival, not from when the client got round to sending."""
        return self.token_times_s[0] - self.request.arrival_s if self.token_times_s else None

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times_s)]


@dataclass(frozen=True, slots=True)
class Run:
    """All outcomes of one run, in the order of the requests."""

    started_s: float
    """on the monotonic clock"""
    outcomes: tuple[Outcome, ...]

    @property
    def makespan_s(self) -> float:
        """From the start to the last token of all."""
        return max((o.token_times_s[-1] for o in self.outcomes if o.token_times_s), default=0.0)


Done = Callable[[Outcome], None]


async def replay(
    requests: Sequence[Request], urls: Mapping[str, str], limit_s: float, on_done: Done
) -> Run:
    """Send ``requests`` at their arrivals to the engines at ``urls`` (by model).

    What is not finished after ``limit_s`` is cut off and counts as failed.  An error of one
    request is in its outcome and never raised.
    """
    return await _run(requests, urls, limit_s, on_done, concurrency=len(requests))


async def closed_loop(
    requests: Sequence[Request],
    urls: Mapping[str, str],
    limit_s: float,
    on_done: Done,
    concurrency: int,
) -> Run:
    """Keep ``concurrency`` requests of each model going; arrivals are not looked at."""
    return await _run(at_once(requests), urls, limit_s, on_done, concurrency)


async def _run(
    requests: Sequence[Request],
    urls: Mapping[str, str],
    limit_s: float,
    on_done: Done,
    concurrency: int,
) -> Run:
    loop = asyncio.get_running_loop()
    outcomes = tuple(map(Outcome, requests))
    turns = {model: asyncio.Semaphore(max(1, concurrency)) for model in urls}
    # A connection for each request: a server closes idle ones, now and then just as one is used.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    no_limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:
        start_s = loop.time() + _LEAD_S

        async def run(outcome: Outcome) -> None:
            model = outcome.request.model
            await asyncio.sleep(start_s + outcome.request.arrival_s - loop.time())
            try:
                async with asyncio.timeout_at(start_s + limit_s), turns[model]:
                    await _stream(session, urls[model], outcome, start_s)
            except TimeoutError:
                outcome.error = f"not finished {limit_s:.0f} s after the start"
            except (aiohttp.ClientError, ValueError) as error:
                outcome.error = f"{type(error).__name__}: {error}"
            on_done(outcome)

        await asyncio.gather(*map(run, outcomes))
    return Run(start_s, outcomes)


async def _stream(
    session: aiohttp.ClientSession, url: str, outcome: Outcome, start_s: float
) -> None:
    """Read one completion's server-sent events into ``outcome``."""
    now_s = asyncio.get_running_loop().time
    async with session.post(f"{url}/v1/completions", json=_body(outcome.request)) as answer:
        if answer.status != 200:
            outcome.error = f"HTTP {answer.status}: {(await answer.text())[:500]}"
            return
        async for line in answer.content:
            if not line.startswith(b"data:"):
                continue
            data = line[len(b"data:") :].strip()
            if data == b"[DONE]":
                break
            event = json.loads(data)
            if "error" in event:
                outcome.error = str(event["error"])
                return
            token_ids = event["choices"][0]["token_ids"] or []
            outcome.token_ids += token_ids
            outcome.token_times_s += [now_s() - start_s] * len(token_ids)
    if len(outcome.token_ids) == outcome.request.output_tokens:
        outcome.finished = True
    else:
        outcome.error = f"{len(outcome.token_ids)} of {outcome.request.output_tokens} tokens came"


def _body(request: Request) -> dict[str, object]:
    return {
        "model": request.model,
        "prompt": list(request.prompt),
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
