"""Random lives of a cluster: whatever comes in whatever order, all that is wished gets applied."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from simulated_cluster import SimulatedCluster, engine, model_wish

from mirage_core.cluster_model import (
    FREE_LENDING,
    ClusterWish,
    DeviceWish,
    Lending,
    ModelState,
    NodeName,
    NodeWish,
    Truth,
)
from mirage_core.control import reconciler_status as status
from mirage_core.control.reconciler_state import lend_key
from mirage_core.model import DeviceId

DEVICES = ("d1", "d2", "d3", "d4")
MODELS = ("a", "b", "c")

devices = st.sampled_from(DEVICES)
models = st.sampled_from(MODELS)
lendings = st.sampled_from([FREE_LENDING, Lending(3), Lending(2, 5), Lending(0, 0)])


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimulatedCluster()

    def connected(self, device: str) -> bool:
        agent = self.cluster.agents.get(DeviceId(device))
        return agent is not None and agent.connected

    @rule(
        name=models,
        priority=st.integers(-3, 3),
        named=st.lists(devices, max_size=2, unique=True),
        replicas=st.integers(1, 3),
        state=st.sampled_from(ModelState),
        lending=lendings,
    )
    def wish_model(
        self,
        name: str,
        priority: int,
        named: list[str],
        replicas: int,
        state: ModelState,
        lending: Lending,
    ) -> None:
        wish = model_wish(
            name,
            priority=priority,
            devices=tuple(named),
            replicas=replicas,
            state=state,
            lending=lending,
        )
        self.cluster.wish(wish)

    @rule(priority=st.integers(-3, 3), lending=lendings)
    def wish_model_of_two_devices(self, priority: int, lending: Lending) -> None:
        wish = model_wish("pair", priority=priority, per_replica=2, lending=lending)
        self.cluster.wish(wish)

    @rule(freeze=st.booleans(), shadow=st.booleans())
    def wish_cluster(self, freeze: bool, shadow: bool) -> None:
        self.cluster.wish(ClusterWish(freeze, shadow))

    @rule(device=devices, drain=st.booleans())
    def wish_device(self, device: str, drain: bool) -> None:
        self.cluster.wish(DeviceWish(DeviceId(device), drain=drain))

    @rule(drain=st.booleans())
    def wish_node(self, drain: bool) -> None:
        self.cluster.wish(NodeWish(NodeName("n1"), drain=drain))

    @rule(device=devices)
    def join(self, device: str) -> None:
        self.cluster.join(device, node="n1" if device in DEVICES[:2] else "n2")

    @rule(device=devices)
    def leave(self, device: str) -> None:
        if self.connected(device):
            self.cluster.leave(device)

    @rule(
        device=devices,
        running=st.lists(
            st.tuples(models, st.sampled_from([None, False, True]), st.sampled_from([0, 5])),
            max_size=3,
            unique_by=lambda each: each[0],
        ),
    )
    def report(self, device: str, running: list[tuple[str, bool | None, int]]) -> None:
        if self.connected(device):
            engines = [engine(m, active=a, waiting_pages=w) for m, a, w in running]
            self.cluster.report(device, *engines)

    @rule()
    def commit(self) -> None:
        self.cluster.commit()

    @rule()
    def answer(self) -> None:
        self.cluster.answer()

    @rule(seconds=st.sampled_from([1, 10, 70]))
    def pass_time(self, seconds: int) -> None:
        self.cluster.pass_time(seconds)

    @rule()
    def fail_over(self) -> None:
        self.cluster.fail_over()

    @invariant()
    def books_agree(self) -> None:
        reconciler = self.cluster.reconciler.state
        connected = [each for each in self.cluster.agents.values() if each.connected]
        assert reconciler.connected == len(connected)
        for name, model in reconciler.models.items():
            for device in model.placed:
                assert name in reconciler.devices[device].placed
        for record in reconciler.devices.values():
            for name in record.placed:
                assert record.device in reconciler.models[name].placed

    @invariant()
    def accepted_is_never_shown_as_applied(self) -> None:
        """What is shown as observed is what every device concerned holds to, and answered."""
        reconciler = self.cluster.reconciler.state
        for name, model in reconciler.models.items():
            shown = status.model_status(reconciler, name)
            if shown.observed_revision != shown.desired_revision:
                continue
            for device in model.devices:
                agent = self.cluster.agents.get(device)
                stored = self.cluster.records.get((device, f"model/{name}"))  # type: ignore[call-overload]
                assert agent is not None
                assert stored is not None
                assert agent.holds[stored.key].body == stored.body
                lend = lend_key(name)
                bounded = model.wish.lending != FREE_LENDING
                assert (lend in agent.holds) == ((device, lend) in self.cluster.records) == bounded

    def teardown(self) -> None:
        """With every agent connected and nothing on its way, all that is wished is applied."""
        self.cluster.settle()
        for device in DEVICES:
            if not self.connected(device):
                self.cluster.join(device, node="n1" if device in DEVICES[:2] else "n2")
        self.cluster.pass_time(8)
        reconciler = self.cluster.reconciler.state
        for record in reconciler.devices.values():
            agent = self.cluster.agents[record.device]
            held = {key: directive.body for key, directive in agent.holds.items()}
            assert held == {key: issued.body for key, issued in record.issued.items()}
            assert not record.open
            assert all(issued.applied for issued in record.issued.values())
        assert not reconciler.unapplied
        for name, model in reconciler.models.items():
            shown = status.model_status(reconciler, name)
            applied = next(c for c in shown.conditions if c.kind == "Applied")
            if model.devices:
                assert applied.status is Truth.TRUE
                assert shown.observed_revision == shown.desired_revision


ClusterMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestRandomLives = ClusterMachine.TestCase
