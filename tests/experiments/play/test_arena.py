"""The play loop: games depend only on their own keys."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import chess
import pytest

from chessreg.experiments.matches import MatchRules
from chessreg.experiments.play.arena import Arena, EngineRoles, ModelPlayer
from chessreg.games.boards.openings import make_openings, parse_opening
from chessreg.games.engines.opponents import choose_move, parse_engine, parse_limit
from chessreg.games.engines.pool import EngineMove, EnginePool, Evaluation
from chessreg.models.decoding.policies import make_policy
from chessreg.models.decoding.session import DecodingSession
from tests.quick import quick_first

RANDOM = parse_engine("random")


def arena(model, pool, *, policy="legal", rules=None, opening="random:4", **settings):
    source = parse_opening(opening)
    return Arena(
        ModelPlayer(model, make_policy(policy)),
        rules or MatchRules(chess.WHITE, move_limit=8),
        pool,
        lambda number: make_openings(source, 0, [number])[0],
        noise=(0, 0),
        **settings,
    )


def played(model, count=12, **settings):
    """unit → the finished game."""
    with EnginePool(RANDOM) as pool:
        return {game.unit: game for game in arena(model, pool, **settings).play(range(count))}


def facts(games):
    return {unit: (game.sans, game.end, game.tries, game.illegal) for unit, game in games.items()}


@pytest.mark.parametrize("policy", quick_first(1, ["retry:8", "legal"]))
@pytest.mark.parametrize("color", quick_first(1, [chess.WHITE, chess.BLACK]))
def test_every_batch_size_plays_the_same_games(model, policy, color):
    rules = MatchRules(color, move_limit=6)
    alone = played(model, 10, policy=policy, rules=rules, batch_games=1)
    assert len({tuple(game.sans) for game in alone.values()}) == 10
    for batch in (8, 5):
        together = played(model, 10, policy=policy, rules=rules, batch_games=batch)
        assert facts(together) == facts(alone)


@pytest.mark.parametrize("color", [chess.WHITE, chess.BLACK])
def test_the_model_moves_in_its_turns_only(model, color):
    for game in played(model, rules=MatchRules(color, move_limit=8)).values():
        board = chess.Board()
        turns = 0
        for ply, move in enumerate(game.board.move_stack):
            if ply >= 4 and board.turn == color:
                turns += 1
            elif ply >= 4:
                assert move == choose_move(RANDOM, board, (0, 0, game.unit, ply))
            board.push(move)
        assert turns == len(game.tries) == len(game.legal_mass)


def test_a_game_of_the_legal_policy_has_no_illegal_try_and_stops_at_the_limit(model):
    games = played(model).values()
    assert {game.first_try_legal == len(game.tries) and not game.illegal for game in games} == {True}
    stopped = [game for game in games if str(game.end.termination) == "move_limit"]
    assert stopped
    assert all(game.end.result == "*" and game.ply == 4 + 16 for game in stopped)


def test_a_forfeit_has_all_its_texts_and_no_move(model, pgn):
    games = played(model, policy="retry:2", count=20).values()
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
    rules = MatchRules(chess.WHITE, move_limit=30, context_full=rule)
    games = played(small, count=4, rules=rules).values()
    assert Counter((str(game.end.termination), game.end.result) for game in games)[expected] == 4
    for game in games:
        assert 64 - 10 - 8 < len(pgn.prompt(game.sans)) - 9 <= 64


def test_cropping_plays_on_past_the_context(small):
    games = played(small, count=4, rules=MatchRules(chess.WHITE, 30, "crop"), policy="legal").values()
    assert all(game.ply > 20 for game in games)
    assert "context_full" not in {str(game.end.termination) for game in games}


class HeldPool:
    """Random moves that wait: the oldest `group` searches end once all games search, or nothing else happens."""

    def __init__(self, group, games):
        self.group, self.games, self.open, self.quiet = group, games, [], 0

    def submit(self, game, board, *, key):
        self.open.append((Future(), choose_move(RANDOM, board, key)))
        self.quiet = 0
        return self.open[-1][0]

    def tick(self, games):
        self.quiet += 1
        if len(self.open) == self.games or self.quiet > 2:
            for future, move in self.open[: self.group]:
                future.set_result(EngineMove(move, None, 1, 0.0))
            del self.open[: self.group]


class Watching:
    """A policy that checks the pool while it chooses."""

    def __init__(self, policy, pool):
        self.policy, self.pool, self.seen = policy, pool, []
        self.temperatures, self.move_tokens = policy.temperatures, policy.move_tokens

    def advance(self, session, tokenizer, drafts):
        self.seen.append(len(self.pool.open))
        return self.policy.advance(session, tokenizer, drafts)


def test_engines_search_for_some_games_while_the_model_is_at_others(model):
    pool = HeldPool(group=3, games=6)
    both = arena(model, pool, batch_games=6, tick=pool.tick)
    both.policy = Watching(both.policy, pool)
    games = list(both.play(range(6)))
    assert {game.ply for game in games} == {4 + 16}
    assert both.policy.seen == [0, *[3] * 14, 0]  # at last the others have ended


def test_a_game_that_tries_again_does_not_hold_up_the_others(model):
    passes = []
    with EnginePool(RANDOM) as pool:
        retry = arena(model, pool, policy="retry:40", batch_games=12, rules=MatchRules(chess.WHITE, 5))
        advance = retry.policy.advance

        class Counting:
            temperatures, move_tokens = retry.policy.temperatures, retry.policy.move_tokens

            def advance(self, session, tokenizer, drafts):
                passes.append({len(draft.illegal_texts) for draft in drafts})
                return advance(session, tokenizer, drafts)

        retry.policy = Counting()
        games = list(retry.play(range(12)))
    assert any(len(tries) > 1 for tries in passes), "texts at different tries share a pass"
    written = sum(len(text) + 1 for game in games for _, _, text in game.illegal)
    assert written > 0
    assert len(passes) < written


def test_the_model_hears_which_of_the_two_is_slower(model):
    said = []
    pool = HeldPool(group=4, games=4)
    pool.tick = lambda games: None
    slow = arena(model, pool, batch_games=4, engines_slow=said.append)
    slow.tick = lambda games: HeldPool.tick(pool, games)
    list(slow.play(range(4)))
    assert said in ([], [True])  # how long it waited decides
    slow.wait_s, slow.work_s = 9.0, 1.0
    for _ in range(9):
        slow.wait_s = 9.0
        slow._update_engine_speed()
    assert said == [True]
    for _ in range(9):
        slow.work_s = 9.0
        slow._update_engine_speed()
    assert said == [True, False]
    quick = []
    with EnginePool(RANDOM) as instant:
        list(arena(model, instant, batch_games=4, engines_slow=quick.append).play(range(4)))
    assert quick == []


def test_a_wait_for_engines_can_be_broken_off(model):
    class Enough(Exception):
        pass

    class Mute:
        def submit(self, game, board, *, key):
            return Future()

    ticks = []

    def tick(games):
        ticks.append(1)
        if len(ticks) > 5:
            raise Enough

    with pytest.raises(Enough):
        list(arena(model, Mute(), tick=tick).play(range(4)))


def test_progress_counts_games_that_wait_for_their_evaluation(model):
    pending_evaluations, ticked_counts, yielded_units = [], [], []

    class SlowJudge(EnginePool):
        def analyse(self, board, limit):
            pending_evaluations.append(Future())
            return pending_evaluations[-1]

    def tick(games):
        ticked_counts.append(len(list(games)) + len(yielded_units))
        if pending_evaluations and len(ticked_counts) % 3 == 0:
            pending_evaluations.pop().set_result(Evaluation(0, 1, 0.0))

    rules = MatchRules(chess.WHITE, move_limit=2, adjudicate_at=50)
    with SlowJudge(RANDOM) as pool:
        roles = EngineRoles(adjudicate=parse_limit("nodes=1"))
        for game in arena(model, pool, batch_games=4, rules=rules, roles=roles, tick=tick).play(range(4)):
            yielded_units.append(game.unit)
    assert sorted(yielded_units) == [0, 1, 2, 3]
    assert set(ticked_counts) == {4}


@pytest.mark.parametrize("packable", [False, True])
def test_rows_are_closed_up_when_no_game_waits_and_passes_read_them(model, monkeypatch, packable):
    monkeypatch.setattr(DecodingSession, "packable", packable)
    sizes = []
    with EnginePool(RANDOM) as pool:
        made = arena(model, pool, policy="retry:3", batch_games=16)
        turn = made._run_round
        monkeypatch.setattr(made, "_run_round", lambda: (turn(), sizes.append(len(made.session)))[0])
        assert len(list(made.play(range(20)))) == 20
    assert sizes[0] == 16
    assert sizes[-1] == 16 if packable else sizes[-1] < 8
    assert sizes == sorted(sizes, reverse=True)
