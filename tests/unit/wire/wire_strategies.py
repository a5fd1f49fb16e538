"""Random messages, each well formed."""

from __future__ import annotations

from hypothesis import strategies as st

from mirage_core.model import (
    DeviceGeometry,
    DeviceId,
    EngineId,
    Holdings,
    ModelName,
    OperationId,
    PageId,
    RemapPlan,
    UnitId,
)
from mirage_core.wire import messages as m

DEVICE_PAGES = 300

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**32 - 1)
names = st.text("abcdefghijklmnop-0123456789", min_size=1, max_size=40)
digests = st.text("0123456789abcdef", min_size=1, max_size=64)
seconds = st.floats(0, 1e12)
page_lists = st.lists(st.integers(0, DEVICE_PAGES - 1).map(PageId), unique=True, max_size=60).map(
    tuple
)
geometries = st.builds(
    DeviceGeometry,
    names.map(DeviceId),
    st.integers(1, 64).map(lambda n: n * 4096),
    st.just(DEVICE_PAGES),
)


@st.composite
def plans(draw: st.DrawFn, units: int = 40) -> RemapPlan:
    cycled = draw(st.lists(st.integers(0, units - 1), unique=True, max_size=12))
    slots = []
    while len(cycled) >= 2:
        size = draw(st.integers(2, max(2, len(cycled))))
        members, cycled = sorted(cycled[:size]), cycled[size:]
        slots.append(tuple(map(UnitId, members)))
    return RemapPlan(tuple(slots))


@st.composite
def holdings(draw: st.DrawFn) -> Holdings:
    pages = draw(page_lists)
    cuts = sorted(draw(st.lists(st.integers(0, len(pages)), min_size=3, max_size=3)))
    a, b, c = cuts
    return Holdings(pages[:a], pages[a:b], pages[b:c], pages[c:])


@st.composite
def describes(draw: st.DrawFn) -> m.Describe:
    units = draw(st.integers(1, 40))
    low = draw(st.integers(1, 100))
    return m.Describe(
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        unit_pages=tuple(draw(st.lists(positive, min_size=units, max_size=units))),
        static_pages=draw(uint32),
        granule_pages=draw(positive),
        pool_max_granules=draw(st.integers(low, 2**32 - 1)),
        pool_min_granules=low,
        plan=draw(plans(units)),
        pinned=draw(st.booleans()),
    )


operations = uint64.map(OperationId)
times = st.lists(seconds, max_size=8).map(tuple)
traceparents = st.just("") | st.builds(
    "00-{:032x}-{:016x}-{:02x}".format,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 255),
)

engine_messages = st.one_of(
    st.builds(
        m.Hello,
        st.sampled_from(m.Role),
        names.map(EngineId),
        names.map(ModelName),
        digests | st.just(""),
        uint32,
    ),
    st.builds(m.Take, uint64, positive),
    st.builds(m.OpenHostCopy, digests, st.integers(1, 2**64 - 1)),
    st.builds(m.HostCopyFilled, digests),
    describes(),
    st.builds(
        m.Report,
        sequence=uint64,
        active=st.booleans(),
        pool_granules=uint32,
        running_requests=uint32,
        waiting_requests=uint32,
        spare_granules=uint32,
        needed_granules=uint32,
        plan=plans(),
        reserve_pages=uint32,
        unit_compute_s=times,
        unit_transfer_s=times,
        idle_s=seconds,
        preemptions=uint64,
        fetches=uint64,
        fetched_bytes=uint64,
        stall_s=seconds,
        prefill_s=seconds,
        free_kv_tokens=st.none() | uint64,
    ),
    st.builds(m.Ask, uint64, positive),
    st.builds(m.Done, operations, page_lists, plans(), uint32),
    st.builds(m.Refused, operations, st.text(max_size=50), page_lists),
    st.builds(m.Rejoin, geometries, holdings()),
    st.builds(m.GiveBack, page_lists),
)

agent_messages = st.one_of(
    st.builds(m.Welcome, names, geometries, seconds, st.booleans(), uint32),
    st.builds(m.Granted, uint64, page_lists),
    st.builds(m.Denied, uint64, st.text(max_size=50)),
    st.builds(m.HostCopy, digests, st.sampled_from(m.HostCopyState), st.integers(1, 2**64 - 1)),
    st.builds(m.Shrink, operations, positive, seconds, traceparents),
    st.builds(m.ApplyPlan, operations, plans(), page_lists, traceparents),
    st.builds(m.Limits, uint32, uint32, st.booleans(), st.none() | uint32),
    st.builds(m.Error, st.sampled_from(m.ErrorCode), st.text(max_size=50)),
)
