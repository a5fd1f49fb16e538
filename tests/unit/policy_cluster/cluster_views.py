"""Views and wishes for tests of the cluster's policy."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from mirage_core.cluster_model import (
    ModelSpec,
    ModelState,
    ModelUid,
    ModelWish,
    NodeName,
    Placement,
)
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.view import ClusterDevice, HeldModel, Standing

prove = settings(deadline=None, max_examples=150)


def wish(
    name: str = "m",
    *,
    weights: int = 10,
    priority: int = 0,
    devices: tuple[str, ...] = (),
    replicas: int = 1,
    per_replica: int = 1,
    state: ModelState = ModelState.ACTIVE,
) -> ModelWish:
    return ModelWish(
        ModelName(name),
        ModelUid(f"uid-{name}"),
        "ab",
        ModelSpec(weights, devices_per_replica=per_replica),
        priority=priority,
        state=state,
        placement=Placement(tuple(map(DeviceId, devices)), replicas),
    )


def held(name: str, need: int = 10, priority: int = 0, **fields: object) -> HeldModel:
    return HeldModel(ModelName(name), priority, need, **fields)  # type: ignore[arg-type]


def device(
    name: str,
    *models: HeldModel,
    size: int = 100,
    node: str = "node",
    standing: Standing = Standing.OPEN,
    waiting: str | None = None,
) -> ClusterDevice:
    return ClusterDevice(
        DeviceId(name),
        NodeName(node),
        size,
        standing,
        models,
        ModelName(waiting) if waiting else None,
    )


def by_id(*devices: ClusterDevice) -> dict[DeviceId, ClusterDevice]:
    return {each.device: each for each in devices}


_held = st.builds(
    HeldModel,
    model=st.sampled_from([ModelName(n) for n in ("a", "b", "c", "m")]),
    priority=st.integers(-2, 2),
    need_bytes=st.integers(0, 60),
    placed=st.booleans(),
    running=st.booleans(),
    active=st.sampled_from([None, False, True]),
    idle_since_s=st.sampled_from([None, 0.0, 50.0]),
    movable=st.booleans(),
)


@st.composite
def clusters(draw: st.DrawFn) -> dict[DeviceId, ClusterDevice]:
    count = draw(st.integers(1, 6))
    found = [
        ClusterDevice(
            DeviceId(f"d{i}"),
            NodeName(draw(st.sampled_from(["n1", "n2"]))),
            draw(st.integers(20, 120)),
            draw(st.sampled_from(Standing)),
            tuple(draw(st.lists(_held, max_size=3, unique_by=lambda each: each.model))),
            draw(st.sampled_from([None, ModelName("a"), ModelName("m")])),
        )
        for i in range(count)
    ]
    return {each.device: each for each in found}


wishes = st.builds(
    wish,
    name=st.just("m"),
    weights=st.integers(1, 80),
    priority=st.integers(-2, 2),
    replicas=st.integers(1, 4),
    per_replica=st.integers(1, 3),
    state=st.sampled_from(ModelState),
)
