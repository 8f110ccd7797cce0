"""Probabilities of legal moves by tree attention equal scoring the moves one by one."""

from __future__ import annotations

import math

import chess
import numpy as np
import pytest
import torch
from torch import Tensor

from chessreg.encodings import Encoding
from chessreg.errors import BadInputError
from chessreg.models.decoding import legal, tree
from chessreg.models.decoding.session import ContextFullError, DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel

CLOSE = 1e-4
GAMES = [
    [],
    ["e4"],
    ["e4", "e5", "Nf3", "Nc6"],
    ["d4", "d5", "c4", "dxc4", "Nf3", "b5", "a4", "c6", "axb5", "cxb5", "b3", "cxb3"],
]


def boards_and_prompts(pgn: Encoding) -> tuple[list[chess.Board], list[list[int]]]:
    boards = []
    for sans in GAMES:
        board = chess.Board()
        for san in sans:
            board.push_san(san)
        boards.append(board)
    return boards, [list(pgn.prompt(sans)) for sans in GAMES]


@pytest.fixture(params=[False, True], ids=["rectangles", "packed"], autouse=True)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of passes: the cost alone determines the choice."""
    monkeypatch.setattr(DecodingSession, "_should_pack", lambda self, rows, counts, history: request.param and history)


def forced(model: LanguageModel, prompt: list[int], ids: list[int], edits: list[ResidualEdit]) -> float:
    """log P of `ids` after `prompt`, one full forward pass per character: the definition of `last`, character by
    character."""
    total = 0.0
    for n, token in enumerate(ids):
        tokens = torch.tensor([prompt + ids[:n]])
        total += float(torch.log_softmax(model.logits(tokens, edits=edits)[0, -1], -1)[token])
    return total


def vector(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


EDITS = {
    "none": [],
    "all": [ResidualEdit(0, vector(1, 4, 32), 2.0)],
    "last": [ResidualEdit(0, vector(5, 32), 3.0, "last"), ResidualEdit(1, vector(6, 4, 32), 2.0, "last", "subtract")],
    "all and last": [ResidualEdit(0, vector(7, 32), 2.0, "all"), ResidualEdit(1, vector(8, 32), 3.0, "last")],
    "a prefix-stable mask": [ResidualEdit(0, vector(9, 32), 3.0, "test-even-ids")],
}


@pytest.mark.parametrize("name", EDITS)
def test_the_tree_equals_scoring_one_by_one(tiny: LanguageModel, pgn: Encoding, name: str) -> None:
    boards, prompts = boards_and_prompts(pgn)
    session = DecodingSession(tiny, 4, EDITS[name])
    session.feed(prompts)
    tokens, logprobs = [list(t) for t in session.tokens], session.logprobs.clone()
    scored = legal.score_legal_moves(session, boards, pgn)
    for row, (board, prompt) in enumerate(zip(boards, prompts, strict=True)):
        own = [edit.take(torch.tensor([row])) for edit in EDITS[name]]
        assert set(scored[row]) == {move.uci() for move in board.legal_moves}
        for move in list(board.legal_moves)[::4]:
            ids = list(pgn.answer(board, move))
            assert scored[row][move.uci()] == pytest.approx(forced(tiny, prompt, ids, own), abs=CLOSE)
        assert 0 < legal.sum_legal_mass(scored[row]) < 1
    assert session.tokens == tokens
    assert torch.equal(session.logprobs, logprobs)
    more = session.feed([[5, 6], [7], [], [8, 9]])  # the cache is as if nothing had been scored
    fresh = DecodingSession(tiny, 4, EDITS[name])
    assert float((fresh.feed([list(t) for t in session.tokens]) - more).abs().max()) <= CLOSE


def test_two_boards_of_a_row_share_one_tree(tiny: LanguageModel, pgn: Encoding) -> None:
    boards, prompts = boards_and_prompts(pgn)
    changed = boards[2].copy(stack=False)
    changed.remove_piece_at(chess.B5 if changed.piece_at(chess.B5) else chess.D2)
    answers = [[pgn.answer(board, move) for move in board.legal_moves] for board in (boards[2], changed)]
    session = DecodingSession(tiny, 1)
    session.feed([prompts[2]])
    [both] = legal.score_answers(session, [answers[0] + answers[1]])
    for ids, value in zip(answers[0] + answers[1], both, strict=True):
        assert value == pytest.approx(forced(tiny, prompts[2], list(ids), []), abs=CLOSE)


def test_small_passes_give_the_same(tiny: LanguageModel, pgn: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    boards, prompts = boards_and_prompts(pgn)
    session = DecodingSession(tiny, 4, [ResidualEdit(0, vector(1, 4, 32), 2.0)])
    session.feed(prompts)
    whole = legal.score_legal_moves(session, boards, pgn)
    some = legal.score_legal_moves(session, [boards[3], boards[1]], pgn, rows=[3, 1])
    monkeypatch.setattr(tree, "TREE_TOKENS", 1)
    for one, other in zip(legal.score_legal_moves(session, boards, pgn), whole, strict=True):
        assert one == pytest.approx(other, abs=CLOSE)
    assert some[0] == pytest.approx(whole[3], abs=CLOSE)
    assert some[1] == pytest.approx(whole[1], abs=CLOSE)


def test_answers_of_one_token_and_no_answers(tiny: LanguageModel) -> None:
    session = DecodingSession(tiny, 2)
    session.feed([[15, 6, 4], [15]])
    scored = legal.score_answers(session, [[(27,), (0,)], []])
    np.testing.assert_allclose(scored[0], session.logprobs[0, [27, 0]].numpy(), atol=1e-6)
    assert len(scored[1]) == 0


def test_moves_that_pass_the_last_position_are_reported(tiny: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(tiny, 2)
    session.feed([[6] * 94, [6] * 95])
    e4 = tuple(pgn.encode("e4 ").tolist())
    [fits] = legal.score_answers(session, [[e4]], rows=[0])
    assert fits[0] == pytest.approx(forced(tiny, [6] * 94, list(e4), []), abs=CLOSE)
    with pytest.raises(ContextFullError) as caught:
        legal.score_answers(session, [[e4], [e4]])
    assert caught.value.rows == [1]
    with pytest.raises(BadInputError, match="without a prompt"):
        legal.score_answers(DecodingSession(tiny, 1), [[e4]])


def test_legal_choices_follow_the_renormalised_distribution() -> None:
    logprobs = {"e2e4": math.log(0.3), "d2d4": math.log(0.1), "g1f3": math.log(0.2)}
    drawn = [legal.choose_legal(logprobs, 1.0, 3, game, 0) for game in range(6000)]
    for move, share in (("e2e4", 0.5), ("d2d4", 1 / 6), ("g1f3", 1 / 3)):
        assert drawn.count(move) / 6000 == pytest.approx(share, abs=0.025)
    assert drawn[:5] == [legal.choose_legal(dict(reversed(logprobs.items())), 1.0, 3, game, 0) for game in range(5)]
    assert legal.choose_legal(logprobs, 0.0) == "e2e4"
    assert legal.sum_legal_mass(logprobs) == pytest.approx(0.6)
    with pytest.raises(BadInputError):
        legal.choose_legal({}, 1.0, 1)


@pytest.mark.slow
def test_the_trained_model_puts_its_mass_on_legal_moves(trained: LanguageModel, pgn: Encoding) -> None:
    boards, prompts = boards_and_prompts(pgn)
    session = DecodingSession(trained, 4)
    session.feed(prompts)
    scored = legal.score_legal_moves(session, boards, pgn)
    assert min(map(legal.sum_legal_mass, scored)) > 0.5
    assert legal.sum_legal_mass(scored[0]) > 0.98
    assert max(scored[0], key=scored[0].__getitem__) in ("e2e4", "d2d4")
    ids = pgn.encode("Bb5 ").tolist()
    assert scored[2]["f1b5"] == pytest.approx(forced(trained, prompts[2], ids, []), abs=CLOSE)
