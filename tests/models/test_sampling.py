"""Sampling is the model's distribution, and does not depend on the batch."""

from __future__ import annotations

from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import Encoding
from chessreg.models.decoding.sampling import SampledText, draw_tokens, sample_trees
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.tree import TokenTree
from chessreg.models.language_model import LanguageModel

PROMPTS = [";1.", ";1.e4 ", ";1.e4 e5 2.", ";1.d4 d5 2.c4 e6 3.Nc3 ", ";1.Nf3 d5 2."]


def keys(rows: list[int]) -> list[tuple[int | str, ...]]:
    return [(7, row, 0) for row in rows]


def sampled(
    session: DecodingSession, pgn: Encoding, keys: list[tuple[int | str, ...]], heat: float = 1.0, **settings: Any
) -> list[SampledText]:
    """One text a row, on the initial board: where a token ends a move, the board does not matter."""
    boards, each = [chess.Board()] * len(keys), [[key] for key in keys]
    texts = sample_trees(TokenTree(session), pgn, boards, each, temperature=[heat], **settings)
    return [text for [text] in texts]


def test_a_sample_does_not_depend_on_its_batch(tiny: LanguageModel, pgn: Encoding) -> None:
    ids = [pgn.encode(text).tolist() for text in PROMPTS]
    together = DecodingSession(tiny, 5)
    together.feed(ids)
    many = sampled(together, pgn, keys([0, 1, 2, 3, 4]))
    for row in range(5):
        alone = DecodingSession(tiny, 1)
        alone.feed([ids[row]])
        [one] = sampled(alone, pgn, keys([row]))
        assert (one.text, one.tokens, one.finished) == (many[row].text, many[row].tokens, many[row].finished)
        assert one.logprob == pytest.approx(many[row].logprob, abs=1e-4)
    assert len({tuple(sample.tokens) for sample in many}) > 1


def test_the_session_comes_back_as_it_was(tiny: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(tiny, 5)
    session.feed([pgn.encode(text) for text in PROMPTS])
    tokens, logprobs = [list(t) for t in session.tokens], session.logprobs.clone()
    sampled(session, pgn, keys([0, 1, 2, 3, 4]))
    assert session.tokens == tokens
    assert torch.equal(session.logprobs, logprobs)


def test_a_text_ends_at_its_stop_token(tiny: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(tiny, 5)
    session.feed([pgn.encode(text) for text in PROMPTS])
    samples = sampled(session, pgn, keys(list(range(5))))
    assert any(sample.finished for sample in samples)
    for sample in samples:
        assert sample.finished == (sample.tokens[-1] in pgn.stop_ids)
        assert sample.text == pgn.decode([t for t in sample.tokens if t not in pgn.stop_ids])


def test_greedy_is_argmax_by_full_recompute(tiny: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(tiny, 1)
    prompt = pgn.encode(";1.e4 ").tolist()
    session.feed([prompt])
    [sample] = sampled(session, pgn, keys([0]), 0.0, max_tokens=7)
    tokens, total = list(prompt), 0.0
    for written in sample.tokens:
        logprobs = torch.log_softmax(tiny.logits(torch.tensor([tokens]))[0, -1], -1)
        assert int(logprobs.argmax()) == written
        total += float(logprobs[written])
        tokens.append(written)
    assert sample.logprob == pytest.approx(total, abs=1e-4)
    assert sample.finished or len(sample.tokens) == 7


def test_draws_follow_the_distribution_at_each_temperature() -> None:
    logprobs = np.log(np.array([0.5, 0.0, 0.3, 0.2]) + 1e-300)
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    for temperature in (1.0, 0.5):
        weights = np.array([0.5, 0.0, 0.3, 0.2]) ** (1 / temperature)
        drawn = draw_tokens(np.tile(logprobs, (20_000, 1)), np.full(20_000, temperature), uniforms)
        shares = np.bincount(drawn, minlength=4) / 20_000
        np.testing.assert_allclose(shares, weights / weights.sum(), atol=1e-4)
    assert draw_tokens(logprobs[None], np.zeros(1), np.array([0.99])).tolist() == [0]
    assert draw_tokens(logprobs[None], np.ones(1), np.array([np.nextafter(1.0, 0.0)])).tolist() == [3]


def test_first_characters_of_many_samples_fit_the_model(tiny: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(tiny, 1)
    session.feed([pgn.encode(";1.")])
    expected = session.logprobs[0].exp().numpy()
    keys = [[(1, i) for i in range(4000)]]
    [samples] = sample_trees(TokenTree(session), pgn, [chess.Board()], keys, temperature=[1.0] * 4000, max_tokens=1)
    counts = np.bincount([sample.tokens[0] for sample in samples], minlength=32)
    usual = expected * 4000 >= 5
    deviation = ((counts - expected * 4000) ** 2 / (expected * 4000))[usual].sum()
    assert deviation < 2.5 * usual.sum()  # chi square: its mean is the number of cells less one


def test_the_trained_model_writes_openings_in_legal_moves(trained: LanguageModel, pgn: Encoding) -> None:
    session = DecodingSession(trained, len(PROMPTS))
    session.feed([pgn.encode(text) for text in PROMPTS])
    for text, sample in zip(PROMPTS, sampled(session, pgn, keys(list(range(5))), 0.0), strict=True):
        board = chess.Board()
        for word in text[1:].split():
            if san := word.split(".")[-1]:
                board.push_san(san)
        assert sample.finished
        assert pgn.parse(sample.text, board) in board.legal_moves
