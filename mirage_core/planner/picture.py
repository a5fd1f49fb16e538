"""The memory map of a plan as a PNG: what each GPU holds, statically and with remapping."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirage_core.errors import ConfigError
from mirage_core.planner.plan import GpuPlan, Plan
from mirage_core.sizing.hardware import GIGA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATIC, MOVABLE, POOL, LENT = "#4c566a", "#5e81ac", "#a3be8c", "#ebcb8b"
LABELS = {
    STATIC: "weights that never move",
    MOVABLE: "weights that can move",
    LENT: "of these, lent while idle",
    POOL: "KV pool of a static split",
}


def draw_map(plan: Plan, path: Path) -> None:
    """Write the picture; ConfigError if matplotlib is missing or the path cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ConfigError("--map needs matplotlib: pip install matplotlib") from None
    rows = sum(max(1, len(gpu.models)) for gpu in plan.gpus)
    figure = Figure(figsize=(9.0, 1.6 + 0.8 * len(plan.gpus) + 0.55 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(plan.gpus),
        squeeze=False,
        height_ratios=[1.0 + len(gpu.models) for gpu in plan.gpus],
    )
    for gpu, axis in zip(plan.gpus, axes[:, 0], strict=True):
        _draw_gpu(gpu, axis)
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in LABELS.items()],
        loc="outside lower center",
        ncols=2,
        frameon=False,
    )
    figure.suptitle("Memory of each GPU; lending at the low end of its range (not calibrated)")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None


def _draw_gpu(gpu: GpuPlan, axis: Axes) -> None:
    """One row a model, each where the one before ends, and all on the GPU's own length."""
    start = 0.0
    for row, model in enumerate(gpu.models):
        lent = model.idle_bytes.low
        parts = (
            (model.static_bytes, STATIC),
            (model.movable_bytes - lent, MOVABLE),
            (lent, LENT),
            (model.pool_bytes, POOL),
        )
        left = start
        for size_bytes, colour in parts:
            axis.barh(row, size_bytes / GIGA, left=left / GIGA, color=colour, height=0.6)
            left += size_bytes
        rightwards = start < gpu.hbm_bytes / 2
        axis.annotate(
            f"{model.static_tokens:,} tokens static,"
            f" {model.tokens_others_idle.low:,.0f} with others idle",
            ((start if rightwards else left) / GIGA, row - 0.3),
            xytext=(0, 2),
            textcoords="offset points",
            va="bottom",
            ha="left" if rightwards else "right",
            fontsize=8,
        )
        start = left
    axis.axvline(gpu.usable_bytes / GIGA, color="#bf616a", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(gpu.models)), [model.model for model in gpu.models])
    axis.set_ylim(max(1, len(gpu.models)) - 0.5, -0.8)
    axis.set_xlim(0, gpu.hbm_bytes / GIGA)
    axis.set_xlabel("GB (dashed: what models may take)")
    axis.set_title(f"{gpu.name}: {gpu.hardware}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
