"""kill -9 of an engine, of the agent, and of a donor in the middle of a hand-over, under load.

After each: no wrong token (answers are those of calm), no lost page (the owners' sum is the
device), and the survivors go on.  `make chaos` kills 20 times each, the test suite three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future, wait

import pytest
import requests

pytest.importorskip("vllm")

from tests.chaos.node import Node

pytestmark = pytest.mark.engines

TOKENS = 60
PROMPTS = [
    [random.Random(index).randrange(3, 4000) for _ in range(20 + 5 * index)] for index in range(10)
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("chaos")) as running:
        running.start_agent()
        running.start_engine("a", wait=False)
        running.start_engine("b", wait=False)
        running.wait_engine("a")
        running.wait_engine("b")
        yield running


@pytest.fixture(scope="module")
def calm(node: Node) -> dict[str, list[list[int]]]:
    """Answers of each engine while nothing else happens, one request at a time."""
    return {
        name: [node.ask(name, [prompt], TOKENS)[0].result() for prompt in PROMPTS]
        for name in ("a", "b")
    }


def outcome(futures: list[Future[list[int]]]) -> list[list[int] | None]:
    """Each answer, or None where the engine died under the request."""
    wait(futures)
    return [
        None if isinstance(f.exception(), requests.RequestException) else f.result()
        for f in futures
    ]


@pytest.mark.timeout(3600)
def test_killed_engine_leaves_its_pages_and_the_other_goes_on(
    node: Node, calm: dict[str, list[list[int]]], rounds: int
) -> None:
    source = random.Random(1)
    for _ in range(rounds):
        both = [node.ask(name, PROMPTS, TOKENS) for name in ("a", "b")]
        wait(both[0], timeout=source.uniform(0.1, 2.0))
        node.kill("b")
        assert outcome(both[0]) == calm["a"]
        for got, expected in zip(outcome(both[1]), calm["b"], strict=True):
            assert got in (None, expected)
        node.wait_pages_of({"a"})
        node.start_engine("b")
        assert outcome(node.ask("b", PROMPTS, TOKENS)) == calm["b"]
        node.wait_pages_of({"a", "b"})


@pytest.mark.timeout(3600)
def test_killed_donor_in_a_hand_over_costs_its_borrower_nothing(
    node: Node, calm: dict[str, list[list[int]]], rounds: int
) -> None:
    source = random.Random(2)
    for _ in range(rounds):
        burst = node.ask("a", PROMPTS, TOKENS)
        wait(burst, timeout=source.uniform(0.0, 0.4))
        node.kill("b")
        assert outcome(burst) == calm["a"]
        node.wait_pages_of({"a"})
        node.start_engine("b")
        assert outcome(node.ask("b", PROMPTS, TOKENS)) == calm["b"]
        node.wait_pages_of({"a", "b"})
    assert node.remaps() > 0, "no burst borrowed anything"


@pytest.mark.timeout(3600)
def test_killed_agent_is_not_missed_and_learns_all_when_it_returns(
    node: Node, calm: dict[str, list[list[int]]], rounds: int
) -> None:
    source = random.Random(3)
    for _ in range(rounds):
        both = [node.ask(name, PROMPTS, TOKENS) for name in ("a", "b")]
        wait(both[0], timeout=source.uniform(0.0, 1.0))
        node.kill("agent")
        assert outcome(both[0]) == calm["a"]
        assert outcome(both[1]) == calm["b"]
        again = [node.ask(name, PROMPTS, TOKENS) for name in ("a", "b")]
        node.start_agent()
        assert outcome(again[0]) == calm["a"]
        assert outcome(again[1]) == calm["b"]
        node.wait_pages_of({"a", "b"})
        assert outcome(node.ask("a", PROMPTS, TOKENS)) == calm["a"]


@pytest.mark.timeout(600)
def test_replica_shares_its_models_host_copy(node: Node, calm: dict[str, list[list[int]]]) -> None:
    """The replica starts last: an agent that was restarted knows no copies of the time before."""
    node.kill("a")
    node.start_engine("a")
    copies = node.host_copies()
    node.start_engine("a2")
    assert node.host_copies() == copies
    both = [node.ask(name, PROMPTS, TOKENS) for name in ("a", "a2")]
    assert [outcome(answers) for answers in both] == [calm["a"], calm["a"]]
    node.kill("a2")
