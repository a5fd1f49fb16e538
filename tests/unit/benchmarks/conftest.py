"""Conditions small enough to check by hand."""

from pathlib import Path

import pytest
from sharing_samples import LARGE_BYTES, SMALL_BYTES, hosted

from benchmarks.sharing.conditions import Conditions
from mirage_core.simulator.workloads.quantiles import AZURE_CODE, SHAREGPT


@pytest.fixture
def conditions(tmp_path: Path) -> Conditions:
    """A device of 134 MB, 13 MB of it KV memory."""
    return Conditions(
        models=(
            hosted(tmp_path / "s", "small", SMALL_BYTES, 0),
            hosted(tmp_path / "l", "large", LARGE_BYTES, 1),
        ),
        kv_share=0.1,
        page_bytes=1 << 18,
        block_size=32,
        max_num_seqs=32,
        max_model_len=256,
        eager=True,
        splits=(0.4, 0.5),
        loads=(1.0, 2.0),
        saturation_s=1.0,
        horizon_s=20.0,
        period_s=10.0,
        lengths=SHAREGPT,
        lengths_name="ShareGPT quantiles",
        length_scale=0.2,
        gaps=AZURE_CODE,
        gaps_name="Azure 2023 code quantiles",
        seed=0,
    )
