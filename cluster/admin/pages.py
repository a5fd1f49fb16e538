"""Pages of a listing: names in order, a token that names the last one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from cluster.rpc.errors import Violation, invalid

DEFAULT_SIZE, LARGEST_SIZE = 100, 1000
_VERSION = "1:"


def size_of(options: Any) -> int:
    return min(options.page_size or DEFAULT_SIZE, LARGEST_SIZE)


def start_of(options: Any) -> str:
    """The name after which the page begins; INVALID_ARGUMENT for a token that nobody gave."""
    if not options.page_token:
        return ""
    try:
        text = base64.urlsafe_b64decode(options.page_token.encode()).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text.startswith(_VERSION):
        raise invalid(Violation("page.page_token", "must be a next_page_token of this method"))
    return text.removeprefix(_VERSION)


def token_for(name: str) -> str:
    return base64.urlsafe_b64encode(f"{_VERSION}{name}".encode()).decode()


def page_of(names: Iterable[str], options: Any) -> tuple[list[str], str]:
    """The names of one page, and the token of the next; empty for the last."""
    start, size = start_of(options), size_of(options)
    later = sorted(name for name in names if name > start)
    page = later[:size]
    return page, token_for(page[-1]) if len(later) > size else ""
