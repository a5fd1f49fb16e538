"""Room for memory, read from a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_core.errors import ConfigError
from mirage_core.memory.limits import KEPT_BYTES, observe_room, require_room

GIB = 1 << 30


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: 9999 kB\nMemAvailable:  {8 << 20} kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def limit_v2(root: Path, folder: str, limit: str, used_bytes: int, cached_bytes: int = 0) -> None:
    group = f"sys/fs/cgroup/{folder}"
    write(root, f"{group}/memory.max", f"{limit}\n")
    write(root, f"{group}/memory.current", f"{used_bytes}\n")
    write(root, f"{group}/memory.stat", f"anon 1\ninactive_file {cached_bytes}\n")


def test_without_a_limit_the_machine_sets_the_bound(root: Path) -> None:
    assert observe_room(root).free_bytes == 8 * GIB
    assert "MemAvailable" in observe_room(root).bound


def test_cgroup_v2_limit_counts_what_is_used_but_not_what_is_cached(root: Path) -> None:
    limit_v2(root, "", str(4 * GIB), used_bytes=2 * GIB, cached_bytes=GIB)
    assert observe_room(root).free_bytes == 3 * GIB
    assert "memory.max" in observe_room(root).bound


def test_tightest_limit_on_the_way_up_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/kubepods/pod/container\n")
    limit_v2(root, "kubepods", str(2 * GIB), used_bytes=0)
    limit_v2(root, "kubepods/pod", "max", used_bytes=0)
    limit_v2(root, "kubepods/pod/container", str(4 * GIB), used_bytes=0)
    assert observe_room(root).free_bytes == 2 * GIB


def test_cgroup_v1_limit_is_found_where_the_path_is_not_visible(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu:/docker/x\n4:hugetlb,memory:/docker/x\n0::/docker/x\n")
    group = "sys/fs/cgroup/memory"
    write(root, f"{group}/memory.limit_in_bytes", str(3 * GIB))
    write(root, f"{group}/memory.usage_in_bytes", str(GIB))
    write(root, f"{group}/memory.stat", "inactive_file 5\ntotal_inactive_file 0\n")
    assert observe_room(root).free_bytes == 2 * GIB


def test_cgroup_v1_without_a_limit_sets_no_bound(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert observe_room(root).free_bytes == 8 * GIB


def test_refusal_says_what_to_change(root: Path) -> None:
    require_room(8 * GIB - KEPT_BYTES, "host device X", root)
    with pytest.raises(ConfigError, match=f"host device X .* at most {8 * GIB - KEPT_BYTES} "):
        require_room(8 * GIB, "host device X", root)


def test_this_machine_can_be_read() -> None:
    assert observe_room().free_bytes > 0
