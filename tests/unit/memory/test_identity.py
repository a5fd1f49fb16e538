"""The host device's id on disk."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirage_core.errors import ConfigError
from mirage_core.memory.identity import load_or_create_device_id


def test_id_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "device"
    first = load_or_create_device_id(path)
    assert load_or_create_device_id(path) == first
    assert first.startswith("HOST-")
    assert load_or_create_device_id(tmp_path / "other") != first


def test_file_is_private_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "device"
    load_or_create_device_id(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_racing_callers_agree_on_one_id(tmp_path: Path) -> None:
    path = tmp_path / "device"
    with ThreadPoolExecutor(8) as callers:
        ids = set(callers.map(load_or_create_device_id, [path] * 16))
    assert ids == {load_or_create_device_id(path)}
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_holds_no_id_is_the_operators_error(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_text("")
    with pytest.raises(ConfigError, match="holds no device id"):
        load_or_create_device_id(path)


def test_folder_that_is_not_there_is_the_operators_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot keep the device id"):
        load_or_create_device_id(tmp_path / "missing" / "device")
