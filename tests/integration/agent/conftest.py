"""A fresh node for each test, checked at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.agent.start()
    yield node
    try:
        if node.agent.alive:
            node.check()
    finally:
        node.close()
