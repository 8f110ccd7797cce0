"""Opening a store, and the leftovers of crashed writers in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import Store, StoreError
from store.files import WriterLock, parse_json
from store.process import get_machine_name, get_this_process, read_system_id


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        Store(tmp_path / "nowhere")
    assert caught.value.exit_code == 3
    assert "chessreg init" in caught.value.hint
    assert not (tmp_path / "nowhere").exists()


def test_any_other_folder_or_file_is_not_taken_for_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"it has no store\.json"):
        Store(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not a folder"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot make a store"):
        Store.create(tmp_path / "file" / "below")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_newer_or_damaged_layout_is_refused(store: Store) -> None:
    (store.root / "store.json").write_text(json.dumps({"chessreg_store": 2}))
    with pytest.raises(StoreError, match="has layout 2"):
        Store(store.root)
    (store.root / "store.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        Store(store.root)


UNPRIVILEGED = """
import os, sys
from store import Store, StoreError
root, mode = sys.argv[1:]
if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)
try: Store(root, read_only=mode == "r"); print("open")
except StoreError as error: print(error.exit_code, error.message, "|", error.hint)
"""


def test_a_store_that_cannot_be_written_is_one_clear_error_and_can_be_read(store: Store) -> None:
    def opened(mode: str) -> str:
        command = [sys.executable, "-c", UNPRIVILEGED, str(store.root), mode]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert not done.stderr
        return done.stdout.strip()

    above = (store.incoming.parent, store.root, *store.root.parents)
    parents = [parent for parent in above if parent.stat().st_uid == os.geteuid()]
    modes = {parent: parent.stat().st_mode for parent in parents}
    try:
        for parent in parents:
            parent.chmod(0o755)
        (store.root / "store.json").chmod(0o644)
        for folder in store.list_folders():
            folder.chmod(0o555)
        assert opened("w").startswith(f"1 cannot write to the store {store.root}: Permission denied")
        assert "check the owner" in opened("w")
        assert opened("r") == "open"
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)
        for folder in store.list_folders():
            folder.chmod(0o755)


def test_a_read_only_store_refuses_to_write(store: Store) -> None:
    reader = Store(store.root, read_only=True)
    with pytest.raises(StoreError, match="open for reading only"), reader.stage("probe"):
        pass
    with pytest.raises(StoreError, match="open for reading only"):
        reader.run_folder("run1")


def test_two_processes_may_make_one_store(tmp_path: Path) -> None:
    code = f"from store import Store; Store.create({str(tmp_path / 'store')!r})"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1] for process in running] == [b""] * 4
    assert not list(Store(tmp_path / "store").tmp.iterdir())


def test_a_run_id_cannot_leave_its_folder(store: Store) -> None:
    assert store.run_folder("3f2a-9").parent == store.runs
    for name in ("../x", "", ".hidden", "a/b", "a.b"):
        with pytest.raises(StoreError, match="cannot be part of a file name"):
            store.run_folder(name)


def test_importing_the_store_is_light() -> None:
    code = "import sys, store, store.fragments; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"zarr", "numpy", "pyarrow", "zstandard", "torch", "chess", "sqlalchemy", "chessreg"}


@pytest.mark.parametrize("folder", ["stage", "open_scratch"])
def test_what_a_killed_writer_left_is_listed_and_cleaned_at_once(store: Store, folder: str) -> None:
    code = f"""
import os, signal
from store import Store
with Store({str(store.root)!r}).{folder}("probe") as folder:
    (folder / "weights").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    assert list(store.list()) == []
    (left,) = store.list_stale_staging()
    assert (left.kind, left.is_gone) == ("probe", True)
    assert left.age < 60
    assert [staging.path for staging in store.clean_staging()] == [left.path]
    assert not left.path.exists()


ME = get_this_process()


@pytest.mark.parametrize(
    ("machine", "boot", "gone"),
    [
        (get_machine_name(), f"{'0' * 16}.1", True if read_system_id() else None),  # before a restart of this machine
        (get_machine_name(), f"{ME.boot_id.partition('.')[0]}.1", None),  # in another container
        ("another-machine", ME.boot_id, None),
        (get_machine_name(), ME.boot_id, True),  # its number was given to another process
    ],
)
def test_what_this_machine_cannot_tell_is_left_for_a_day(
    store: Store, machine: str, boot: str, gone: bool | None
) -> None:
    path = store.tmp / f"probe~{machine}~{boot}~{ME.pid}~{(ME.started or 0) - 1}~0123"
    path.mkdir()
    assert [staging.is_gone for staging in store.list_stale_staging(0)] == [gone]
    assert [staging.path for staging in store.list_stale_staging()] == [path] * (gone is True)
    old = time.time() - 2 * 86_400
    os.utime(path, (old, old))
    (left,) = store.list_stale_staging()
    assert left.age == pytest.approx(2 * 86_400, abs=60)


@pytest.mark.parametrize("name", ["probe", "a~b~c~d~e~f", "probe~m~b~12~soon~0", "~~~~~", "probe~m~b~-1~0.5~0"])
def test_names_that_are_not_ours_end_nothing(store: Store, name: str) -> None:
    (store.tmp / name).mkdir()
    (store.tmp / "odd.lock").write_bytes(b"[1, 2")
    (store.tmp / "other.lock").write_bytes(b'{"pid": "x"}')
    assert store.list_stale_staging() == []
    store.clean_staging(0)
    assert not list(store.tmp.glob("*.lock"))


def test_scratch_is_gone_after_its_block(store: Store) -> None:
    with store.open_scratch("merge") as folder:
        (folder / "registry.db").write_bytes(b"copy")
    assert list(store.tmp.iterdir()) == []


def test_the_staging_of_a_living_process_is_never_cleaned(store: Store) -> None:
    with store.stage("probe") as folder:
        (folder / "weights").write_bytes(b"half")
        assert store.clean_staging(0) == []
        assert folder.exists()


def test_a_lock_ends_with_its_holder_however_that_dies(store: Store) -> None:
    code = f"""
import time
from pathlib import Path
from store.files import WriterLock
lock = WriterLock(Path({str(store.tmp)!r}), "one"); print("held", flush=True); time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StoreError, match=f"one is being written by process {holder.pid} on"):
        WriterLock(store.tmp, "one")
    assert not store.list_stale_staging(0)
    holder.kill()
    holder.communicate()
    left = store.list_stale_staging(0)
    assert [(each.path.name, each.kind, each.pid) for each in left] == [("one.lock", "lock", holder.pid)]
    lock = WriterLock(store.tmp, "one")
    assert not store.list_stale_staging(0)
    with pytest.raises(StoreError, match=f"process {os.getpid()}"):
        WriterLock(store.tmp, "one")
    lock.release()
    lock.release()
    WriterLock(store.tmp, "one").release()
    assert not list(store.tmp.iterdir())
    (store.tmp / "two.lock").touch()  # its output was lost in a power cut
    assert [each.path.name for each in store.clean_staging(0)] == ["two.lock"]
    assert not list(store.tmp.iterdir())


def test_json_that_is_nested_too_deeply_is_a_value_that_is_refused(store: Store) -> None:
    """Python's reader raises RecursionError there, which is not a ValueError."""
    for text in ("[" * 100_000, '{"a":' * 100_000, "{", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_json(text)
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    (store.root / "store.json").write_text("[" * 100_000)
    with pytest.raises(StoreError, match=r"its store\.json is damaged"):
        Store(store.root)
