"""Fragments: rows survive as they were, and a fragment is whole or not there."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from store import CorruptError, NotInStoreError, Store, StoreError
from store.fragments import (
    MAX_FRAGMENT_BYTES,
    Fragment,
    FragmentWriter,
    adopt_fragment,
    estimate_memory,
    list_ingested,
    list_pending,
    mark_ingested,
    pack_fragment,
    quarantine_fragment,
    read_or_quarantine,
)

ROOT = Path(__file__).parents[2]


def read_all(store: Store) -> list[tuple[str, dict[str, Any]]]:
    return [(family, row) for fragment in list_pending(store) for family, rows in fragment.read() for row in rows]


def write_one(store: Store, rows: int = 100, run: str = "run1") -> Fragment:
    with FragmentWriter(store, run, "attempt1") as writer:
        for number in range(rows):
            writer.add("trial", {"unit": number, "text": "Nf3", "mass": number / 7})
        fragment = writer.flush()
    assert fragment is not None
    return fragment


ROW = {
    "none": None,
    "flag": True,
    "small": -1,
    "large": 2**63 + 1,
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "text": 'quote " newline \n é 王 \u2028 \ud800 $bytes "$bytes": x',
    "moves": bytes(range(256)),
    "empty": b"",
    "detail": {"list": [1, [2.5, None], {"blob": b"\x00\xff"}], "nothing": {}, "$other": "$bytes"},
}


def test_every_kind_of_value_survives(store: Store) -> None:
    with FragmentWriter(store, "run1", "attempt1") as writer:
        writer.add("game", ROW)
        writer.add("game", {"plain": 1})
    ((family, rows),) = list_pending(store)[0].read()
    assert family == "game"
    assert rows == [ROW, {"plain": 1}]
    assert isinstance(rows[0]["flag"], bool)
    assert isinstance(rows[0]["moves"], bytes)
    assert math.copysign(1, -0.0) == -1


def test_numpy_scalars_and_arrays_become_python_values(store: Store) -> None:
    with FragmentWriter(store, "run1", "attempt1") as writer:
        writer.add("score", {"n": np.int64(3), "x": np.float32(0.5), "ok": np.bool_(True), "list": np.arange(3)})
    assert read_all(store) == [("score", {"n": 3, "x": 0.5, "ok": True, "list": [0, 1, 2]})]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"loss": float("nan")}, "loss"),
        ({"a": 1, "detail": {"values": [1.0, float("-inf")]}}, r"detail\.values\[1\]"),
        ({"x": np.float64("nan")}, "x"),
        ({"x": np.float32("inf")}, "x"),
        ({"x": np.array([1.0, np.nan])}, "x"),
        ({"x": {1, 2}}, "x"),
        ({"detail": {"path": Path("/")}}, r"detail\.path"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name_and_only_that_row(
    store: Store, row: dict[str, Any], field: str
) -> None:
    with FragmentWriter(store, "run1", "attempt1") as writer:
        writer.add("score", {"n": 1})
        with pytest.raises(StoreError, match=f"score row, field {field}: "):
            writer.add("score", row)
        writer.add("score", {"n": 2})
    assert read_all(store) == [("score", {"n": 1}), ("score", {"n": 2})]


def test_a_row_cannot_fake_bytes(store: Store) -> None:
    with FragmentWriter(store, "run1", "attempt1") as writer, pytest.raises(StoreError, match="reserved"):
        writer.add("score", {"detail": {"$bytes": "AAAA"}})
    assert list_pending(store) == []


def test_neighbours_of_one_family_come_together_in_order(store: Store) -> None:
    with FragmentWriter(store, "run1", "attempt7") as writer:
        for family, number in [("game", 0), ("game", 1), ("unit", 2), ("game", 3)]:
            writer.add(family, {"n": number})
    (fragment,) = list_pending(store)
    assert list(fragment.read()) == [
        ("game", [{"n": 0}, {"n": 1}]),
        ("unit", [{"n": 2}]),
        ("game", [{"n": 3}]),
    ]
    header = fragment.read_header()
    assert (fragment.run_id, header["run"], header["attempt"]) == ("run1", "run1", "attempt7")
    assert abs(header["created"] - time.time()) < 60


def test_rows_are_flushed_by_number_size_and_age_and_come_in_order(store: Store) -> None:
    with FragmentWriter(store, "run1", "a", flush_rows=10, flush_seconds=1e9) as writer:
        for n in range(35):
            writer.add("trial", {"n": n})
        assert len(list_pending(store)) == 3
    assert [row["n"] for _, row in read_all(store)] == list(range(35))
    with FragmentWriter(store, "run2", "a", flush_bytes=1000, flush_seconds=1e9) as writer:
        for _ in range(3):
            writer.add("trial", {"x": "y" * 400})
        assert len([f for f in list_pending(store) if f.run_id == "run2"]) == 1
    with FragmentWriter(store, "run3", "a", flush_seconds=0) as writer:
        writer.add("trial", {"n": 1})
        assert [f.run_id for f in list_pending(store)][-1] == "run3"


def test_rows_added_together_stand_in_one_fragment_or_nowhere(store: Store) -> None:
    with FragmentWriter(store, "run1", "a", flush_rows=10) as writer:
        for _ in range(9):
            writer.add("trial", {"n": -1})
        with writer.write_together() as unit:
            for n in range(25):
                unit.add("trial", {"n": n})
            unit.add("unit", {"unit": 0})
        with pytest.raises(ZeroDivisionError), writer.write_together() as unit:  # noqa: PT012
            unit.add("trial", {"n": 99})
            raise ZeroDivisionError
    (fragment,) = list_pending(store)
    assert [(family, len(rows)) for family, rows in fragment.read()] == [("trial", 34), ("unit", 1)]


def test_rows_that_were_added_are_kept_when_the_block_raises(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), FragmentWriter(store, "run1", "a") as writer:  # noqa: PT012
        writer.add("trial", {"n": 1})
        raise ZeroDivisionError
    assert read_all(store) == [("trial", {"n": 1})]
    with pytest.raises(StoreError, match="closed"):
        writer.add("trial", {"n": 2})


def test_nothing_held_writes_nothing(store: Store) -> None:
    with FragmentWriter(store, "run1", "a") as writer:
        assert writer.flush() is None
    assert list_pending(store) == []


def test_threads_share_a_writer_without_losing_rows(store: Store) -> None:
    with FragmentWriter(store, "run1", "a", flush_rows=50) as writer:

        def add(low: int) -> None:
            for number in range(500):
                writer.add("trial", {"n": low + number})

        threads = [threading.Thread(target=add, args=(1000 * t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(row["n"] for _, row in read_all(store)) == [1000 * t + n for t in range(4) for n in range(500)]


@pytest.mark.parametrize("cut", [0, 1, 10, -1, -5])
def test_a_shortened_fragment_gives_no_row_and_is_set_aside_with_its_reason(store: Store, cut: int) -> None:
    fragment, whole = write_one(store), write_one(store)
    content = fragment.path.read_bytes()
    fragment.path.write_bytes(content[:cut])
    with pytest.raises(CorruptError, match="is damaged"):
        fragment.read()
    assert read_or_quarantine(store, fragment) is None
    assert list_pending(store) == [whole]
    assert (store.quarantine / fragment.name).read_bytes() == content[:cut]
    assert "is damaged" in (store.quarantine / f"{fragment.name}.reason.txt").read_text()


def test_any_flipped_bit_is_found(store: Store) -> None:
    fragment = write_one(store, 20)
    content = fragment.path.read_bytes()
    expected = list(fragment.read())
    for position in range(len(content)):
        fragment.path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        try:
            assert list(fragment.read()) == expected  # a bit that the format does not use
        except CorruptError:
            continue
    fragment.path.write_bytes(content + b"x")
    with pytest.raises(CorruptError):
        fragment.read()


def test_a_cut_at_a_line_is_found_though_the_compression_is_sound(store: Store) -> None:
    import zstandard

    fragment = write_one(store)
    lines = zstandard.ZstdDecompressor().decompress(fragment.path.read_bytes()).splitlines(keepends=True)
    for kept in (lines[:50], lines[:50] + lines[-1:], lines[:-1], lines[:1], lines[:1] + lines[2:]):
        fragment.path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(kept)))
        with pytest.raises(CorruptError, match="is damaged"):
            fragment.read()


def test_a_renamed_fragment_does_not_pass_for_another_runs(store: Store) -> None:
    fragment = write_one(store)
    moved = fragment.path.rename(fragment.path.with_name(fragment.name.replace("run1", "run2")))
    with pytest.raises(CorruptError, match="does not match its name"):
        Fragment.from_path(moved).read()


def bomb(store: Store, line: bytes, times: int) -> Fragment:
    """A fragment of a few kilobytes that claims a large size, and has it."""
    path = store.incoming / f"{uuid.uuid4()}.run1.jsonl.zst"
    with path.open("wb") as file:
        packer = zstandard.ZstdCompressor().stream_writer(file, size=times * 1000 * len(line))
        for _ in range(times):
            packer.write(line * 1000)
        packer.close()
    return Fragment.from_path(path)


def test_a_fragment_is_not_unpacked_beyond_the_stated_memory(store: Store, tmp_path: Path) -> None:
    large = bomb(store, b'{"t":"trial","row":{}}\n', MAX_FRAGMENT_BYTES // 23_000 + 1)
    assert large.path.stat().st_size < 1 << 20
    sparse = Fragment.from_path(store.incoming / f"{uuid.uuid4()}.run1.jsonl.zst")
    sparse.path.touch()
    os.truncate(sparse.path, MAX_FRAGMENT_BYTES + 1)
    pipe = Fragment.from_path(store.incoming / f"{uuid.uuid4()}.run1.jsonl.zst")
    os.mkfifo(pipe.path)
    endless = Fragment.from_path(tmp_path / f"{uuid.uuid4()}.run1.jsonl.zst")
    endless.path.symlink_to("/dev/zero")
    tracemalloc.start()
    try:
        for fragment, why in (
            (large, "more than 512 MiB"),
            (sparse, "bytes"),
            (pipe, "not a file"),
            (endless, "not a"),
        ):
            with pytest.raises(CorruptError, match=why):
                fragment.read_header()
        with pytest.raises(CorruptError, match="not a file"):
            adopt_fragment(store, endless.path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "line", [b'{"t":"trial","row":{}}\n', b'{"t":"trial","row":{"a":' + b"[" * 400 + b"]" * 400 + b"}}\n"]
)
def test_rows_that_take_more_memory_than_stated_are_refused_before_they_are_parsed(
    store: Store, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    text = line * ((1 << 20) // len(line))
    tracemalloc.start()
    json.loads(b"[" + text[:-1].replace(b"\n", b",") + b"]")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < estimate_memory(text)
    monkeypatch.setattr("store.fragments.MAX_MEMORY_BYTES", estimate_memory(text) - 1)
    with pytest.raises(CorruptError, match="of memory"):
        bomb(store, line, len(text) // len(line) // 1000 + 1).read_header()
    with pytest.raises(StoreError, match="emit fewer rows in one unit"):
        pack_fragment("run1", "attempt1", 0, text.splitlines())


def test_ingested_fragments_are_kept_by_run_or_removed(store: Store) -> None:
    first, second, third = write_one(store), write_one(store, run="run2"), write_one(store)
    for _ in range(2):  # an ingest that crashed after the move does it again
        mark_ingested(store, first)
        mark_ingested(store, second)
        mark_ingested(store, third, keep=False)
    assert list_pending(store) == []
    assert [fragment.name for fragment in list_ingested(store)] == [first.name, second.name]
    assert [fragment.name for fragment in list_ingested(store, "run2")] == [second.name]
    assert sum(len(rows) for _, rows in list_ingested(store, "run1")[0].read()) == 100
    with pytest.raises(NotInStoreError):
        first.read()
    assert read_or_quarantine(store, first) is None
    assert not list(store.quarantine.iterdir())


def test_a_fragment_of_another_store_is_taken_in_once(store: Store, tmp_path: Path) -> None:
    other = Store.create(tmp_path / "other")
    fragment = write_one(other)
    taken = adopt_fragment(store, fragment.path)
    assert taken is not None
    assert list(taken.read()) == list(fragment.read())
    assert adopt_fragment(store, fragment.path) is None
    mark_ingested(store, taken)
    assert adopt_fragment(store, fragment.path) is None
    fragment.path.write_bytes(b"")
    (store.ingested / "run1" / fragment.name).unlink()
    with pytest.raises(CorruptError):
        adopt_fragment(store, fragment.path)
    assert list_pending(store) == []


def test_a_refused_fragment_can_be_set_aside_by_hand(store: Store) -> None:
    fragment = write_one(store)
    path = quarantine_fragment(store, fragment, "unit 7 is not of this run")
    assert list_pending(store) == []
    assert sum(len(rows) for _, rows in Fragment.from_path(path).read()) == 100


def test_a_full_disk_keeps_the_rows_for_another_try(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from store import fragments

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = FragmentWriter(store, "run1", "a")
    writer.add("trial", {"n": 1})
    monkeypatch.setattr(fragments, "write_synced", full)
    with pytest.raises(StoreError, match="the disk is full"):
        writer.flush()
    assert list_pending(store) == []
    assert not list(store.tmp.iterdir())
    monkeypatch.undo()
    writer.close()
    assert read_all(store) == [("trial", {"n": 1})]


def test_a_thousand_rows_a_second_are_no_trouble(store: Store) -> None:
    began = time.process_time()
    with FragmentWriter(store, "run1", "a") as writer:
        for number in range(5000):
            writer.add("trial", {"unit": number, "fen": "x" * 60, "mass": number / 3, "moves": bytes(100)})
    written = time.process_time() - began
    assert len(read_all(store)) == 5000
    assert written < 5


KILLED = """
import sys
from store import Store
from store.fragments import FragmentWriter
writer = FragmentWriter(Store(sys.argv[1]), sys.argv[2], "a", flush_rows=20, flush_seconds=1e9)
print("ready", flush=True)
number = 0
while True:
    with writer.write_together() as unit:
        for part in range(7):
            unit.add("trial", {"unit": number, "part": part, "moves": bytes(200)})
    number += 1
"""


def kill_round(store: Store, run: str, seconds: float) -> int:
    """Start a writer, kill it after `seconds`, check its leftovers; returns the number of rows."""
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(store.root), run], cwd=ROOT, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    while not seconds and not list_pending(store):  # one is killed when it has written something, however slow it is
        time.sleep(0.001)
    time.sleep(seconds)
    writer.kill()
    writer.communicate()
    rows = [
        row for fragment in list_pending(store) if fragment.run_id == run for _, part in fragment.read() for row in part
    ]
    # fragments hold 21 rows, three whole units, and nothing is missing between them
    assert len(rows) % 21 == 0
    assert [(row["unit"], row["part"]) for row in rows] == [(n // 7, n % 7) for n in range(len(rows))]
    return len(rows)


def test_killing_a_writer_leaves_whole_fragments_only(store: Store) -> None:
    delays = random.Random(0)
    assert kill_round(store, "first", 0) > 0
    for n in range(7):
        kill_round(store, f"run{n}", delays.uniform(0.001, 0.06))
    assert len(store.clean_staging(0)) <= 8


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_killing_a_writer_a_hundred_times_leaves_whole_fragments_only(store: Store) -> None:
    delays = random.Random(1)
    assert sum(kill_round(store, f"run{n}", delays.uniform(0.0, 0.1)) for n in range(100)) > 0
