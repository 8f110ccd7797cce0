"""The finished demo registry (tests/fixtures/demo) opens, is listed, queried, resumed, reproduced and merged."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select

from chessreg.cli.root import run_command_line
from chessreg.entities.merge import merge_source
from chessreg.entities.reproduce import repeat_run
from chessreg.queries import run_query
from chessreg.queries.ask import list_answerable_titles
from chessreg.queries.catalogue import list_entries
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.runs.kind import load_kinds
from chessreg.session import Session, open_session
from chessreg.steering.interventions import add_row_id
from tests.quick import quick_first

DEMO = Path(__file__).resolve().parents[1] / "fixtures" / "demo"
ANSWERS = json.loads((DEMO / "answers.json").read_text())
WITH_ROWS = ("best probe layers", "elo by intervention", "games by termination", "probe f1 by class", "ratings")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    with zipfile.ZipFile(DEMO / "demo.zip") as packed:
        packed.extractall(folder)
    return folder


@pytest.fixture
def demo(unpacked: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(unpacked, tmp_path / "demo"))


@pytest.fixture
def session(demo: Path):
    with open_session(str(demo / "registry.db"), demo / "store") as opened:
        yield opened


def counted(database: Database) -> dict[str, int]:
    with database.read() as sql:
        return {
            name: sql.scalar(select(func.count()).select_from(table)) or 0
            for name, table in tables.Base.metadata.tables.items()
        }


def test_every_run_is_listed_and_complete(demo, capsys):
    assert run_command_line(["--registry", str(demo / "registry.db"), "runs", "list", "--json", "--all"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert {run["state"] for run in runs} == {"complete"}
    assert {run["kind"] for run in runs} == {
        "cache", "edit", "engine-match", "imported-aggregates", "imported-games", "imported-vector", "legality",
        "move-quality", "play", "probe", "probe-apply", "rating", "train", "vector",
    } <= set(load_kinds())  # fmt: skip
    (weakened,) = [run for run in runs if run["name"] == "weakened"]
    (tries,) = [run for run in runs if run["name"] == "tries"]
    assert (weakened["archived"], tries["invalid"]) == (True, "a policy of three tries")


@pytest.fixture(scope="module")
def database(unpacked: Path):
    """The demo registry, open: its tables are read once for all queries."""
    with Database.open(unpacked / "registry.db", create=False) as opened:
        yield opened


@pytest.mark.parametrize("title", quick_first(15, ANSWERS))
def test_a_query_gives_the_recorded_answer(title, database):
    """Every value of the first rows, and the number of rows. A query may have gained columns since."""
    rows = json.loads(json.dumps(run_query(database, title).rows, default=str))
    assert len(rows) == ANSWERS[title]["n"]
    for row, then in zip(rows, ANSWERS[title]["first"], strict=False):
        assert {name: row[name] for name in then} == {
            name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for name, value in then.items()
        }


def test_what_is_asked_has_answers():
    assert set(ANSWERS) <= {entry.title for entry in list_entries()}
    assert all(ANSWERS[title]["first"] for title in WITH_ROWS)


def test_a_query_is_marked_if_and_only_if_it_has_rows(database):
    marked = list_answerable_titles(database, list_entries()) & ANSWERS.keys()
    assert marked == {title for title, answer in ANSWERS.items() if answer["n"]}


def test_the_id_of_an_intervention_is_the_hash_of_its_columns(demo):
    with Database.open(demo / "registry.db", create=False) as database, database.read() as sql:
        edits = [dict(row) for row in sql.execute(select(tables.Intervention.__table__)).mappings()]
    assert len(edits) > 3
    for row in edits:
        columns = {name: value for name, value in row.items() if name != "id"}
        assert add_row_id(columns)["id"] == row["id"]


def test_a_finished_run_is_not_done_again(demo, capsys):
    options = ["--registry", str(demo / "registry.db"), "--store", str(demo / "store")]
    command = "run legality --checkpoint reference --dataset sample:test --games 6 --every 4"
    assert run_command_line([*options, *command.split()]) == 0
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["engines", "legality"])
def test_an_exact_run_comes_out_again(name, session: Session):
    found = repeat_run(session.database, session.store, session.id("run", name))
    assert found.is_equal
    assert found.same > 0


def test_merged_as_it_was_written_it_comes_in_whole_and_stays_so(demo, tmp_path):
    with zipfile.ZipFile(DEMO / "demo.zip") as packed:
        packed.extract("registry.db", tmp_path)
    with open_session(str(tmp_path / "new" / "registry.db"), tmp_path / "new" / "store") as new:
        merge_source(new.database, new.store, str(demo / "registry.db"))
        once = counted(new.database)
        again = merge_source(new.database, new.store, str(tmp_path / "registry.db"))
        assert (sum(again.facts.values()), again.results, again.runs, again.conflicts) == (0, 0, 0, 0)
        assert counted(new.database) == once
        assert not list(new.store.tmp.iterdir())


def test_a_backup_gives_back_a_lost_run_once(demo, session: Session, tmp_path):
    with zipfile.ZipFile(DEMO / "demo.zip") as packed:
        packed.extract("registry.db", tmp_path)
    whole, run = counted(session.database), session.id("run", "legality")
    with session.database.write() as sql:
        sql.execute(delete(tables.FragmentRecord).where(tables.FragmentRecord.run_id == run))
        sql.execute(delete(tables.Run).where(tables.Run.id == run))
    assert merge_source(session.database, session.store, str(tmp_path / "registry.db")).runs == 1
    once = counted(session.database)
    assert merge_source(session.database, session.store, str(tmp_path / "registry.db")).repeated == 0
    assert counted(session.database) == once
    assert {name: n for name, n in once.items() if name != "fragment"} == {
        name: n for name, n in whole.items() if name != "fragment"
    }


def test_it_is_taken_into_an_empty_registry_whole_and_only_once(demo, tmp_path):
    with open_session(str(tmp_path / "new" / "registry.db"), tmp_path / "new" / "store") as new:
        first = merge_source(new.database, new.store, str(demo / "registry.db"))
        assert first.conflicts == 0
        assert first.results > 0
        once = counted(new.database)
        second = merge_source(new.database, new.store, str(demo / "registry.db"))
        assert (sum(second.facts.values()), second.results, second.runs, second.conflicts) == (0, 0, 0, 0)
        assert counted(new.database) == once
    with Database.open(demo / "registry.db", create=False) as old:
        there = counted(old)
    apart = {"registry_state", "job", "fragment", "unit_range"}  # kept by this registry alone, or cut otherwise
    assert {name: n for name, n in once.items() if name not in apart} == {
        name: n for name, n in there.items() if name not in apart
    }
