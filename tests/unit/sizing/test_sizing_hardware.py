"""Hardware profiles and the files they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_core.errors import ConfigError
from mirage_core.sizing.documents import Document
from mirage_core.sizing.hardware import Hardware, find_hardware, known_hardware, read_hardware

GPU = """\
gpus:
  Toy:
    hbm_gb: 8
    hbm_gb_per_s: {spec: 100, measured: [80, 90], source: a bench}
    bf16_tflop_per_s: {spec: [10, 12], source: a leaflet}
    h2d_gb_per_s: {spec: 32, expected: 25, source: a guess}
    d2h_gb_per_s: {spec: 32, source: a leaflet}
"""


def toy(folder: Path, text: str = GPU) -> Hardware:
    path = folder / "gpus.yaml"
    path.write_text(text)
    return read_hardware(path)["Toy"]


def test_what_was_measured_counts_before_what_is_published(tmp_path: Path) -> None:
    gpu = toy(tmp_path)
    memory = gpu.hbm_bytes_per_s
    assert (memory.low, memory.typical, memory.high, memory.spec) == (80e9, 85e9, 90e9, 100e9)
    assert gpu.h2d_bytes_per_s.typical == 25e9
    assert gpu.flops_per_s.typical == 11e12
    assert gpu.as_published().hbm_bytes_per_s.typical == 100e9
    assert gpu.at(0.0).hbm_bytes_per_s.typical == 80e9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hbm_gb: 8", "hbm_gb: -8", r"gpus.yaml:3: gpus.Toy.hbm_gb: Input should be greater"),
        ("hbm_gb: 8", "hbm: 8", r"gpus.yaml:3: gpus.Toy.hbm: unknown field"),
        ("spec: 32, source: a leaflet", "spec: 32", r"gpus.yaml:7: gpus.Toy.d2h_gb_per_s.source"),
        ("hbm_gb: 8", "hbm_gb: 8\n    hbm_gb: 9", r"gpus.yaml:4: hbm_gb twice"),
        ("gpus:", "- gpus:", r"gpus.yaml must be a mapping|neither YAML nor JSON"),
        ("Toy:", "Toy: [", r"neither YAML nor JSON"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        toy(tmp_path, GPU.replace(old, new))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.yaml"):
        Document.read(tmp_path / "nothing.yaml")


def test_names_are_found_in_any_case_and_others_refused() -> None:
    assert find_hardware("gh200-96").name == "GH200-96"
    with pytest.raises(ConfigError, match=r"unknown GPU 'GH300'.*H100-SXM"):
        find_hardware("GH300")


def test_two_gpus_of_a_gb200_share_their_host_link() -> None:
    gpu = find_hardware("GB200")
    assert gpu.domain_gpus == 2
    assert gpu.domain_h2d_bytes_per_s.high < 2 * gpu.h2d_bytes_per_s.low


@pytest.mark.parametrize("gpu", known_hardware().values(), ids=lambda gpu: gpu.name)
def test_no_known_gpu_was_measured_here_and_each_figure_has_a_source(gpu: Hardware) -> None:
    assert not gpu.calibrated
    assert len(gpu.sources) >= 4
    for rate in (gpu.hbm_bytes_per_s, gpu.flops_per_s, gpu.h2d_bytes_per_s, gpu.d2h_bytes_per_s):
        assert 0 < rate.low <= rate.high <= rate.spec
