"""A third-party registry cannot make this machine run any code. Every command is typed in a separate process."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ..forked import FORKED

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
Said = subprocess.CompletedProcess


def typed(lines: list[list[str]], folder: Path, env: dict[str, str], path: str, out: Path, err: Path) -> None:
    """Type commands in this process, which has imported only their dependencies; exits like the last command."""
    os.environ.update(env)
    os.chdir(folder)
    sys.path[:0] = [path] if path else []
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    from chessreg.cli.root import run_command_line

    sys.exit([run_command_line(words) for words in lines][-1])


def looked(text: str, env: dict[str, str], out: Path) -> None:
    """Run this Python code in this process, with its output in a file."""
    os.environ.update(env)
    with out.open("w") as file, redirect_stdout(file):
        exec(text, {})


class Machine:
    """A user's folder on a machine: a registry, a store and separate settings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder, folder / "ran.txt"
        (folder / "config").mkdir(parents=True)

    def __call__(self, *words: str | Path, ok: bool | None = True, path: Path | None = None) -> Said[str]:
        return self.types([list(map(str, words))], ok, path)

    def types(self, lines: list[list[str]], ok: bool | None, path: Path | None = None) -> Said[str]:
        env = {"XDG_CONFIG_HOME": str(self.folder / "config"), "RAN": str(self.ran)}
        out, err = self.folder / "out.txt", self.folder / "err.txt"
        process = FORKED.Process(target=typed, args=(lines, self.folder, env, str(path or ""), out, err))
        process.start()
        process.join(120)
        said = subprocess.CompletedProcess(lines, process.exitcode or 0, out.read_text(), err.read_text())
        assert ok is None or (said.returncode == 0) is ok, (lines, said.stdout, said.stderr)
        return said

    @property
    def registry(self) -> Path:
        return self.folder / ".chessreg" / "registry.db"

    def write(self, sql: str, *values: object) -> None:
        with sqlite3.connect(self.registry) as connection:
            connection.execute(sql, values)

    def kind(self, name: str = "my_kind.py", then: str = "") -> Path:
        """The toy in a file that leaves a note when it is imported."""
        path = self.folder / name
        path.write_text(f"import os\nopen(os.environ['RAN'], 'a').write('ran\\n')\n{then}\n" + TOY.read_text())
        return path

    def has_run(self) -> bool:
        found = self.ran.exists()
        self.ran.unlink(missing_ok=True)
        return found


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Machine, str]:
    """Their run of a file of theirs, merged into our registry: both machines, and the run's id."""
    root = tmp_path_factory.mktemp("trust")
    theirs, ours = Machine(root / "theirs"), Machine(root / "ours")
    file = theirs.kind()
    run = theirs("run", file, "--positions", "3", "--json")
    theirs("runs", "name", json.loads(run.stdout)["run_id"], "evil")
    assert theirs.has_run()
    ours("init")
    ours("merge", theirs.registry)
    return theirs, ours, json.loads(run.stdout)["run_id"]


@pytest.fixture
def ours(merged: tuple[Machine, Machine, str], tmp_path: Path) -> Machine:
    """A copy of our machine after the merge."""
    made = Machine(tmp_path / "ours")
    shutil.copytree(merged[1].folder / ".chessreg", made.folder / ".chessreg")
    return made


READ = [
    ["query", "--list"],
    ["query", "elo by intervention"],
    ["query", "--sql", "select * from nothing"],
    ["run", "--help"],
    ["launch", "--help"],
    ["runs", "list"],
    ["runs", "show", "evil"],
    ["lineage", "evil"],
    ["reproduce", "evil"],
    ["doctor"],
    ["gc"],
    ["compare", "evil", "evil"],
]
ASK = [
    ["board", "evil:0"],
    ["run", "--resume", "evil"],
    ["launch", "--resume", "evil"],
    ["reproduce", "evil", "--rerun"],
]


def test_reading_a_merged_registry_runs_nothing_of_theirs(ours):
    said = ours.types(READ, ok=None)
    assert not ours.has_run(), said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("words", ASK, ids=lambda words: " ".join(words))
def test_what_needs_their_code_is_refused_with_the_command_that_trusts_it(merged, ours, words):
    file = merged[0].folder / "my_kind.py"
    said = ours(*words, ok=False)
    assert not ours.has_run()
    assert str(file) in said.stderr
    assert digest(file)[:12] in said.stderr
    assert f"chessreg trust {file}" in said.stderr
    ours("trust", file)
    again = ours(*words, ok=None)
    assert "trust" not in again.stderr
    assert ours.has_run()


def digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_rows_stay_readable_without_their_code(merged, ours):
    said = ours("query", "--sql", "select unit, fen, move, checks from toy order by unit", "--json")
    assert len(json.loads(said.stdout)["rows"]) == 3
    assert not ours.has_run()
    (merged[0].folder / "my_kind.py").rename(merged[0].folder / "gone.py")
    try:
        assert (
            ours("query", "--sql", "select fen, checks from toy", "--json").stdout
            == ours("query", "--sql", "select fen, checks from toy", "--json").stdout
        )
        said = ours("board", "evil:0", ok=False)
        assert "my_kind.py" in said.stderr
    finally:
        (merged[0].folder / "gone.py").rename(merged[0].folder / "my_kind.py")


def test_a_changed_file_is_another(ours):
    file = ours.kind()
    ours("trust", file)
    ours.write("update kind set source = ?", f"{file}:Toy")
    ours("board", "evil:0")
    assert ours.has_run()
    file.write_text(file.read_text() + "\n# changed\n")
    said = ours("board", "evil:0", ok=False)
    assert digest(file)[:12] in said.stderr
    assert not ours.has_run()


def test_naming_a_file_trusts_it_and_trust_is_taken_back(ours):
    file = ours.kind()
    run = json.loads(ours("run", file, "--positions", "2", "--seed", "5", "--json").stdout)["run_id"]
    assert ours.has_run()
    ours("board", f"{run}:0")
    assert ours.has_run()
    (listed,) = json.loads(ours("trust", "--list", "--json").stdout)
    assert (listed["digest"], listed["path"]) == (digest(file), str(file))
    ours("trust", "--revoke", file)
    assert json.loads(ours("trust", "--list", "--json").stdout) == []
    ours("board", f"{run}:0", ok=False)
    assert not ours.has_run()
    ours("trust", digest(file))
    ours("board", f"{run}:0")
    assert ours.has_run()
    ours("trust", "--revoke", digest(file)[:16])
    ours("board", f"{run}:0", ok=False)
    for wrong in (["trust", "nothing.py"], ["trust", "ab" * 20], ["trust", "--revoke", "nothing.py"], ["trust"]):
        said = ours(*wrong, ok=False)
        assert "Traceback" not in said.stderr
    settings = ours.folder / "config" / "chessreg"
    assert settings.stat().st_mode & 0o077 == 0


def test_what_is_trusted_here_is_in_no_registry_and_no_store(merged, ours):
    """Their trust does not travel: their registry and store are merged, and their settings are not ours."""
    assert json.loads(merged[0]("trust", "--list", "--json").stdout)
    assert json.loads(ours("trust", "--list", "--json").stdout) == []


def test_a_file_in_a_store_is_never_loaded(ours):
    store = ours.folder / ".chessreg" / "store"
    made = ours.kind()
    inside = store / "artifacts" / "ab" / ("ab" * 32) / "my_kind.py"
    inside.parent.mkdir(parents=True)
    shutil.copy(made, inside)
    link = ours.folder / "link.py"
    link.symlink_to(inside)
    ours("trust", made)  # the same bytes, by their digest
    ours.write("update kind set source = ?", f"{inside}:Toy")
    for words in (["board", "evil:0"], ["run", inside, "--positions", "1"], ["run", link], ["trust", inside]):
        said = ours(*words, ok=False)
        assert "store" in said.stderr
        assert not ours.has_run()


def test_compiled_code_beside_a_trusted_file_is_not_run(ours):
    """Python would take a .pyc whose time fits for the file's own code."""
    file = ours.kind()
    other = ours.folder / "other.py"
    other.write_text("import os\nopen(os.environ['RAN'] + '.pyc', 'w').write('!')\n" + file.read_text())
    import importlib.util
    import py_compile

    os.utime(other, (1_700_000_000, 1_700_000_000))
    os.utime(file, (1_700_000_000, 1_700_000_000))
    size = max(file.stat().st_size, other.stat().st_size)
    for path in (file, other):
        path.write_text(path.read_text().ljust(size))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    cached = Path(importlib.util.cache_from_source(str(file)))
    cached.parent.mkdir()
    py_compile.compile(str(other), cfile=str(cached), doraise=True)
    ours("run", file, "--positions", "1")
    assert ours.has_run()
    assert not Path(f"{ours.ran}.pyc").exists()


@pytest.mark.parametrize("source", ["evil_module:Toy", "evil_module:Toy.x", "evil_module", "os:system", "../evil.py",
                                    "chessreg.experiments.../evil_module:Toy", "chessreg.cli.demo:demo"])  # fmt: skip
def test_names_in_rows_import_nothing(ours, tmp_path, source):
    modules = tmp_path / "modules"
    modules.mkdir()
    shutil.copy(ours.kind(), modules / "evil_module.py")
    ours.write("update kind set source = ?", source)
    said = ours.types(ASK, ok=False, path=modules)
    assert not ours.has_run()
    assert "Traceback" not in said.stderr
    assert "fault in chessreg" not in said.stderr


def test_a_kind_named_as_a_path_is_no_path(ours):
    file = ours.kind()
    ours.write("update kind set name = ?, source = ?", f"{file}", f"{file}:Toy")
    ours.write("update run set kind = ?", f"{file}")
    said = ours.types([*ASK, *READ], ok=None)
    assert not ours.has_run(), said.stderr


@pytest.mark.parametrize("look", ["kinds", "boards"])
def test_the_terminal_ui_runs_nothing_of_theirs(ours, look):
    """Its launch screen and its boards, of a registry opened for reading only and for more."""
    script = Path(ours.folder / "look.py")
    script.write_text(f"""
import sys
from pathlib import Path
from tui.registry import open_tui_session
from tui.data import board_views, launch_form
from chessreg.registry import names
with open_tui_session("sqlite:///{ours.registry}", Path("{ours.registry.parent}/store"), {{read_only}}) as session:
    if "{look}" == "kinds":
        print(*[row["name"] for row in launch_form.list_kind_rows(session)])
    else:
        with session.database.read() as sql:
            run = names.resolve_id(sql, "run", "evil")
        try:
            print(len(board_views.load_boards(session, {{{{"run_id": run, "unit": 0}}}}).views))
        except Exception as error:
            print(type(error).__name__, error)
""")
    file = ours.kind()
    ours.write("update kind set source = ?", f"{file}:Toy")
    env = {"XDG_CONFIG_HOME": str(ours.folder / "config"), "RAN": str(ours.ran)}

    def said(read_only: bool) -> str:
        text = script.read_text().replace("{read_only}", str(read_only)).replace("{{", "{").replace("}}", "}")
        process = FORKED.Process(target=looked, args=(text, env, ours.folder / "out.txt"))
        process.start()
        process.join(120)
        assert process.exitcode == 0
        return (ours.folder / "out.txt").read_text()

    for read_only in (True, False):
        assert "chessreg trust" in said(read_only) or look == "kinds"
        assert not ours.has_run()
    ours("trust", file)
    said(True)
    assert not ours.has_run()  # never where nothing is to be changed
    text = said(False)
    assert ours.has_run()
    assert look == "kinds" or text.strip().isdigit()  # the number of boards


def test_a_job_runs_the_file_that_was_named_and_no_changed_one(ours):
    file = ours.kind()
    ours("launch", file, "--positions", "2", "--seed", "8", "--device", "cpu", "--name", "eight", "--wait")
    assert ours.has_run()
    rows: Callable[[], int] = lambda: len(json.loads(ours("query", "--sql",
        "select unit from toy where run = 'eight'", "--json").stdout)["rows"])  # fmt: skip
    assert rows() == 2
    ours("supervisor", "stop", ok=None)
    slow = ours.kind("slow.py")
    ours("launch", slow, "--positions", "2", "--seed", "9", "--device", "cpu", "--name", "nine", "--dry-run")
    ours("trust", "--revoke", slow)
    ours.has_run()
    ours.write("update job set state = 'queued', ended_at = null, cause = null, cancel = 0, detail = "
               "replace(detail, ?, ?)", str(file), str(slow))  # fmt: skip
    ours.write("delete from unit_range where run_id = (select run_id from job)")
    ours("supervisor", "start")
    ours("wait", "eight", ok=False)
    ours("supervisor", "stop", ok=None)
    job = ours("job", "show", "eight").stdout
    assert "chessreg trust" in job
    assert digest(slow)[:12] in job
    assert not ours.has_run()


def test_a_worker_elsewhere_trusts_the_bytes_that_its_launch_trusted(ours, tmp_path, monkeypatch):
    """As on a node of Slurm or Ray with separate settings: the supervisor puts the digest into its environment."""
    from chessreg.runs import trust
    from chessreg.runs.kind import find_recorded_kind, load_trusted_kind

    file = ours.kind()
    monkeypatch.setenv("RAN", str(ours.ran))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "there"))
    assert (
        trust.build_worker_environment(f"{file}:Toy")
        == trust.build_worker_environment("chessreg.experiments.probe:Probe")
        == {}
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "here"))
    trust.trust_reference(str(file))
    given = trust.build_worker_environment(f"{file}:Toy")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "there"))
    with pytest.raises(trust.NotTrustedError):
        load_trusted_kind(str(file))
    assert not ours.has_run()
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert find_recorded_kind(f"{file}:Toy").name == "toy"
    assert ours.has_run()
    assert trust.list_trusted() == []
    file.write_text(file.read_text() + "#")
    with pytest.raises(trust.NotTrustedError):
        find_recorded_kind(f"{file}:Toy")
