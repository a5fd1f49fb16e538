"""Settings of the whole test run; nothing here starts anything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# Engines run in processes of their own: they must find the tests' scheduler classes, ask no hub,
# and keep to the log level that makes a failure readable.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
# Its handlers run in children that are about to become another program, and can break them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if part
)

# Test processes that run side by side ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds",
        type=int,
        default=3,
        help="kills of each kind in tests/chaos (make chaos: 20)",
    )


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))
