"""The place of a registry: a folder's name, with any characters, is never read as part of a URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chessreg import child, folders
from chessreg.cli.root import run_command_line
from chessreg.entities.merge import find_merge_sources
from chessreg.errors import BadInputError, ChessregError
from chessreg.queries import run_sql
from chessreg.registry import migrations
from chessreg.registry.place import MAX_PATH_BYTES, resolve_place, resolve_store_path
from chessreg.session import open_session

ODD = ("run?lr=1", "run?lr=2", "My%20Project", "My Project", "a#b;c:d", "new\nline ~$(x) 'q\" ü")
NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(NAMES.filter(lambda name: name not in (".", "..")))
@example("run?lr=1")
@example("My%20Project")
@example(":memory:")
@example("mode=memory")
def test_a_path_stays_itself_by_path_text_and_url(name: str) -> None:
    path = Path("/nowhere") / name / "registry.db"
    place = resolve_place(path)
    assert place.path == path
    assert (
        resolve_place(place.reference)
        == resolve_place(place)
        == resolve_place(f"sqlite:///{quote(str(path))}")
        == place
    )


def test_folders_of_any_name_have_a_registry_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command's default place, by a query (another copy of SQLite opens the file), by another process."""
    monkeypatch.delenv("CHESSREG_REGISTRY", raising=False)
    monkeypatch.delenv("CHESSREG_STORE", raising=False)
    print_id = "from chessreg.registry.database import Database; print(Database.open(create=False).data_version())"
    seen = {}
    for name in ODD:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        with open_session() as session:
            assert session.database.place.path == folder / ".chessreg" / "registry.db"
            assert session.store.root == folder / ".chessreg" / "store"
            seen[name] = session.database.data_version()
            read = run_sql(session.database, "SELECT count(*) AS n FROM machine")
            assert read.rows == [{"n": 0}]
            environment = {**child.build_child_environment(), "CHESSREG_REGISTRY": session.database.reference}
        assert migrations.back_up_registry().parent == folder / ".chessreg" / "backups"
        assert find_merge_sources(str(folder))[0] == resolve_place(folder / ".chessreg" / "registry.db")
        if name in ODD[:2]:
            other = [sys.executable, "-P", "-c", print_id]
            done = subprocess.run(other, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
            assert done.stdout.strip() == seen[name]
    assert len(set(seen.values())) == len(ODD), "each has its own id"
    made = {path.parent.parent.name for path in tmp_path.rglob("registry.db")}
    assert made == set(ODD)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("~nobody-is-called-so/x", "the home folder ~nobody-is-called-so is unknown"),
        ("sqlite:///~nobody-is-called-so/x.db", "the home folder"),
        ("sqlite:////tmp/run?lr=1/registry.db", "after a \\?"),
        ("file:x.db", "does not name a file"),
        ("sqlite:///:memory:", "does not name a file"),
        ("bad\udcff/registry.db", "not UTF-8"),
        ("/" + "/".join(["d" * 99] * 5) + "/registry.db", f"SQLite opens at most {MAX_PATH_BYTES}"),
    ],
)
def test_a_place_that_cannot_be_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=reason) as caught:
        open_session(reference)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_is_refused(tmp_path: Path) -> None:
    registry = resolve_place(tmp_path / "registry.db")
    for store in ("~nobody-is-called-so/store", "bad\udcff"):
        with pytest.raises(BadInputError):
            resolve_store_path(store, registry)


def test_an_argument_that_is_not_utf8_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"games\xff.pgn")
    Path(name).write_text('[Event "x"]\n\n1. e4 *\n')
    assert run_command_line(["dataset", "add", name]) == 4
    assert "is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / ".chessreg").exists()


def test_where_there_is_no_home_folder_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for folder in (folders.get_config_folder, folders.get_state_folder, folders.get_cache_folder):
        with pytest.raises(BadInputError, match="HOME is not set"):
            folder()
    with pytest.raises(BadInputError, match="the home folder ~ is unknown"):
        folders.expand_path("~/x")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    with pytest.raises(ChessregError, match="not an absolute path"):
        folders.get_config_folder()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert folders.get_config_folder() == Path("/settings/chessreg")
