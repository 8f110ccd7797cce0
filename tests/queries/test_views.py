"""The views: states of runs, kinds with their own columns, plies from packed moves, names."""

from uuid import UUID

import chess
import pytest
from sqlalchemy import text

from chessreg.errors import BadInputError
from chessreg.games.boards.moves import pack_moves, unpack_moves
from chessreg.queries import run_sql, views
from chessreg.registry import tables
from chessreg.registry.identity import make_id
from chessreg.registry.tables.types import get_utc_now

DETAIL = {
    "score": {
        "properties": {
            "fen": {"type": "string"},
            "checks": {"type": "boolean"},
            "cp": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "weights": {"type": "array", "items": {"type": "number"}},
            "side": {"$ref": "#/$defs/Side"},
            "split": {"type": "string"},
        },
        "$defs": {"Side": {"enum": ["white", "black"], "type": "string"}},
    }
}


def kind(make, name="my-toy", version=1, families=("score", "game"), detail=DETAIL):
    make.add(
        tables.KindRecord(name=name, version=version, source="x:X", result_tables=list(families), extra_columns=detail,
                          determinism="exact")
    )  # fmt: skip


def toy(make, **detail):
    run = make.run("my-toy", 1, name="a-toy")
    make.add(
        tables.Score(run_id=run.id, unit=0, split="toy", item=0, attempt_id=run.attempt_id, n=1, correct=1,
                     detail={"fen": "8/8", "checks": True, "cp": -30, "weights": [0.5], "side": "white", **detail})
    )  # fmt: skip
    return run


def test_a_kind_has_a_view_with_its_own_columns_typed(database, make):
    kind(make)
    run = toy(make, split="the detail's own")
    [row] = run_sql(database, "SELECT * FROM my_toy").rows
    assert row["run_id"] == run.id.hex
    assert (row["run"], row["kind"], row["state"], row["n"]) == ("a-toy", "my-toy", "complete", 1)
    assert (row["fen"], row["checks"], row["cp"], row["weights"], row["side"]) == ("8/8", True, -30, "[0.5]", "white")
    assert (row["split"], row["detail_split"]) == ("toy", "the detail's own")
    assert "detail" not in row
    assert run_sql(database, "SELECT * FROM my_toy_score").rows == [row]
    assert "moves" in run_sql(database, "SELECT * FROM my_toy_game").columns
    assert run_sql(database, "SELECT checks, count(*) AS n FROM my_toy GROUP BY checks").rows == [
        {"checks": True, "n": 1}
    ]


def test_a_kind_that_comes_later_has_its_view_at_once(database, make):
    assert "my_toy" not in {row["name"] for row in run_sql(database, "SHOW TABLES").rows}
    kind(make)
    toy(make)
    assert len(run_sql(database, "SELECT * FROM my_toy")) == 1


def test_the_newest_version_of_a_kind_says_the_types(database, make):
    kind(make)
    newer = {"score": {"properties": {"cp": {"type": "number"}, "more": {"type": "integer"}}}}
    kind(make, version=2, detail=newer)
    toy(make)
    types = {field.name: str(field.type) for field in run_sql(database, "SELECT * FROM my_toy").to_arrow().schema}
    assert (types["cp"], types["more"], types["fen"]) == ("double", "int64", "string")


def test_the_kinds_of_a_family_have_common_views(database, make):
    for name, column, spec in (("edit", "move", {"samples": 5}), ("edit-next-token", "kl", {"future": 6})):
        run = make.run(name, 1, name=f"a-{name}", spec=spec)
        detail = {"piece": "P", column: "1"}
        make.add(
            tables.Trial(run_id=run.id, unit=0, condition="clean", sample=-1, attempt_id=run.attempt_id, item=0, ply=0,
                         text="", detail=detail)
        )  # fmt: skip
    trials = run_sql(database, "SELECT kind, piece, move, kl FROM edits_trial ORDER BY kind").rows
    assert [tuple(row.values()) for row in trials] == [("edit", "P", "1", None), ("edit-next-token", "P", None, 1.0)]
    runs = run_sql(database, "SELECT run, samples, future FROM edits_run ORDER BY kind").rows
    assert [tuple(row.values()) for row in runs] == [("a-edit", 5, None), ("a-edit-next-token", None, 6)]


ODD = [
    "null", "[1]", "{}", "", "{", "12", '{"cp": null}', '{"cp": "7"}', '{"cp": 1.5}', '{"cp": 1e3}', '{"cp": true}',
    '{"cp": {"a": 1}}', '{"cp": 1, "cp": 2}', '{"cp": 12345678901234567890123}', '{"cp": 0.1, "CP": 3}', '{"cp": NaN}',
    '{"cp": -0.0}', '{"cp": "\\ud800"}', '{"cp": "\u265e"}', '{"cp": [7]}',
]  # fmt: skip


@pytest.mark.parametrize("type_", ["integer", "number", "boolean", "string"])
def test_an_extra_column_is_what_its_json_has_under_its_name(database, make, type_):
    kind(make, detail={"score": {"properties": {"cp": {"type": type_}}}})
    toy(make)
    copied = (
        "INSERT INTO score (run_id, unit, split, item, attempt_id, n, correct, detail)"
        " SELECT run_id, unit, split, :item, attempt_id, n, correct, :detail FROM score WHERE item = 0"
    )
    with database.write() as session:
        for item, detail in enumerate(ODD, 1):
            session.execute(text(copied), {"item": item, "detail": detail})
    typed = run_sql(database, "SELECT item, cp FROM my_toy ORDER BY item").rows
    plain = f"TRY_CAST(json_extract_string(detail, '$.\"cp\"') AS {views.JSON_TYPES[type_]})"
    taken = run_sql(database, f"SELECT item, {plain} AS cp FROM score ORDER BY item").rows
    assert repr(typed) == repr(taken)  # also of NaN
    assert len(typed) == 1 + len(ODD)
    assert any(row["cp"] is not None for row in typed[1:])


def test_the_name_of_a_table_stays_the_tables(database, make):
    kind(make, name="probe")
    assert "hook_point" in run_sql(database, "SELECT * FROM probe").columns
    assert "fen" in run_sql(database, "SELECT * FROM probe_score").columns


@pytest.mark.slow
def test_views_are_there_however_a_statement_names_them(database, make):
    make.run("cache", 1, name="one")
    for sql in ("SELECT run FROM RUNS", "SELECT run FROM query_table('ru' || 'ns')", 'SELECT run FROM "Runs"'):
        assert run_sql(database, sql).rows == [{"run": "one"}]
    shown = {row["name"] for row in run_sql(database, "SHOW TABLES").rows}
    assert {"runs", "games", "checkpoints"} <= shown
    listed = run_sql(database, "SELECT table_name FROM information_schema.tables").rows
    assert shown <= {row["table_name"] for row in listed}
    with pytest.raises(BadInputError, match='Did you mean "games'):
        run_sql(database, "SELECT * FROM gamess")


def test_a_kind_with_quotes_in_its_names_does_no_harm(database, make):
    kind(make, name="it's", detail={"score": {"properties": {"a'b\"c": {"type": "string"}}}})
    assert "a'b\"c" in run_sql(database, "SELECT * FROM it_s").columns


def test_how_runs_stand(database, make):
    make.run("cache", 10, name="whole", days=0)
    make.run("cache", 10, name="half", done=4, days=1)
    failed = make.run("cache", 10, name="failed", done=0, days=2)
    running = make.run("cache", 10, name="running", done=3, days=3)
    make.run("cache", 10, name="tagged", days=4, host="box2")
    twice = make.run("cache", 10, name="overlap", done=6, days=5)
    with database.write() as session:
        session.get(tables.Attempt, failed.attempt_id).state = "failed"
        session.get(tables.Attempt, running.attempt_id).state = "running"
        session.add(tables.UnitRange(run_id=twice.id, start=4, stop=8, attempt_id=twice.attempt_id))
        session.add(tables.UnitRange(run_id=twice.id, start=5, stop=7, attempt_id=twice.attempt_id))
    [tagged] = run_sql(database, "SELECT run_id FROM runs WHERE run = 'tagged'").rows
    make.say("run", UUID(tagged["run_id"]), "tag", "b")
    make.say("run", UUID(tagged["run_id"]), "tag", "a")
    rows = run_sql(database, "SELECT run, state, done, planned, tags, machines FROM runs ORDER BY created_at").rows
    assert [tuple(row.values()) for row in rows] == [
        ("whole", "complete", 10, 10, None, "box1"),
        ("half", "partial", 4, 10, None, "box1"),
        ("failed", "failed", 0, 10, None, "box1"),
        ("running", "running", 3, 10, None, "box1"),
        ("tagged", "complete", 10, 10, "a, b", "box2"),
        ("overlap", "partial", 8, 10, None, "box1"),
    ]


def test_names_are_the_newest_and_shared_ones_say_where(database, make):
    first, second, third = (make.checkpoint(name) for name in ("a", "b", None))
    make.say("checkpoint", first.id, "name", "renamed")
    with database.write() as session:  # as after a merge of two registries
        session.add(
            tables.Annotation(id=make_id(), noun="checkpoint", target=third.id.hex, word="name", value="b", host="box9",
                              at=get_utc_now())
        )  # fmt: skip
    found = {r["checkpoint_id"]: r["checkpoint"] for r in run_sql(database, "FROM checkpoints").rows}
    assert found[first.id.hex] == "renamed"
    assert found[third.id.hex] == "b@box9"
    assert found[second.id.hex].startswith("b@")
    make.say("checkpoint", third.id, "name", "b", withdrawn=True)
    found = {r["checkpoint_id"]: r["checkpoint"] for r in run_sql(database, "FROM checkpoints").rows}
    assert (found[second.id.hex], found[third.id.hex]) == ("b", third.id.hex[-6:])


@pytest.mark.parametrize("color", ["white", "black"])
def test_plies_are_the_packed_moves_with_who_moved_and_tries(database, make, color):
    board = chess.Board("8/P6k/8/8/8/8/7p/K7 w - - 0 1")
    moves = [chess.Move.from_uci(m) for m in ("a7a8n", "h2h1q", "a1b2", "h1h2", "b2b3")]
    assert all(board.is_legal(m) and not board.push(m) for m in moves)
    turns = {"white": bytes([2, 1]), "black": bytes([5])}[color]
    game = {"moves": pack_moves(moves), "opening_plies": 2, "plies": 5, "turns": len(turns), "tries": turns,
            "first_try_legal": 0}  # fmt: skip
    make.play(make.checkpoint("a"), [game], color=color)
    rows = run_sql(database, "SELECT * FROM ply ORDER BY ply").rows
    assert [r["uci"] for r in rows] == [m.uci() for m in unpack_moves(pack_moves(moves))] == [m.uci() for m in moves]
    assert [r["ply"] for r in rows] == [0, 1, 2, 3, 4]
    own, other = "model", "opponent"
    movers = {"white": [own, other, own], "black": [other, own, other]}[color]
    assert [r["mover"] for r in rows] == ["opening", "opening", *movers]
    tries = {"white": [2, None, 1], "black": [None, 5, None]}[color]
    assert [r["tries"] for r in rows] == [None, None, *tries]


def test_games_carry_their_arm_and_both_scores(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [{"result": "1/2-1/2"}], intervention=make.intervention(checkpoint, layers=(1, 4), scale=2.0))
    [row] = run_sql(database, "SELECT checkpoint, intervention, score_paper, score_author_2024 FROM games").rows
    assert row == {
        "checkpoint": "a",
        "intervention": "contrastive:skill L1,4 x2",
        "score_paper": 0.5,
        "score_author_2024": None,
    }


def test_every_view_and_table_can_be_read_whole(database, make):
    make.play(make.checkpoint("a"), [{}])
    kind(make)
    for name in [*source_tables(), *views.read_handy_views(), "my_toy"]:
        assert run_sql(database, f'SELECT * FROM "{name}"').columns


def source_tables():
    from chessreg.queries.source import TABLES

    return TABLES


def test_show_tables_lists_views_for_readers_before_those_of_kinds_and_internal_tables(database, make):
    kind(make, name="probe")
    rows = run_sql(database, "show tables;").rows
    assert [row["name"] for row in rows if row["use"] == "view"] == list(views.READER_VIEWS)
    uses = [row["use"] for row in rows]
    assert uses == sorted(uses, key=["view", "kind", "internal"].index)
    assert all(row["meaning"] for row in rows if row["use"] != "internal")
    assert {"probe_score": "kind", "run_now": "internal"}.items() <= {row["name"]: row["use"] for row in rows}.items()
    assert not [row for row in rows if row["name"].startswith("_")]
