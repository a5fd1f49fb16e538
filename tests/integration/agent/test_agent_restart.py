"""An agent that dies takes nothing with it; the next one learns what its engines hold."""

from __future__ import annotations

import subprocess
import sys

from agent_node import Node, wait_until


def test_restarted_agent_rebuilds_the_ledger_from_its_engines(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    a.do("ask", granules=25)
    a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
    node.agent.kill()
    a.until(lambda s: s["lost"], "a noticed")
    assert a.do("status")["corrupt"] == 0
    node.agent.start()
    for engine in (a, b):
        engine.until(lambda s: s["rejoins"] == 1 and s["connected"], "rejoined")
    a.do("ask", granules=1)
    a.until(lambda s: s["pool_granules"] == 27, "the agent grants again")
    node.check()
    a.do("load", active=False, live=0)
    b.do("load", active=True, live=1)
    b.until(lambda s: not s["cycled"], "b has its units back")


def test_restarted_agent_does_not_wait_for_the_dead(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    node.agent.kill()
    node.kill(b)
    node.agent.start()
    a.until(lambda s: s["rejoins"] == 1, "rejoined")
    a.do("ask", granules=25)
    a.until(lambda s: s["pool_granules"] == 26, "b's pages are free")


def test_engine_that_dies_after_the_restart_frees_what_it_held(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    b.do("hold", value=True)
    node.agent.kill()
    node.agent.start()
    a.until(lambda s: s["rejoins"] == 1, "rejoined")
    a.do("ask", granules=25)
    status = a.until(lambda s: s["denied"], "nothing is granted before b has rejoined")
    assert "waits for b" in status["denied"][0]
    node.kill(b)

    def granted() -> bool:
        a.do("ask", granules=25)
        return bool(a.do("status")["pool_granules"] >= 26)

    wait_until(granted, "b is dead, so a gets pages")


def test_device_is_made_anew_once_all_its_engines_are_dead(node: Node) -> None:
    a = node.start_engine(name="a")
    node.agent.kill()
    node.agent.start()
    node.kill(a)
    b = node.start_engine(name="b")
    assert b.do("status")["corrupt"] == 0


def test_newcomer_waits_until_the_device_is_known(node: Node) -> None:
    a = node.start_engine(name="a")
    a.do("hold", value=True)
    node.agent.kill()
    node.agent.start()
    b = node.launch(name="b")
    a.do("hold", value=False)
    assert "started" in b.read()
    assert not set(a.do("status")["pages"]) & set(b.do("status")["pages"])


def test_overlapping_holdings_are_answered_not_fatal(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    page_of_a, *_ = a.do("status")["pages"]
    b.do("claim", pages=[*b.do("status")["pages"][:-1], page_of_a])
    node.agent.kill()
    node.agent.start()
    wait_until(lambda: "whose owner is" in node.agent.log.read_text(), "one of them is refused")
    assert node.agent.alive
    # Nobody can tell which of them is right; the end of one settles it for the other.
    node.kill(b)
    wait_until(lambda: "a rejoined with 34 pages" in node.agent.log.read_text(), "a is believed")
    a.until(lambda s: s["connected"] and s["limits"], "a is served")


def test_agent_of_another_size_refuses_to_start_beside_living_engines(node: Node) -> None:
    node.start_engine(name="a")
    node.agent.kill()
    result = subprocess.run(
        [
            *(sys.executable, "-m", "node_agent"),
            *("--socket", str(node.agent.socket), "--state-dir", str(node.agent.folder / "state")),
            *("--device-bytes", "2MiB", "--page-bytes", "64KiB"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "hold pages of" in result.stderr


def test_lost_link_without_a_restart_is_healed(node: Node) -> None:
    a, b = node.start_engine(name="a"), node.start_engine(name="b")
    # Giving back another's page costs an engine its link, and nothing else.
    a.do("give_back_foreign", pages=b.do("status")["pages"][:1])
    a.until(lambda s: s["rejoins"] == 1, "rejoined")
    a.do("ask", granules=25)
    a.until(lambda s: s["pool_granules"] == 26, "the agent serves it again")
