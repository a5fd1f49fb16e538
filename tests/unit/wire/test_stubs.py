"""The generated stubs are those of the sources (``make proto-check`` generates them anew)."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_stubs_were_generated_from_the_present_sources():
    recorded = (ROOT / "mirage_core/wire/v1/SOURCES.sha256").read_text().splitlines()
    digests = {name: digest for digest, name in (line.split() for line in recorded)}
    sources = {
        str(path.relative_to(ROOT / "proto")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / "proto").rglob("*.proto")
    }
    assert digests == sources, "run `make proto`"
