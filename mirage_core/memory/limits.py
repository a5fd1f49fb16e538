"""What the machine still has room for: memory for a device, mappings for a process.

Read before allocating, because the kernel says yes to any size and kills a process later.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirage_core.errors import ConfigError

KEPT_BYTES = 256 << 20
"""Left to the rest of the machine by whoever asks for memory here."""

_V1_UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes that can still be allocated, and what sets that bound (a line for people)."""

    free_bytes: int
    bound: str


def require_room(size_bytes: int, purpose: str, root: Path = Path("/")) -> None:
    """Raise ConfigError unless ``size_bytes`` can be allocated and KEPT_BYTES remain."""
    room = observe_room(root)
    if size_bytes + KEPT_BYTES > room.free_bytes:
        most_bytes = max(0, room.free_bytes - KEPT_BYTES)
        raise ConfigError(
            f"{purpose} of {size_bytes} bytes does not fit: {room.free_bytes} bytes are left by "
            f"{room.bound}; configure at most {most_bytes} bytes, or raise that bound"
        )


def observe_room(root: Path = Path("/")) -> MemoryRoom:
    """The least of MemAvailable and of what each memory cgroup above this process leaves."""
    rooms = [_meminfo_room(root), *_cgroup_rooms(root)]
    return min(rooms, key=lambda room: room.free_bytes)


def observe_max_mappings(root: Path = Path("/")) -> int:
    """``vm.max_map_count``: mappings that one process may have."""
    return int((root / "proc/sys/vm/max_map_count").read_text())


def _meminfo_room(root: Path) -> MemoryRoom:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return MemoryRoom(int(value.split()[0]) * 1024, "MemAvailable of /proc/meminfo")
    raise ConfigError("/proc/meminfo has no MemAvailable: Linux 3.14 or newer is needed")


def _cgroup_rooms(root: Path) -> list[MemoryRoom]:
    """One room for each limited cgroup from this process's up to the root, version 1 or 2.

    Inside a container the path of /proc/self/cgroup may not be visible; the walk up to the mount
    point then still finds the container's own limit there.
    """
    mount = root / "sys/fs/cgroup"
    rooms = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, usage, inactive = mount, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage = mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            inactive = "total_inactive_file"
        else:
            continue
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                room = _cgroup_room(folder, limit, usage, inactive)
                if room is not None:
                    rooms.append(room)
    return rooms


def _cgroup_room(folder: Path, limit: str, usage: str, inactive: str) -> MemoryRoom | None:
    try:
        limit_text = (folder / limit).read_text().strip()
        if limit_text == "max" or int(limit_text) >= _V1_UNLIMITED_BYTES:
            return None
        used_bytes = int((folder / usage).read_text())
        statistics = (folder / "memory.stat").read_text()
    except FileNotFoundError:
        return None
    for line in statistics.splitlines():
        name, _, value = line.partition(" ")
        if name == inactive:
            used_bytes -= int(value)  # cached file pages give way before an allocation fails
    return MemoryRoom(int(limit_text) - used_bytes, f"the cgroup limit {folder / limit}")
