"""The two exact masses of a legal move, against brute force and against sampled texts."""

from __future__ import annotations

import math
import re
from importlib.resources import as_file, files

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import Encoding
from chessreg.games.boards.openings import OpeningSpec, make_openings
from chessreg.models.decoding import legal
from chessreg.models.decoding.policies import ModelTurn, choose_moves, make_policy
from chessreg.models.decoding.sampling import draw_tokens, sample_trees
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.tree import TokenTree
from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel
from chessreg.noise import uniform

EDITS = {
    "none": [],
    "last": [ResidualEdit(0, torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), 2.0, "last", "subtract")],
    "all": [ResidualEdit(0, torch.randn(3, 32, generator=torch.Generator().manual_seed(2)), 2.0)],
}


def bundled() -> LanguageModel:
    with as_file(files("chessreg") / "data" / "reference-model") as folder:
        return LanguageModel.load(folder)


def positions(pgn: Encoding, count: int) -> tuple[list[chess.Board], list[tuple[int, ...]]]:
    """Boards with White to move after random openings of 4, 8, 12 … plies, and their prompts."""
    boards, prompts = [], []
    for number in range(count):
        [opening] = make_openings(OpeningSpec("random", str(4 + 4 * (number % 8))), 0, [number])
        boards.append(opening.board())
        prompts.append(pgn.prompt(opening.sans))
    return boards, prompts


@pytest.mark.parametrize("name", EDITS)
def test_every_spelling_is_summed(tiny: LanguageModel, pgn: Encoding, name: str, monkeypatch) -> None:
    """Each text times the probability that it ends there, one after the other, is the walked mass."""
    monkeypatch.setattr(legal, "MIN_PREFIX_PROBABILITY", 0.0)
    boards = [chess.Board(), chess.Board("8/P6k/8/8/8/8/8/K7 w - - 0 1"), chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")]
    session = DecodingSession(tiny, 3, EDITS[name])
    session.feed([pgn.encode(";1."), pgn.encode(";1.e4 e5 2."), pgn.encode(";1.e4 e5 2.Nf3 Nc6 3.")])
    canonical = [sorted(ids[:-1] for ids in pgn.answers(board).values()) for board in boards]
    pairs = [[pgn.accepted_ids(board) for board in boards], canonical]
    tries = [legal.Trie.from_sets([pairs[0][row], pairs[1][row]]) for row in range(3)]
    ends = [*pgn.stop_ids, *pgn.boundary_ids]
    for limit in (10, 4):
        found = legal.compute_accepted_masses(TokenTree(session), tries, pgn, limit, sets=2)
        for row, one in enumerate(found):
            for number, mass in enumerate(one):
                fitting = sorted(ids for ids in pairs[number][row] if len(ids) <= limit)
                ended = [(*ids, end) for ids in fitting for end in ends]
                cut = [ids for ids in fitting if len(ids) == limit]
                kept = [ids for ids in ended if len(ids) <= limit] + cut
                [logprobs] = legal.score_answers(session, [kept], rows=[row])
                assert mass.probability == pytest.approx(float(np.exp(logprobs).sum()), rel=1e-4)
                assert mass.unexplored == 0
        assert all(every.probability > known.probability for every, known in found)


def test_what_a_floor_leaves_out_is_bounded(tiny: LanguageModel, pgn: Encoding, monkeypatch) -> None:
    session = DecodingSession(tiny, 1)
    session.feed([pgn.encode(";1.")])
    trie = legal.Trie.from_sets([pgn.accepted_ids(chess.Board())])
    masses = {}
    for floor in (0.0, 1e-3):
        monkeypatch.setattr(legal, "MIN_PREFIX_PROBABILITY", floor)
        [[masses[floor]]] = legal.compute_accepted_masses(TokenTree(session), [trie], pgn)
    rough, whole = masses[1e-3], masses[0.0].probability
    assert rough.unexplored > 0
    assert rough.probability < whole < rough.probability + rough.unexplored


@pytest.mark.parametrize("name", EDITS)
def test_trees_write_what_sessions_write(tiny: LanguageModel, pgn: Encoding, name: str) -> None:
    prompts = [pgn.encode(text) for text in (";1.", ";1.e4 e5 2.", ";1.d4 d5 2.c4 e6 3.")]
    keys = [[(5, row, sample) for sample in range(8)] for row in range(3)]
    heats = [0.0, *[1.0] * 6, 0.3]
    session = DecodingSession(tiny, 3, EDITS[name])
    session.feed(prompts)
    trees = TokenTree(session)
    grown = sample_trees(trees, pgn, [chess.Board()] * 3, keys, temperature=heats)
    session.select([row for row in range(3) for _ in heats])
    plain = fed(session, pgn, [key for row in keys for key in row], np.array(heats * 3))
    for text, (tokens, logprob) in zip([text for row in grown for text in row], plain, strict=True):
        assert (text.tokens, text.text) == (tokens, pgn.answer_text(tokens))
        assert text.finished == pgn.is_complete(tokens, chess.Board())
        assert text.logprob == pytest.approx(logprob, abs=1e-3)


def fed(session: DecodingSession, pgn: Encoding, keys: list, heats: np.ndarray) -> list[tuple[list[int], float]]:
    """The next tokens of each row of a session, and their log-probability: drawn and fed one by one."""
    written: list[list[int]] = [[] for _ in keys]
    totals = np.zeros(len(keys))
    for step in range(pgn.max_move_tokens):
        active = [row for row, ids in enumerate(written) if not ids or not pgn.is_complete(ids, chess.Board())]
        if not active:
            break
        logprobs = session.refresh()[active].numpy()
        tokens = draw_tokens(logprobs, heats[active], np.array([uniform(*keys[row], step) for row in active]))
        totals[active] += logprobs[np.arange(len(active)), tokens]
        for row, token in zip(active, tokens.tolist(), strict=True):
            written[row].append(token)
        session.feed([written[row][-1:] if row in active else [] for row in range(len(keys))])
    return list(zip(written, totals.tolist(), strict=True))


def standard_errors(model: LanguageModel, pgn: Encoding, count: int, samples: int = 10_000) -> list[float]:
    """How many standard errors the legal share of samples is from the exact mass, for each of `count` positions."""
    found = []
    for number, (board, prompt) in enumerate(zip(*positions(pgn, count), strict=True)):
        session = DecodingSession(model, 1)
        session.feed([prompt])
        trees = TokenTree(session)
        trie = legal.Trie.from_sets([pgn.accepted_ids(board)])
        [[mass]] = legal.compute_accepted_masses(trees, [trie], pgn)
        assert mass.unexplored < 1e-4
        keys = [[(11, number, sample) for sample in range(samples)]]
        [texts] = sample_trees(trees, pgn, [board], keys, temperature=[1.0] * samples)
        taken: dict[str, bool] = {}
        for text in texts:
            if text.text not in taken:
                taken[text.text] = pgn.parse(text.text, board) is not None
        share = sum(taken[text.text] for text in texts) / samples
        found.append(abs(share - mass.probability) / math.sqrt(mass.probability * (1 - mass.probability) / samples))
    return found


@pytest.mark.slow
def test_the_legal_share_of_samples_is_the_exact_mass(pgn: Encoding) -> None:
    """Ten thousand samples a position, on three positions of the bundled model."""
    assert max(standard_errors(bundled(), pgn, 3)) < 3


@pytest.mark.slow
def test_first_tries_in_play_are_legal_as_often_as_the_exact_mass_says(pgn: Encoding) -> None:
    """Thirty first tries of policy `retry` on each of twenty positions of the bundled model."""
    tries, model = 30, bundled()
    boards, prompts = positions(pgn, 20)
    session = DecodingSession(model, 20)
    session.feed(prompts)
    tree = TokenTree(session)
    masses = legal.compute_accepted_masses(
        tree, [legal.Trie.from_sets([pgn.accepted_ids(board)]) for board in boards], pgn
    )
    exact = np.array([mass.probability for [mass] in masses])
    session.select([row for row in range(20) for _ in range(tries)])
    turns = [ModelTurn(row, boards[row // tries], ("first try", row)) for row in range(20 * tries)]
    choices = choose_moves(make_policy("retry:1", (1.0,)), session, pgn, turns)
    share = np.array([choice.move is not None for choice in choices]).reshape(20, tries).mean(1)
    errors = (share - exact) / np.sqrt(exact * (1 - exact) / tries)
    assert np.abs(errors).max() < 4
    assert abs(errors.sum()) < 3 * math.sqrt(20)  # all of them together: they do not lean to one side
    assert 0.4 < (errors**2).mean() < 2  # and scatter as independent samples do


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_the_legal_share_of_samples_is_the_exact_mass_on_twenty_positions(pgn: Encoding) -> None:
    assert max(standard_errors(bundled(), pgn, 20)) < 3


WELL_FORMED = re.compile(r"([NBRQK][a-h]?[1-8]?x?[a-h][1-8]|([a-h]x)?[a-h]([2-7]|[18]=[NBRQ])|O-O(-O)?)[+#]?")


def test_the_mass_of_texts_in_the_form_of_a_move_is_how_often_they_are_written(pgn: Encoding) -> None:
    """Of SAN, by a model that often errs; legal moves are among them."""
    model, count = bundled(), 150
    boards, prompts = positions(pgn, 2)
    edit = ResidualEdit(2, torch.randn(model.d_model, generator=torch.Generator().manual_seed(3)), 20.0)
    session = DecodingSession(model, 2, [edit])
    session.sync(prompts)
    masses = legal.compute_valid_masses(session, pgn, [0, 1])
    keys = [[(5, row, number) for number in range(count)] for row in range(2)]
    texts = sample_trees(TokenTree(session), pgn, boards, keys, temperature=[1.0] * count)
    for mass, among, written in zip(masses, legal.score_legal_moves(session, boards, pgn), texts, strict=True):
        share = sum(bool(text.finished and WELL_FORMED.fullmatch(text.text)) for text in written) / count
        assert 0.05 < mass.probability < 0.98
        assert 0 <= mass.unexplored < 0.01
        deviation = (mass.probability * (1 - mass.probability) / count) ** 0.5
        assert share == pytest.approx(mass.probability, abs=mass.unexplored + 4.5 * deviation)
        assert legal.sum_legal_mass(among) < mass.probability
