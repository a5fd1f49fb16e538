"""Messages as documents: what is shown can be given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cli.documents import from_document, parse_size, show_size, to_document
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import common_pb2 as common

_names = st.text(alphabet="abc-0", min_size=1, max_size=8)
_sizes = st.integers(0, 1 << 50)


@st.composite
def wishes(draw: st.DrawFn) -> common.ModelWish:
    return common.ModelWish(
        name=draw(_names),
        spec=common.ModelSpec(
            weights_bytes=draw(_sizes), kv_bytes_per_token=draw(st.none() | _sizes)
        ),
        priority=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        floor_bytes=draw(st.none() | _sizes),
        pinned=draw(st.booleans()),
        state=draw(st.sampled_from(common.ModelState.values())),
        placement=common.Placement(devices=draw(st.lists(_names, max_size=3)), replicas=2),
        lending=common.LendingBounds(at_most_bytes=draw(st.none() | _sizes)),
    )


@given(wishes())
def test_document_of_a_message_gives_the_message_back(wish: common.ModelWish) -> None:
    assert from_document(to_document(wish), common.ModelWish(), "wish") == wish


def test_map_of_texts_is_kept() -> None:
    event = common.Event(kind="K", attributes={"request_id": "r"})
    assert to_document(event)["attributes"] == {"request_id": "r"}
    assert from_document(to_document(event), common.Event(), "event") == event


def test_field_that_was_not_reported_is_left_out() -> None:
    assert "floor_bytes" not in to_document(common.ModelWish(name="a"))
    assert to_document(common.ModelWish(name="a", floor_bytes=0))["floor_bytes"] == 0


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("24GiB", 24 << 30), ("1.5 MiB", 3 << 19), ("7", 7), ("2B", 2)]
)
def test_sizes_are_read_with_their_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "1GB", "-1", "1 GiB each"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        parse_size(text)


def test_sizes_are_shown_in_the_largest_unit_that_leaves_a_number() -> None:
    assert [show_size(each) for each in (0, 1023, 1024, 3 << 29)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
    ]
