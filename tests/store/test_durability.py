"""Data that survive a power cut: every file is flushed before it gets its name, and its folder after that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import Store, fragments
from store.array_writer import ActivationWriter
from store.files import replace_file
from store.fragments import FragmentWriter
from store.places import FolderPlace

RUN, ATTEMPT = "a1" * 16, "b2" * 16


class Disk:
    """Flushes and renames of this process, in their order: of a flush the inode, of a rename the new path."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int | Path]] = []

    def flushed(self, path: Path, *, before: int | None = None, after: int | None = None) -> bool:
        """Whether a file or folder was flushed before, or after, the event of this number."""
        return ("flush", path.stat().st_ino) in self.events[after:before]

    def named(self, path: Path) -> int:
        """The number of the event that gave a file or folder its name."""
        return max(number for number, event in enumerate(self.events) if event == ("rename", path))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    noted, fsync = Disk(), os.fsync

    def flush(handle: int) -> None:
        fsync(handle)
        noted.events.append(("flush", os.fstat(handle).st_ino))

    def noting(real: Callable[..., None]) -> Callable[..., None]:
        def move(source: str | Path, target: str | Path) -> None:
            real(source, target)
            noted.events.append(("rename", Path(target)))

        return move

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "rename", noting(os.rename))
    monkeypatch.setattr(os, "replace", noting(os.replace))
    return noted


def fragment(store: Store) -> Path:
    with FragmentWriter(store, RUN, ATTEMPT) as writer:
        writer.add("score", {"unit": 0, "n": 64})
    (made,) = fragments.list_pending(store)
    return made.path


def taken_in(store: Store) -> Path:
    fragment(store)
    (waiting,) = fragments.list_pending(store)
    fragments.mark_ingested(store, waiting)
    (kept,) = fragments.list_ingested(store)
    return kept.path


def set_aside(store: Store) -> Path:
    fragment(store)
    (waiting,) = fragments.list_pending(store)
    return fragments.quarantine_fragment(store, waiting, "damaged")


def adopted(store: Store) -> Path:
    other = Store.create(store.root.parent / "other")
    made = fragments.adopt_fragment(store, fragment(other))
    assert made is not None
    return made.path


def artifact(store: Store) -> Path:
    with store.stage("probe") as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_bytes(b"weights")
        return store.publish(folder).path


def array(store: Store) -> Path:
    index = np.arange(10)
    with ActivationWriter(store, {"a": 1}, ["x"], 8, "float16") as writer:
        writer.append({"x": np.ones((10, 8), "f2")}, index, index, index)
        return writer.publish()


def copied_array(store: Store) -> Path:
    other = Store.create(store.root.parent / "other")
    name = array(other).name
    FolderPlace(other).get_array(store, name)
    return store.get_array_path(name)


@pytest.mark.parametrize("make", [fragment, taken_in, set_aside, adopted, artifact, array, copied_array])
def test_bytes_are_flushed_before_their_name_and_the_folder_after_it(
    store: Store, disk: Disk, make: Callable[[Store], Path]
) -> None:
    path = make(store)
    named = disk.named(path)
    for file in (path, *path.rglob("*")):
        assert disk.flushed(file, before=named), f"{file} has its name before its bytes are on the disk"
    assert disk.flushed(path.parent, after=named), "the name is not on the disk"


def test_new_folders_are_on_the_disk_too(store: Store, disk: Disk) -> None:
    assert disk.flushed(store.ingested, before=disk.named(taken_in(store)))
    assert disk.flushed(store.artifacts, after=disk.named(artifact(store)))


def test_a_state_is_flushed_before_it_takes_the_place_of_the_last_one(store: Store, disk: Disk) -> None:
    path = store.run_folder(RUN) / "state.pt"
    with replace_file(path, path.with_suffix(".tmp")) as file:
        file.write(b"a trainer's state")
    assert disk.flushed(path, before=disk.named(path))
