"""Real pages go from engine to engine, and come back, whoever dies on the way."""

from __future__ import annotations

import json
from typing import Any

from agent_node import PAGES, Node

from node_agent.replay import replay

START_PAGES = 2 + 30 + 2


def test_idle_engine_lends_pages_and_gets_them_back(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    free = PAGES - 2 * START_PAGES
    a.do("ask", granules=free // 2 + 6)
    a.until(lambda s: s["pool_granules"] == 1 + free // 2 + 6, "a has b's pages")
    b.until(lambda s: s["cycled"], "b cycles units")
    node.check()
    a.do("load", active=False, live=0)
    b.do("load", active=True, live=1)
    b.until(lambda s: not s["cycled"], "b has its units back")
    node.check()


def test_killed_borrower_leaves_its_pages_to_the_lender(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    b.until(lambda s: s["cycled"], "b lends")
    node.kill(a)
    b.until(lambda s: not s["cycled"], "b has its units back")
    c = node.start_engine(name="c")
    assert c.do("status")["corrupt"] == 0


def test_killed_lender_leaves_the_borrower_its_pages(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    before = a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
    node.kill(b)
    node.start_engine(name="c", unit_pages=[2, 2])
    assert a.do("status")["pages"] == before["pages"]


def test_engine_killed_while_its_pages_are_asked_for(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    b.do("hold", value=True)
    a.do("ask", granules=25)
    node.kill(b)
    denials = 0

    def has_all(status: dict[str, Any]) -> bool:
        """As an engine does, a asks again when it was denied: between the end of b's link and the
        proof of its death its pages are neither coming nor free."""
        nonlocal denials
        if len(status["denied"]) > denials:
            denials = len(status["denied"])
            a.do("ask", granules=26 - status["pool_granules"])
        return bool(status["pool_granules"] == 26)

    a.until(has_all, "b's pages are free, so a got them")


def test_ask_that_cannot_be_met_is_denied(node: Node) -> None:
    a = node.start_engine(name="a")
    a.do("ask", granules=1000)
    status = a.until(lambda s: s["denied"], "denied")
    assert "not to be had" in status["denied"][0]
    assert len(status["pages"]) >= PAGES - 2, "what there was, it got"


def test_engine_too_large_for_the_device_is_told_what_is_missing(node: Node) -> None:
    node.start_engine(name="a")
    big = node.launch(name="big", unit_pages=[10] * 12)
    assert "too small" in big.read()["denied"]
    node.kill(big)


def test_timeline_and_event_log_tell_what_happened(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    b.until(lambda s: s["cycled"], "b lends")
    a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
    assert node.agent.stop() == 0
    timeline = [json.loads(line) for line in node.agent.timeline.read_text().splitlines()]
    assert {"t_s", "engine", "model", "pool_pages", "free_pages"} <= timeline[0].keys()
    assert any(line["engine"] == "b" and line["cycled_units"] for line in timeline)
    logged = [json.loads(line) for line in node.agent.event_log.read_text().splitlines()]
    decisions = [line["decision"] for line in logged if "decision" in line]
    assert any(reason["rule"] == "units" for d in decisions for reason in d["decision"]["reasons"])
    assert replay(node.agent.event_log).difference is None
