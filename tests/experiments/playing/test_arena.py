"""The play loop: what is played depends on the games' own keys, and nothing else."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import chess
import pytest

from chessreg.experiments.playing.arena import Arena
from chessreg.experiments.playing.game import Rules
from chessreg.experiments.playing.policies import make_policy
from chessreg.games.engines import choose_move, parse_engine
from chessreg.games.openings import openings, parse_opening
from chessreg.games.pool import EngineMove, EnginePool

RANDOM = parse_engine("random")


def arena(model, pgn, pool, *, policy="legal", rules=None, opening="random:4", **settings):
    source = parse_opening(opening)
    return Arena(
        model,
        pgn,
        make_policy(policy),
        rules or Rules(chess.WHITE, move_limit=8),
        pool,
        lambda number: openings(source, 0, [number])[0],
        noise=(0, 0),
        **settings,
    )


def played(model, pgn, count=12, **settings):
    """unit → the finished game."""
    with EnginePool(RANDOM) as pool:
        return {game.unit: game for game in arena(model, pgn, pool, **settings).play(range(count))}


def facts(games):
    return {unit: (game.sans, game.end, game.tries, game.illegal) for unit, game in games.items()}


@pytest.mark.parametrize("policy", ["legal", "retry:8"])
@pytest.mark.parametrize("colour", [chess.WHITE, chess.BLACK])
def test_every_batch_size_and_number_of_groups_plays_the_same_games(model, pgn, policy, colour):
    rules = Rules(colour, move_limit=6)
    alone = played(model, pgn, 10, policy=policy, rules=rules, batch_games=1)
    assert len({tuple(game.sans) for game in alone.values()}) == 10
    for batch, groups in ((8, 2), (5, 3)):
        together = played(model, pgn, 10, policy=policy, rules=rules, batch_games=batch, groups=groups)
        assert facts(together) == facts(alone)


@pytest.mark.parametrize("colour", [chess.WHITE, chess.BLACK])
def test_the_model_moves_in_its_turns_only(model, pgn, colour):
    for game in played(model, pgn, rules=Rules(colour, move_limit=8)).values():
        board = chess.Board()
        turns = 0
        for ply, move in enumerate(game.board.move_stack):
            if ply >= 4 and board.turn == colour:
                turns += 1
            elif ply >= 4:
                assert move == choose_move(RANDOM, board, (0, 0, game.unit, ply))
            board.push(move)
        assert turns == len(game.tries) == len(game.legal_mass)


def test_a_game_of_the_legal_policy_has_no_illegal_try_and_stops_at_the_limit(model, pgn):
    games = played(model, pgn).values()
    assert {game.first_try_legal == len(game.tries) and not game.illegal for game in games} == {True}
    stopped = [game for game in games if str(game.end.termination) == "move_limit"]
    assert stopped
    assert all(game.end.result == "*" and game.ply == 4 + 16 for game in stopped)


def test_a_forfeit_has_all_its_texts_and_no_move(model, pgn):
    games = played(model, pgn, policy="retry:2", count=20).values()
    lost = [game for game in games if str(game.end.termination) == "forfeit_illegal"]
    assert lost
    for game in lost:
        assert game.end.result == "0-1"
        assert [(ply, number) for ply, number, _ in game.illegal[-2:]] == [(game.ply, 0), (game.ply, 1)]
        assert game.tries[-1] == 2
        for ply, _, text in game.illegal:
            board = chess.Board()
            for move in game.board.move_stack[:ply]:
                board.push(move)
            assert pgn.parse(text, board) is None


@pytest.mark.parametrize(
    ("rule", "expected"), [("adjudicate", ("context_full", "*")), ("forfeit", ("context_full", "0-1"))]
)
def test_a_full_context_ends_the_game_as_the_rules_say(small, pgn, rule, expected):
    rules = Rules(chess.WHITE, move_limit=30, context_full=rule)
    games = played(small, pgn, count=4, rules=rules).values()
    assert Counter((str(game.end.termination), game.end.result) for game in games)[expected] == 4
    for game in games:
        assert 64 - 10 - 8 < len(pgn.prompt(game.sans)) - 9 <= 64


def test_cropping_plays_on_past_the_context(small, pgn):
    games = played(small, pgn, count=4, rules=Rules(chess.WHITE, 30, "crop"), policy="legal").values()
    assert all(game.ply > 20 for game in games)
    assert "context_full" not in {str(game.end.termination) for game in games}


class HeldPool:
    """Random moves that wait: the oldest searches of a group end once both groups search, or nothing else happens."""

    def __init__(self, group):
        self.group, self.open, self.quiet = group, [], 0

    def submit(self, game, board, *, key):
        self.open.append((Future(), choose_move(RANDOM, board, key)))
        self.quiet = 0
        return self.open[-1][0]

    def tick(self):
        self.quiet += 1
        if len(self.open) == 2 * self.group or self.quiet > 2:
            for future, move in self.open[: self.group]:
                future.set_result(EngineMove(move, None, 1, 0.0))
            del self.open[: self.group]


class Watching:
    """A policy that looks at the pool while it chooses."""

    def __init__(self, policy, pool):
        self.policy, self.pool, self.temperatures, self.seen = policy, pool, policy.temperatures, []

    def choose(self, session, tokenizer, turns):
        self.seen.append(len(self.pool.open))
        return self.policy.choose(session, tokenizer, turns)


def test_one_groups_engines_search_while_the_other_group_is_at_the_model(model, pgn):
    pool = HeldPool(group=3)
    both = arena(model, pgn, pool, batch_games=6, tick=pool.tick)
    both.policy = Watching(both.policy, pool)
    games = list(both.play(range(6)))
    assert {game.ply for game in games} == {4 + 16}
    assert both.policy.seen == [0, *[3] * 15]


def test_the_model_hears_which_of_the_two_is_slower(model, pgn):
    said = []
    pool = HeldPool(group=4)
    list(arena(model, pgn, pool, batch_games=4, groups=1, tick=pool.tick, engines_slow=said.append).play(range(4)))
    assert said == [True]
    quick = []
    with EnginePool(RANDOM) as instant:
        list(arena(model, pgn, instant, batch_games=4, engines_slow=quick.append).play(range(4)))
    assert quick == []


def test_a_wait_for_engines_can_be_broken_off(model, pgn):
    class Enough(Exception):
        pass

    class Mute:
        def submit(self, game, board, *, key):
            return Future()

    ticks = []

    def tick():
        ticks.append(1)
        if len(ticks) > 5:
            raise Enough

    with pytest.raises(Enough):
        list(arena(model, pgn, Mute(), tick=tick).play(range(4)))


def test_rows_are_closed_up_when_no_game_waits(model, pgn, monkeypatch):
    sizes = []
    with EnginePool(RANDOM) as pool:
        made = arena(model, pgn, pool, policy="retry:3", groups=1, batch_games=16)
        visit = made._visit
        monkeypatch.setattr(made, "_visit", lambda group: (visit(group), sizes.append(len(group.session)))[0])
        assert len(list(made.play(range(20)))) == 20
    assert sizes[0] == 16
    assert sizes[-1] < 8
    assert sizes == sorted(sizes, reverse=True)
