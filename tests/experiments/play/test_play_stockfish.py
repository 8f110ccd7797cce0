"""Matches against a real Stockfish."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from chessreg.entities.game import EVALUATION_LIMITS, build_full_record, read_stored_games
from chessreg.errors import BadInputError
from chessreg.games.engines.opponents import identify_engine
from chessreg.registry import read, tables


@pytest.fixture(autouse=True)
def _needs_stockfish(stockfish):
    pass


def games_of(session):
    with session.database.read() as sql:
        found = sql.scalars(select(tables.Game).order_by(tables.Game.unit)).all()
        sql.expunge_all()
    return found


@pytest.mark.parametrize("color", ["white", "black"])
def test_stockfish_plays_and_is_recorded_as_it_is(session, play, color):
    play({"parallel_games": 4}, games=6, opponent="stockfish:0@nodes=20", policy="legal", color=color,
         opening="random:4", move_limit=5, adjudication="nodes=200")  # fmt: skip
    with session.database.read() as sql:
        (engine,) = sql.scalars(select(tables.Engine)).all()
        (match,) = sql.scalars(select(tables.Match)).all()
        assert (match.opponent, match.level, match.limit) == ("stockfish:0@nodes=20", 0, "nodes=20")
        identity = identify_engine()
        assert (engine.name, engine.version, engine.binary_sha256) == (identity.name, identity.version, identity.sha256)
        assert engine.options["Threads"] == "1"
    games = games_of(session)
    assert len(games) == 6
    for game in games:
        assert (game.adjudication_cp is not None) == (game.termination == "move_limit")
        assert (game.result == "*") == (game.termination == "move_limit")
    assert any(game.termination == "move_limit" for game in games)


def test_a_stopped_game_against_a_random_mover_is_evaluated_by_stockfish(session, play):
    play(games=3, opponent="capture", policy="legal", move_limit=3, adjudication="nodes=200")
    assert [(game.result, game.termination) for game in games_of(session)] == [("*", "move_limit")] * 3
    assert all(abs(game.adjudication_cp) <= 10_000 for game in games_of(session))


@pytest.mark.parametrize(
    "settings", [{"adjudication": "nodes=100"}, {"evaluate_draws": "nodes=100"}, {"assist": "author"}]
)
def test_the_evaluating_engine_is_recorded_and_must_not_change(
    session, play, stockfish, other_stockfish, forget_unit, monkeypatch, settings
):
    settings = {"games": 2, "policy": "legal", "move_limit": 2, **settings}
    report = play({"parallel_games": 1}, **settings)
    with session.database.read() as sql:
        [engine] = read.list_run_engines(sql, report.run_id)
        match = sql.get_one(tables.Match, (report.run_id, 0))
    identity = identify_engine()
    assert engine == {
        "name": "Stockfish", "version": identity.version, "binary_sha256": identity.sha256, "roles": ["evaluator"]
    }  # fmt: skip
    limits = {"nodes=100"} if "assist" not in settings else {match.detail["assist_limit"]}
    assert limits <= {match.detail.get(name) for name in EVALUATION_LIMITS}
    forget_unit(tables.Game, report.run_id, 1)
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(other_stockfish))
    with pytest.raises(BadInputError) as refusal:
        play(**settings)
    assert f"evaluated by Stockfish {identity.version} (sha256 {identity.sha256[:12]})" in str(refusal.value)
    assert f"but {other_stockfish} is Stockfish" in str(refusal.value)
    with session.database.write() as sql:  # as recorded by an earlier version
        old = sql.get_one(tables.Match, (report.run_id, 0))
        old.detail = {name: value for name, value in old.detail.items() if name != read.EVALUATORS}
    assert play(**settings).state == "complete"
    with session.database.read() as sql:
        assert read.list_run_engines(sql, report.run_id) == []


def test_the_evaluating_engine_is_shown_with_its_games(session, play):
    report = play(games=1, policy="legal", move_limit=2, adjudication="nodes=100", opening="random:2")
    identity = identify_engine()
    [stored] = read_stored_games(session.database, [(report.run_id, 0)])
    assert stored.record().headers["Evaluator"] == f"Stockfish {identity.version}, adjudication: nodes=100"
    assert stored.record().headers["EvaluatorSha256"] == identity.sha256
    assert any(f"by Stockfish {identity.version}, nodes=100" in line for line in stored.board_views()[-1].caption)
    assert [engine["binary_sha256"] for engine in build_full_record(stored)["evaluators"]] == [identity.sha256]
    [row] = session.query("elo by intervention").rows
    assert row["evaluator"] == f"Stockfish {identity.version} (sha256 {identity.sha256[:12]})"


def test_engines_are_listed_by_show_and_reproduce(session, play, capsys):
    from chessreg.cli.root import run_command_line

    report = play(games=1, policy="legal", move_limit=2, adjudication="nodes=100", opponent="stockfish:0@nodes=10")
    identity, registry = identify_engine(), session.database.reference
    for command, line in (
        (["runs", "show"], f"Stockfish, opponent and evaluator  {identity.version}, sha256 {identity.sha256[:12]}"),
        (["reproduce"], f"# opponent and evaluator: Stockfish {identity.version} (sha256 {identity.sha256[:12]})"),
    ):
        assert run_command_line(["--registry", registry, *command, report.run_id.hex[-6:]]) == 0
        assert line in capsys.readouterr().out


def test_the_level_below_zero_plays(session, play):
    play(games=2, opponent="stockfish:-1", policy="legal", move_limit=3, adjudication="none")
    assert [game.plies for game in games_of(session)] == [6, 6]


def test_no_engine_outlives_a_run(session, play):
    import psutil

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    play(games=2, opponent="stockfish:0@nodes=20", policy="legal", move_limit=3, adjudication="nodes=50")
    after = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not after


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_level_0_is_stronger_with_more_nodes_though_it_chooses_after_sixty(session):
    """Apparently an effect of its hash table: 400 games of 1,000 nodes as White, half against 1,000 nodes, half against
    10,000."""
    from chessreg.experiments.engine_match import EngineMatchSpec

    scores = []
    for nodes in (1000, 10000):
        spec = EngineMatchSpec(
            player="stockfish:0@nodes=1000",
            opponent=f"stockfish:0@nodes={nodes}",
            games=200,
            adjudication="nodes=10000",
        )
        session.run(spec, name=f"nodes-{nodes}")
        [row] = session.query("elo by intervention", run=f"nodes-{nodes}").rows
        scores.append(row["score"])
    assert scores[0] - scores[1] > 0.03
