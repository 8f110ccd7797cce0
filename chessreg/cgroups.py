"""The memory control groups (cgroups, versions 1 and 2) by which Slurm and containers limit this process's memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CGROUP_TREE = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class MemoryFiles:
    """The files of a memory cgroup, and the key of memory.stat for file pages that the kernel may drop."""

    limit: str
    usage: str
    events: str
    cache_counter: str


VERSION_1 = MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_inactive_file")
VERSION_2 = MemoryFiles("memory.max", "memory.current", "memory.events", "inactive_file")


def find_memory_groups(tree: Path = CGROUP_TREE, own_file: Path = OWN_CGROUPS) -> Iterator[tuple[Path, MemoryFiles]]:
    """Yield the folder of each memory cgroup of this process, innermost first, and its file names.

    Folders that this process cannot see, as in a container, are yielded too. None where cgroups do not exist.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = own_file.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = PurePosixPath(path)
        for above in (group, *group.parents):
            if not controllers:
                yield tree / above.relative_to("/"), VERSION_2
            elif "memory" in controllers.split(","):
                yield tree / "memory" / above.relative_to("/"), VERSION_1


def measure_cgroup_memory(tree: Path = CGROUP_TREE, own_file: Path = OWN_CGROUPS) -> float:
    """Return the bytes that this process may still use in all its memory cgroups, infinity without a limit."""
    free_bytes = math.inf
    for folder, files in find_memory_groups(tree, own_file):
        with suppress(OSError, ValueError):  # the limit may be "max"
            limit = int((folder / files.limit).read_text(encoding="utf-8"))
            used_bytes = int((folder / files.usage).read_text(encoding="utf-8"))
            cached_bytes = read_counter(folder / "memory.stat", files.cache_counter)
            free_bytes = min(free_bytes, max(limit - used_bytes + cached_bytes, 0))
    return free_bytes


def count_oom_kills(tree: Path = CGROUP_TREE, own_file: Path = OWN_CGROUPS) -> int:
    """Return how many processes of this process's memory cgroup the kernel has killed for lack of memory."""
    for folder, files in find_memory_groups(tree, own_file):
        with suppress(OSError, ValueError):
            return read_counter(folder / files.events, "oom_kill")
    return 0


def read_counter(path: Path, key: str) -> int:
    """Return the number behind `key` in a file of lines `key number`, 0 if it is missing."""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, number = line.partition(" ")
        if name == key:
            return int(number)
    return 0
