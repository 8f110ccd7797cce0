"""A kind of two files, code and SQL: its table is asked for before and after its first run; nothing else is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.entities.merge import merge_source
from chessreg.queries import run_query, run_sql
from chessreg.queries.catalogue import find_entry, list_entries
from chessreg.queries.compare import compare_runs
from chessreg.registry import tables
from chessreg.runs.kind import load_kinds
from chessreg.runs.spec import list_setting_names
from chessreg.session import open_session

FILE = Path(__file__).parent / "captures_kind.py"
TITLE = "captures after captures"


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Types a command in an empty place; returns its exit status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        home = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
        status = run_command_line([*home, *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_its_table_is_there_before_and_after_its_first_run(typed, tmp_path):
    assert typed("init")[0] == 0
    assert typed("trust", FILE)[0] == 0
    status, out, err = typed("query", FILE.with_suffix(".sql"), "--format", "csv")
    assert status == 0, err
    assert out.split() == ["run,plies,games,share,p,n,captures,run_id"]
    assert "columns: run, plies, games, share, p, n, captures" in err
    assert "no runs yet; chessreg run tests/kinds/captures_kind.py produces the rows of this table" in err

    status, _, err = typed("query", TITLE)
    assert status != 0
    assert "does not exist" in err

    status, _, err = typed("run", FILE, "--games", 10, "--shuffles", 50, "--name", "first")
    assert status == 0, err
    assert f'chessreg query "{TITLE}"' in err

    status, out, err = typed("query", TITLE, "--json")
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        with session.database.read() as sql:
            (said,) = sql.scalars(select(tables.Statistic)).all()
            games = [r.detail["captures"] for r in sql.scalars(select(tables.Prediction))]
        assert (said.unit, said.name, said.low, said.high, said.detail) == (
            10,
            "capture after capture",
            None,
            None,
            None,
        )
        assert (row["run"], row["plies"], row["games"]) == ("first", 60, 10)
        assert (row["share"], row["p"], row["n"]) == (said.value, said.p, said.n)
        assert row["captures"] == sum(game.count("1") for game in games)
        assert run_query(session.database, "captures").rows == [row]
        assert run_sql(session.database, "SELECT plies, shuffles FROM captures_run").rows == [
            {"plies": 60, "shuffles": 50}
        ]

        with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
            for _ in range(2):
                merge_source(other.database, other.store, str(tmp_path / "registry.db"))
            assert run_query(other.database, TITLE).rows == [row]

    status, _, err = typed("run", FILE, "--games", 10, "--shuffles", 50, "--seed", 1, "--name", "second")
    assert status == 0, err
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        found = compare_runs(session.database, ["first", "second"])
        (metric,) = [m for m in found.metrics if m.name.startswith("capture after capture")]
        first, second = metric.values
        assert first.value == said.value
        assert metric.differences[1].value == pytest.approx(second.value - first.value)


@pytest.fixture(scope="module")
def nothing_ran(empty_registry, tmp_path_factory):
    """An empty registry, which tests only read."""
    folder = tmp_path_factory.mktemp("nothing-ran")
    with open_session(str(shutil.copy(empty_registry, folder)), folder / "store") as opened:
        yield opened.database


@pytest.mark.parametrize("name", sorted(load_kinds()))
def test_every_registered_kind_has_typed_views_before_it_ran(name, nothing_ran):
    plain = name.replace("-", "_")
    kind = load_kinds()[name]
    for table in kind.tables:
        columns = run_sql(nothing_ran, f"SELECT * FROM {plain}_{table}").table.schema.names
        extra = kind.columns[table].model_fields if table in kind.columns else ()
        assert set(extra) <= {column.removeprefix("detail_") for column in columns}
    columns = run_sql(nothing_ran, f"SELECT * FROM {plain}_run").table.schema.names
    assert list_setting_names(kind.spec) <= {column.removeprefix("spec_") for column in columns}


def test_a_query_says_of_which_kinds_it_is():
    assert {kind for entry in list_entries() for kind in entry.kinds} <= set(load_kinds())
    assert find_entry(str(FILE.with_suffix(".sql"))).kinds == ("captures",)
