"""Building and loading the native library: once a machine, whoever comes first."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_core import native
from mirage_core.errors import ConfigError, UnsupportedError
from mirage_core.native import library

native.load()


def test_build_is_keyed_by_sources_torch_and_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = library.build_folder()
    assert before.is_relative_to(tmp_path / "mirage" / "native")
    assert library.build_folder() == before
    monkeypatch.setenv("CXX", "another-compiler")
    by_compiler = library.build_folder()
    monkeypatch.setattr("torch.__version__", "0.0")
    assert len({before, by_compiler, library.build_folder()}) == 3


def test_missing_compiler_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="'no-such-compiler' is not on PATH: install"):
        library.load.__wrapped__()


def test_other_processor_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UnsupportedError, match="this is aarch64"):
        library.load.__wrapped__()


def test_process_that_comes_later_only_opens_the_build() -> None:
    built = library.build_folder() / "built"
    before = built.stat().st_mtime_ns
    finished = subprocess.run(
        [sys.executable, "-m", "mirage_core.native"], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == str(library.build_folder())
    assert built.stat().st_mtime_ns == before


def test_checksum_is_xxh64() -> None:
    module = native.load()
    vectors = {  # from xxHash's own specification and test suite, seed 0
        b"": 0xEF46DB3751D8E999,
        b"a": 0xD24EC4F1A98C6E5B,
        b"abc": 0x44BC2CF5AD770999,
        b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
    }
    for text, expected in vectors.items():
        buffer = ctypes.create_string_buffer(text, len(text) + 1)
        assert module.checksum(ctypes.addressof(buffer), len(text)) == expected
