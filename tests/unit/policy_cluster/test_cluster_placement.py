"""Where a model belongs."""

from __future__ import annotations

from cluster_views import by_id, clusters, device, held, prove, wish, wishes
from hypothesis import given
from hypothesis import strategies as st

from mirage_core.cluster_model import ModelState, ModelWish
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.fit import can_take, need_bytes
from mirage_core.policy.cluster.placement import Placed, place_model
from mirage_core.policy.cluster.ranks import Shortage, rank_models, rank_shortages, rank_victims
from mirage_core.policy.cluster.replicas import group_replicas
from mirage_core.policy.cluster.view import ClusterDevice, Standing

Devices = dict[DeviceId, ClusterDevice]


def place(model: ModelWish, devices: Devices, current: set[str] | None = None) -> Placed:
    now = {DeviceId(d) for d in current or ()}
    return place_model(model, devices, now, idle_before_s=100.0)


def test_model_goes_where_fewest_models_matter_as_much() -> None:
    devices = by_id(
        device("x", held("a", priority=5), size=1000), device("y", held("b", priority=-1))
    )
    assert place(wish(priority=0), devices).devices == {"y"}


def test_among_equals_the_device_with_most_unclaimed_bytes_is_chosen() -> None:
    assert place(wish(), by_id(device("x", size=50), device("y", size=60))).devices == {"y"}


def test_model_that_fits_nowhere_is_missing_and_says_why() -> None:
    placed = place(wish(weights=200), by_id(device("x")))
    assert (placed.devices, placed.missing) == (frozenset(), 1)
    assert "no room for 200 bytes" in placed.why


def test_placed_model_stays_while_a_better_device_appears() -> None:
    devices = by_id(device("x", held("a", priority=9), held("m")), device("y", size=10_000))
    assert place(wish(), devices, {"x"}).devices == {"x"}


def test_silent_device_keeps_its_models_and_gets_none() -> None:
    silent = device("x", held("m"), standing=Standing.SILENT)
    assert place(wish(), by_id(silent, device("y")), {"x"}).devices == {"x"}
    assert place(wish("n"), by_id(silent)).missing == 1


def test_models_of_a_drained_device_belong_elsewhere() -> None:
    devices = by_id(device("x", held("m"), standing=Standing.CLOSED), device("y"))
    assert place(wish(), devices, {"x"}).devices == {"y"}


def test_operator_names_the_devices_whatever_fits() -> None:
    devices = by_id(device("x", size=1), device("y"))
    assert place(wish(devices=("x",)), devices).devices == {"x"}


def test_named_device_that_nobody_knows_is_missing() -> None:
    placed = place(wish(devices=("x", "z")), by_id(device("x")))
    assert (placed.devices, placed.missing) == ({"x"}, 1)
    assert "z is not known" in placed.why


def test_inactive_model_stays_and_is_placed_nowhere_new() -> None:
    model = wish(replicas=2, state=ModelState.INACTIVE)
    assert place(model, by_id(device("x", held("m")), device("y")), {"x"}).devices == {"x"}


def test_engine_that_ran_before_its_model_was_registered_is_adopted() -> None:
    devices = by_id(
        device("x", held("m", placed=False, running=True), size=10), device("y", size=1000)
    )
    assert place(wish(), devices).devices == {"x"}


def test_replica_of_two_devices_is_never_torn_between_nodes() -> None:
    devices = by_id(device("a", node="n1"), device("b", node="n2"), device("c", node="n2"))
    assert place(wish(per_replica=2), devices).devices == {"b", "c"}


def test_surplus_replica_goes_only_after_a_long_idle_time() -> None:
    def two(idle_since_s: float | None) -> Devices:
        idle = held("m", running=True, active=False, idle_since_s=idle_since_s)
        return by_id(device("x", held("m")), device("y", idle))

    assert place(wish(), two(50.0), {"x", "y"}).devices == {"x"}
    assert place(wish(), two(150.0), {"x", "y"}).devices == {"x", "y"}
    assert place(wish(), two(None), {"x", "y"}).devices == {"x", "y"}, "unknown is not idle"


@prove
@given(clusters(), wishes, st.sets(st.sampled_from(["d0", "d1", "d2", "d3"])))
def test_placement_keeps_its_promises(
    devices: Devices, model: ModelWish, current: set[str]
) -> None:
    placed = place(model, devices, current)
    size = model.spec.devices_per_replica
    if model.state is ModelState.ABSENT:
        assert not placed.devices
        return
    for each in placed.devices:
        assert devices[each].standing is not Standing.CLOSED
    if model.state is not ModelState.ACTIVE:
        assert placed.devices <= current
        return
    replicas, left = group_replicas(
        placed.devices, {d: devices[d].node for d in placed.devices}, size
    )
    assert not left
    assert len(replicas) + placed.missing >= model.placement.replicas
    assert bool(placed.missing) == bool(placed.why)
    for each in placed.devices - current:
        ran = any(h.model == "m" and h.running for h in devices[each].held)
        assert ran or can_take(devices[each], ModelName("m"), need_bytes(model.spec))
    again = place_model(model, devices, placed.devices, idle_before_s=-1.0)
    assert placed.devices <= again.devices, "what is placed stays"


@prove
@given(clusters(), wishes, st.randoms())
def test_placement_does_not_depend_on_the_order_of_devices(
    devices: Devices, model: ModelWish, random: object
) -> None:
    shuffled = list(devices.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(model, devices) == place(model, dict(shuffled))


def test_most_important_model_chooses_first_then_what_is_hardest_to_fit() -> None:
    ranked = rank_models(
        [wish("a"), wish("b", weights=50), wish("c", priority=1), wish("d", per_replica=2)]
    )
    assert "".join(each.name for each in ranked) == "cdba"


def test_longest_idle_of_the_least_important_is_moved_first() -> None:
    ranked = rank_victims(
        [
            held("a", priority=1, idle_since_s=0.0),
            held("b", idle_since_s=5.0),
            held("c", idle_since_s=1.0),
            held("d", idle_since_s=1.0, need=20),
        ]
    )
    assert "".join(each.model for each in ranked) == "dcba"


def test_priorities_hold_across_devices() -> None:
    def short(device_id: str, priority: int, waited_s: float) -> Shortage:
        return Shortage(DeviceId(device_id), ModelName("m"), priority, waited_s)

    ranked = rank_shortages([short("x", 0, 9.0), short("y", 1, 1.0), short("z", 0, 9.0)])
    assert [each.device for each in ranked] == ["y", "x", "z"]
