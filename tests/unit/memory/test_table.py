"""An engine's page table: one owner for a page, on every way through it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import OutOfPagesError, OwnershipError
from mirage_core.memory.table import (
    RESERVE,
    STATIC,
    Owner,
    PageTable,
    granule_owner,
    slot_owner,
    unit_owner,
)
from mirage_core.model import GranuleId, Holdings, PageId, UnitId

UNIT = unit_owner(UnitId(0))
SLOT = slot_owner(0)
GRANULE = granule_owner(GranuleId(0))


def pages(*numbers: int) -> tuple[PageId, ...]:
    return tuple(PageId(number) for number in numbers)


def table_with(*reserve: int) -> PageTable:
    table = PageTable()
    table.receive(pages(*reserve))
    return table


def test_page_goes_from_the_agent_to_an_owner_and_back() -> None:
    table = table_with(3, 4, 5)
    table.move(pages(4, 3), RESERVE, UNIT)
    assert table.pages(UNIT) == (3, 4)
    assert table.owner(PageId(3)) == UNIT
    table.move(pages(3), UNIT, SLOT)
    table.move(pages(3), SLOT, RESERVE)
    table.give_back(pages(3, 5))
    assert table.owner(PageId(3)) is None
    assert table.holdings() == Holdings(unit=pages(4))
    table.check()


def test_holdings_tell_pages_by_kind_of_owner() -> None:
    table = table_with(0, 1, 2, 3, 4)
    for page, owner in enumerate((STATIC, UNIT, SLOT, GRANULE)):
        table.move(pages(page), RESERVE, owner)
    assert table.holdings() == Holdings(pages(0, 1), pages(2), pages(3), pages(4))
    table.check()


def test_granted_page_that_the_engine_has_is_refused() -> None:
    table = table_with(0, 1)
    table.move(pages(0), RESERVE, UNIT)
    for again in (pages(0, 2), pages(1, 2), pages(2, 2)):
        with pytest.raises(OwnershipError):
            table.receive(again)
    assert table.owner(PageId(2)) is None
    table.check()


def test_only_pages_of_the_reserve_leave_the_engine() -> None:
    table = table_with(0, 1)
    table.move(pages(0), RESERVE, GRANULE)
    with pytest.raises(OwnershipError):
        table.give_back(pages(1, 0))
    assert table.reserve_pages == 1
    table.check()


def test_page_is_not_moved_from_an_owner_that_lacks_it() -> None:
    table = table_with(0, 1)
    table.move(pages(0), RESERVE, UNIT)
    with pytest.raises(OwnershipError):
        table.move(pages(1, 0), RESERVE, SLOT)
    assert table.pages(RESERVE) == (1,)
    assert table.pages(SLOT) == ()
    table.check()


def test_one_wrong_move_of_many_moves_nothing() -> None:
    table = table_with(0, 1)
    with pytest.raises(OwnershipError):
        table.reassign({PageId(0): (RESERVE, UNIT), PageId(1): (SLOT, UNIT)})
    assert table.pages(RESERVE) == (0, 1)
    table.check()


def test_choosing_moves_nothing_and_prefers_a_run() -> None:
    table = table_with(9, 0, 4, 5, 6)
    assert table.choose(3) == (4, 5, 6)
    assert table.choose(0) == ()
    assert table.reserve_pages == 5
    with pytest.raises(OutOfPagesError):
        table.choose(6)
    table.check()


def test_check_sees_a_page_with_two_owners() -> None:
    table = table_with(0)
    table._pages[UNIT] = {PageId(0)}
    with pytest.raises(OwnershipError):
        table.check()


OWNERS = (RESERVE, STATIC, UNIT, SLOT, GRANULE)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 9)), st.sampled_from(OWNERS), st.sampled_from(OWNERS)),
        max_size=20,
    )
)
def test_any_moves_agree_with_a_dict(moves: list[tuple[set[int], Owner, Owner]]) -> None:
    table = table_with(*range(8))
    owners = dict.fromkeys(range(8), RESERVE)
    for numbers, source, target in moves:
        if all(owners.get(page) == source for page in numbers):
            table.move(pages(*numbers), source, target)
            owners.update(dict.fromkeys(numbers, target))
        else:
            with pytest.raises(OwnershipError):
                table.move(pages(*numbers), source, target)
        table.check()
        for owner in OWNERS:
            assert list(table.pages(owner)) == sorted(p for p, o in owners.items() if o == owner)
