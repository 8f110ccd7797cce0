"""Matches against a real Stockfish."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from chessreg.games.engines.opponents import identify_engine
from chessreg.registry import tables


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
