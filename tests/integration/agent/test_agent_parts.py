"""Parts of the agent by themselves: settings, processes, state, host copies, timeline."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirage_core.control.device_summary import DeviceSummary, EngineSummary
from mirage_core.errors import ConfigError, ProtocolError
from mirage_core.memory import libc
from mirage_core.model import EngineId, ModelName
from mirage_core.policy.which_model import DonorOrder
from mirage_core.wire.messages import HostCopyState
from node_agent.config import load_config
from node_agent.host_copies import HostCopies
from node_agent.journal import JsonLines, Timeline
from node_agent.listener import lock_folder, prepare_private_folder
from node_agent.processes import ProcessId, observe_process, open_process
from node_agent.state import AgentState, RecordedDevice, RecordedEngine, load_state, save_state

NEEDED = {"socket": "/run/a.sock", "state_dir": "/run/a", "device_bytes": "64MiB"}

# ---- settings


def test_settings_come_from_file_and_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("socket: /a\nstate_dir: /b\ndevice_bytes: 1GiB\norder: lru\nreversion: false\n")
    config = load_config(path, {"device_bytes": "2GiB"})
    assert (config.device_bytes, config.pages) == (2 << 30, 1024)
    assert config.policy().order is DonorOrder.LRU
    assert config.policy().reversion is None


def test_settings_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({**NEEDED, "weights_move": False}))
    assert not load_config(path, {}).policy().weights_move


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sokcet": "/x"}, "sokcet"),
        ({"device_bytes": "12 parsecs"}, "device_bytes"),
        ({"device_bytes": "0"}, "device_bytes"),
        ({"device_bytes": "3MiB"}, "device_bytes"),
        ({"page_bytes": "1.3B"}, "page_bytes"),
        ({"order": "fifo"}, "order"),
        ({"cap_share": 1.5}, "cap_share"),
        ({"max_added_share": float("inf")}, "max_added_share"),
        ({"metrics_port": 0}, "metrics_port"),
    ],
)
def test_wrong_setting_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_config(None, {**NEEDED, **change})


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00"])
def test_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="settings"):
        load_config(path, {})
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "absent.yaml", {})


# ---- processes


def test_process_is_told_from_a_later_one_with_its_pid() -> None:
    me = observe_process(os.getpid())
    assert me is not None
    pidfd = open_process(me)
    assert pidfd is not None
    os.close(pidfd)
    assert open_process(ProcessId(me.pid, me.start_ticks - 1)) is None


def test_process_that_has_ended_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert observe_process(child.pid) is None, "a zombie touches no page"
    child.wait()
    assert observe_process(child.pid) is None
    assert open_process(ProcessId(child.pid, 1)) is None


# ---- state


def test_state_survives_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert load_state(path) is None
    state = AgentState(
        boot_id="b",
        device=RecordedDevice(device_id="d", page_bytes=4096, pages=9),
        engines={"e": RecordedEngine(model="m", worker_pid=1, worker_start_ticks=2)},
    )
    save_state(path, state)
    assert load_state(path) == state
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ConfigError, match=r"state\.json"):
        load_state(path)


def test_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(ConfigError, match="ours alone"):
        prepare_private_folder(open_folder, "state folder")
    private = tmp_path / "private"
    prepare_private_folder(private, "state folder")
    assert private.stat().st_mode & 0o777 == 0o700
    lock = lock_folder(private)
    with pytest.raises(ConfigError, match="another agent"):
        lock_folder(private)
    os.close(lock)
    os.close(lock_folder(private))


# ---- host copies

A, B, C = EngineId("a"), EngineId("b"), EngineId("c")


@pytest.fixture
def copies() -> Iterator[HostCopies]:
    before = len(os.listdir("/proc/self/fd"))
    copies = HostCopies()
    yield copies
    copies.close()
    assert len(os.listdir("/proc/self/fd")) == before


def sealed_file() -> int:
    fd = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    seals = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_first_engine_fills_the_copy_and_the_others_wait(copies: HostCopies) -> None:
    first = copies.open(A, "ab", 10)
    assert first is not None
    assert first.message.state is HostCopyState.FILL
    assert copies.open(B, "ab", 10) is None
    fd = sealed_file()
    (answer,) = copies.filled(A, "ab", fd)
    assert (answer.engine, answer.fd, answer.message.state) == (B, fd, HostCopyState.READY)
    late = copies.open(C, "ab", 10)
    assert late is not None
    assert late.fd == fd


def test_next_engine_fills_the_copy_when_the_first_dies(copies: HostCopies) -> None:
    copies.open(A, "ab", 10)
    copies.open(B, "ab", 10)
    copies.open(C, "ab", 10)
    (answer,) = copies.forget_engine(A)
    assert (answer.engine, answer.message.state) == (B, HostCopyState.FILL)
    assert [a.engine for a in copies.filled(B, "ab", sealed_file())] == [C]


def test_copy_lives_as_long_as_its_last_user(copies: HostCopies) -> None:
    copies.open(A, "ab", 10)
    copies.filled(A, "ab", sealed_file())
    copies.open(B, "ab", 10)
    assert copies.forget_engine(A) == []
    ready = copies.open(C, "ab", 10)
    assert ready is not None
    assert ready.message.state is HostCopyState.READY
    copies.forget_engine(B)
    copies.forget_engine(C)
    again = copies.open(A, "ab", 10)
    assert again is not None
    assert again.message.state is HostCopyState.FILL


def test_copy_that_can_still_change_is_refused(copies: HostCopies) -> None:
    copies.open(A, "ab", 10)
    fd = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
    with pytest.raises(ProtocolError, match="sealed"):
        copies.filled(A, "ab", fd)
    with pytest.raises(ProtocolError, match="sealed"):
        copies.filled(A, "ab", None)
    with pytest.raises(ProtocolError, match="does not fill"):
        copies.filled(B, "ab", fd)
    os.close(fd)


# ---- timeline


def test_timeline_has_a_line_at_each_change_and_each_interval(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    lines = JsonLines(path)
    timeline = Timeline(lines)

    def summary(pool_pages: int) -> DeviceSummary:
        engine = EngineSummary(A, ModelName("m"), True, pool_pages, 0, 5, 0, 0, 0, 0)
        return DeviceSummary(free_pages=3, coming_pages=0, engines=(engine,))

    for now_s, pool_pages in ((1.0, 4), (1.01, 4), (1.02, 6), (1.03, 6), (1.3, 6)):
        timeline.observe(summary(pool_pages), now_s)
    lines.close()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["t_s"], line["pool_pages"]) for line in written] == [
        (1.0, 4),
        (1.02, 6),
        (1.3, 6),
    ]
