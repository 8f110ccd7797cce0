"""The memory that Slurm or a container leaves to a process, read from its memory cgroups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chessreg.cgroups import (
    VERSION_1,
    VERSION_2,
    MemoryFiles,
    count_oom_kills,
    find_memory_groups,
    measure_cgroup_memory,
)


@pytest.mark.parametrize(("files", "tree", "lines", "unlimited"), [
    (VERSION_2, "", "0::/job/step\n", "max"),
    (VERSION_1, "memory", "5:cpu,cpuacct:/\n4:memory:/job/step\n0::/\n", "9223372036854771712"),
])  # fmt: skip
def test_a_process_may_use_what_the_smallest_of_its_groups_leaves(
    files: MemoryFiles, tree: str, lines: str, unlimited: str, tmp_path: Path
) -> None:
    for name, limit, used, cached, kills in (
        ("", unlimited, 9000, 0, 7), ("job", "1000", 400, 100, 3), ("job/step", unlimited, 400, 100, 2),
    ):  # fmt: skip
        folder = tmp_path / tree / name
        folder.mkdir(exist_ok=True)
        (folder / files.limit).write_text(f"{limit}\n")
        (folder / files.usage).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{files.cache_counter} {cached}\n")
        (folder / files.events).write_text(f"low 0\noom_kill {kills}\n")
    own = tmp_path / "own"
    own.write_text(lines)
    assert measure_cgroup_memory(tmp_path, own) == 700
    assert count_oom_kills(tmp_path, own) == 2
    own.write_text(lines.replace("/job/step", "/hidden/in/a/container"))
    assert measure_cgroup_memory(tmp_path, own) > 9e18
    assert count_oom_kills(tmp_path, own) == 7


def test_without_cgroups_nothing_is_limited(tmp_path: Path) -> None:
    assert list(find_memory_groups(tmp_path, tmp_path / "own")) == []
    assert measure_cgroup_memory(tmp_path, tmp_path / "own") == math.inf
    assert count_oom_kills(tmp_path, tmp_path / "own") == 0
