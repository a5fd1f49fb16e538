"""Well-formed values of the cluster, as hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st

from mirage_core import cluster_model as c

names = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=20)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
counts = st.integers(0, 1 << 32)
sizes = st.integers(0, 1 << 50)
digests = st.text("0123456789abcdef", max_size=64)
priorities = st.integers(c.MIN_PRIORITY, c.MAX_PRIORITY)
moments = st.floats(0, 1e12, allow_nan=False)
revisions = st.integers(0, (1 << 63) - 1)


def maybe(strategy):
    return st.none() | strategy


specs = st.builds(
    c.ModelSpec,
    weights_bytes=sizes,
    kv_bytes_per_token=maybe(sizes),
    min_pool_bytes=sizes,
    devices_per_replica=st.integers(1, 4096),
)
placements = st.builds(
    c.Placement,
    devices=st.lists(names, unique=True, max_size=4).map(tuple),
    replicas=st.integers(1, 1 << 16),
)
lendings = st.builds(c.Lending, at_most_bytes=st.none() | sizes) | st.builds(
    lambda least, more: c.Lending(least, least + more), st.integers(0, 1 << 40), sizes
)
model_wishes = st.builds(
    c.ModelWish,
    name=names,
    uid=digests,
    weights_digest=digests,
    spec=specs,
    priority=priorities,
    floor_bytes=maybe(sizes),
    placement=placements,
    lending=lendings,
)
device_wishes = st.builds(c.DeviceWish, device=names)
conditions = st.builds(
    c.Condition,
    kind=names,
    reason=names,
    message=texts,
    observed_revision=revisions,
    changed_unix_s=moments,
)
statuses = st.builds(
    c.Status,
    desired_revision=revisions,
    observed_revision=maybe(revisions),
    conditions=st.lists(conditions, max_size=3).map(tuple),
)
authorities = st.builds(c.Authority, store=names, epoch=revisions, revision=revisions)
bodies = st.one_of(
    st.builds(c.DirectModel, model=names, priority=maybe(priorities), floor_bytes=maybe(sizes)),
    st.builds(
        c.DirectLending,
        model=names,
        at_least_bytes=st.integers(0, 1 << 20),
        at_most_bytes=maybe(st.integers(1 << 20, 1 << 50)),
    ),
    st.builds(c.DirectDevice),
    st.builds(c.DirectPlacement, models=st.lists(names, max_size=4).map(tuple)),
)
directives = st.builds(
    c.Directive, operation=names, authority=authorities, body=bodies, traceparent=texts
)
directive_snapshots = st.builds(
    c.DirectiveSnapshot,
    authority=authorities,
    directives=st.lists(directives, max_size=4, unique_by=lambda d: d.key).map(tuple),
)
acknowledgements = st.builds(
    c.Acknowledgement,
    operation=names,
    key=names,
    authority=authorities,
    reason=texts,
    latest=maybe(authorities),
)
_measured = {
    name: maybe(st.integers(0, (1 << 32) - 1))
    for name in (
        "units",
        "cycled_units",
        "unit_pages",
        "lent_pages",
        "free_kv_tokens",
        "running_requests",
        "waiting_requests",
        "preemptions",
    )
}
engines = st.builds(
    c.EngineObservation,
    engine=names,
    model=names,
    resident_pages=counts,
    slot_pages=counts,
    pool_pages=counts,
    spare_pages=counts,
    in_flight_pages=counts,
    waiting_pages=counts,
    priority=maybe(priorities),
    **_measured,
)
_engine_lists = st.lists(engines, max_size=3, unique_by=lambda e: e.engine).map(tuple)
observations = st.builds(
    c.DeviceObservation,
    sequence=counts,
    free_pages=counts,
    coming_pages=counts,
    engines=_engine_lists,
)
deltas = st.builds(
    c.ObservationDelta,
    sequence=counts,
    free_pages=counts,
    coming_pages=counts,
    changed=_engine_lists,
    gone=st.lists(names, max_size=3).map(tuple),
)
hellos = st.builds(
    c.AgentHello,
    node=names,
    device=names,
    incarnation=names,
    page_bytes=st.integers(1, 1 << 40),
    pages=st.integers(1, 1 << 32),
    host_link=texts,
    capabilities=st.lists(names, max_size=3).map(tuple),
    protocol_version=st.integers(0, 9),
    latest=maybe(authorities),
    held=st.lists(st.tuples(names, names), max_size=3).map(tuple),
)
welcomes = st.builds(
    c.LeaderWelcome,
    authority=authorities,
    leader=texts,
    heartbeat_s=st.floats(0.01, 3600),
    report_interval_s=st.floats(0.01, 3600),
    protocol_version=st.integers(0, 9),
    retired=st.lists(names, max_size=3).map(tuple),
)
events = st.builds(
    c.Event,
    kind=names,
    subject=names,
    message=texts,
    at_unix_s=moments,
    actor=texts,
    attributes=st.dictionaries(names, texts, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    traceparent=texts,
    sequence=counts,
)
explanations = st.builds(
    c.Explanation,
    device=names,
    number=counts,
    at_unix_s=moments,
    borrower=maybe(names),
    short_pages=counts,
    free_pages=counts,
    inputs=st.lists(
        st.builds(
            c.DecisionInput,
            engine=names,
            model=names,
            priority=priorities,
            idle_s=maybe(moments),
            pool_pages=counts,
            spare_pages=counts,
            unit_pages=counts,
            lent_pages=counts,
            floor_pages=counts,
        ),
        max_size=2,
    ).map(tuple),
    rules=st.lists(
        st.builds(
            c.RuleTried,
            rule=names,
            engine=maybe(names),
            asked_pages=counts,
            given_pages=counts,
            why=texts,
        ),
        max_size=2,
    ).map(tuple),
    moves=st.lists(
        st.builds(
            c.MoveChosen,
            engine=names,
            model=names,
            action=names,
            pages=st.integers(-(1 << 40), 1 << 40),
        ),
        max_size=2,
    ).map(tuple),
    authority=maybe(authorities),
)
