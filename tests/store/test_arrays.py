"""Activation arrays: written values are read back bit by bit, and lost ones are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from store import AlreadyPublishedError, CorruptError, NotInStoreError, Store, StoreError
from store.array_writer import ActivationWriter
from store.arrays import ActivationArray, decode_float32, group_path, list_groups, to_bfloat16

Write = Callable[..., tuple[Path, dict[str, np.ndarray]]]
Activations = Callable[..., dict[str, np.ndarray]]
HOOKS = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
D_MODEL = 16
LAYER = f"layers/{HOOKS[0]}"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 64, 65, 300])
@pytest.mark.parametrize("step", [7, 1000])
def test_every_bit_comes_back_at_every_chunk_boundary(write: Write, dtype: str, rows: int, step: int) -> None:
    path, data = write(rows, dtype, step=step)
    array = ActivationArray.open(path)
    assert (len(array), array.dtype, array.d_model, array.hook_points) == (rows, dtype, D_MODEL, HOOKS)
    for hook in HOOKS:
        assert same_bits(array.read(hook), data[hook])
    assert array.game.dtype == array.token.dtype == array.ply.dtype == np.int32
    assert array.game.tolist() == [row // 50 for row in range(rows)]
    assert array.token.tolist() == [row % 50 for row in range(rows)]
    assert array.ply.tolist() == [row % 7 for row in range(rows)]
    assert array.verify() == array.digests


def test_bfloat16_keeps_nan_infinity_minus_zero_and_denormals(write: Write) -> None:
    bits = np.arange(1 << 16, dtype="<u2").reshape(-1, D_MODEL)
    path, _ = write(len(bits), "bfloat16", data=dict.fromkeys(HOOKS, bits), step=500)
    array = ActivationArray.open(path)
    read = array.read(HOOKS[1])
    assert same_bits(read, bits)
    floats = decode_float32(read, array.dtype)
    assert np.array_equal(floats.view("<u4") >> 16, bits)
    assert np.array_equal(floats[0x3F80 // D_MODEL, 0x3F80 % D_MODEL], 1.0)
    assert np.signbit(floats.reshape(-1)[0x8000])
    assert floats.reshape(-1)[0x7F80] == np.inf
    assert 0 < floats.reshape(-1)[1] < np.finfo(np.float32).tiny


def test_bfloat16_rounding_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.frombuffer(np.random.default_rng(0).bytes(400_000), "<f4")
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, 1.00390625, 1.01171875], np.float32)
    values = np.concatenate([values, special])
    ours = to_bfloat16(values)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    nan = np.isnan(values)
    assert np.array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(decode_float32(ours[nan], "bfloat16")).all()


def test_rows_of_zeros_are_written_and_not_taken_for_lost(write: Write) -> None:
    zeros = dict.fromkeys(HOOKS, np.zeros((300, D_MODEL), "<f2"))
    path, _ = write(300, data=zeros)
    array = ActivationArray.open(path)
    assert same_bits(array.read(HOOKS[0]), zeros[HOOKS[0]])
    assert len(list((path / LAYER).glob("c.*"))) == 5
    assert array.verify()


def test_plain_zarr_reads_a_group_and_would_have_written_the_same_bytes(write: Write, tmp_path: Path) -> None:
    path, data = write(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(path, mode="r")
        assert set(dict(group.members())) == {"layers", "game", "token", "ply"}
    ours = group[LAYER]
    assert isinstance(ours, zarr.Array)
    assert ours.attrs["logical_dtype"] == "float16"
    assert same_bits(np.asarray(ours[:]), data[HOOKS[0]])
    theirs = zarr.create_array(
        tmp_path / "plain", shape=ours.shape, chunks=ours.chunks, dtype=ours.dtype, compressors=None,
        fill_value=float("nan"), chunk_key_encoding={"name": "default", "separator": "."},
    )  # fmt: skip
    theirs[:] = data[HOOKS[0]]
    for chunk in range(4):
        assert (path / LAYER / f"c.{chunk}.0").read_bytes() == (tmp_path / "plain" / f"c.{chunk}.0").read_bytes()
    last = np.fromfile(path / LAYER / "c.4.0", "<f2").reshape(64, D_MODEL)
    assert same_bits(last[:44], data[HOOKS[0]][256:])
    assert np.isnan(last[44:]).all()


def test_chunks_are_four_mebibytes_unless_the_array_is_smaller(store: Store) -> None:
    rows = 5000
    with ActivationWriter(store, {"a": 1}, HOOKS[:1], 512, "float16", rows) as writer:
        index = np.arange(rows)
        writer.append({HOOKS[0]: np.ones((rows, 512), "<f2")}, index, index, index)
        path = writer.publish()
    sizes = {file.name: file.stat().st_size for file in (path / LAYER).glob("c.*")}
    assert sizes == {"c.0.0": 4 << 20, "c.1.0": 4 << 20}
    assert (path / "game" / "c.0").stat().st_size == rows * 4


@pytest.mark.parametrize("name", [f"{LAYER}/c.2.0", "token/c.0"])
def test_a_missing_chunk_is_named_at_open(write: Write, name: str) -> None:
    path, _ = write()
    (path / name).unlink()
    with pytest.raises(CorruptError, match=f"chunk {name} .* is missing .chessreg doctor --digests --fix"):
        ActivationArray.open(path)


def test_a_chunk_lost_after_opening_is_named_when_read(write: Write) -> None:
    path, data = write()
    array = ActivationArray.open(path)
    (path / LAYER / "c.2.0").unlink()
    assert same_bits(array.read(HOOKS[0], slice(0, 128)), data[HOOKS[0]][:128])
    for ask in (None, slice(130, 131), [5, 130]):
        with pytest.raises(CorruptError, match=r"c\.2\.0 .* is missing"):
            array.read(HOOKS[0], ask)
    with pytest.raises(CorruptError, match=r"c\.2\.0 .* is missing"):
        list(array.iter_batches(HOOKS[0], 50, seed=0))
    with pytest.raises(CorruptError, match=r"c\.2\.0 .* is missing"):
        array.verify()


def test_a_truncated_chunk_is_named_at_open_and_when_read(write: Write) -> None:
    path, _ = write()
    array = ActivationArray.open(path)
    os.truncate(path / LAYER / "c.1.0", 100)
    with pytest.raises(CorruptError, match=r"c\.1\.0 .* is not 2048 bytes long"):
        ActivationArray.open(path)
    for rows in (slice(64, 68), slice(0, 128), [66], [127]):
        with pytest.raises(CorruptError, match=r"c\.1\.0 .* is cut short"):
            array.read(HOOKS[0], rows)


@pytest.mark.parametrize("name", [f"{LAYER}/c.3.0", f"layers/{HOOKS[1]}/c.4.0", "ply/c.0"])
def test_a_flipped_bit_is_found_by_verify(write: Write, name: str) -> None:
    path, _ = write()
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(CorruptError, match=f"chunk {name} .* has changed"):
        ActivationArray.open(path).verify()


@pytest.mark.parametrize("way", ["slice", "rows", "mask", "batches"])
def test_a_flipped_bit_is_found_by_whoever_reads_the_chunk_first(write: Write, way: str) -> None:
    path, data = write()
    array = ActivationArray.open(path)
    assert same_bits(array.read(HOOKS[0], slice(0, 64)), data[HOOKS[0]][:64])
    chunk = path / LAYER / "c.1.0"
    content = bytearray(chunk.read_bytes())
    content[700] ^= 8
    chunk.write_bytes(content)
    read = {  # also rows next to the changed bit
        "slice": lambda: array.read(HOOKS[0], slice(120, 122)),
        "rows": lambda: array.read(HOOKS[0], [3, 127]),
        "mask": lambda: array.read(HOOKS[0], np.arange(array.rows) == 127),
        "batches": lambda: list(array.iter_batches(HOOKS[0], 50, seed=0)),
    }[way]
    with pytest.raises(CorruptError, match=r"chunk .*c\.1\.0 .* has changed since publication"):
        read()
    assert same_bits(array.read(HOOKS[0], slice(10, 64)), data[HOOKS[0]][10:64])


def test_changed_attributes_are_found_by_verify_and_broken_ones_at_open(write: Write) -> None:
    path, _ = write()
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["spec"]["kind"] = "other"
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(CorruptError, match="has changed since publication"):
        ActivationArray.open(path).verify()
    for change in ({"rows": 301}, {"hook_points": ["blocks.7"]}, {"logical_dtype": "bfloat16"}):
        broken = {**metadata, "attributes": {**metadata["attributes"], **change}}
        (path / "zarr.json").write_text(json.dumps(broken))
        with pytest.raises(CorruptError, match=r"metadata of array .* is damaged"):
            ActivationArray.open(path)
    (path / "zarr.json").write_text("{")
    with pytest.raises(CorruptError, match=r"metadata of array .* is damaged"):
        ActivationArray.open(path)


def test_several_groups_are_one_array_in_the_order_of_their_units(store: Store, write: Write) -> None:
    spec = {"kind": "cache"}
    parts = {units: write(rows, units=units, seed=seed, spec=spec) for seed, (units, rows) in enumerate(
        {(20, 30): 70, (0, 10): 130, (10, 20): 64}.items()
    )}  # fmt: skip
    array = ActivationArray.from_spec(store, spec)
    assert array.units == [(0, 10), (10, 20), (20, 30)]
    whole = {hook: np.concatenate([parts[units][1][hook] for units in array.units]) for hook in HOOKS}
    assert same_bits(array.read(HOOKS[1]), whole[HOOKS[1]])
    assert same_bits(array.read(HOOKS[0], slice(120, 200)), whole[HOOKS[0]][120:200])
    assert same_bits(array.read(HOOKS[0], slice(3, 250, 60)), whole[HOOKS[0]][3:250:60])
    rows = np.array([263, 0, 129, 130, 193, 194, 5, 5])
    assert same_bits(array.read(HOOKS[0], rows), whole[HOOKS[0]][rows])
    assert same_bits(array.read(HOOKS[0], np.arange(264) % 3 == 0), whole[HOOKS[0]][::3])
    assert array.read(HOOKS[0], []).shape == array.read(HOOKS[0], slice(5, 5)).shape == (0, D_MODEL)
    assert array.game[[0, 130, 194]].tolist() == [0, 10, 20]
    assert list_groups(store, spec) == [parts[units][0] for units in array.units]


def test_groups_that_do_not_belong_together_are_refused(store: Store, write: Write) -> None:
    first, _ = write(units=(0, 10))
    overlap, _ = write(units=(5, 15))
    other, _ = write(units=(20, 30), spec={"kind": "other"})
    with pytest.raises(StoreError, match="hold the same units"):
        ActivationArray.open(first, overlap)
    with pytest.raises(StoreError, match="differ in spec_hash"):
        ActivationArray.open(first, other)
    with pytest.raises(NotInStoreError):
        ActivationArray.from_spec(store, {"kind": "never written"})
    with pytest.raises(NotInStoreError, match="no activation array was found at"):
        ActivationArray.open(store.arrays / "nothing")


def test_what_does_not_exist_cannot_be_read(write: Write) -> None:
    array = ActivationArray.open(write()[0])
    with pytest.raises(NotInStoreError, match=r"has no 'blocks\.9'"):
        array.read("blocks.9")
    asked: list[Any] = [[300], [-1], [0.5], np.ones(5, bool)]
    for rows in asked:
        with pytest.raises(StoreError):
            array.read(HOOKS[0], rows)


def test_a_published_group_is_never_overwritten(write: Write) -> None:
    path, data = write()
    with pytest.raises(AlreadyPublishedError, match="never overwritten") as caught:
        write(seed=1)
    assert caught.value.path == path
    assert same_bits(ActivationArray.open(path).read(HOOKS[0]), data[HOOKS[0]])


def test_two_writers_of_one_group_are_refused_at_once(store: Store) -> None:
    with ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16"):
        with pytest.raises(StoreError, match=f"is being written by process {os.getpid()}"):
            ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16")
        ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16", units=(1, 2)).abort()
    ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16").abort()
    assert not list(store.tmp.iterdir())


FOUR_AT_ONCE = """
import os, sys, time
import numpy as np
from store import Store
from store.array_writer import ActivationWriter
from store.errors import StoreError

me = -1
for number in range(4):
    if not os.fork():
        me = number
        break
if me < 0:
    sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(4)))
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
rows, index = np.full((8, 4), me, "float16"), np.arange(8)
try:
    with ActivationWriter(Store(sys.argv[1]), {"a": 1}, ["hook"], 4, "float16") as writer:
        writer.append({"hook": rows}, index, index, index)
        time.sleep(0.3)
        writer.publish()
    os.write(1, b"published %d\\n" % me)
except StoreError as error:
    os.write(1, b"refused: %s\\n" % error.message.encode())
"""


def test_of_four_processes_at_one_array_one_writes_and_three_are_refused(store: Store) -> None:
    words = [str(store.root), str(time.time() + 0.8)]
    done = subprocess.run([sys.executable, "-c", FOUR_AT_ONCE, *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    said = sorted(done.stdout.splitlines())
    assert said[0].startswith("published")
    # the holder's number is not in its file yet in the moment after it locked it: "by another process"
    refused = [line for line in said if "is being written by" in line or "never overwritten" in line]
    assert len(refused) == 3, said
    (path,) = store.arrays.iterdir()
    assert (ActivationArray.open(path).read("hook") == int(said[0].split()[1])).all()


def test_without_locks_the_first_publication_wins(
    store: Store, activations: Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may know no locks, and a late attempt of another machine may publish first."""
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    writers = [ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16", 10) for _ in range(3)]
    index = np.arange(10)
    for writer, seed in zip(writers, (0, 0, 1), strict=True):
        writer.append(activations(10, "float16", seed), index, index, index)
    first = writers[0].publish()
    assert writers[1].publish() == first  # the same content is recognised
    with pytest.raises(AlreadyPublishedError, match="meanwhile with other content"):
        writers[2].publish()
    assert same_bits(ActivationArray.open(first).read(HOOKS[0]), activations(10, "float16", 0)[HOOKS[0]])
    assert [path for path in store.tmp.iterdir() if path.suffix != ".lock"] == []


def test_wrong_rows_are_refused_and_nothing_is_published(store: Store, activations: Activations) -> None:
    good = activations(4, "float16")
    index = np.arange(4)
    bad: list[tuple[dict[str, np.ndarray], np.ndarray, str]] = [
        ({HOOKS[0]: good[HOOKS[0]]}, index, "rows of .* were given"),
        ({hook: values.astype("f4") for hook, values in good.items()}, index, "must be float16"),
        ({hook: values[:, :5] for hook, values in good.items()}, index, "must be float16"),
        (good, index[:3], "must be float16"),
        (good, index.astype(float), "must be integers"),
        (good, index + 2**31, "does not fit int32"),
        (activations(9, "float16"), np.arange(9), "where 8 were planned"),
    ]
    for rows, game, message in bad:
        with ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16", 8) as writer:
            with pytest.raises(StoreError, match=message):
                writer.append(rows, game, np.arange(len(game)), np.arange(len(game)))
            with pytest.raises(StoreError, match="closed"):
                writer.publish()
    with ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16", 8) as writer:
        writer.append(good, index, index, index)
        with pytest.raises(StoreError, match="got 4 rows where 8 were planned"):
            writer.publish()
    assert list_groups(store, {"a": 1}) == []
    assert not list(store.tmp.iterdir())


def test_settings_that_cannot_be_stored_are_refused(store: Store) -> None:
    settings: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
        (HOOKS, "float64", {}), ((), "float16", {}), (("a", "a"), "float16", {}), (("../a",), "float16", {}),
        (("game",), "float16", {}),
        (HOOKS, "float16", {"scale": float("nan")}), (HOOKS, "float16", {"set": {1}}),
    ]  # fmt: skip
    for hooks, dtype, spec in settings:
        with pytest.raises(StoreError):
            ActivationWriter(store, spec, hooks, D_MODEL, dtype)
    assert not list(store.tmp.iterdir())


def test_a_group_without_rows_can_be_published(store: Store) -> None:
    with ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16") as writer:
        path = writer.publish()
    array = ActivationArray.open(path)
    assert array.read(HOOKS[0]).shape == (0, D_MODEL)
    assert len(array.game) == 0
    assert list(array.iter_batches(HOOKS, 5, seed=0)) == []


def test_a_block_left_without_publish_leaves_nothing(store: Store, activations: Activations) -> None:
    index = np.arange(200)
    with ActivationWriter(store, {"a": 1}, HOOKS, D_MODEL, "float16", chunk_bytes=256) as writer:
        writer.append(activations(200, "float16"), index, index, index)
    assert not list(store.tmp.iterdir())
    assert list_groups(store, {"a": 1}) == []


LIMITED = """
import resource, sys
import numpy as np
from store import Store, StoreError
from store.array_writer import ActivationWriter
store = Store(sys.argv[1])
writer = ActivationWriter(store, {"a": 1}, ["x"], 512, "float16")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
index = np.arange(10000)
try:
    for _ in range(5): writer.append({"x": np.ones((10000, 512), "f2")}, index, index, index)
    writer.publish()
except StoreError as error: print(error.message)
"""


def test_a_file_that_cannot_grow_is_one_error_and_leaves_nothing(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(store.root)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert "the disk is full" in done.stdout
    assert not done.stderr
    assert not list(store.tmp.iterdir())
    assert not list(store.arrays.iterdir())


KILLED = """
import os, signal, sys
import numpy as np
from store import Store
from store.array_writer import ActivationWriter
os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with ActivationWriter(Store(sys.argv[1]), {"a": 1}, ["x"], 512, "float16") as writer:
    writer.append({"x": np.ones((10, 512), "f2")}, np.arange(10), np.arange(10), np.arange(10))
    writer.publish()
"""


def test_a_crash_before_the_rename_leaves_nothing_visible_and_no_lock(store: Store) -> None:
    command = [sys.executable, "-c", KILLED, str(store.root)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9
    assert not list(store.arrays.iterdir())
    assert {left.kind for left in store.clean_staging(0)} == {"array", "lock"}
    assert not list(store.tmp.iterdir())
    with ActivationWriter(store, {"a": 1}, ["x"], 512, "float16") as writer:
        assert writer.publish() == group_path(store, {"a": 1}, (0, 0))


def test_a_spec_may_bring_its_own_hash(store: Store, write: Write) -> None:
    path, _ = write(spec={"spec_hash": "ab" * 32, "kind": "cache"})
    assert path.name == f"{'ab' * 16}-0-10"
    assert ActivationArray.open(path).spec_hash == "ab" * 32
