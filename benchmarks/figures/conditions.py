"""What each figure of the paper is run under, fixed before any run.

The paper names models, memory shares, data sets and the trace.  It leaves unstated: request rates
(but 1 and 10 a second in figures 16 and 17), the quantum of temporal sharing, whether 96 GB are
GB or GiB, what vLLM sets aside, its limits, the bandwidth that transfers reach, the spread of the
synthetic requests, the slices of MIG, and the cap.  Each such thing is an *axis*: its first choice
is the base; the quantum and whatever else matters most in a figure are crossed with each other,
and the rest (``DEVIATIONS``) is varied one at a time.

Rates are multiples of what static vLLM serves in the same setting when all requests are there at
once (its saturation), since the paper plots against load without saying what its system bears.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from benchmarks.figures.verdicts import Setting
from mirage_core.policy.how_many import SlotRule
from mirage_core.policy.settings import DEFAULT_REVERSION, Policy
from mirage_core.policy.which_model import DonorOrder

GPU = "GH200-96"
REQUESTS = {"ShareGPT": 200, "Alpaca": 800, "long": 200, "short": 200}
"""Of a run, for each model on average, by the first model's lengths: several times what a pool
holds at once, so that a run can be overloaded.  The trace is compressed in time to its rate, which
keeps its CV."""
LONGEST_TOKENS = 2048
"""OPT's; longer requests are cut"""
LOADS = (0.5, 0.9, 1.3)
LOAD_RANGES = {"0.5-0.9": (0.5, 0.9), "0.9-1.3": (0.9, 1.3)}
"""Which rates the paper averages over is unstated: below saturation, or past it."""
DATA_SETS = ("Alpaca", "ShareGPT")
QUANTA_S = (1.0, 0.2, 5.0)
UNLIMITED = 10.0
"""added share of a step: remap whatever it costs, as Algorithm 1 does once inactive models are
used up"""


@dataclass(frozen=True, slots=True)
class ArmChoice:
    """One way of sharing: ``kind`` is static, elastic (KV pools share what is not weights), swap
    (as Pie) or mirage, which alone takes a policy (None: the product's default)."""

    kind: str
    policy: Policy | None = None


STATIC = ArmChoice("static")
ELASTIC = ArmChoice("elastic")
SWAP = ArmChoice("swap")
MIRAGE = ArmChoice("mirage")
LRU = ArmChoice("mirage", Policy(order=DonorOrder.LRU))


def remapping(
    slots: SlotRule = SlotRule.BEST,
    added: float = UNLIMITED,
    cap: float = 1.0,
    reverts: bool = True,
) -> ArmChoice:
    """MIRAGE that may slow an active model down, as in the paper's ablations."""
    reversion = DEFAULT_REVERSION if reverts else None
    policy = Policy(slots=slots, max_added_share=added, cap_share=cap, reversion=reversion)
    return ArmChoice("mirage", policy)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model; ``memory_share`` of the GPU holds its weights, KV cache and working memory."""

    model: str
    memory_share: float
    lengths: str
    weight: float = 1.0
    """its rate against the other tenants'"""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.  Exactly one of ``load`` and ``rate_per_s`` is given, or neither: all at once.

    sharing      temporal, spatial (MPS) or mig (a device each)
    quantum_s    of temporal sharing
    overlap      part of a step that overlaps with other models' for nothing (spatial)
    slices       of a GPU's compute and bandwidth that each tenant gets (mig)
    memory       what "96 GB" is: GiB or GB
    bandwidth    of memory and of the link: where in their measured ranges (0 slow, 1 fast)
    working_gb   memory of each engine that is neither weights nor KV cache
    max_seqs     vLLM's max_num_seqs
    overhead_s   of a step, beside what bandwidth and operations explain
    kv_scale     KV memory times this
    prompt_share of the synthetic requests
    parts        units in a layer (1: whole layers, as in the paper)
    """

    tenants: tuple[Tenant, ...]
    arm: ArmChoice = STATIC
    sharing: str = "temporal"
    load: float | None = None
    rate_per_s: float | None = None
    quantum_s: float = QUANTA_S[0]
    overlap: float = 0.5
    slices: tuple[float, ...] = ()
    memory: str = "GiB"
    bandwidth: tuple[float, float] = (0.5, 0.5)
    working_gb: float = 0.0
    max_seqs: int = 256
    overhead_s: float = 0.001
    kv_scale: float = 1.0
    prompt_share: float = 0.5
    parts: int = 1
    gpu: str = GPU
    requests: int | None = None
    seed: int = 1

    @property
    def count(self) -> int:
        """Requests of the run."""
        return self.requests or len(self.tenants) * REQUESTS[self.tenants[0].lengths]

    @property
    def saturating(self) -> Case:
        """The run that gives the rate which ``load`` multiplies: static, all at once."""
        return replace(self, arm=STATIC, load=None, rate_per_s=None, parts=1, kv_scale=1.0)


def c1(lengths: str) -> tuple[Tenant, ...]:
    return (
        Tenant("opt-13b", 0.35, lengths),
        Tenant("llama-2-13b", 0.35, lengths),
        Tenant("llama-3-8b", 0.20, lengths),
    )


def c2(lengths_a: str, lengths_b: str, weight_a: float = 1.0) -> tuple[Tenant, ...]:
    """``weight_a``: OPT-30b's rate as a multiple of OPT-6.7b's."""
    return (
        Tenant("opt-30b", 0.65, lengths_a, weight_a),
        Tenant("opt-6.7b", 0.15, lengths_b),
    )


def single(lengths: str) -> tuple[Tenant, ...]:
    return (Tenant("opt-13b", 0.35, lengths),)


def pair_on_h100(lengths: str) -> tuple[Tenant, ...]:
    """Figure 4: one of two OPT-13b has its turn; the other's weights (26 of 80 GB) are there."""
    return (Tenant("opt-13b", 54 / 80, lengths),)


BATCH = Case(pair_on_h100("ShareGPT"), gpu="H100-SXM", memory="GB", requests=600)
"""Figure 4: its pool holds three times what the others do."""

Changes = dict[str, object]
"""Fields of a case that a choice sets."""

DEVIATIONS: dict[str, Changes] = {
    "GB": {"memory": "GB"},
    "1 GB of working memory": {"working_gb": 1.0},
    "slow link, fast memory": {"bandwidth": (1.0, 0.0)},
    "fast link, slow memory": {"bandwidth": (0.0, 1.0)},
    "1024 sequences": {"max_seqs": 1024},
    "4 ms of overhead a step": {"overhead_s": 0.004},
    "seed 2": {"seed": 2},
}
"""What is varied one at a time, from the base of everything else."""
FEW = {name: DEVIATIONS[name] for name in ("GB", "seed 2")}
"""Where many axes are crossed already."""

RATE_RATIOS = (4.0, 0.25)
"""Figure 9: OPT-30b's rate over OPT-6.7b's; averaged over, as the paper averages its scenarios."""
LONG_TOKENS, SHORT_TOKENS, SYNTHETIC_SPREAD = 1734.0, 634.0, 0.18
"""Figure 10: prompt and output together; with this spread the longest request has 2,046 tokens."""
PROMPT_SHARES: dict[str, Changes] = {
    "prompts a quarter": {"prompt_share": 0.25},
    "prompts three quarters": {"prompt_share": 0.75},
}
OVERLAPS: dict[str, Changes] = {f"{share:g}": {"overlap": share} for share in (0.5, 0.0, 1.0)}
MIG_SLICES: dict[str, Changes] = {
    "as memory": {"slices": (0.35, 0.35, 0.20)},
    "3, 3 and 1 of 7": {"slices": (3 / 7, 3 / 7, 1 / 7)},
}
QUANTA: dict[str, Changes] = {f"{q:g} s": {"quantum_s": q} for q in QUANTA_S}
ADDED = {"whatever it costs": UNLIMITED, "half a step": 0.5, "no added time": 0.0}
"""How far an active model may be slowed down; the paper's text bounds it (§5.3), while its
ablations show steps that grow."""
CAPS = (0.2, 0.1, 0.3)
"""Figure 17: the share of an active model's weights that may be remapped."""
UNIT_PARTS = (1, 2, 4)
"""Whole layers, halves and quarters: what smaller units gain (not in the paper)."""


def settings(
    base: Case, axes: dict[str, dict[str, Changes]], others: dict[str, Changes]
) -> dict[Setting, Case]:
    """Every choice of ``axes`` crossed with each other, then ``others`` one at a time.

    The first choice of an axis is its base.
    """
    found: dict[Setting, Case] = {}
    chosen: list[list[tuple[str, str]]] = [
        [(axis, choice) for choice in choices] for axis, choices in axes.items()
    ]
    for setting in product(*chosen):
        found[(*setting, ("other", "base"))] = _changed(base, axes, setting)
    first = tuple(choices[0] for choices in chosen)
    for name, changes in others.items():
        case = _changed(base, axes, first)
        found[(*first, ("other", name))] = replace(case, **changes)  # type: ignore[arg-type]
    return found


def _changed(base: Case, axes: dict[str, dict[str, Changes]], setting: Setting) -> Case:
    for axis, choice in setting:
        base = replace(base, **axes[axis][choice])  # type: ignore[arg-type]
    return base
