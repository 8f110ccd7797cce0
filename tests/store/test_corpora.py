"""Corpora: written once in a stream, mapped by later runs, never half-written."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import Store
from store.corpora import Columns, CorpusWriter, open_corpus
from store.errors import DiskFullError
from tests.full_disk import no_space_beyond

COLUMNS: Columns = {"tokens": (np.uint8, (3,)), "labels": (np.int16, ())}


def write_rows(count: int, calls: list[int] | None = None) -> Callable[[CorpusWriter], None]:
    def write(writer: CorpusWriter) -> None:
        if calls is not None:
            calls.append(count)
        for start in range(0, count, 1000):
            stop = min(count, start + 1000)
            writer.append("tokens", np.arange(3 * start, 3 * stop).reshape(-1, 3) % 251)
            writer.append("labels", np.arange(start, stop) % 30_000)

    return write


def check_rows(arrays: dict[str, np.ndarray], count: int) -> None:
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "tokens": (np.uint8, (count, 3)),
        "labels": (np.int16, (count,)),
    }
    assert np.array_equal(arrays["tokens"], np.arange(3 * count).reshape(-1, 3) % 251)
    assert np.array_equal(arrays["labels"], np.arange(count) % 30_000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.mark.parametrize("count", [0, 1, 12_345])
def test_a_corpus_is_written_once_and_mapped_again(store: Store, count: int) -> None:
    calls: list[int] = []
    for name in ("a", "a", "b"):
        arrays = open_corpus(store, {"name": name, "count": count}, COLUMNS, write_rows(count, calls), run_id="0af3")
        check_rows(arrays, count)
        assert all(isinstance(array, np.memmap) for array in arrays.values())
    assert calls == [count, count]
    folders = sorted(store.corpora.iterdir())
    assert len(folders) == 2
    assert [path.name for path in (folders[0] / "runs").iterdir()] == ["0af3"]
    assert list(store.tmp.iterdir()) == []


def test_an_error_while_writing_leaves_nothing(store: Store) -> None:
    def broken(writer: CorpusWriter) -> None:
        write_rows(5000)(writer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_corpus(store, {}, COLUMNS, broken)
    assert list(store.corpora.iterdir()) == list(store.tmp.iterdir()) == []
    check_rows(open_corpus(store, {}, COLUMNS, write_rows(5000)), 5000)


@pytest.mark.parametrize("size", [1000, 20_000, 100_000])
def test_a_full_disk_leaves_nothing(store: Store, size: int) -> None:
    with no_space_beyond(size), pytest.raises(DiskFullError, match="cannot write training data"):
        open_corpus(store, {}, COLUMNS, write_rows(200_000))
    assert list(store.corpora.iterdir()) == list(store.tmp.iterdir()) == []
    check_rows(open_corpus(store, {}, COLUMNS, write_rows(200_000)), 200_000)


@pytest.mark.parametrize("damage", ["cut", "header", "empty", "missing", "other"])
def test_a_damaged_corpus_is_made_again(store: Store, damage: str) -> None:
    calls: list[int] = []
    open_corpus(store, {}, COLUMNS, write_rows(5000, calls))
    (folder,) = store.corpora.iterdir()
    path = folder / "labels.npy"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        np.save(path, np.zeros(5000))
    else:
        path.write_bytes({"cut": content[:-1], "header": b"x" + content[1:], "empty": b""}[damage])
    check_rows(open_corpus(store, {}, COLUMNS, write_rows(5000, calls)), 5000)
    assert calls == [5000, 5000]
    assert list(store.tmp.iterdir()) == []


KILLED = """
import os, signal, sys
import numpy as np
from store import Store
from store.corpora import open_corpus

def write(writer):
    for _ in range(100):
        writer.append("labels", np.zeros(10_000))
    print("half", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

open_corpus(Store(sys.argv[1]), {"killed": 1}, {"labels": (np.int16, ())}, write)
"""


def test_a_killed_writer_leaves_no_corpus_and_no_lock(store: Store) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert (done.stdout, done.returncode) == ("half\n", -9)
    assert list(store.corpora.iterdir()) == []
    arrays = open_corpus(
        store, {"killed": 1}, {"labels": (np.int16, ())}, lambda writer: writer.append("labels", np.ones(7))
    )
    assert arrays["labels"].tolist() == [1] * 7
    assert {staging.kind for staging in store.list_stale_staging()} == {"corpus"}
    store.clean_staging()
    assert list(store.tmp.iterdir()) == []


def test_of_two_processes_one_writes_and_the_other_waits(store: Store) -> None:
    writing, go = threading.Event(), threading.Event()
    waited: list[str] = []
    calls: list[int] = []
    made: list[dict[str, np.ndarray]] = []

    def write(writer: CorpusWriter) -> None:
        writing.set()
        assert go.wait(30)
        write_rows(3000, calls)(writer)

    def wait() -> None:
        waited.append("waiting")
        go.set()

    first = threading.Thread(target=lambda: made.append(open_corpus(store, {}, COLUMNS, write)))
    first.start()
    assert writing.wait(30)
    made.append(open_corpus(Store(store.root), {}, COLUMNS, write, wait=wait))
    first.join(30)
    for arrays in made:
        check_rows(arrays, 3000)
    assert (len(made), calls, waited[:1]) == (2, [3000], ["waiting"])


def test_waiting_for_another_process_can_be_stopped(store: Store) -> None:
    writing, go = threading.Event(), threading.Event()

    def write(writer: CorpusWriter) -> None:
        writing.set()
        assert go.wait(30)

    def stop() -> None:
        raise KeyboardInterrupt

    first = threading.Thread(target=lambda: open_corpus(store, {}, COLUMNS, write))
    first.start()
    assert writing.wait(30)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(store, {}, COLUMNS, write, wait=stop)
    go.set()
    first.join(30)
