"""The place, packages and code of a computation; and that no secret is recorded."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chessreg import settings
from chessreg.registry import machine, provenance, tables
from chessreg.registry.database import Database
from chessreg.registry.provenance import MAX_UNTRACKED_BYTES, read_repository_state
from store.process import get_process_start, identify_process, is_hidden


def git(folder: Path, *arguments: str) -> None:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, env=os.environ | own)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / ".env").write_text("OLD=1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "add", "-A", "-f")
    git(tmp_path, "commit", "-q", "-m", "first")
    git(tmp_path, "remote", "add", "origin", "https://ann:hunter2@example.org/repo.git")
    return tmp_path


def with_text(repository: Path) -> dict[str, Any]:
    settings.record_source_text(repository, True)
    state = read_repository_state(repository)
    assert state is not None
    return state


def test_of_changes_names_and_digests_are_recorded_and_no_text(repository: Path) -> None:
    clean = read_repository_state(repository)
    assert clean is not None
    assert (clean["dirty"], clean["changed"], clean["patch_sha256"], clean["untracked"]) == (False, [], None, {})
    (repository / "train.py").write_text("lr = 2  # a private remark\n")
    note = b"a private note\n"
    (repository / "notes.txt").write_bytes(note)
    (repository / "sub").mkdir()
    state = read_repository_state(repository / "sub")
    assert state is not None
    commit = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert (state["commit"], state["branch"], state["root"]) == (commit.strip(), "main", str(repository))
    diff = subprocess.run(["git", "-C", str(repository), "diff", "HEAD", "--binary"], capture_output=True).stdout
    assert (state["dirty"], state["changed"]) == (True, ["train.py"])
    assert state["patch_sha256"] == hashlib.sha256(diff).hexdigest()
    assert state["untracked"] == {"notes.txt": f"sha256:{hashlib.sha256(note).hexdigest()}"}
    assert state["remote"] == "https://ann:***@example.org/repo.git"
    assert "private" not in str(state)


def test_text_is_recorded_where_the_project_says_so_without_secrets(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 2\ntoken = ids[0]\nWANDB_TOKEN = 'hunter2'\n")
    (repository / "new.py").write_text("print('new')\n")
    (repository / "config.yaml").write_text("db:\n  password: hunter2\n  user: ann\n")
    state = with_text(repository)
    assert "-lr = 1\n+lr = 2\n+token = ids[0]\n+WANDB_TOKEN = '***'\n" in state["patch"]
    assert state["untracked_text"] == {
        "new.py": "print('new')\n", "config.yaml": "db:\n  password: ***\n  user: ann\n",
    }  # fmt: skip
    assert "hunter2" not in str(state)
    settings.record_source_text(repository, False)
    assert "patch" not in (read_repository_state(repository) or {"patch": ""})


def test_secrets_ignored_files_and_large_files_are_not_kept(repository: Path) -> None:
    for name in (".env", ".env.local", "sub/.env", "id_rsa", "server.pem", "run.log", "deep/secrets.toml", ".netrc"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("hunter2\n")
    (repository / "weights.bin").write_bytes(b"\0" * 100)
    (repository / "long.txt").write_text("x" * (MAX_UNTRACKED_BYTES + 1))
    (repository / "short.txt").write_text("y")
    state = with_text(repository)
    assert state["untracked_text"] == {"short.txt": "y"}
    assert sorted(state["untracked"]) == ["long.txt", "short.txt", "weights.bin"]
    assert state["untracked"]["weights.bin"].startswith("sha256:cd00e29")
    assert "hunter2" not in str(state)


def test_text_of_untracked_files_is_kept_up_to_one_mebibyte_in_all(repository: Path) -> None:
    for number in range(5):
        (repository / f"{number}.txt").write_text("x" * (MAX_UNTRACKED_BYTES // 4))
    state = with_text(repository)
    assert (len(state["untracked_text"]), len(state["untracked"])) == (4, 5)


def test_nothing_of_a_repositorys_own_settings_is_run(repository: Path) -> None:
    touch = f"touch {repository / 'ran'}"
    (repository / ".gitattributes").write_text("*.py diff=evil\n")
    for name in ("diff.external", "diff.evil.command", "diff.evil.textconv", "core.fsmonitor", "core.pager"):
        git(repository, "config", name, touch)
    (repository / "train.py").write_text("lr = 2\n")
    assert with_text(repository)["changed"] == ["train.py"]
    assert not (repository / "ran").exists()


def test_names_and_patches_that_are_no_text_do_no_harm(repository: Path, url: str, rows: Any) -> None:
    (repository / os.fsdecode(b"na\xefve.txt")).write_text("x")
    (repository / "train.py").write_bytes(b"caf\xe9\n")
    state = with_text(repository)
    with Database.open(url) as database, database.write() as session:
        rows.run(session).spec = {"code": state}
    with database.read() as session:
        assert session.query(tables.Run).one().spec == {"code": state}


def test_a_folder_without_a_repository_and_one_without_a_commit_say_so(tmp_path: Path) -> None:
    assert read_repository_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    state = read_repository_state(tmp_path)
    assert state is not None
    assert state["commit"] is None
    assert provenance.read_code_state(tmp_path)["working_folder"]["root"] == str(tmp_path)


def test_a_machine_is_a_row_whose_id_follows_from_what_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine.describe_this_machine()
    assert one["id"] == machine.describe_this_machine()["id"]
    assert one["memory_bytes"] > 2**28
    assert one["torch"].startswith("2.")
    with database.write() as session:
        session.add(tables.Machine(**one))
    machine._describe_machine.cache_clear()
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert machine.describe_this_machine()["id"] != one["id"]
    monkeypatch.undo()
    machine._describe_machine.cache_clear()


def test_the_gpus_are_named_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H100, 570.1\\nNVIDIA H100, 570.1\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert machine._read_gpus_and_driver() == (["NVIDIA H100", "NVIDIA H100"], "570.1")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine._read_gpus_and_driver() == ([], None)


def test_machine_and_environment_are_known_without_importing_torch() -> None:
    script = (
        "import sys; from chessreg.registry import machine as m, provenance as p;"
        "m.describe_this_machine(); p.read_packages(); p.read_code_state();"
        "print(sorted({'torch', 'transformers', 'zarr', 'textual'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert provenance.read_packages()["sqlalchemy"].startswith("2.")


def test_a_process_is_known_by_its_start_and_a_zombie_counts_as_gone() -> None:
    own = get_process_start(os.getpid())
    assert own is not None
    assert own == get_process_start(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = get_process_start(child.pid)
    assert started is not None
    assert started >= own
    assert child.stdin
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert get_process_start(child.pid) is None
    child.wait()
    assert get_process_start(child.pid) is None


def test_packages_that_ray_carries_are_not_installed_ones(tmp_path, monkeypatch):
    for folder in (tmp_path / "thirdparty_files", tmp_path / "site"):
        (folder / f"{folder.name}_only-1.0.dist-info").mkdir(parents=True)
        (folder / f"{folder.name}_only-1.0.dist-info" / "METADATA").write_text(
            f"Name: {folder.name}-only\nVersion: 1.0\n"
        )
        monkeypatch.syspath_prepend(folder)
    found = provenance.read_packages()
    assert found["site-only"] == "1.0"
    assert "thirdparty-files-only" not in found


def test_the_hidden_process_of_another_user_is_not_taken_for_a_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid /proc shows a user no process of another user."""
    theirs = identify_process(os.getppid())
    assert theirs.is_gone() is False

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("store.process.get_process_start", lambda pid: None)
    assert theirs.is_gone() is True
    monkeypatch.setattr("os.kill", refuse)
    monkeypatch.setattr("store.process.Path.exists", lambda path: False)
    assert is_hidden(theirs.pid)
    assert theirs.is_gone() is None
