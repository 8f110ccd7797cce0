"""Complete runs are mirrored as Parquet files next to the registry: the same answers with, without and among them."""

from __future__ import annotations

import random
import shutil
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest

from chessreg.entities.merge import merge_source
from chessreg.errors import ChessregError
from chessreg.queries import mirror, run_query, run_sql, source, stats
from chessreg.queries.engine import QueryEngine
from chessreg.registry import migrations, tables
from chessreg.registry.database import Database
from chessreg.registry.result_tables import RESULT_TABLES
from store import Store
from tests.quick import quick_first

from ..conftest import queries_with_runs
from .test_any_value import DEMO, spoil

ALL = "SELECT run_id, unit, plies, result, adjudication_cp, seconds, moves, detail FROM game ORDER BY ALL"


def rows(database, sql=ALL):
    """The answer of a process that has not asked yet."""
    return QueryEngine(database).answer({"q": sql})["q"].to_pylist()


def files(database):
    return sorted(database.place.path.with_suffix(".results").glob("*"))


def keep(database, sql=ALL):
    engine = QueryEngine(database)
    engine.answer({"q": sql})
    engine.keep()


@pytest.fixture(autouse=True)
def short_files(monkeypatch):
    """Runs with few rows have files too."""
    monkeypatch.setattr(mirror, "LEAST_ROWS", 1)


@pytest.fixture
def fetched(monkeypatch):
    """The number of games that come from SQL."""
    found = []
    plain = source.RegistryReader.table

    def noted(reader, table, *rest, **more):
        answer = plain(reader, table, *rest, **more)
        if table == "game":
            found.append(answer.num_rows)
        return answer

    monkeypatch.setattr(source.RegistryReader, "table", noted)
    return found


def test_complete_runs_come_from_files_and_others_from_sql(database, make, fetched):
    checkpoint = make.checkpoint("a")
    for number, size in enumerate((4, 1, 9)):
        games = [{"plies": 10 * number + unit, "adjudication_cp": unit if unit % 2 else None} for unit in range(size)]
        make.play(checkpoint, games)
    make.play(checkpoint, [{}] * 3, planned=9)
    plain = rows(database)
    assert fetched == [17]
    keep(database)
    assert [path.name.split("-")[0] for path in files(database)] == ["game"] * 3
    fetched.clear()
    assert rows(database) == plain
    assert fetched == [3]
    files(database)[1].unlink()
    assert rows(database) == plain
    shutil.rmtree(database.place.path.with_suffix(".results"))
    assert rows(database) == plain
    assert fetched[-1] == 17


def test_a_run_with_few_rows_has_no_file(database, make, fetched, monkeypatch):
    monkeypatch.setattr(mirror, "LEAST_ROWS", 5)
    short, long = (make.play(make.checkpoint(name), [{}] * size) for name, size in (("a", 4), ("b", 5)))
    keep(database)
    assert [path.name.split("-")[2] for path in files(database)] == [long.id.hex]
    assert {row["run_id"] for row in rows(database)} == {short.id.hex, long.id.hex}
    assert fetched[-1] == 4


def test_a_run_with_many_rows_is_written_before_it_is_read(database, make, fetched, monkeypatch):
    games = [
        {"plies": unit, "adjudication_cp": unit if unit % 2 else None, "moves": bytes([unit])} for unit in range(9)
    ]
    long, short = make.play(make.checkpoint("a"), games), make.play(make.checkpoint("b"), [{}] * 4)
    make.play(make.checkpoint("c"), [{}] * 9, planned=10)  # not complete
    plain = rows(database)
    monkeypatch.setattr(mirror, "LONG_ROWS", 5)
    monkeypatch.setattr(source, "BATCH_ROWS", "3")
    fetched.clear()
    assert rows(database) == plain
    assert fetched == [13]
    assert [path.name.split("-")[2] for path in files(database)] == [long.id.hex]
    keep(database)
    assert {path.name.split("-")[2] for path in files(database)} == {long.id.hex, short.id.hex}
    assert list(mirror.find_differing_files(database, QueryEngine(database).extras())) == []
    files(database)[0].write_bytes(b"")
    files(database)[1].unlink()
    assert rows(database) == plain


def test_a_long_run_is_read_from_sql_if_its_file_cannot_be_written(database, make, fetched, monkeypatch):
    make.play(make.checkpoint("a"), [{}] * 9)
    plain = rows(database)
    monkeypatch.setattr(mirror, "LONG_ROWS", 5)
    database.place.path.with_suffix(".results").write_bytes(b"")
    assert rows(database) == plain
    assert fetched == [9, 9]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["written here", "written by another process"])
def test_an_open_engine_reads_files_that_are_written_later(elsewhere, database, make, monkeypatch):
    monkeypatch.setattr(mirror, "LONG_ROWS", 5)
    engine, checkpoint = QueryEngine(database), make.checkpoint("a")
    for done in (1, 2):
        make.play(checkpoint, [{}] * 9)
        engine.parser()  # opens a connection to the new state
        engine.answer({"q": "SELECT id FROM run"})
        if elsewhere:
            QueryEngine(database).answer({"q": "SELECT count(*) FROM game"})
        counted = "SELECT count(*) AS games, (SELECT count(*) FROM trial) AS trials FROM game"
        assert engine.answer({"q": counted})["q"].to_pylist() == [{"games": 9 * done, "trials": 0}]
        assert engine.answer({"q": "SELECT count(*) AS n FROM run"})["q"].to_pylist() == [{"n": done}]
        assert len(files(database)) == done


def test_a_long_run_that_completes_again_during_a_query_keeps_its_new_file(database, make, monkeypatch):
    monkeypatch.setattr(mirror, "LONG_ROWS", 5)
    run = make.play(make.checkpoint("a"), [{"plies": 1}] * 9)
    engine = QueryEngine(database)
    engine.parser()
    refresh, kept = engine.refresh, []

    def complete_again():
        refresh()
        with database.write() as session:
            session.get_one(tables.Run, run.id).completed_at += timedelta(seconds=1)
            session.query(tables.Game).update({"plies": 2})
        QueryEngine(database).answer({"q": "SELECT count(*) FROM game"})
        kept.extend((path, path.stat().st_ino) for path in files(database))

    monkeypatch.setattr(engine, "refresh", complete_again)
    answer = engine.answer({"q": "SELECT sum(plies)::INT AS plies FROM game"})["q"]
    assert answer.to_pylist() == [{"plies": 18}]
    assert len(kept) == 1
    assert [(path, path.stat().st_ino) for path in files(database)] == kept


def test_a_mirrored_run_is_archived_and_invalidated_in_sql(database, make):
    run = make.play(make.checkpoint("a"), [{}] * 9)
    keep(database)
    assert run_query(database, "elo by intervention").rows[0]["n"] == 9
    make.say("run", run.id, "invalid")
    assert run_query(database, "elo by intervention").rows == []


NOTES = {"depth": 3, "share": 0.1 + 0.2, "note": 'a"b', "won": True, "best": ["e4"], "run_id": "x", "Depth": 9}
EXTRA = "SELECT * FROM play_game ORDER BY ALL"


def notes(make, version=1, **properties):
    """The extra columns of games that a version of the kind `play` records."""
    typed = {"depth": "integer", "share": "number", "note": "string", "won": "boolean", "best": "array",
             "run_id": "string", "Depth": "integer", **properties}  # fmt: skip
    columns = {name: {"type": type_} for name, type_ in typed.items() if name != "Depth"}
    schema = {"game": {"properties": columns | {"clocks": {"type": "string", "pattern": "^([0-9a-f]{3})*$"}}}}
    make.add(
        tables.KindRecord(name="play", version=version, source="x:X", result_tables=["game"], extra_columns=schema,
                          determinism="exact")
    )  # fmt: skip


def test_extra_columns_are_columns_of_the_files(database, make, fetched):
    import duckdb

    notes(make)
    details = [NOTES | {"clocks": "0ff010"}, None, {**NOTES, "depth": "deep", "won": None, "clocks": ""}, {},
               {"depth": 4, "clocks": "0ff01"}, {"clocks": 123}, {"clocks": ["0ff"]}]  # fmt: skip
    make.play(make.checkpoint("a"), [{"detail": detail} for detail in details])
    make.play(make.checkpoint("b"), [{"detail": {"note": "of another run"}}] * 4)
    plain = rows(database, EXTRA)
    assert sorted(row["depth"] for row in plain if row["depth"]) == [3, 4]
    hex_lists = sorted(row["clocks"] for row in plain if row["clocks"] is not None)
    assert hex_lists == [[], [0x0FF, 0x010], [0x123]]  # a number is taken for its text; other types are NULL
    keep(database, EXTRA)
    assert len(files(database)) == 2
    fetched.clear()
    assert rows(database, EXTRA) == plain
    assert fetched == [0]
    types = dict(
        duckdb.sql(f"DESCRIBE SELECT * FROM '{files(database)[0]}'").project("column_name, column_type").fetchall()
    )
    assert (types["run_id"], types["plies"], types["moves"]) == ("UUID", "BIGINT", "BLOB")
    assert (types["depth"], types["share"], types["won"], types["detail"]) == ("BIGINT", "DOUBLE", "BOOLEAN", "JSON")
    assert types["clocks"] == "BIGINT[]"


def test_files_of_other_columns_are_not_read(database, make, fetched):
    notes(make)
    make.play(make.checkpoint("a"), [{"detail": {**NOTES, "clock": 60 + unit}} for unit in range(9)])
    keep(database, EXTRA)
    [before] = files(database)
    notes(make, version=2, clock="integer", depth="number")
    clocks = "SELECT clock, depth FROM play_game ORDER BY ALL"
    assert rows(database, clocks) == [{"clock": 60 + unit, "depth": 3.0} for unit in range(9)]
    assert fetched[-1] == 9
    keep(database, clocks)
    assert files(database) != [before]
    assert len(files(database)) == 1
    assert rows(database, clocks)[8] == {"clock": 68, "depth": 3.0}
    assert fetched[-1] == 0


def test_a_run_that_was_done_again_is_read_again(database, make, fetched):
    run = make.play(make.checkpoint("a"), [{}] * 9)
    keep(database)
    [before] = files(database)
    with database.write() as session:
        session.get_one(tables.Run, run.id).completed_at += timedelta(seconds=1)
        session.query(tables.Game).filter_by(unit=8).update({"plies": 99})
    assert max(row["plies"] for row in rows(database)) == 99
    keep(database)
    [after] = files(database)
    assert after != before
    fetched.clear()
    assert max(row["plies"] for row in rows(database)) == 99
    assert fetched == [0]


@pytest.mark.parametrize("damage", quick_first(1, ["cut", "empty", "gone"]))
def test_a_file_that_cannot_be_read_is_removed_and_written_again(damage, database, make, fetched):
    make.play(make.checkpoint("a"), [{"plies": unit} for unit in range(9)])
    make.play(make.checkpoint("b"), [{}] * 5)
    plain = rows(database)
    keep(database)
    path = files(database)[0]
    data = path.read_bytes()
    engine = QueryEngine(database)
    engine.answer({"q": "SELECT count(*) FROM run"})  # the snapshot has begun
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    assert engine.answer({"q": ALL})["q"].to_pylist() == plain
    assert path not in files(database)
    engine.keep()
    assert path in files(database)
    assert rows(database) == plain
    assert fetched[-1] == 0


def test_a_symbolic_link_is_not_read(database, make, fetched, tmp_path):
    make.play(make.checkpoint("a"), [{}] * 9)
    keep(database)
    [path] = files(database)
    path.symlink_to(path.rename(tmp_path / "other.parquet"))
    fetched.clear()
    assert len(rows(database)) == 9
    assert fetched == [9]


def test_what_is_not_ours_in_the_folder_stays(database, make):
    make.play(make.checkpoint("a"), [{}] * 9)
    folder = database.place.path.with_suffix(".results")
    folder.mkdir()
    (folder / "mine.parquet").write_text("mine")
    keep(database)
    assert (folder / "mine.parquet").read_text() == "mine"
    assert len(files(database)) == 2


def test_where_the_folder_should_be_is_a_file(database, make):
    make.play(make.checkpoint("a"), [{}] * 9)
    folder = database.place.path.with_suffix(".results")
    folder.write_text("mine")
    keep(database)
    assert folder.read_text() == "mine"
    assert len(run_sql(database, ALL).rows) == 9


def test_a_read_only_registry_is_read_with_its_files_and_gets_none(database, make, fetched):
    make.play(make.checkpoint("a"), [{}] * 9)
    database.read_only = True
    keep(database)
    assert not files(database)
    database.read_only = False
    keep(database)
    database.read_only = True
    assert len(rows(database)) == 9
    assert fetched[-1] == 0


@pytest.mark.parametrize("name", quick_first(2, ["it's", "[x]*?", "a b%20", "\u265e"]))
def test_a_folder_of_any_name(name, tmp_path, make):
    (tmp_path / name).mkdir()
    with Database.open(tmp_path / name / "registry.db") as other:
        maker = type(make)(other)
        maker.play(maker.checkpoint("a"), [{}] * 3)
        plain = rows(other)
        keep(other)
        assert len(files(other)) == (name != "[x]*?")
        assert rows(other) == plain
        assert len(plain) == 3


def test_no_statement_reaches_the_mirror(database, make):
    make.play(make.checkpoint("a"), [{}] * 3)
    keep(database)
    [path] = files(database)
    make.play(make.checkpoint("b"), [{}] * 3)
    other = path.with_name("other.parquet")
    shutil.copyfile(path, other)
    whole, exact = (run_sql(database, f"SELECT * FROM {place} ORDER BY ALL").rows for place in ("game", f"'{path}'"))
    assert all(row in whole for row in exact), "the path of a file of the snapshot gives rows of the table, no others"
    for sql in (
        f"COPY game TO '{path}'", f"COPY (SELECT 1) TO '{path.parent}/x.parquet'", f"COPY game FROM '{path}'",
        f"SELECT * FROM glob('{path.parent}/*')", f"SELECT * FROM read_parquet('{path.parent}/*.parquet')",
        f"SELECT * FROM '{other}'", f"SELECT * FROM read_blob('{other}')", f"ATTACH '{path}' AS x",
        f"SET allowed_paths = ['{other}']", f"SELECT * FROM read_text('{database.place.path}')",
        f"SELECT * FROM read_parquet('{path.parent}/x/../{other.name}')",
    ):  # fmt: skip
        with pytest.raises(ChessregError):
            run_sql(database, "SELECT count(*) FROM game") and run_sql(database, sql)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extract("registry.db", folder)
    migrations.upgrade_registry(folder / "registry.db")
    return folder / "registry.db"


@pytest.mark.parametrize(("seed", "every"), quick_first(1, [(1, 4), (1, 1), (None, 1), (2, 1), (3, 1)]))
def test_every_query_has_the_same_answer_from_files_and_from_sql(seed, every, registry, tmp_path, monkeypatch):
    """Also of a registry with odd values."""
    monkeypatch.setattr(stats, "RESAMPLES", 20)
    path = Path(shutil.copyfile(registry, tmp_path / "registry.db"))
    if seed is not None:
        spoil(path, seed)
    names = sorted(RESULT_TABLES)
    with Database.open(path, create=False) as database, Database.open(path, create=False) as again:
        plain = {entry.title: run_query(database, entry.title) for entry in queries_with_runs(database)[::every]}
        whole = {name: rows(database, f"SELECT * FROM {name} ORDER BY ALL") for name in names}
        for name in names:
            keep(database, f"SELECT * FROM {name}")
        assert len(files(database)) > 10
        for title, found in plain.items():
            mirrored = run_query(again, title)
            assert repr(mirrored.rows) == repr(found.rows), title
            assert mirrored.to_arrow().schema.equals(found.to_arrow().schema), title
        for name in names:
            assert repr(rows(again, f"SELECT * FROM {name} ORDER BY ALL")) == repr(whole[name])
        assert list(mirror.find_differing_files(again, QueryEngine(again).extras())) == []


def test_a_file_with_other_rows_than_the_registry_differs(database, make):
    run = make.play(make.checkpoint("a"), [{"plies": unit} for unit in range(9)])
    make.play(make.checkpoint("b"), [{}] * 4)
    keep(database)
    assert list(mirror.find_differing_files(database, {})) == []
    with database.write() as session:
        session.query(tables.Game).filter_by(run_id=run.id, unit=8).update({"plies": 99})
    [path] = mirror.find_differing_files(database, {})
    assert run.id.hex in path.name
    rest = next(other for other in files(database) if other != path)
    rest.write_bytes(rest.read_bytes()[:-20])
    assert sorted(mirror.find_differing_files(database, {})) == files(database)


@pytest.mark.slow
def test_random_damage_never_stops_a_query(database, make):
    make.play(make.checkpoint("a"), [{"plies": unit} for unit in range(50)])
    plain = rows(database)
    keep(database)
    [path] = files(database)
    data, drawn = path.read_bytes(), random.Random(0)
    for _ in range(20):
        place = drawn.randrange(len(data) - 200, len(data))  # the footer
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << drawn.randrange(8))]) + data[place + 1 :])
        assert len(rows(database)) == len(plain)
        path.write_bytes(data)


def test_a_merge_that_sets_the_time_of_completion_back_revives_no_file(database, make, tmp_path):
    run = make.play(make.checkpoint("a"), [{"plies": 1}] * 3)
    copy = migrations.back_up_registry(database.place, tmp_path / "copy.db")
    keep(database)
    with database.write() as session:
        session.get_one(tables.Run, run.id).completed_at += timedelta(seconds=1)
        session.query(tables.Game).filter_by(unit=2).update({"plies": 99})
    merge_source(database, Store.create(tmp_path / "store"), str(copy))
    with database.read() as session, Database.open(copy, create=False) as there, there.read() as theirs:
        assert len({sql.get_one(tables.Run, run.id).completed_at for sql in (session, theirs)}) == 1
    assert sorted(row["plies"] for row in rows(database)) == [1, 1, 99]
