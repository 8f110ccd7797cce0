"""Nouns are declared once, and everything built on them knows each noun, including those of installed packages."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import chessreg.entities
from chessreg import plugins
from chessreg.cli.root import run_command_line
from chessreg.entities import gc, load_entities, load_entity
from chessreg.entities.merge import merge_source
from chessreg.errors import ChessregError, NotFoundError
from chessreg.registry import lineage, names, tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.session import Session, open_session
from tui.data import entity_rows

from ..lines import Answer, type_lines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def test_every_noun_says_what_a_list_and_the_data_room_need() -> None:
    for noun, known in load_entities().items():
        assert noun == known.table.__noun__.name
        assert load_entity(noun).plural == known.plural
        columns = set(known.table.__table__.columns.keys())
        assert {column.field for column in known.columns} & columns
        assert known.none_yet or not known.in_data_room
    assert list(load_entities())[:2] == ["dataset", "checkpoint"]


def test_two_nouns_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("sae", "chessreg.entities.sae:Saes", chessreg.entities.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    with pytest.raises(ChessregError, match="two entities have the noun sae"):
        load_entities()


@pytest.mark.parametrize(
    ("value", "why"),
    [("no_such_package:Lenses", "noun lens of no_such_package:Lenses cannot be loaded: ModuleNotFoundError"),
     ("pathlib:Path", "pathlib:Path of pathlib:Path is not a subclass of chessreg.entities.base.Entity")],
)  # fmt: skip
def test_a_package_whose_noun_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, value: str, why: str) -> None:
    point = EntryPoint("lens", value, chessreg.entities.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    with pytest.raises(ChessregError, match=re.escape(why)):
        load_entities()


def test_a_noun_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(NotFoundError, match="unknown noun 'sea'") as error:
        load_entity("sea")
    assert "sae" in error.value.hint


def test_saes_are_named_only_where_they_are_made_read_or_exchanged() -> None:
    named = {
        str(path.relative_to(ROOT))
        for house in ("chessreg", "store", "tui")
        for path in (ROOT / house).rglob("*.py")
        # the kind that makes them, the kinds that read them, and the code that fills in their settings: papers, the lab
        if not {"sae", "probe", "edit", "papers", "lab"} & {*path.relative_to(ROOT).parts}
        if re.search(r"\bsaes?\b", re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL), re.IGNORECASE)
    }
    settings = {"chessreg/cli/paper.py", "tui/screens/lab.py"}  # --sae of `paper karvonen`, and of an edit
    settings |= {"chessreg/cli/completion.py", "chessreg/cli/root.py"}  # names for --sae, and its line of `--help`
    settings |= {"chessreg/runs/cost.py"}  # the rate of each kind
    settings |= {"chessreg/agents/server.py"}  # the nouns that an agent may ask for
    settings |= {"chessreg/queries/views.py", "tui/data/launch_form.py"}  # the view of all, and the kinds that fit
    network = {"chessreg/models/gated_sae.py"}
    exchange = {"chessreg/models/sae_files.py", "chessreg/cli/import_.py", "chessreg/cli/sae.py", "chessreg/api.py"}
    exchange |= {f"chessreg/experiments/imported/{name}.py" for name in ("__init__", "saes", "sae_measures")}
    exchange |= {"chessreg/cards.py", "chessreg/publishing.py", "chessreg/entities/fetched.py"}  # of the hub
    exchange |= {"chessreg/runs/spec.py", "chessreg/runs/inputs.py"}  # the reference to a folder that is imported
    exchange |= {"tui/actions.py", "tui/screens/things.py"}  # the key that imports them
    assert (settings | network | exchange) <= named, "no longer names them"
    assert named - {"chessreg/registry/tables/__init__.py"} - settings - network - exchange == {
        "chessreg/entities/sae.py",
        "chessreg/registry/tables/arrays.py",
        "chessreg/session.py",  # reg.sae(NAME)
    }


def add_saes(session: Session, content: str, seed: int = 0) -> None:
    """A run that made two SAEs, with their bytes."""
    spec_hash = hash_canonical_json({"seed": seed})
    checkpoint = make_uuid(hash_canonical_json("checkpoint"))
    with session.database.write() as sql:
        sql.add(
            tables.Run(
                id=make_uuid(spec_hash), kind="sae", version=1, spec={"seed": seed}, spec_hash=spec_hash,
                explicit=[], units=2, created_at=get_utc_now(), completed_at=get_utc_now(),
            )
        )  # fmt: skip
        for unit in range(2):
            with session.store.stage("sae") as folder:
                (folder / "sae.txt").write_text(f"{content} {unit}")
                made = session.store.publish(folder)
            sql.add(tables.Artifact(digest=made.digest, kind="sae", bytes=made.bytes, state="complete",
                                    created_at=get_utc_now()))  # fmt: skip
            sql.flush()
            sql.add(tables.Output(run_id=make_uuid(spec_hash), name=f"layer-{unit}", unit=unit, digest=made.digest))
            sql.add(
                tables.SaeRecord(
                    run_id=make_uuid(spec_hash), unit=unit, artifact=made.digest, checkpoint_id=checkpoint,
                    layer=unit, hook_point=f"blocks.{unit}.hook_resid_post", architecture="topk", features=64,
                    detail={},
                )
            )  # fmt: skip
        names.add_annotation(sql, "checkpoint", checkpoint, "name", "tiny")
        names.add_annotation(sql, "run", make_uuid(spec_hash), "name", f"features{seed or ''}")


def command(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = run_command_line([*words, "--registry", str(folder / "registry.db"), "--store", str(folder / "store")])
    said = capsys.readouterr()
    return status, said.out + said.err


def test_saes_are_listed_shown_drawn_and_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        add_saes(session, "here")
        room = entity_rows.list_entities(session)["sae"]
        assert [(row["name"], row["checkpoint"], row["layers"]) for row in room] == [("features", "tiny", "0-1")]
        thing = entity_rows.load_details(session, "sae", room[0]["thing"])
        assert thing.summary == "SAEs · tiny"
        assert [part.name for part in thing.parts] == ["SAEs 2", "facts"]
    status, out = command(tmp_path, capsys, "sae", "list")
    assert status == 0
    assert out.splitlines()[0].split() == [
        *("run", "name", "model", "hook", "point", "layer", "architecture", "features")
    ]
    assert "without a value: expansion, L0, explained variance, loss recovered, dead %" in out
    assert out.count("features ") >= 2
    status, out = command(tmp_path, capsys, "sae", "show", "features", "--layer", "1", "--json")
    assert (status, json.loads(out)["hook_point"]) == (0, "blocks.1.hook_resid_post")
    status, out = command(tmp_path, capsys, "sae", "show", "features")
    assert (status, "features has 2 SAEs" in out, "--layer one of 0, 1" in out) == (4, True, True)
    status, out = command(tmp_path, capsys, "sae", "show", "features", "--layer", "7")
    assert (status, "it has 0, 1" in out) == (3, True)
    status, out = command(tmp_path, capsys, "lineage", "features")
    assert (status, "features" in out, out.splitlines()[-1]) == (0, True, "went into: nothing")


def test_saes_made_otherwise_elsewhere_are_conflicts_and_archived_ones_can_go(tmp_path: Path) -> None:
    later = time.time() + 7200
    with (
        open_session(str(tmp_path / "a" / "registry.db"), tmp_path / "a" / "store") as here,
        open_session(str(tmp_path / "b" / "registry.db"), tmp_path / "b" / "store") as there,
    ):
        add_saes(here, "here")
        add_saes(there, "there")
        add_saes(there, "another", seed=1)
        merged = merge_source(here.database, here.store, str(tmp_path / "b" / "registry.db"))
        assert merged.facts["sae"] == 2
        with here.database.read() as sql:
            assert {row.table_name for row in sql.query(tables.Conflict)} == {"output", "sae"}
        assert gc.find_unused(here.database, here.store, now=later) == []
        with here.database.write() as sql:
            target = names.resolve_id(sql, "sae", make_uuid(hash_canonical_json({"seed": 0})).hex)
            names.add_annotation(sql, "sae", target, "archive")
            assert lineage.find_node(sql, target.hex).noun == "run"
        assert [item.what.split()[0] for item in gc.find_unused(here.database, here.store, now=later)] == [
            "artifact"
        ] * 2


class Package:
    """A package with the noun of tests/entities/toy_entity.py, as pip leaves it, and commands that find it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "site" / "lenspkg-0.1.dist-info").mkdir(parents=True)
        (root / "site" / "toy_entity.py").write_bytes((HERE / "toy_entity.py").read_bytes())
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: lenspkg\nVersion: 0.1\n"),
            ("entry_points.txt", "[chessreg.entities]\nlens = toy_entity:Lenses\n"),
        ):
            (root / "site" / "lenspkg-0.1.dist-info" / name).write_text(text)

    def python(self, *words: str | Path, made: str = "here") -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=self.environment(made))

    def environment(self, made: str) -> dict[str, str]:
        paths = os.pathsep.join([str(ROOT), str(self.root / "site")])
        return {**os.environ, "PYTHONPATH": paths, "LENS_MADE": made}

    def commands(self, folder: str, *lines: Sequence[str], made: str = "here") -> list[Answer]:
        """Commands in the registry of a folder, all in one new process."""
        where = ["--registry", str(self.root / folder / "registry.db"), "--store", str(self.root / folder / "store")]
        return type_lines([[*words, *where] for words in lines], env=self.environment(made))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package(tmp_path_factory.mktemp("brought"))


@pytest.fixture(scope="module")
def brought(package: Package) -> dict[str, Any]:
    """The output of chessreg for the noun of a package, command by command. Reading commands run in a new process."""
    for folder in ("here", "there", "new"):  # made before the package is installed
        (package.root / folder).mkdir()
        with open_session(str(package.root / folder / "registry.db"), package.root / folder / "store"):
            pass
    run = ["run", f"{HERE / 'lens_kind.py'}:LensKind", "--name", "mine"]
    first = {"none": ["lens", "list", "--json"], "not there": ["lens", "show", "mine"], "run": run}
    later = {
        "help": ["--help"],
        "list": ["lens", "list", "--json"],
        "table": ["lens", "list"],
        "show": ["lens", "show", "mine", "--layer", "1", "--json"],
        "several": ["lens", "show", "mine"],
        "lineage": ["lineage", "mine", "--json"],
    }
    told: dict[str, Any] = dict(zip(first, package.commands("here", *first.values()), strict=True))
    package.commands("there", run, made="there")  # the same spec on another machine comes out otherwise
    told |= dict(zip(later, package.commands("here", *later.values()), strict=True))
    done = package.python(HERE / "brought.py", *(package.root / folder for folder in ("here", "there", "new")))
    assert done.returncode == 0, done.stderr
    return told | json.loads(done.stdout)


@pytest.mark.slow
def test_a_noun_of_a_package_needs_nothing_but_the_package(brought: dict[str, Any]) -> None:
    assert (brought["none"].status, json.loads(brought["none"].out)) == (0, [])
    assert (brought["not there"].status, "lens 'mine' was not found" in brought["not there"].err) == (3, True)
    assert brought["run"].status == 0, brought["run"].err


def test_its_table_is_made_by_what_writes_alone(package: Package) -> None:
    (package.root / "upgraded").mkdir()
    with open_session(str(package.root / "upgraded" / "registry.db"), package.root / "upgraded" / "store"):
        pass

    def tables_there() -> set[str]:
        with closing(sqlite3.connect(package.root / "upgraded" / "registry.db")) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name = 'lens'")}

    for told in package.commands("upgraded", ["lens", "list"], ["gc"], ["lineage", "mine"], ["runs", "list"]):
        assert "no such table" not in told.err, told
    assert tables_there() == set()
    assert package.commands("upgraded", ["db", "upgrade"])[0].status == 0
    assert tables_there() == {"lens"}


@pytest.mark.slow
def test_a_fragment_of_a_noun_that_cannot_be_loaded_is_set_aside_with_the_reason(tmp_path: Path) -> None:
    package = Package(tmp_path)
    (tmp_path / "site" / "toy_entity.py").write_text("def broken(:\n")
    (tmp_path / "here").mkdir()
    told, _ = package.commands("here", ["init"], ["run", f"{HERE / 'lens_kind.py'}:LensKind"])
    assert "note: noun lens of lenspkg 0.1 cannot be loaded: SyntaxError: invalid syntax" in told.err
    [reason] = (tmp_path / "here" / "store").rglob("*.reason.txt")
    assert "unknown table 'lens' (noun lens of lenspkg 0.1 cannot be loaded: SyntaxError" in reason.read_text()


@pytest.mark.slow
def test_a_noun_of_one_module_is_a_command_and_a_pane(brought: dict[str, Any]) -> None:
    assert re.search(r"^  lens +From", brought["help"].out, re.MULTILINE)
    rows = json.loads(brought["list"].out)
    assert [(row["name"], row["layer"], row["loss"]) for row in rows] == [("mine", 0, 0.5), ("mine", 1, 1.5)]
    assert brought["table"].out.splitlines()[0].split() == ["run", "name", "layer", "loss"]
    assert json.loads(brought["show"].out)["hook_point"] == "blocks.1.hook_resid_post"
    assert brought["several"].status == 4
    assert "mine has 2 lenses" in brought["several"].err
    assert brought["room"] == {"nouns": [*entity_rows.list_data_nouns(), "lens"], "rows": [["mine", 2]]}
    assert brought["thing"]["parts"] == ["lenses 2", "facts"]


def test_a_noun_of_one_module_is_traced_merged_and_collected(brought: dict[str, Any]) -> None:
    assert json.loads(brought["lineage"].out)["up"]["kind"] == "lens"
    assert brought["node"] == "run"
    assert brought["merge"]["conflicts"] == 4  # two outputs and two lenses came out otherwise
    assert brought["taken"] == 2
    assert brought["needed"] == 0
    assert brought["rubbish"] == ["artifact", "artifact"]
