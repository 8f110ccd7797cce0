"""The behavior of a registry, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from chessreg.errors import BadInputError, RegistryError
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import find_by_suffix, make_id


def fail_half_way(database: Database, rows: Any) -> None:
    with database.write() as session:
        rows.run(session)
        session.flush()
        raise KeyError("half way")


def test_rows_come_back_as_they_went_in(database: Database, rows: Any) -> None:
    with database.write() as session:
        run = rows.run(session)
        session.add_all([rows.point(run.id, step=2**40, value=1e-300), rows.game(run.id, detail={"é": [1, None]})])
        session.add(rows.game(run.id, unit=1, result="*", adjudication_cp=-120))
    with database.read() as session:
        found = session.scalars(select(tables.Run)).one()
        assert (found.spec, found.created_at) == ({"seed": 0}, rows.when)
        assert found.created_at.utcoffset() == timedelta(0)
        point = session.scalars(select(tables.MetricPoint)).one()
        assert (point.step, point.value) == (2**40, 1e-300)
        games = session.scalars(select(tables.Game).order_by(tables.Game.unit)).all()
        assert [(g.result, g.adjudication_cp, g.moves, g.detail) for g in games] == [
            ("1-0", None, b"\x0c\x07", {"é": [1, None]}),
            ("*", -120, b"\x0c\x07", None),
        ]


def test_nothing_said_in_a_json_column_is_null_in_sql(database: Database, rows: Any) -> None:
    with database.write() as session:
        session.add(rows.game(rows.run(session).id, detail=None))
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM game WHERE detail IS NULL")) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(database: Database, rows: Any, value: float) -> None:
    with pytest.raises(BadInputError, match="not a finite number"), database.write() as session:
        session.add(rows.point(rows.run(session).id, value=value))
    with pytest.raises(BadInputError, match="NaN or infinity"), database.write() as session:
        session.add(rows.game(rows.run(session).id, detail={"loss": value}))
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Run)) == 0


def test_times_keep_their_instant_and_need_a_zone(database: Database, rows: Any) -> None:
    with pytest.raises(BadInputError, match="no time zone"), database.write() as session:
        rows.run(session).completed_at = datetime(2026, 1, 1)
    with database.write() as session:
        rows.run(session).completed_at = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    with database.read() as session:
        assert session.scalars(select(tables.Run.completed_at)).one() == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("family", ["point", "game"])
def test_a_result_that_comes_twice_collides_with_itself(database: Database, rows: Any, family: str) -> None:
    with database.write() as session:
        run_id = rows.run(session).id
        session.add(getattr(rows, family)(run_id))
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(getattr(rows, family)(run_id))  # another attempt, the same key


def test_a_block_that_raises_leaves_nothing(database: Database, rows: Any) -> None:
    with pytest.raises(KeyError):
        fail_half_way(database, rows)
    with database.read() as session:
        assert session.scalars(select(tables.Run)).all() == []


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("UPDATE artifact SET state = 'lost'", "ck_artifact_state"),
        ("UPDATE artifact SET bytes = -1", "ck_artifact_bytes"),
        ("UPDATE game SET result = '1/2'", "ck_game_result"),
        ("UPDATE game SET first_try_legal = turns + 1", "ck_game_turns"),
        ("UPDATE unit_range SET stop = start", "ck_unit_range_range"),
        ("UPDATE split SET high = low", "ck_split_part"),
        ("UPDATE annotation SET word = 'shout'", "ck_annotation_word"),
        ("UPDATE registry_state SET id = 2", "ck_registry_state_one_row"),
        ("UPDATE score SET correct = n + 1", "ck_score_correct"),
    ],
)
def test_the_database_itself_refuses_what_cannot_be(
    database: Database, rows: Any, statement: str, constraint: str
) -> None:
    with database.write() as session:
        run, data = rows.run(session), rows.dataset(session)
        session.add_all(
            [
                rows.game(run.id),
                tables.UnitRange(run_id=run.id, start=0, stop=1, attempt_id=make_id()),
                tables.Split(dataset_id=data.id, name="a", seed=1, low=0, high=0.5, games=0, created_at=rows.when),
                tables.Score(run_id=run.id, unit=0, split="test", item=0, attempt_id=make_id(), n=1, correct=1),
                tables.Annotation(
                    id=make_id(),
                    noun="run",
                    target=run.id.hex,
                    word=tables.AnnotationWord.TAG,
                    value="",
                    host="a",
                    at=rows.when,
                ),
            ]
        )
    with pytest.raises(IntegrityError, match=constraint), database.write() as session:
        session.execute(text(statement))


def test_rows_of_no_run_are_refused_and_rows_of_a_deleted_run_go_with_it(database: Database, rows: Any) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(rows.game(make_id()))
    with database.write() as session:
        run = rows.run(session)
        session.add(rows.game(run.id))
        session.flush()
        session.delete(run)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Game)) == 0


def test_a_reader_can_change_nothing(database: Database, rows: Any) -> None:
    with pytest.raises(RegistryError, match="read"), database.read() as session:
        rows.run(session)


def test_a_reader_sees_one_state_while_a_writer_goes_on(database: Database, rows: Any) -> None:
    count = select(func.count()).select_from(tables.Run)
    with database.read() as reading:
        assert reading.scalar(count) == 0
        with database.write() as session:
            rows.run(session)
        assert reading.scalar(count) == 0
    with database.read() as reading:
        assert reading.scalar(count) == 1


def test_the_data_version_tells_exactly_when_rows_changed(database: Database, rows: Any, url: str) -> None:
    seen = [database.data_version()]
    with database.write() as session:
        session.scalars(select(tables.Run)).all()
    assert database.data_version() == seen[-1]
    with pytest.raises(KeyError):
        fail_half_way(database, rows)
    assert database.data_version() == seen[-1]
    with database.write() as session:
        rows.run(session)
    seen.append(database.data_version())
    with Database.open(url) as other:
        assert other.data_version() == seen[-1]
        with other.write() as session:
            session.execute(text("UPDATE run SET units = units + 1"))
    seen.append(database.data_version())
    assert len(set(seen)) == 3


def test_writing_inside_writing_is_a_mistake_that_is_told(database: Database) -> None:
    with database.write(), pytest.raises(RuntimeError, match="inside"), database.write():
        pass
    with database.write() as session:
        assert session.scalar(select(1)) == 1


def test_any_end_of_an_id_that_is_unique_finds_it(database: Database, rows: Any) -> None:
    with database.write() as session:
        ids = [rows.run(session, seed).id for seed in range(40)]
    with database.read() as session:
        for id in ids[:5]:
            assert find_by_suffix(session, tables.Run, id.hex[-8:]) == [id]
            assert find_by_suffix(session, tables.Run, str(id)) == [id]
            assert find_by_suffix(session, tables.Run.id, id.hex[-8:].upper()) == [id]
        assert set(find_by_suffix(session, tables.Run, "3", limit=99)) == {id for id in ids if id.hex.endswith("3")}
        assert find_by_suffix(session, tables.Run, "%") == find_by_suffix(session, tables.Run, "xyz") == []


def test_a_forked_child_uses_connections_of_its_own(database: Database, rows: Any) -> None:
    with database.write() as session:
        rows.run(session, 0)
    child = os.fork()
    if child == 0:
        gc.disable()  # leftovers of other tests are not this child's to end
        try:
            with database.write() as session:
                rows.run(session, 1)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with database.write() as session:
        rows.run(session, 2)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Run)) == 3


WRITER = """
import sys
from chessreg.registry.database import Database
from chessreg.registry import names
from chessreg.registry.identity import make_id
url, number = sys.argv[1:]
done = 0
with Database.open(url) as database:
    while done < 100:
        with database.write() as session:
            for _ in range(5):
                names.add_annotation(session, "run", make_id(), "tag", f"{number}-{done}")
        done += 5
print(done)
"""


def test_four_processes_write_at_once_without_a_lock_error(url: str, processes: Any) -> None:
    done = processes(WRITER, 4, url)
    assert [p.stderr for p in done] == [""] * 4
    assert [int(p.stdout) for p in done] == [100] * 4
    with Database.open(url) as database, database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Annotation)) == 400
        assert database.data_version().endswith(".80")
