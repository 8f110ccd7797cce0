"""Large complete runs are kept as Arrow files beside the registry: the same answers, without asking SQLite again."""

from datetime import timedelta

import pytest

from chessreg.queries import run_query, run_sql, source
from chessreg.queries.engine import Engine
from chessreg.registry import tables

ALL = "SELECT run_id, unit, plies, result, adjudication_cp, seconds FROM game ORDER BY ALL"


@pytest.fixture
def small(monkeypatch):
    """What counts as large is small here."""
    monkeypatch.setattr(source, "LARGE", 6)
    monkeypatch.setattr(source, "LARGE_RUN", 3)


@pytest.fixture
def fetched(monkeypatch):
    """The columns and rows of table game that SQLite is asked for."""
    found = []
    plain = source._fetch

    def noted(connection, table, names, where, *rest):
        if table == "game":
            found.append(f"{sorted(names)} WHERE {where}")
        return plain(connection, table, names, where, *rest)

    monkeypatch.setattr(source, "_fetch", noted)
    return found


def rows(database, sql=ALL):
    """The answer of a process that has not asked yet."""
    return Engine(database).answer({"q": sql})["q"].to_pylist()


def files(database):
    return sorted(database.place.path.with_suffix(".columns").glob("*"))


def keep(database, sql=ALL):
    engine = Engine(database)
    engine.answer({"q": sql})
    engine.keep()


@pytest.mark.parametrize("sizes", [[4, 4], [1, 9, 2, 5], [3, 2, 2, 2, 2], [20]])
def test_the_answer_is_the_same_with_and_without_them(database, make, small, fetched, sizes):
    checkpoint = make.checkpoint("a")
    for number, size in enumerate(sizes):
        games = [{"plies": 10 * number + unit, "adjudication_cp": unit if unit % 2 else None} for unit in range(size)]
        make.play(checkpoint, games)
    plain = rows(database)
    keep(database)
    assert len(files(database)) == sum(size >= 3 for size in sizes)
    fetched.clear()
    assert rows(database) == plain
    assert len(plain) == sum(sizes)
    assert bool(fetched) == any(size < 3 for size in sizes)
    assert all("run_id IN (" in sql for sql in fetched)


def test_a_catalogue_query_is_the_same_too(database, make, small):
    make.play(make.checkpoint("a"), [{}] * 9)
    plain = run_query(database, "elo by intervention").rows
    keep(database)
    make.checkpoint("b")  # another data version: what is in memory is forgotten
    assert run_query(database, "elo by intervention").rows == plain
    assert plain[0]["n"] == 9


def test_few_rows_are_not_kept_nor_runs_that_are_not_complete(database, make, small):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [{}] * 4, planned=9)
    keep(database)
    assert not files(database)
    make.play(checkpoint, [{}] * 5, planned=9)
    keep(database)
    assert not files(database)


def test_moves_are_read_from_the_registry(database, make, small, fetched):
    make.play(make.checkpoint("a"), [{}] * 9)
    keep(database)
    fetched.clear()
    assert len(rows(database, "SELECT unit, moves FROM game")) == 9
    assert fetched


NOTES = {"depth": 3, "share": 0.1 + 0.2, "note": 'a"b', "won": True, "best": ["e4"]}
EXTRA = "SELECT unit, depth, share, note, won FROM play_game ORDER BY ALL"


def notes(make, version=1, **properties):
    """What a version of the kind `play` says of its games' extra columns."""
    typed = {"depth": "integer", "share": "number", "note": "string", "won": "boolean", "best": "array", **properties}
    schema = {"game": {"properties": {name: {"type": type_} for name, type_ in typed.items()}}}
    make.add(
        tables.KindRecord(name="play", version=version, source="x:X", result_tables=["game"], extra_columns=schema,
                          determinism="exact")
    )  # fmt: skip


def test_extra_columns_are_kept_beside_the_others(database, make, small, fetched):
    notes(make)
    details = [NOTES, None, {**NOTES, "depth": "deep", "won": None}, {}, {"depth": 4}]
    make.play(make.checkpoint("a"), [{"detail": detail} for detail in details])
    make.play(make.checkpoint("b"), [{"detail": {"note": "of another run"}}] * 4)
    plain = rows(database, EXTRA)
    typed = {name: NOTES[name] for name in ("depth", "share", "note", "won")}
    assert plain[0] == {"unit": 0, **typed}
    assert sorted(row["depth"] for row in plain if row["depth"]) == [3, 4]
    assert any("'depth BIGINT'" in asked for asked in fetched)
    keep(database, EXTRA)
    assert len(files(database)) == 2
    fetched.clear()
    assert rows(database, EXTRA) == plain
    assert not fetched
    assert rows(database, "SELECT best FROM play_game ORDER BY ALL")[0] == {"best": '["e4"]'}
    assert fetched


def test_a_file_without_a_column_that_kinds_got_since_is_made_anew(database, make, small, fetched):
    notes(make)
    make.play(make.checkpoint("a"), [{"detail": {**NOTES, "clock": 60 + unit}} for unit in range(9)])
    keep(database, EXTRA)
    notes(make, version=2, clock="integer", depth="number")
    clocks = "SELECT clock, depth FROM play_game ORDER BY ALL"
    assert rows(database, clocks) == [{"clock": 60 + unit, "depth": 3.0} for unit in range(9)]
    assert not files(database)
    keep(database, clocks)
    fetched.clear()
    assert rows(database, clocks)[8] == {"clock": 68, "depth": 3.0}
    assert not fetched


def test_a_run_of_few_units_with_many_rows_is_kept(database, make, small):
    run = make.run("edit", 2)
    common = {"run_id": run.id, "attempt_id": run.attempt_id, "sample": -1, "item": 0, "ply": 4, "text": "e4"}
    make.add(*(tables.Trial(unit=unit, condition=f"random-{n}", **common) for unit in (0, 1) for n in range(5)))
    keep(database, "SELECT unit, condition FROM trial")
    assert [path.name.split("-")[0] for path in files(database)] == ["trial"]


def test_a_run_that_was_done_again_is_read_again(database, make, small, fetched):
    run = make.play(make.checkpoint("a"), [{}] * 9)
    keep(database)
    [before] = files(database)
    with database.write() as session:
        session.get_one(tables.Run, run.id).completed_at += timedelta(seconds=1)
        session.query(tables.Game).filter_by(unit=8).update({"plies": 99})
    fetched.clear()
    assert max(row["plies"] for row in rows(database)) == 99
    assert fetched
    keep(database)
    [after] = files(database)
    assert after != before
    fetched.clear()
    assert max(row["plies"] for row in rows(database)) == 99
    assert not fetched


def test_a_damaged_file_is_thrown_away_and_made_again(database, make, small):
    make.play(make.checkpoint("a"), [{}] * 9)
    plain = rows(database)
    keep(database)
    [path] = files(database)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert rows(database) == plain
    assert not files(database)
    keep(database)
    assert files(database) == [path]


def test_where_the_folder_should_be_is_a_file(database, make, small):
    make.play(make.checkpoint("a"), [{}] * 9)
    database.place.path.with_suffix(".columns").write_text("mine")
    keep(database)
    assert database.place.path.with_suffix(".columns").read_text() == "mine"
    assert len(run_sql(database, ALL).rows) == 9
