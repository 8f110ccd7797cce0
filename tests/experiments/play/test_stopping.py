"""Matches that stop early: which games count, under any executor, and the table's values."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from chessreg.entities.checkpoint import import_checkpoint
from chessreg.entities.reproduce import repeat_run
from chessreg.errors import BadInputError
from chessreg.experiments import matches
from chessreg.experiments.engine_match import EngineMatchSpec
from chessreg.experiments.matches import EarlyStopping
from chessreg.experiments.play import Play, PlayOptions, PlaySpec
from chessreg.queries import run_query
from chessreg.registry import tables
from chessreg.runs.task import StopRequest
from chessreg.scheduling import expected_time
from chessreg.scheduling.launch import Order, make_jobs, plan_orders, preview_run
from chessreg.session import open_session

LOST = {"policy": "retry:1", "temperatures": (9.0,), "opening": "random:4"}  # every game is forfeited
VARIED = {"policy": "legal", "opening": "random:6", "move_limit": 14, "adjudication": "nodes=20"}


def played(session, run_id):
    """The results of a run: its games, the outcome of the test, the number of complete units."""
    with session.database.read() as sql:
        game, said = tables.Game, tables.Statistic
        games = sql.execute(
            select(game.unit, game.match, game.opening_number, game.moves, game.result, game.adjudication_cp)
            .where(game.run_id == run_id)
            .order_by(game.unit)
        ).all()
        statistics = sql.execute(
            select(said.unit, said.name, said.value, said.n).where(said.run_id == run_id).order_by(said.unit)
        ).all()
        return [tuple(row) for row in games], [tuple(row) for row in statistics]


def test_a_match_that_loses_every_game_stops_at_once_and_the_table_says_so(session, play):
    report = play(games=400, color="both", stop="sprt:-0.05,0.05", **LOST)
    assert (report.state, report.missing) == ("complete", 0)
    games, [(unit, name, ratio, pairs)] = played(session, report.run_id)
    assert {row[4] for row in games} == {"0-1", "1-0"}  # as White, as Black
    assert len(games) == 2 * pairs == unit + 1 < 60
    assert [row[:3] for row in games] == [(n, n % 2, n // 2) for n in range(len(games))]
    assert name == "sprt:-0.05,0.05 accepts -0.05"
    assert ratio < -2.94
    rows = run_query(session.database, "elo by intervention").rows
    assert [(row["color"], row["n"], row["planned"], row["score"]) for row in rows] == [
        ("black", pairs, 200, 0.0),
        ("white", pairs, 200, 0.0),
    ]
    assert {row["stopped"] for row in rows} == {f"sprt:-0.05,0.05 accepts -0.05 after {pairs} pairs"}
    assert play(games=400, color="both", stop="sprt:-0.05,0.05", **LOST).attempt_id is None  # nothing to do


def test_all_games_lost_by_both_arms_end_undecided_with_the_last_game(session, play):
    base = play(games=30, **LOST)
    arm = play(games=30, seed=1, stop="sprt:-0.05,0.05", against=base.run_id.hex, **LOST)
    games, [(unit, name, ratio, pairs)] = played(session, arm.run_id)
    assert (len(games), unit, pairs) == (30, 29, 30)
    assert name == "sprt:-0.05,0.05 undecided"
    assert ratio == pytest.approx(0.0, abs=1e-6)
    [row] = run_query(session.database, "elo by intervention", run=arm.run_id.hex).rows
    assert row["stopped"] == "sprt:-0.05,0.05 undecided after 30 pairs"


@pytest.mark.slow
@pytest.mark.usefixtures("stockfish")
def test_which_games_count_is_the_same_however_they_are_played(session, play, tmp_path, checkpoint_folder, monkeypatch):
    """One at a time, ten at once, done again, and interrupted after every seventh game."""
    settings = {"games": 300, "color": "both", "stop": "sprt:-0.15,0.15", **VARIED}
    whole = played(session, play({"parallel_games": 1}, **settings).run_id)
    assert 10 <= whole[1][0][3] < 150
    assert len({row[4:] for row in whole[0]}) > 2
    run_id = None
    with open_session(str(tmp_path / "other" / "registry.db"), tmp_path / "other" / "store") as other:
        import_checkpoint(other.database, other.store, checkpoint_folder, name="bigram")
        spec = PlaySpec(checkpoint="bigram", opponent="random", **settings)
        done, counted = EarlyStopping.mark_done, [0]

        def stopping(self, unit):
            done(self, unit)
            counted[0] += 1
            if counted[0] % 7 == 0:
                raise StopRequest

        monkeypatch.setattr(EarlyStopping, "mark_done", stopping)
        state, tries = "", 0
        while state != "complete":
            report = other.run(spec, PlayOptions(device="cpu", threads=1, parallel_games=10))
            state, run_id, tries = report.state, report.run_id, tries + 1
        monkeypatch.undo()
        assert tries > 2
        assert played(other, run_id) == whole
        assert repeat_run(other.database, other.store, run_id).is_equal


def test_games_that_another_process_ends_while_one_begins_are_played_and_counted_all_the_same(
    session, play, monkeypatch
):
    settings = {"games": 60, "color": "both", "stop": "sprt:-0.2,0.2", **LOST}
    read, done, counted = matches.load_game_points, EarlyStopping.mark_done, [0]

    def stopping(self, unit):
        done(self, unit)
        counted[0] += 1
        if counted[0] == 7:
            raise StopRequest

    def meanwhile(sql, run_id):
        if not counted[0]:
            with monkeypatch.context() as patched:
                patched.setattr(matches, "load_game_points", read)
                patched.setattr(EarlyStopping, "mark_done", stopping)
                assert play(**settings).state == "partial"
        with session.database.read() as now:
            return read(now, run_id)

    monkeypatch.setattr(matches, "load_game_points", meanwhile)
    together = play(**settings)
    assert (counted, together.missing_before, together.state) == ([7], 60, "complete")
    [(unit, name, _, pairs)] = played(session, together.run_id)[1]
    assert len(played(session, together.run_id)[0]) == 2 * pairs == unit + 1
    assert "accepts -0.2" in name


@pytest.mark.slow
@pytest.mark.usefixtures("stockfish")
def test_an_arm_is_compared_game_by_game_with_the_match_that_it_names(session, play):
    base = play(games=120, **VARIED)
    arm = play(games=120, seed=1, stop="sprt:-0.3,0.3", against=base.run_id.hex, **VARIED)
    games, [(unit, _, ratio, pairs)] = played(session, arm.run_id)
    assert len(games) == pairs == unit + 1 < 120
    before = {row[0]: row for row in played(session, base.run_id)[0]}
    assert all(before[row[0]][2] == row[2] for row in games)
    assert abs(ratio) > 2.94


def test_a_match_with_other_openings_makes_no_pairs(session, play):
    base = play(games=4, **LOST)
    for setting, text in (({"opening_seed": 1}, "--opening-seed 0"), ({"color": "black"}, "--color white")):
        with pytest.raises(BadInputError, match=f"was played with {text}"):
            play(games=4, stop="sprt:-0.05,0.05", against=base.run_id.hex, **LOST, **setting)
    with pytest.raises(BadInputError, match="has 4 games, and this one has 5") as refused:
        play(games=5, stop="sprt:-0.05,0.05", against=base.run_id.hex, **LOST)
    assert refused.value.hint == "--games 4"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": "sprt:-0.05,0.05"}, "pairs of games"),
        ({"against": "base"}, "--against has no effect without --stop"),
        ({"stop": "sprt:1"}, "is not a stopping rule"),
        ({"stop": "sprt:-0.5,0", "color": "both"}, "the bounds must be between"),
    ],
)
@pytest.mark.parametrize("spec", [PlaySpec, EngineMatchSpec])
def test_a_rule_without_pairs_is_refused(spec, settings, said):
    with pytest.raises(Exception, match=said):
        spec(**{"checkpoint": "m"} if spec is PlaySpec else {}, **settings)


def test_engines_stop_too(session):
    report = session.run(
        EngineMatchSpec(player="capture", opponent="random", games=40, color="both", opening="random:4", move_limit=6,
                        adjudication="none", stop="sprt:-0.05,0.05")
    )  # fmt: skip
    games, [(unit, name, _, pairs)] = played(session, report.run_id)
    assert (len(games), unit) == (40, 39)
    assert pairs < 20  # games that nothing scores make no pair
    assert name.endswith("undecided")


def test_such_a_match_is_one_shard_and_planned_as_one(session, monkeypatch):
    monkeypatch.setattr(expected_time, "estimate_cpu_seconds", lambda kind, estimate: 80.0)
    spec = PlaySpec(checkpoint="bigram", opponent="random", games=40, adjudication="none", color="both")
    for stop, shards in (("none", 4), ("sprt:-0.05,0.05", 1)):
        order = Order(Play(), spec.model_copy(update={"stop": stop}), PlayOptions(), shards=4)
        [planned] = plan_orders([order], session.database, session.store)
        assert len(make_jobs(planned, planned.run_id, session.store, session.store.root)) == planned.shards == shards
        assert preview_run(planned, session.database, session.store)["seconds"] == 80 / shards
