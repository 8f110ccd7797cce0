"""The scope: which runs and rows a table is made of."""

from datetime import UTC, datetime

import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.queries import Scope, run_query
from chessreg.queries.scope import parse_moment
from chessreg.registry import migrations
from tests.quick import quick_first


@pytest.fixture
def two(database, make):
    """Two checkpoints with a run each, on two machines, ten days apart."""
    old, new = make.checkpoint("old"), make.checkpoint("new")
    make.play(old, [{}] * 2, name="first", host="box1", days=0)
    make.play(new, [{}] * 3, name="second", host="box2", days=10)
    make.old, make.new = old, new
    return make


def counts(database, **options):
    return {row["checkpoint"]: row["n"] for row in run_query(database, "elo", **options).rows}


def test_by_default_everything_complete(database, two):
    assert counts(database) == {"new": 3, "old": 2}


def test_by_name_id_and_several(database, two):
    assert counts(database, checkpoint="old") == {"old": 2}
    assert counts(database, checkpoint=two.new.id.hex) == {"new": 3}
    assert counts(database, checkpoint=("old", "new")) == {"new": 3, "old": 2}
    assert counts(database, run="second") == {"new": 3}
    assert counts(database, run=["first"], checkpoint="new") == {}


def test_an_unknown_name_is_an_error_with_what_comes_near(database, two):
    with pytest.raises(NotFoundError) as caught:
        run_query(database, "elo", checkpoint="olt")
    assert "old" in caught.value.hint
    with pytest.raises(NotFoundError, match="machine 'box3' does not exist") as caught:
        run_query(database, "elo", machine="box3")
    assert "box1" in caught.value.hint
    with pytest.raises(NotFoundError, match="tag 'paper' does not exist"):
        run_query(database, "elo", tag="paper")
    with pytest.raises(BadInputError, match="has no option chekpoint"):
        run_query(database, "elo", chekpoint="old")


@pytest.mark.slow
def test_machine_and_since(database, two):
    assert counts(database, machine="box2") == {"new": 3}
    assert counts(database, since="2026-01-05") == {"new": 3}
    assert counts(database, since="2026-01-11T00:00:00") == {"new": 3}
    assert counts(database, since="2026-01-11T00:00:01+00:00") == {}
    with pytest.raises(BadInputError, match="is not a date"):
        run_query(database, "elo", since="yesterday")


def test_how_long_ago():
    now = datetime(2026, 3, 10, 12, tzinfo=UTC)
    assert parse_moment("7d", now) == datetime(2026, 3, 3, 12, tzinfo=UTC)
    assert parse_moment("36h", now) == datetime(2026, 3, 9, 0, tzinfo=UTC)
    with pytest.raises(BadInputError, match="before the first year"):
        parse_moment("99999999d", now)
    assert parse_moment("2w", now) == datetime(2026, 2, 24, 12, tzinfo=UTC)
    assert parse_moment("2026-03-01T10:00+02:00") == datetime(2026, 3, 1, 8, tzinfo=UTC)


def test_a_run_on_two_machines_can_be_looked_at_by_machine(database, make):
    from chessreg.registry import tables

    run = make.play(make.checkpoint("a"), [{}] * 4, host="box1")
    attempt = make.attempt(run.id, "box2")
    make.add(attempt)
    with database.write() as session:
        for unit in (2, 3):
            session.get(tables.Game, (run.id, unit)).attempt_id = attempt.id
        session.get(tables.Game, (run.id, 3)).result = "0-1"
    assert counts(database, machine="box1") == {"a": 2}
    assert [row["score"] for row in run_query(database, "elo", machine="box2").rows] == [0.5]


def test_tags_of_runs_and_of_checkpoints(database, two):
    runs = run_query(database, "elo", run="first")
    assert len(runs) == 1
    two.say("checkpoint", two.new.id, "tag", "paper")
    assert counts(database, tag="paper") == {"new": 3}
    two.say("checkpoint", two.new.id, "tag", "paper", withdrawn=True)
    with pytest.raises(NotFoundError):
        run_query(database, "elo", tag="paper")


@pytest.mark.parametrize("word", quick_first(1, ["archive", "invalid"]))
def test_what_is_archived_or_invalid_is_left_out_until_taken_back(database, make, word):
    checkpoint = make.checkpoint("a")
    run = make.play(checkpoint, [{}] * 2)
    make.play(checkpoint, [{}] * 3, level=1)
    make.say("run", run.id, word, "wrong engine")
    result = run_query(database, "elo")
    assert [row["n"] for row in result.rows] == [3]
    assert result.notes == [f"left out of the runs: 1 {word.replace('archive', 'archived')}"]
    make.say("run", run.id, word, "wrong engine", withdrawn=True)
    assert [row["n"] for row in run_query(database, "elo").rows] == [2, 3]
    make.say("checkpoint", checkpoint.id, word)
    assert run_query(database, "elo").rows == []


def test_where_narrows_the_table_by_its_columns_and_keeps_the_baseline(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [{}, {"result": "0-1"}])
    make.play(checkpoint, [{"result": "0-1"}] * 2, intervention=make.intervention(checkpoint))
    [row] = run_query(database, "elo", where="intervention <> 'none'").rows
    assert row["delta_score"] == pytest.approx(-0.5)
    assert len(run_query(database, "elo", where="score > 0.4 AND n = 2").rows) == 1


@pytest.mark.slow
def test_where_on_columns_of_the_games_narrows_the_games(database, make):
    make.play(make.checkpoint("a"), [{"plies": p} for p in (10, 20, 30, 40)])
    assert [row["n"] for row in run_query(database, "elo", where="plies > 15 AND unit < 3").rows] == [2]
    with pytest.raises(BadInputError, match="plie") as caught:
        run_query(database, "elo", where="plie > 15")
    assert "the columns are checkpoint, intervention" in caught.value.hint


def test_a_scope_is_named_in_the_footer(database, two):
    meta = run_query(database, "elo", Scope(checkpoint="old", where="n > 1")).meta
    assert meta["scope"] == {"checkpoint": ("old",), "where": "n > 1"}
    assert (meta["rows"], meta["rows_read"]["game"], meta["scoring"]) == (1, 5, "paper")
    assert meta["registry_schema"] == migrations.get_head_revision()
    assert meta["data_version"] == database.data_version()
