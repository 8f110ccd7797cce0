"""How the model's move is chosen."""

from __future__ import annotations

from collections import Counter

import chess
import numpy as np
import pytest
import torch

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.decoding import policies
from chessreg.models.decoding.legal import MoveDistribution, score_legal_moves
from chessreg.models.decoding.policies import ModelTurn, MoveChoice, choose_moves, compute_distributions, make_policy
from chessreg.models.decoding.sampling import sample_trees
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.tree import TokenTree

GAMES = [[], ["e4", "e5"], ["d4", "d5", "c4", "e6"], ["Nf3", "Nf6"], ["e4", "c5", "Nf3", "d6"], ["g3", "g6"]]


def opened(model, pgn, games):
    """A session that holds the prompts of these games, and the turns to play in them."""
    session = DecodingSession(model, len(games))
    session.sync([pgn.prompt(sans) for sans in games])
    turns = []
    for row, sans in enumerate(games):
        board = chess.Board()
        for san in sans:
            board.push_san(san)
        turns.append(ModelTurn(row, board, ("test", row)))
    return session, turns


def test_the_papers_temperatures_are_the_default_of_retry():
    assert make_policy("retry:5").temperatures == (0.001, 0.201, 0.401, 0.5, 0.5)
    assert make_policy("retry:2").temperatures == (0.001, 0.201)
    assert make_policy("retry:3", (0.7,)).temperatures == (0.7, 0.7, 0.7)
    assert make_policy("legal").temperatures == (1.0,)


@pytest.mark.parametrize(
    "text", ["retry", "retry:0", "retry:x", "retry:300", "retry:05", "legal:3", "trie:2", "free:1"]
)
def test_a_policy_that_cannot_be_is_refused(text):
    with pytest.raises(BadInputError):
        make_policy(text)


def test_an_unknown_policy_names_those_that_there_are():
    with pytest.raises(NotFoundError, match="'greedy'") as error:
        make_policy("greedy")
    assert "retry" in error.value.hint
    assert "legal" in error.value.hint


def test_temperatures_must_fit_the_tries():
    with pytest.raises(BadInputError, match="2 temperatures for 5 tries"):
        make_policy("retry:5", (0.1, 0.2))
    with pytest.raises(BadInputError, match="one temperature"):
        make_policy("legal", (1.0, 2.0))


def test_a_policy_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="'legal' is registered"):
        policies.POLICIES.named("legal")(policies.LegalPolicy)


def test_retry_plays_the_first_sample_that_is_legal_and_keeps_the_others_texts(model, pgn):
    policy = make_policy("retry:6", (1.0,))
    session, turns = opened(model, pgn, GAMES * 5)
    choices = choose_moves(policy, session, pgn, turns)
    outcomes = {len(choice.illegal) for choice in choices if choice.move}
    assert len(outcomes) > 1, "the fixture's model no longer needs retries"
    for turn, choice in zip(turns, choices, strict=True):
        alone, (single,) = opened(model, pgn, [GAMES[turn.row % len(GAMES)]])
        keys = [[(*turn.key, attempt) for attempt in range(choice.tries)]]
        [written] = sample_trees(TokenTree(alone), pgn, [single.board], keys, temperature=[1.0] * choice.tries)
        texts = [sample.text for sample in written]
        moves = [pgn.parse(text, single.board) for text in texts]
        assert list(choice.illegal) == [text for text, move in zip(texts, moves, strict=True) if move is None]
        assert choice.move == (moves[-1] if moves[-1] else None)
        assert choice.move is None or choice.move in turn.board.legal_moves


def test_after_a_turn_the_session_continues_as_if_the_game_were_read_afresh(model, pgn):
    session, turns = opened(model, pgn, GAMES)
    choices = choose_moves(make_policy("retry:6", (1.0,)), session, pgn, turns)
    wanted = []
    for turn, choice, sans in zip(turns, choices, GAMES, strict=True):
        played = [*sans, turn.board.san(choice.move)] if choice.move else sans
        wanted.append(list(pgn.prompt(played)))
    reused = session.sync(wanted).clone()
    fresh = DecodingSession(model, len(GAMES))
    assert reused == pytest.approx(fresh.sync(wanted), abs=1e-4)


def test_no_legal_try_is_a_forfeit_with_every_text(model, pgn):
    session, turns = opened(model, pgn, GAMES * 5)
    forfeits = [c for c in choose_moves(make_policy("retry:1", (1.0,)), session, pgn, turns) if c.move is None]
    assert forfeits
    assert all(len(choice.illegal) == 1 and choice.tries == 1 and not choice.is_resignation for choice in forfeits)


def test_a_result_written_as_a_move_resigns_or_is_an_illegal_try(monkeypatch, model, pgn):

    told = iter([*pgn.encode("1-0 ")] * 3)
    monkeypatch.setattr(policies, "draw_tokens", lambda logprobs, heats, noise: np.array([next(told)]))
    session, turns = opened(model, pgn, GAMES[:1])
    assert choose_moves(make_policy("retry:2"), session, pgn, turns) == [MoveChoice(None, (), is_resignation=True)]
    strict = make_policy("retry:2", resigns=False)
    assert choose_moves(strict, session, pgn, turns) == [MoveChoice(None, ("1-0", "1-0"))]


def test_legal_draws_from_the_exact_distribution_and_never_errs(model, pgn):
    session, turns = opened(model, pgn, [GAMES[2]] * 400)
    turns = [ModelTurn(turn.row, turn.board, ("draw", turn.row)) for turn in turns]
    choices = choose_moves(make_policy("legal"), session, pgn, turns)
    board = turns[0].board
    exact = score_legal_moves(session, [board], pgn, [0])[0]
    mass = sum(2.718281828459045**value for value in exact.values())
    assert all(choice.move in board.legal_moves and not choice.illegal for choice in choices)
    assert choices[0].legal_mass == pytest.approx(mass, rel=1e-4)
    best = max(exact, key=exact.__getitem__)
    share = 2.718281828459045 ** exact[best] / mass
    drawn = sum(choice.move.uci() == best for choice in choices) / len(choices)
    assert drawn == pytest.approx(share, abs=4 * (share * (1 - share) / len(choices)) ** 0.5)


def test_legal_at_temperature_zero_plays_the_most_probable_move(model, pgn):
    session, turns = opened(model, pgn, GAMES)
    choices = choose_moves(make_policy("legal", (0.0,)), session, pgn, turns)
    for choice, scores in zip(choices, score_legal_moves(session, [t.board for t in turns], pgn), strict=True):
        assert scores[choice.move.uci()] == max(scores.values())


def test_free_is_the_text_as_it_comes(model, pgn):
    """One try at temperature 1, legal or not."""
    assert make_policy("free").temperatures == (1.0,)
    session, turns = opened(model, pgn, GAMES * 8)
    found = choose_moves(make_policy("free"), session, pgn, turns)
    assert found == choose_moves(make_policy("retry:1", (1.0,)), *(opened(model, pgn, GAMES * 8)[0], pgn, turns))
    assert {choice.move is None for choice in found} == {True, False}
    assert all(pgn.parse(choice.text, turn.board) == choice.move for choice, turn in zip(found, turns, strict=True))


def trie_shares(model, pgn, board, sans):
    """{UCI: probability} under the policy trie at temperature 1: at every token its share of the allowed ones, each
    from a separate forward pass."""
    answers = {move.uci(): ids for move, ids in pgn.answers(board).items()}
    shares = {}
    for uci, ids in answers.items():
        shares[uci] = 1.0
        for depth, token in enumerate(ids):
            allowed = sorted({other[depth] for other in answers.values() if other[:depth] == ids[:depth]})
            logits = model.logits(torch.tensor([[*pgn.prompt(sans), *ids[:depth]]]))[0, -1]
            after = torch.softmax(logits[allowed].double(), -1)
            shares[uci] *= float(after[allowed.index(token)])
    return shares


def test_trie_draws_token_by_token_among_legal_moves(model, pgn):
    count = 500
    session, turns = opened(model, pgn, [GAMES[2]] * count)
    turns = [ModelTurn(turn.row, turn.board, ("draw", turn.row)) for turn in turns]
    choices = choose_moves(make_policy("trie"), session, pgn, turns)
    shares = trie_shares(model, pgn, turns[0].board, GAMES[2])
    assert sum(shares.values()) == pytest.approx(1)
    drawn = Counter(choice.move.uci() for choice in choices)
    assert set(drawn) <= set(shares)
    for uci, share in shares.items():
        assert drawn[uci] / count == pytest.approx(share, abs=4.5 * (share * (1 - share) / count) ** 0.5 + 1e-9)
    legal = compute_distributions(session, pgn, turns[:1])[0].shares()
    assert max(abs(legal[uci] - shares[uci]) for uci in shares) > 0.01, "it should be another distribution than legal's"
    assert not any(choice.illegal for choice in choices)


@pytest.mark.parametrize("policy", ["trie", "legal", "free", "retry:3"])
def test_a_choice_does_not_depend_on_the_batch(model, pgn, policy):
    session, turns = opened(model, pgn, GAMES * 2)
    together = choose_moves(make_policy(policy), session, pgn, turns)
    for turn, choice in zip(turns, together, strict=True):
        alone, _ = opened(model, pgn, [GAMES[turn.row % len(GAMES)]])
        [again] = choose_moves(make_policy(policy), alone, pgn, [ModelTurn(0, turn.board, turn.key)])
        assert (again.move, again.illegal) == (choice.move, choice.illegal)


@pytest.mark.parametrize("policy", ["trie", "legal"])
def test_a_prompt_that_is_too_long_is_read_from_its_newest_tokens(small, pgn, policy):
    """The same as the newest tokens alone, with room for a move."""
    board, sans = chess.Board(), []
    while len(pgn.prompt(sans)) <= small.block_size + 20:
        sans.append(board.san_and_push(sorted(board.legal_moves, key=str)[0]))
    session = DecodingSession(small, 1)
    long = tuple(pgn.prompt(sans))
    [cropped] = choose_moves(make_policy(policy), session, pgn, [ModelTurn(0, board, ("long",), long)])
    fresh = DecodingSession(small, 1)
    fresh.sync([long[-(small.block_size - pgn.max_move_tokens + 1) :]])
    [plain] = choose_moves(make_policy(policy), fresh, pgn, [ModelTurn(0, board, ("long",))])
    assert cropped.move == plain.move


def test_shares_sum_to_one_and_sharpen_with_a_lower_temperature():
    found = MoveDistribution({"e2e4": np.log(0.3), "d2d4": np.log(0.1), "a2a3": -np.inf})
    assert found.legal_mass == pytest.approx(0.4)
    assert found.shares() == pytest.approx({"e2e4": 0.75, "d2d4": 0.25, "a2a3": 0.0})
    assert list(found.shares()) == ["e2e4", "d2d4", "a2a3"]
    assert found.shares(0.5)["e2e4"] == pytest.approx(0.9)
