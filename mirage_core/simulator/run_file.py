"""The file that ``mirage simulate`` takes: GPUs, models, traffic; read strictly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mirage_core.errors import ConfigError
from mirage_core.policy.how_many import SlotRule
from mirage_core.policy.settings import DEFAULT_REVERSION, Policy
from mirage_core.policy.which_model import DonorOrder
from mirage_core.simulator.arms.cpu_attention import CpuAttentionArm
from mirage_core.simulator.arms.elastic import ElasticArm
from mirage_core.simulator.arms.kv_swap import KvSwapArm
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.arms.static_offload import StaticOffloadArm
from mirage_core.simulator.build import Overheads, engine_spec, link_spec, with_rates
from mirage_core.simulator.config import (
    DeviceSpec,
    Failure,
    Routing,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.memory_port import Arm, StaticArm
from mirage_core.simulator.request import Requests
from mirage_core.simulator.workloads.files import read_azure_trace, read_lengths
from mirage_core.simulator.workloads.quantiles import (
    ALPACA,
    AZURE_CODE,
    AZURE_CODE_LENGTHS,
    AZURE_CONV,
    AZURE_CONV_LENGTHS,
    SHAREGPT,
    GapSource,
    LengthSource,
    Poisson,
)
from mirage_core.simulator.workloads.streams import Agent, Stream, chain, merge
from mirage_core.simulator.workloads.trace import Scaling, Trace, generate, scale
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.documents import Document
from mirage_core.sizing.hardware import find_hardware

GAPS: dict[str, GapSource] = {
    "azure-code": AZURE_CODE,
    "azure-conv": AZURE_CONV,
    "poisson": Poisson(),
}
LENGTHS: dict[str, LengthSource] = {
    "sharegpt": SHAREGPT,
    "alpaca": ALPACA,
    "azure-code": AZURE_CODE_LENGTHS,
    "azure-conv": AZURE_CONV_LENGTHS,
}

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Traffic(_Strict):
    """Requests of one model (or of one chain): a trace by path, or a seeded generator."""

    trace: Path | None = None
    """Azure's format; its lengths are used unless ``lengths`` says otherwise"""
    arrivals: Literal["azure-code", "azure-conv", "poisson"] = "azure-code"
    lengths: str | None = None
    """sharegpt, alpaca, azure-code, azure-conv, or the path of a table of lengths"""
    rate_per_s: Positive | None = None
    scaling: Scaling = Scaling.COMPRESS
    """how a trace is brought to the rate: compress (default), thin, superpose"""

    @model_validator(mode="after")
    def _complete(self) -> Traffic:
        if self.trace is None and self.rate_per_s is None:
            raise ValueError("give rate_per_s, or the path of a trace")
        return self

    def draw(self, horizon_s: float, longest_tokens: int, seed: int) -> Trace:
        """The stream's requests until ``horizon_s``, none longer than ``longest_tokens``."""
        if self.trace is None:
            assert self.rate_per_s is not None
            gaps, lengths = GAPS[self.arrivals], self._lengths("sharegpt")
            return generate(gaps, lengths, self.rate_per_s, horizon_s, longest_tokens, seed)
        trace = read_azure_trace(self.trace)
        if self.lengths is not None:
            trace = trace.with_lengths(self._lengths(self.lengths), longest_tokens, seed)
        if self.rate_per_s is not None:
            trace = scale(trace, self.rate_per_s, self.scaling, seed)
        return trace.within(longest_tokens).until(horizon_s)

    def _lengths(self, default: str) -> LengthSource:
        name = self.lengths or default
        return LENGTHS[name] if name in LENGTHS else read_lengths(Path(name))


class Model(_Strict):
    model: str
    memory_share: Annotated[float, Field(gt=0, le=1)]
    """of the GPU's memory: weights and KV cache"""
    traffic: Traffic | None = None
    priority: int = 0


class Stage(_Strict):
    """One agent of a chain."""

    model: str
    output_tokens: Annotated[int, Field(gt=0)]
    instruction_tokens: Annotated[int, Field(ge=0)] = 0
    think_s: Annotated[float, Field(ge=0)] = 0.0


class Chain(_Strict):
    """Every arrival of ``traffic`` sets off all ``agents`` in turn."""

    traffic: Traffic
    agents: Annotated[tuple[Stage, ...], Field(min_length=1)]


class PolicyFields(_Strict):
    """MIRAGE's policy and what its ablations change."""

    order: DonorOrder = DonorOrder.MRU
    slots: SlotRule = SlotRule.BEST
    cap_share: Share = 1.0
    max_added_share: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    reverts: bool = True
    recall_share: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.25
    parts_per_unit: Annotated[int, Field(ge=1)] = 1
    """1: whole layers, 4: quarters"""

    def arm(self) -> MirageArm:
        policy = Policy(
            order=self.order,
            slots=self.slots,
            cap_share=self.cap_share,
            max_added_share=self.max_added_share,
            reversion=DEFAULT_REVERSION if self.reverts else None,
            recall_share=self.recall_share,
        )
        return MirageArm(policy=policy, parts_per_unit=self.parts_per_unit)


ARMS: dict[str, Callable[[PolicyFields], Arm]] = {
    "static": lambda _: StaticArm(),
    "elastic": lambda _: ElasticArm(),
    "kv_swap": lambda _: KvSwapArm(),
    "static_offload": lambda _: StaticOffloadArm(),
    "cpu_attention": lambda _: CpuAttentionArm(),
    "mirage": PolicyFields.arm,
}


class Loss(_Strict):
    """A device is lost and comes back empty."""

    device: Annotated[int, Field(ge=0)]
    at_s: Annotated[float, Field(ge=0)]
    for_s: Positive


class RunFile(_Strict):
    """The whole file.  Times are seconds, shares 0 to 1, memory decimal gigabytes."""

    gpu: str
    devices: Annotated[int, Field(ge=1)] = 1
    """so many GPUs, each with all models"""
    models: Annotated[tuple[Model, ...], Field(min_length=1)]
    chain: Chain | None = None
    arm: Literal["static", "elastic", "kv_swap", "static_offload", "cpu_attention", "mirage"] = (
        "mirage"
    )
    policy: PolicyFields = PolicyFields()
    sharing: Sharing = Sharing.TEMPORAL
    quantum_s: Positive | None = 1.0
    spatial_overlap: Share = 0.5
    routing: Routing = Routing.LEAST_REQUESTS
    failures: tuple[Loss, ...] = ()
    max_num_seqs: Annotated[int, Field(ge=1)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 8192
    max_model_len: Annotated[int, Field(ge=2)] = 4096
    bandwidth: tuple[Share, Share] = (0.5, 0.5)
    """where in the measured ranges of memory and link the GPU lies: 0 slow, 1 fast"""
    step_overhead_s: Annotated[float, Field(ge=0)] = Overheads().step_s
    horizon_s: Positive = 300.0
    seed: Annotated[int, Field(ge=0)] = 0

    def at_rates(self, place: float) -> RunFile:
        """The same run with memory and link at one place of their ranges."""
        return self.model_copy(update={"bandwidth": (place, place)})

    @model_validator(mode="after")
    def _consistent(self) -> RunFile:
        names = [each.model for each in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model is listed twice")
        if sum(each.memory_share for each in self.models) > 1.0 + 1e-9:
            raise ValueError("the models' memory_share add up to more than 1")
        if self.chain is None and not any(each.traffic for each in self.models):
            raise ValueError("no model has traffic, and there is no chain")
        for stage in self.chain.agents if self.chain else ():
            if stage.model not in names:
                raise ValueError(f"the chain's {stage.model!r} is not among the models")
        for loss in self.failures:
            if loss.device >= self.devices:
                raise ValueError(f"there is no device {loss.device}: they count from 0")
        return self


def read_run_file(path: Path) -> RunFile:
    """ConfigError names file, line and field of every fault."""
    return Document.read(path).parse(RunFile)


def build_run(file: RunFile) -> tuple[RunConfig, Requests]:
    """The run that ``file`` describes; raises ConfigError if the models do not fit."""
    hardware = with_rates(find_hardware(file.gpu), *file.bandwidth)
    names = tuple(each.model for each in file.models)
    limits = SchedulerLimits(
        max_num_seqs=file.max_num_seqs,
        max_num_batched_tokens=max(file.max_num_batched_tokens, file.max_num_seqs),
        max_model_len=file.max_model_len,
    )
    engines = tuple(
        engine_spec(
            find_model(each.model),
            hardware,
            int(hardware.hbm_bytes * each.memory_share),
            limits,
            overheads=Overheads(file.step_overhead_s),
            priority=each.priority,
        )
        for each in file.models
    )
    memory_bytes = sum(int(hardware.hbm_bytes * each.memory_share) for each in file.models)
    domains = -(-file.devices // hardware.domain_gpus)
    config = RunConfig(
        models=names,
        devices=tuple(
            DeviceSpec(
                name=f"gpu {index}",
                engines=engines,
                memory_bytes=memory_bytes,
                sharing=file.sharing,
                quantum_s=file.quantum_s,
                spatial_overlap=file.spatial_overlap,
                link=f"link {index // hardware.domain_gpus}",
            )
            for index in range(file.devices)
        ),
        links=tuple(link_spec(f"link {index}", hardware) for index in range(domains)),
        arm=ARMS[file.arm](file.policy),
        routing=file.routing,
        failures=tuple(Failure(f"gpu {f.device}", f.at_s, f.for_s) for f in file.failures),
        seed=file.seed,
    )
    return config, _requests(file, names)


def _requests(file: RunFile, names: Sequence[str]) -> Requests:
    """All models' streams, each with a seed of its own, and the chain's requests."""
    streams = [
        Stream(index, each.traffic.draw(file.horizon_s, file.max_model_len, file.seed + index))
        for index, each in enumerate(file.models)
        if each.traffic is not None
    ]
    if file.chain is None:
        return merge(streams)
    if streams:
        raise ConfigError("a run has either a chain or traffic of its models, not both")
    agents = [
        Agent(names.index(a.model), a.output_tokens, a.instruction_tokens, a.think_s)
        for a in file.chain.agents
    ]
    set_off = file.chain.traffic.draw(file.horizon_s, file.max_model_len, file.seed)
    return chain(set_off, agents, file.max_model_len)
