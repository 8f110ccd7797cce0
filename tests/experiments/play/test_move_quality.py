"""Centipawn loss of moves, and matches between engines."""

from __future__ import annotations

import chess
import numpy as np
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.engine_match import EngineMatchOptions, EngineMatchSpec
from chessreg.experiments.move_quality import MoveQualityOptions, MoveQualitySpec
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.engines.opponents import parse_limit
from chessreg.games.engines.pool import EnginePool, count_free_cores
from chessreg.registry import read, tables
from chessreg.runs.kind import find_kind

LIMIT = "nodes=200"


def rows(session, table, **where):
    with session.database.read() as sql:
        found = sql.scalars(select(table).filter_by(**where).order_by(*table.__table__.primary_key)).all()
        sql.expunge_all()
    return found


def judge(session, **settings):
    spec = MoveQualitySpec(**{"judge_limit": LIMIT, **settings})
    return session.run(spec, MoveQualityOptions(device="cpu", threads=1, batch_games=2, engine_processes=2))


def evaluate(moves, ply, played=None):
    """White's centipawns with the engine's own move, or with the played move, by a separate pool."""
    board = chess.Board()
    for move in moves[:ply]:
        board.push(move)
    from chessreg.experiments.move_quality import JUDGE

    with EnginePool(JUDGE, 1) as pool:
        return pool.analyse(board, parse_limit(LIMIT), played).result()


def test_every_move_of_a_matchs_model_is_judged(session, play, stockfish):
    match = play(games=3, policy="legal", opening="random:4", color="black", move_limit=4)
    report = judge(session, play=match.run_id.hex, cap=300)
    assert (report.state, report.units) == ("complete", 3)
    games = {game.unit: unpack_moves(game.moves) for game in rows(session, tables.Game)}
    found = rows(session, tables.Prediction, run_id=report.run_id)
    for unit, moves in games.items():
        judged = [row for row in found if row.unit == unit and row.name == "centipawn_loss"]
        assert [row.item for row in judged] == [ply for ply in range(4, len(moves)) if ply % 2]
        assert [row.text for row in judged] == [moves[row.item].uci() for row in judged]
        for row in judged:
            detail = row.detail
            assert row.value == max(0, detail["best_cp"] - detail["move_cp"]) <= 600
            assert -300 <= detail["move_cp"] <= 300
            assert (row.value == 0) or detail["best"] != row.text
        (game,) = [row for row in found if row.unit == unit and row.name == "game"]
        losses = [row.value for row in judged]
        assert (game.item, game.value, game.detail["median"]) == (-1, np.mean(losses), np.median(losses))
        assert (game.detail["color"], game.detail["judged"], game.detail["illegal"]) == ("black", len(losses), 0)
        assert game.detail["checkpoint_id"] == rows(session, tables.Checkpoint)[0].id.hex
    first = next(row for row in found if row.name == "centipawn_loss")
    best = evaluate(games[0], first.item)
    assert first.detail["best"] == best.move.uci()
    assert first.detail["best_cp"] == max(-300, min(300, -best.score_cp))
    own = evaluate(games[0], first.item, games[0][first.item])
    assert first.detail["move_cp"] == max(-300, min(300, -own.score_cp))
    frames = find_kind("move-quality").board_views({"run_id": report.run_id, "unit": 0}, session.inputs)
    assert len(frames) == sum(row.unit == 0 and row.item >= 0 for row in found)
    assert any("loss" in line for line in frames[0].caption)
    assert all(frame.flipped for frame in frames), "the model has Black"


def test_moves_of_one_run_are_judged_by_one_engine(session, play, stockfish, other_stockfish, forget_unit, monkeypatch):
    match = play(games=2, policy="legal", opening="random:4", move_limit=2)
    report = judge(session, play=match.run_id.hex)
    forget_unit(tables.Prediction, report.run_id, 1)
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(other_stockfish))
    with pytest.raises(BadInputError, match=r"judged by Stockfish .* but .*other-stockfish is Stockfish"):
        judge(session, play=match.run_id.hex)
    monkeypatch.delenv("CHESSREG_STOCKFISH")
    assert judge(session, play=match.run_id.hex).state == "complete"
    with session.database.read() as sql:
        assert [engine["roles"] for engine in read.list_run_engines(sql, report.run_id)] == [["judge"]]


def test_a_mate_played_costs_nothing_and_a_mate_missed_the_cap():
    from chessreg.experiments.move_quality import clip_centipawns

    assert clip_centipawns(9_999, 500) - clip_centipawns(0, 500) == 500
    assert clip_centipawns(9_999, 500) - clip_centipawns(700, 500) == 0
    assert clip_centipawns(-9_990, 500) == -500


def test_first_tries_on_a_datasets_positions(session, stockfish, tmp_path, make_vectors):
    from chessreg.entities.adding import add_dataset

    lines = ["1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 *", "1. d4 d5 2. c4 e6 3. Nc3 Nf6 4. Bg5 Be7 *", "1. c4 c5 2. g3 g6 *"]
    (tmp_path / "g.pgn").write_text("\n\n".join(f'[Event "{n}"]\n\n{line}' for n, line in enumerate(lines)) + "\n")
    add_dataset(session.database, session.store, [tmp_path / "g.pgn"], name="g")
    report = judge(session, checkpoint="bigram", dataset="g", every=2)
    found = rows(session, tables.Prediction, run_id=report.run_id)
    assert report.units == 3
    assert {row.item for row in found if row.name == "centipawn_loss"} == {0, 4}
    for row in found:
        if row.name == "centipawn_loss":
            assert (row.value is None) == (row.detail["legal"] is False)
    game = next(row for row in found if row.name == "game")
    assert (game.detail["intervention_id"], game.detail["color"]) == (None, "white")
    assert judge(session, checkpoint="bigram", dataset="g", every=2).attempt_id is None
    edited = judge(session, checkpoint="bigram", dataset="g", every=2, intervention={"vector": make_vectors()})
    assert edited.run_id != report.run_id
    told = [row for row in rows(session, tables.Prediction, run_id=edited.run_id) if row.name == "game"]
    assert {row.detail["intervention_id"] for row in told} == {rows(session, tables.Intervention)[0].id.hex}
    frames = find_kind("move-quality").board_views({"run_id": report.run_id, "unit": 1}, session.inputs)
    assert [frame.flipped for frame in frames] == [False, False]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"checkpoint": "x"},
        {"play": "a", "dataset": "b"},
        {"play": "a", "black": True},
        {"play": "a", "judge_limit": "time=0.1"},
    ],
)
def test_what_cannot_be_judged_is_refused(settings):
    with pytest.raises(BadInputError):
        MoveQualitySpec(**settings)


# -- matches between engines ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stronger_engine_beats_a_weaker_one(session, stockfish):
    spec = EngineMatchSpec(player="stockfish:20@nodes=200", opponent="random", games=6, opening="random:6",
                           color="black", move_limit=60, adjudication="nodes=200")  # fmt: skip
    report = session.run(spec, EngineMatchOptions())
    games = rows(session, tables.Game, run_id=report.run_id)
    assert [game.unit for game in games] == list(range(6))
    assert all(game.result == "0-1" or (game.result == "*" and game.adjudication_cp < -100) for game in games)
    assert all((game.tries, game.first_try_legal) == (None, None) for game in games)
    assert all(game.turns == (game.plies - 6) // 2 for game in games)
    (match,) = rows(session, tables.Match)
    assert match.player.startswith("Stockfish")
    assert match.player.endswith("level 20, nodes=200")
    assert (match.checkpoint_id, match.opponent, match.policy, match.move_limit) == (None, "random", "engine", 60)
    assert session.run(spec, EngineMatchOptions()).attempt_id is None
    assert (
        len(find_kind("engine-match").board_views({"run_id": report.run_id, "unit": 0}, session.inputs))
        == games[0].plies + 1
    )


def test_a_match_of_engines_has_an_evaluator_only_if_it_stops_games(
    session, stockfish, other_stockfish, forget_unit, monkeypatch
):
    spec = EngineMatchSpec(player="stockfish:0@nodes=10", opponent="random", games=2, move_limit=2, adjudication="none")
    reports = [session.run(spec.model_copy(update={"adjudication": limit})) for limit in ("none", "nodes=100")]
    with session.database.read() as sql:
        roles = [read.list_run_engines(sql, report.run_id)[0]["roles"] for report in reports]
    assert roles == [["player"], ["player", "evaluator"]]
    forget_unit(tables.Game, reports[0].run_id, 1)
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(other_stockfish))
    with pytest.raises(BadInputError, match="played by Stockfish"):
        session.run(spec)


def test_a_match_without_a_limit_goes_to_its_end(session, monkeypatch):
    monkeypatch.setenv("CHESSREG_STOCKFISH", "no-such-engine")  # no position is evaluated
    report = session.run(EngineMatchSpec(player="capture", opponent="random", games=2), EngineMatchOptions())
    games = rows(session, tables.Game, run_id=report.run_id)
    assert "*" not in {game.result for game in games}
    assert rows(session, tables.Match)[0].move_limit is None


def test_under_a_time_limit_no_more_games_than_free_cores(session, stockfish, monkeypatch):
    from chessreg.experiments import engine_match as duel

    seen = []
    init = duel.Duel.__init__
    monkeypatch.setattr(
        duel.Duel, "__init__", lambda self, *a, **k: (init(self, *a, **k), seen.append(self.concurrent_games))[0]
    )
    spec = EngineMatchSpec(player="stockfish:0@time=0.001", opponent="random", games=2, move_limit=2,
                           adjudication="none")  # fmt: skip
    session.run(spec, EngineMatchOptions(engine_processes=64))
    assert seen == [count_free_cores()]
