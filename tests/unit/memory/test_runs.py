"""Sets of pages kept as runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.memory.runs import PageRuns, runs_of
from mirage_core.model import PageId


def pages(*numbers: int) -> list[PageId]:
    return [PageId(number) for number in numbers]


def test_runs_keep_the_order_given() -> None:
    assert list(runs_of([5, 6, 2, 3, 4, 9])) == [(0, 5, 2), (2, 2, 3), (5, 9, 1)]
    assert list(runs_of([])) == []
    assert list(runs_of([3, 2])) == [(0, 3, 1), (1, 2, 1)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 20), max_size=8)), max_size=20))
def test_any_changes_agree_with_a_set(changes: list[tuple[bool, set[int]]]) -> None:
    runs, expected = PageRuns(), set[int]()
    for adding, numbers in changes:
        wanted = numbers - expected if adding else numbers & expected
        if adding:
            runs.add(pages(*sorted(wanted)))
            expected |= wanted
        else:
            runs.remove(pages(*sorted(wanted)))
            expected -= wanted
        assert list(runs) == sorted(expected)
        assert len(runs) == len(expected)
        assert runs._starts == [first for _, first, _ in runs_of(sorted(expected))]
        assert all((page in runs) == (page in expected) for page in range(22))


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 30)), st.integers(0, 31))
def test_chosen_pages_are_as_few_runs_as_can_be(numbers: set[int], count: int) -> None:
    runs = PageRuns(pages(*sorted(numbers)))
    if count > len(numbers):
        with pytest.raises(ValueError, match="pages of a set"):
            runs.choose(count)
        return
    chosen = runs.choose(count)
    assert len(set(chosen)) == count
    assert set(chosen) <= numbers
    lengths = sorted((length for _, _, length in runs_of(sorted(numbers))), reverse=True)
    least = next(n for n in range(len(lengths) + 1) if sum(lengths[:n]) >= count)
    assert len(list(runs_of(chosen))) <= max(least, 1)
    assert len(runs) == len(numbers)


def test_adding_twice_and_removing_what_is_not_there_is_refused() -> None:
    runs = PageRuns(pages(3, 4))
    for wrong in (pages(4), pages(2, 3)):
        with pytest.raises(ValueError, match="in the set"):
            runs.add(wrong)
    with pytest.raises(ValueError, match="not all in the set"):
        runs.remove(pages(4, 5))
    assert list(runs) == [3, 4]
