"""Runs of consecutive pages.

Consecutive pages at consecutive places are one mapping to the kernel and one call to make it, so
whoever hands out pages keeps runs long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from mirage_core.model import PageId


def runs_of(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (position, first number, count) of each maximal run of consecutive numbers."""
    start = 0
    for position in range(1, len(numbers) + 1):
        if position == len(numbers) or numbers[position] != numbers[position - 1] + 1:
            yield start, numbers[start], position - start
            start = position


class PageRuns:
    """A set of pages kept as its maximal runs, so that choosing looks at runs, never at pages.

    Adding and removing a run costs a binary search.
    """

    def __init__(self, pages: Sequence[PageId] = ()) -> None:
        self._starts: list[int] = []
        """first page of each run, ascending; no two runs touch"""
        self._ends: dict[int, int] = {}
        """first page of a run -> one past its last"""
        self._count = 0
        self.add(pages)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, page: object) -> bool:
        return isinstance(page, int) and self._has(page, page + 1)

    def __iter__(self) -> Iterator[PageId]:
        """Pages in ascending order."""
        for start in self._starts:
            yield from map(PageId, range(start, self._ends[start]))

    def add(self, pages: Sequence[PageId]) -> None:
        """Add pages that are not in the set, or raise ValueError."""
        for _, first, count in runs_of(pages):
            self._add_run(first, first + count)

    def remove(self, pages: Sequence[PageId]) -> None:
        """Remove pages that are in the set, or raise ValueError."""
        for _, first, count in runs_of(pages):
            self._remove_run(first, first + count)

    def choose(self, count: int) -> tuple[PageId, ...]:
        """``count`` pages in few runs; the set is unchanged.

        The shortest run that holds them all serves if there is one; else the longest serves
        what it can, and so on.  Raises ValueError if there are fewer pages.
        """
        if not 0 <= count <= self._count:
            raise ValueError(f"{count} pages of a set of {self._count}")
        chosen: list[PageId] = []
        by_length = sorted(self._starts, key=lambda start: (self._ends[start] - start, start))
        while len(chosen) < count:
            missing = count - len(chosen)
            fitting = bisect_left(by_length, missing, key=lambda start: self._ends[start] - start)
            start = by_length.pop(min(fitting, len(by_length) - 1))
            stop = min(self._ends[start], start + missing)
            chosen.extend(map(PageId, range(start, stop)))
        return tuple(chosen)

    def _run_at(self, page: int) -> int:
        """Index in ``_starts`` of the last run that starts at or before ``page``, or -1."""
        return bisect_right(self._starts, page) - 1

    def _has(self, first: int, stop: int) -> bool:
        index = self._run_at(first)
        return index >= 0 and stop <= self._ends[self._starts[index]]

    def _add_run(self, first: int, stop: int) -> None:
        before = self._run_at(first)
        after = before + 1
        start, end = first, stop
        if before >= 0:
            end_before = self._ends[self._starts[before]]
            if end_before > first:
                raise ValueError(f"page {first} is in the set")
            if end_before == first:
                start = self._starts[before]
        if after < len(self._starts):
            if self._starts[after] < stop:
                raise ValueError(f"page {self._starts[after]} is in the set")
            if self._starts[after] == stop:
                end = self._ends.pop(stop)
                del self._starts[after]
        if start == first:
            self._starts.insert(after, first)
        self._ends[start] = end
        self._count += stop - first

    def _remove_run(self, first: int, stop: int) -> None:
        if not self._has(first, stop):
            raise ValueError(f"pages {first} to {stop - 1} are not all in the set")
        index = self._run_at(first)
        start = self._starts[index]
        end = self._ends[start]
        if stop < end:
            self._starts.insert(index + 1, stop)
            self._ends[stop] = end
        if start < first:
            self._ends[start] = first
        else:
            del self._starts[index]
            del self._ends[start]
        self._count -= stop - first
