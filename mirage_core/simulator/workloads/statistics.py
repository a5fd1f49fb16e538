"""How bursty arrivals are: what a generated trace is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirage_core.simulator.workloads.quantiles import Floats


def burstiness(arrivals_s: Floats, windows_s: Sequence[float]) -> dict[str, float]:
    """Statistics of arrivals: CV of the gaps, share of idle windows and index of dispersion.

    The index of dispersion is variance over mean of the arrivals in a window; 1 for Poisson.
    A window of which fewer than two fit is left out.
    """
    gaps_s = np.diff(np.sort(arrivals_s))
    if not gaps_s.any():
        return {}
    figures = {"gap_cv": float(gaps_s.std() / gaps_s.mean())}
    for window_s in windows_s:
        edges = np.arange(arrivals_s.min(), arrivals_s.max(), window_s)
        if len(edges) < 3:
            continue
        counts = np.histogram(arrivals_s, edges)[0]
        figures[f"dispersion_{window_s:g}_s"] = float(counts.var() / counts.mean())
        figures[f"idle_{window_s:g}_s"] = float((counts == 0).mean())
    return figures
