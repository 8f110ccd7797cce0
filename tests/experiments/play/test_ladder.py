"""A ladder: rungs of one run, help that is marked, draws that are claimed and evaluated."""

from __future__ import annotations

import functools
from collections import Counter
from concurrent.futures import Future

import chess
import pytest
from sqlalchemy import select

from chessreg.entities.game import list_game_keys, read_stored_games
from chessreg.errors import BadInputError
from chessreg.experiments.matches import MatchRules, PlayedGame
from chessreg.experiments.move_quality import MoveQualitySpec
from chessreg.experiments.play import PlaySpec
from chessreg.experiments.play.arena import Arena, EngineRoles, ModelPlayer
from chessreg.games.boards.openings import Opening
from chessreg.games.engines.assist import can_take_over
from chessreg.games.engines.opponents import Limit, parse_engine
from chessreg.games.engines.pool import EnginePool, Evaluation
from chessreg.models.decoding.policies import MoveChoice, make_policy
from chessreg.queries import run_sql
from chessreg.registry import tables

RUNGS = ("random", "capture")
STALEMATE = "e3 a5 Qh5 Ra6 Qxa5 h5 h4 Rah6 Qxc7 f6 Qxd7+ Kf7 Qxb7 Qd3 Qxb8 Qh7 Qxc8 Kg6"  # and Qe6 ends it
QUEEN_UP = "e4 d5 Bb5+ Qd7 Bxd7+ Kxd7"


def opening_of(text):
    board = chess.Board()
    sans = [board.san_and_push(board.parse_san(word)) for word in text.split()]
    return Opening(0, tuple(move.uci() for move in board.move_stack), tuple(sans))


class Scripted:
    """A policy that plays these moves, one after the other, in every game."""

    temperatures, move_tokens = (1.0,), 10

    def __init__(self, *moves):
        self.moves, self.turns = moves, Counter()

    def advance(self, session, encoding, drafts):
        choices = []
        for draft in drafts:
            choices.append(MoveChoice(chess.Move.from_uci(self.moves[self.turns[draft.row]])))
            self.turns[draft.row] += 1
        return choices


def arena(model, pool, text, policy, color=chess.WHITE, **settings):
    rules = settings.pop("rules", None) or MatchRules(color, 4)
    return Arena(ModelPlayer(model, policy), rules, pool, lambda number: opening_of(text), noise=(0, 0), **settings)


def test_each_rung_has_its_matches_and_all_the_same_openings(session, play):
    report = play(
        {"parallel_games": 5}, ladder=RUNGS, games=4, color="both", policy="legal", opening="random:4", move_limit=4
    )
    assert (report.state, report.units) == ("complete", 8)
    with session.database.read() as sql:
        matches = sql.scalars(select(tables.Match).order_by(tables.Match.number)).all()
        games = sql.scalars(select(tables.Game).order_by(tables.Game.unit)).all()
        assert [(m.opponent, m.color, m.planned) for m in matches] == [
            (rung, color, 2) for rung in RUNGS for color in ("white", "black")
        ]
        assert [g.match for g in games] == [0, 1, 0, 1, 2, 3, 2, 3]
        assert [g.opening_number for g in games] == [0, 0, 1, 1] * 2
        assert [g.moves[:8] for g in games[:4]] == [g.moves[:8] for g in games[4:]]
    rows = session.query("wins by level").rows
    assert [(row["opponent"], row["color"], row["n"], row["planned"]) for row in rows] == [
        (rung, "both", 4, 4) for rung in RUNGS
    ]
    for row in rows:
        assert row["w"] + row["d"] + row["l"] + row["unscored"] == 4
        assert (row["origin"], row["assist"], row["assisted"]) == ("ours", "none", None)


def test_a_rung_plays_the_games_of_a_match_against_it_alone(session, play):
    settings = {"games": 3, "policy": "legal", "opening": "random:4", "move_limit": 5}
    together = play(ladder=("random",), **settings)
    alone = play(opponent="random", **settings)
    assert together.run_id != alone.run_id
    with session.database.read() as sql:
        moves = [
            sql.scalars(select(tables.Game.moves).where(tables.Game.run_id == run).order_by(tables.Game.unit)).all()
            for run in (together.run_id, alone.run_id)
        ]
    assert moves[0] == moves[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ladder": ("random", "random")}, "random twice"),
        ({"ladder": ("stockfish:1-0",)}, "names no level"),
        ({"ladder": ("stockfish:0-21",)}, "levels -1 to 20"),
        ({"ladder": ("lc0",)}, "does not name an engine"),
        ({"ladder": RUNGS, "opponent": "capture"}, "both set the model's opponent"),
        ({"ladder": RUNGS, "color": "both", "games": 3}, "cannot be divided into pairs of both colors"),
        ({"ladder": RUNGS, "color": "both", "stop": "sprt:-0.05,0.05"}, "a ladder has several"),
        ({"assist": "author", "evaluate_draws": "soon"}, "no engine limit|not an engine limit"),
    ],
)
def test_a_ladder_that_says_nothing_clear_is_refused(settings, said):
    with pytest.raises((BadInputError, ValueError), match=said):
        PlaySpec(checkpoint="m", **settings)


def test_levels_are_spelt_out_and_a_stored_ladder_reads_as_itself():
    spec = PlaySpec(checkpoint="m", ladder=("random", "Stockfish:0-2@nodes=10"))
    levels = tuple(f"stockfish:{level}@nodes=10" for level in range(3))
    assert (spec.ladder, spec.opponent) == (("random", *levels), "random")
    assert PlaySpec(**spec.model_dump()) == spec


class AdvisingPool:
    """Random moves, and advice of five lines whose worst has the given evaluations, one after the other."""

    def __init__(self, *worst):
        self.worst, self.asked = list(worst), []

    def submit(self, game, board, *, key):
        future = Future()
        future.set_result(Evaluation(0, 1, 0.0, min(board.legal_moves, key=chess.Move.uci)))
        return future

    def lines(self, board, limit, number):
        assert (limit.text, number) == ("depth=10", 5)
        self.asked.append(board.copy())
        moves = sorted(board.legal_moves, key=chess.Move.uci)[:5]
        scores = [900 if board.turn else -900] * 4 + [self.worst.pop(0)]
        future = Future()
        future.set_result([Evaluation(score, 1, 0.0, move) for score, move in zip(scores, moves, strict=True)])
        return future


@pytest.mark.parametrize("color", [chess.WHITE, chess.BLACK])
def test_help_comes_where_the_worst_of_five_moves_wins_and_is_marked(model, color):
    sign = 1 if color else -1
    pool = AdvisingPool(800 * sign, 20 * sign, 9_990 * sign)
    [game] = arena(
        model, pool, "", make_policy("legal"), roles=EngineRoles(assist="author"), rules=MatchRules(color, 3)
    ).play([0])
    first = 0 if color else 1
    assert [board.ply() for board in pool.asked] == [first, first + 2, first + 4]
    assert game.assisted_plies == [first, first + 4]
    for ply in game.assisted_plies:
        assert game.board.move_stack[ply] == min(pool.asked[(ply - first) // 2].legal_moves, key=chess.Move.uci)
    assert [tries == 0 for tries in game.tries] == [True, False, True]
    assert (len(game.legal_mass), game.first_try_legal) == (1, 1)


@pytest.mark.parametrize("color", [chess.WHITE, chess.BLACK])
def test_help_counts_wins_and_not_expected_points(color):
    sign = 1 if color else -1
    line = functools.partial(Evaluation, nodes=1, seconds=0.0)
    surely = [line(score * sign) for score in (9_998, 900, 213)]
    assert can_take_over(surely, color)
    assert not can_take_over([*surely, line(212 * sign)], color)
    assert not can_take_over([line(200 * sign)], color), "0.992 of a point, but 984 of 1,000 games won"
    assert not can_take_over([line(-9_998 * sign)], color)
    assert not can_take_over([], color)


def test_help_on_repetition_asks_in_no_other_position(model):
    pool = AdvisingPool(800, 800)
    helped = EngineRoles(assist="on-repetition")
    shuffled = arena(model, pool, "Nf3 Nf6 Ng1 Ng8", make_policy("legal"), roles=helped, rules=MatchRules(True, 2))
    [game] = shuffled.play([0])
    assert (len(pool.asked), game.assisted_plies) == (1, [4])  # the start position has been there before
    lost = AdvisingPool(-30)
    [game] = arena(model, lost, "Nf3 Nf6 Ng1 Ng8", make_policy("legal"), roles=helped).play([0])
    assert (len(lost.asked), game.assisted_plies) == (1, [])


def test_helped_plies_stand_in_rows_boards_and_tables(session, play, stockfish, tmp_path):
    (tmp_path / "queen.pgn").write_text(f'[Event "x"]\n\n{QUEEN_UP} *\n\n')
    report = play(ladder=("random",), games=2, policy="legal", opening=f"book:{tmp_path / 'queen.pgn'}", move_limit=3,
                  assist="author", color="both")  # fmt: skip
    helped, alone = read_stored_games(session.database, list_game_keys(session.database, report.run_id))
    assert helped.assisted_plies == list(range(6, helped.game.plies, 2))  # White is a queen up
    assert alone.assisted_plies == []
    assert helped.game.turns == 0
    assert alone.game.turns == len(alone.game.tries) > 0
    assert (helped.game.detail["assisted"], alone.game.detail["assisted"]) == (len(helped.assisted_plies), 0)
    marked = [ply for ply, view in enumerate(helped.board_views()) if "Stockfish moved for the model" in view.caption]
    assert marked == [ply + 1 for ply in helped.assisted_plies]
    assert helped.record().headers["AssistedPlies"] == " ".join(map(str, helped.assisted_plies))
    movers = run_sql(session.database, "SELECT unit, mover, count(*) AS n FROM ply GROUP BY ALL").rows
    assert {row["mover"] for row in movers if row["unit"] == 0} == {"opening", "assist", "opponent"}
    assert {row["mover"] for row in movers if row["unit"] == 1} == {"opening", "model", "opponent"}
    [row] = session.query("wins by level").rows
    assert (row["assist"], row["assisted"], row["rules"]) == ("author", len(helped.assisted_plies), row["rules"])
    assert "assist author" in row["rules"]


def test_moves_that_stockfish_played_are_not_judged_as_the_models(session, play, stockfish, tmp_path):
    (tmp_path / "queen.pgn").write_text(f'[Event "x"]\n\n{QUEEN_UP} *\n\n')
    match = play(opponent="random", games=2, policy="legal", opening=f"book:{tmp_path / 'queen.pgn'}", move_limit=2,
                 assist="author", color="both")  # fmt: skip
    report = session.run(MoveQualitySpec(play=match.run_id.hex, judge_limit="nodes=10"))
    with session.database.read() as sql:
        found = sql.execute(
            select(tables.Prediction.unit, tables.Prediction.item).where(
                tables.Prediction.run_id == report.run_id, tables.Prediction.name == "centipawn_loss"
            )
        ).all()
    assert {unit for unit, _ in found} == {1}, "White's moves were all Stockfish's"
    assert {item % 2 for _, item in found} == {1}


def test_a_repetition_is_a_draw_where_draws_are_claimed_and_else_plays_on(model):
    text = "Nf3 Nf6 Ng1 Ng8 Nf3 Nf6 Ng1"  # Black's Ng8 makes the start position's third time
    ends = []
    for claimed in (True, False):
        game = PlayedGame(0, opening_of(text), MatchRules(chess.BLACK, 4, claim_draws=claimed))
        assert game.end is None
        game.push(chess.Move.from_uci("f6g8"))
        ends.append(game.end and (str(game.end.termination), game.end.result))
    assert ends == [("threefold_repetition", "1/2-1/2"), None]
    quiet = PlayedGame(0, opening_of(""), MatchRules(chess.WHITE, 4, claim_draws=True))
    quiet.board.halfmove_clock = 99
    quiet.push(chess.Move.from_uci("g1f3"))
    assert str(quiet.end.termination) == "fifty_moves"


def test_a_drawn_game_is_evaluated_as_it_stood_before_the_models_last_move(model, stockfish):
    with EnginePool(parse_engine("random")) as pool:
        drawn = arena(model, pool, STALEMATE, Scripted("c8e6"), roles=EngineRoles(judge_draws=Limit("nodes", 2000)))
        [game] = drawn.play([0])
    assert (str(game.end.termination), game.end.result) == ("stalemate", "1/2-1/2")
    assert game.find_last_choice().fen() == opening_of(STALEMATE).board().fen()
    assert game.draw_cp > 300, "White was winning before it gave stalemate"
    assert game.adjudication_cp is None


def test_draws_are_told_by_evaluation_from_the_models_side(session, play, stockfish, tmp_path, monkeypatch):
    (tmp_path / "book.pgn").write_text(f'[Event "x"]\n\n{STALEMATE} *\n\n')
    scripted = lambda player, *rest, **settings: Arena(ModelPlayer(player.model, Scripted("c8e6")), *rest, **settings)
    monkeypatch.setattr("chessreg.experiments.play.Arena", scripted)
    played = play(
        games=1, opening=f"book:{tmp_path / 'book.pgn'}", evaluate_draws="nodes=2000", move_limit=4, policy="legal"
    )
    [row] = session.query("draws by evaluation").rows
    assert (row["evaluation"], row["n"], row["draws"], row["others"], row["games"]) == ("from +100", 1, 1, 0, 1)
    [stored] = read_stored_games(session.database, list_game_keys(session.database, played.run_id))
    assert "for the model" in stored.board_views()[-1].caption[-1]
