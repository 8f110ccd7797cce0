"""The engine: reads the tables that a query names, with the declared types, from one state of the registry, and nothing
else."""

import json
import subprocess
import sys
import threading
import time

import pytest

from chessreg.errors import BadInputError, ChessregError
from chessreg.queries import run_query, run_sql, source
from chessreg.queries.engine import QueryEngine, open_shared_engine
from chessreg.registry import tables
from chessreg.registry.database import Database


@pytest.fixture
def reads(monkeypatch):
    """The tables that are read of the registry, in order."""
    found = []
    plain = source.RegistryReader.table

    def counted(reader, table, *rest, **more):
        found.append(table)
        return plain(reader, table, *rest, **more)

    monkeypatch.setattr(source.RegistryReader, "table", counted)
    return found


def test_only_the_named_tables_are_read(database, make, reads):
    make.play(make.checkpoint("a"), [{}, {}])
    result = run_sql(database, "WITH g AS (SELECT * FROM game) SELECT max(g.plies) AS p FROM g JOIN run ON id = run_id")
    assert result.rows == [{"p": 40}]
    assert sorted(reads) == ["game", "run"]
    assert result.meta["rows_read"] == {"game": 2, "run": 1}


@pytest.mark.slow
def test_only_what_is_named_is_defined_also_by_a_name_that_is_computed(database, make):
    make.play(make.checkpoint("a"), [{}])
    engine = open_shared_engine(database)
    assert run_sql(database, "SELECT count(*) AS n FROM Engine").rows == [{"n": 1}]
    assert engine._defined_names == {"engine"}
    assert run_sql(database, "SELECT count(*) AS n FROM query_table('ga' || 'mes')").rows == [{"n": 1}]
    make.play(make.checkpoint("b"), [{}])
    assert run_sql(database, "SELECT count(*) AS n FROM query_table('ga' || 'mes')").rows == [{"n": 2}]
    with pytest.raises(BadInputError, match='Did you mean "engine"'):
        run_sql(database, "SELECT * FROM enginee")


def test_views_of_kinds_that_never_ran_here_are_added_to_the_snapshot(database, make, reads):
    schema = {"game": {"properties": {"odd": {"type": "integer"}}}}
    make.add(
        tables.KindRecord(
            name="play", version=0, source="x:X", result_tables=["game"], extra_columns=schema, determinism="exact"
        )
    )
    make.play(make.checkpoint("a"), [{"detail": {"odd": 3}}])
    sql = "SELECT odd, (SELECT count(*) FROM legality) AS n FROM play_game"
    assert run_sql(database, sql).rows == [{"odd": 3, "n": 0}]
    assert len(reads) == len(set(reads)), "no table is read twice"


@pytest.mark.parametrize(
    "sql",
    ["SHOW TABLES", "/* all */ FROM (SHOW TABLES)", "SELECT table_name AS name FROM information_schema.tables"],
)
def test_what_lists_tables_lists_all(database, sql):
    assert {row["name"] for row in run_sql(database, sql).rows} >= {"game", "games", "runs", "run_now", "annotated"}


def test_a_table_that_is_listed_but_was_not_read_is_an_error_never_empty(database, make, reads):
    import duckdb

    make.play(make.checkpoint("a"), [{}])
    engine = open_shared_engine(database)
    assert engine.tables_of("SELECT plies FROM game") == ["game"]
    assert "run" in {row["name"] for row in run_sql(database, "SHOW TABLES").rows}
    assert not reads
    with pytest.raises(duckdb.Error, match="run was not read"):
        engine._data.execute("SELECT kind FROM run").fetchall()
    assert run_sql(database, "SELECT kind FROM run").rows == [{"kind": "play"}]


def test_the_snapshot_is_read_once_until_the_registry_changes(database, make, reads):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [{}] * 3)
    first = run_query(database, "elo by intervention")
    assert run_query(database, "elo by intervention").rows == first.rows
    assert reads.count("game") == 1
    make.play(checkpoint, [{}] * 2)
    assert [row["n"] for row in run_query(database, "elo by intervention").rows] == [5]
    assert reads.count("game") == 2


def test_all_tables_of_an_answer_are_of_one_moment_while_another_writes(database, make):
    """A writer adds whole runs; no answer may see a run without its games."""
    checkpoint = make.checkpoint("a")
    stop = threading.Event()

    def write():
        while not stop.is_set():
            make.play(checkpoint, [{}] * 3)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen, engine, ends = set(), QueryEngine(database), time.monotonic() + 3
        sql = 'SELECT (SELECT count(*) FROM "match") AS arms, (SELECT count(*) FROM game) AS games'
        while time.monotonic() < ends and len(seen) < 5:
            [row] = engine.answer({"": sql})[""].to_pylist()
            assert row["games"] == 3 * row["arms"]
            seen.add(row["arms"])
    finally:
        stop.set()
        writer.join()
    assert seen


def test_types_are_the_declared_ones_in_an_empty_registry(database):
    table = run_sql(database, "SELECT * FROM game").to_arrow()
    types = {field.name: str(field.type) for field in table.schema}
    assert types["run_id"] == "string"
    assert types["unit"] == "int64"
    assert types["seconds"] == "double"
    assert types["moves"] == "binary"
    table = run_sql(database, "SELECT created_at, withdrawn FROM run, annotation").to_arrow()
    assert str(table.schema[0].type).startswith("timestamp[us, tz=")
    assert str(table.schema[1].type) == "bool"


@pytest.mark.slow
def test_many_nulls_before_a_number_do_not_decide_its_type(database, make):
    run = make.run("edit", 70_000)
    row = {"run_id": run.id, "condition": "clean", "sample": -1, "attempt_id": run.attempt_id, "item": 0, "ply": 0,
           "text": ""}  # fmt: skip
    with database.write() as session:
        session.execute(tables.Trial.__table__.insert(), [{**row, "unit": u} for u in range(69_999)])
        session.execute(tables.Trial.__table__.insert(), {**row, "unit": 69_999, "mass_original": 0.5})
    found = run_sql(database, "SELECT sum(mass_original) AS s, count(*) AS n FROM trial").rows
    assert found == [{"s": 0.5, "n": 70_000}]


def test_ids_booleans_times_json_and_bytes_come_through(database, make):
    checkpoint = make.checkpoint("a")
    run = make.play(checkpoint, [{"detail": {"note": "x"}, "moves": b"\x0c\x07"}, {}])
    [row, _] = run_sql(database, "SELECT run_id, detail, moves, hex(moves) AS h FROM game ORDER BY unit").rows
    assert json.loads(row.pop("detail")) == {"note": "x"}
    assert row == {"run_id": run.id.hex, "moves": b"\x0c\x07", "h": "0C07"}
    [found] = run_sql(database, 'SELECT withdrawn, epoch("at") > 0 AS timed FROM annotation').rows
    assert found == {"withdrawn": False, "timed": True}
    sql = 'SELECT intervention_id, checkpoint_id FROM "match" WHERE checkpoint_id = \'' + str(checkpoint.id) + "'"
    assert run_sql(database, sql).rows == [{"intervention_id": None, "checkpoint_id": checkpoint.id.hex}]


def test_uuids_survive_any_mixture_of_nulls_and_runs(database, make):
    checkpoint = make.checkpoint("a")
    edits = [make.intervention(checkpoint) for _ in range(3)]
    runs = [make.play(checkpoint, [{}], intervention=edit) for edit in (None, edits[0], edits[0], None, *edits[1:])]
    found = {
        row["run_id"]: row["i"] for row in run_sql(database, 'SELECT run_id, intervention_id AS i FROM "match"').rows
    }
    wanted = (None, edits[0], edits[0], None, *edits[1:])
    assert found == {run.id.hex: edit and edit.id.hex for run, edit in zip(runs, wanted, strict=True)}


def test_whole_number_sums_are_integers_and_decimals_are_doubles(database, make):
    make.play(make.checkpoint("a"), [{}] * 3)
    [row] = run_sql(database, "SELECT sum(plies) AS s, avg(plies) AS a, sum(plies)::DECIMAL(9, 2) AS d FROM game").rows
    assert row == {"s": 120, "a": 40.0, "d": 120.0}
    assert [type(v) for v in row.values()] == [int, float, float]


def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_works(database):
    slow = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range * b.range = 7"
    started = time.monotonic()
    with pytest.raises(ChessregError, match="exceeded its time limit"):
        run_sql(database, slow, timeout=0.3)
    assert time.monotonic() - started < 120
    assert run_sql(database, "SELECT 1 AS one").rows == [{"one": 1}]


def test_memory_is_limited(database):
    with pytest.raises(ChessregError, match="exceeded its memory limit"):
        run_sql(database, "SELECT list(range) FROM range(30000000)", memory="50MB")
    with pytest.raises(BadInputError):
        run_sql(database, "SELECT 1", memory="lots")


@pytest.mark.parametrize("limit", ["", " LIMIT 5"])
def test_columns_of_one_name_are_all_in_the_answer(database, limit):
    from chessreg.queries.ask import stream_sql

    sql = "SELECT * FROM (SELECT 1 AS a, 2 AS a_1) x, (SELECT 3 AS a) y, (SELECT 4 AS a) z" + limit
    row = {"a": 1, "a_1": 2, "a_2": 3, "a_3": 4}
    assert run_sql(database, f"SELECT x.a, x.a_1, y.a, z.a {sql[8:]}").rows == [row]
    assert run_sql(database, sql).rows == [row]
    assert [part for result in stream_sql(database, sql) for part in result.rows] == [row]


def test_sql_that_does_not_bind_is_said_in_one_line(database):
    with pytest.raises(BadInputError) as caught:
        run_sql(database, "SELECT plys FROM game")
    assert "plys" in caught.value.message
    assert "\n" not in caught.value.message
    assert "LINE 1" not in caught.value.message
    with pytest.raises(BadInputError, match="nowhere"):
        run_sql(database, "SELECT * FROM nowhere")


def test_queries_work_without_a_network_and_leave_no_talk_at_exit(database, make, tmp_path):
    make.play(make.checkpoint("a"), [{}])
    code = (
        "import socket\n"
        "def refused(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused\n"
        "from chessreg.queries import run_query\n"
        "from chessreg.registry.database import Database\n"
        f"database = Database.open({str(tmp_path / 'registry.db')!r})\n"
        "print(run_query(database, 'elo').rows[0]['n'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_registry_that_was_closed_is_let_go(tmp_path):
    import gc
    import weakref

    gc.freeze()  # collecting the objects of other tests takes seconds
    database = Database.open(tmp_path / "other.db")
    run_sql(database, "SELECT 1 AS one")
    database.close()
    gone = weakref.ref(database)
    del database
    gc.collect()
    assert gone() is None


def test_all_tables_of_a_snapshot_are_of_one_moment(database, make, monkeypatch):
    """Another process writes between two questions: the second begins a new snapshot with everything it names."""
    make.play(make.checkpoint("a"), [{}] * 10)
    engine = open_shared_engine(database)
    assert engine.answer({"": "SELECT count(*) AS n FROM game"})[""].to_pylist() == [{"n": 10}]
    write = (
        "import sqlite3, sys; registry = sqlite3.connect(sys.argv[1], timeout=30);"
        "registry.execute('DELETE FROM game WHERE unit > 6');"
        "registry.execute('UPDATE registry_state SET data_version = data_version + 1'); registry.commit()"
    )
    monkeypatch.setattr(engine, "refresh", lambda: None)  # the write comes right after it
    subprocess.run([sys.executable, "-c", write, str(database.place.path)], check=True, timeout=300)
    answer = engine.answer({"": "SELECT (SELECT count(*) FROM game) AS games, (SELECT count(*) FROM run) AS runs"})
    assert answer[""].to_pylist() == [{"games": 7, "runs": 1}]
    assert answer.version == database.data_version()


def test_a_table_is_kept_however_many_clusters_it_was_computed_from(database, make, monkeypatch):
    make.play(make.checkpoint("a"), [{"result": result} for result in ("1-0", "0-1", "1/2-1/2") * 4])
    monkeypatch.setattr("chessreg.queries.engine.MOST_KEPT_ROWS", 2)  # the table and the runs left out; 3 clusters
    first = run_query(database, "elo by intervention")
    assert first.rows[0]["n"] == 12
    monkeypatch.setattr("chessreg.queries.duck.run_select_in_batches", lambda *_: pytest.fail("computed again"))
    assert run_query(database, "elo by intervention").rows == first.rows


def test_nothing_is_drawn_on_stdout_while_a_query_takes_long(database):
    sql = "SELECT current_setting('enable_progress_bar') AS bar"
    assert run_sql(database, sql).rows == [{"bar": False}]
