"""Between a grant's arrival and the worker's acceptance a step begins: it must not ask anew."""

from __future__ import annotations

from mirage_core.control.operations import Accept, MapGranules, Outcome
from mirage_core.control.remapper import Order, PoolView, Remapper, SendAsk, SendGiveBack
from mirage_core.model import PageId

SHORT = PoolView(True, False, needed_granules=3, spare=(), emptiest=(), drained=())
IDLE = PoolView(False, False, needed_granules=1, spare=(), emptiest=(), drained=())


def one_granule() -> Remapper:
    """Of a linked engine that has one granule of two pages, and no units."""
    return Remapper(
        granule_pages=2,
        first_granules=1,
        max_granules=10,
        unit_pages=(),
        own_plans=(),
        linked=True,
    )


def test_pages_that_were_granted_are_not_asked_for_again_before_they_are_accepted() -> None:
    remapper = one_granule()
    assert remapper.on_step(SHORT, 0.0) == [SendAsk(1, 4)]
    pages = tuple(PageId(page) for page in range(4))
    accept = Accept(pages)
    assert remapper.on_granted(1, pages) == [Order(accept)]
    assert remapper.on_step(SHORT, 0.1) == []
    assert remapper.on_outcome(Outcome(accept)) == []
    (order,) = remapper.on_step(SHORT, 0.2)
    assert isinstance(order, Order)
    assert isinstance(order.operation, MapGranules)
    assert remapper.on_step(SHORT, 0.3) == []


def test_pages_that_come_when_the_engine_sleeps_are_given_back_in_one_more_step() -> None:
    remapper = one_granule()
    remapper.on_step(SHORT, 0.0)
    pages = tuple(PageId(page) for page in range(4))
    (accept,) = remapper.on_granted(1, pages)
    assert isinstance(accept, Order)
    assert remapper.on_step(IDLE, 0.1) == []
    remapper.on_outcome(Outcome(accept.operation))
    assert remapper.holds_leftover
    (release,) = remapper.on_step(IDLE, 0.2)
    assert isinstance(release, Order)
    assert not remapper.holds_leftover
    assert remapper.on_outcome(Outcome(release.operation, pages=pages)) == [SendGiveBack(pages)]
    assert not remapper.busy
