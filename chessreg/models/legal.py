"""Exact probabilities of legal moves, out of one forward pass.

The spellings of a position's moves share beginnings, so they form a tree of characters (tree.py). Two masses: of the
canonical spelling of every legal move, and of every text that would be read as a legal move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.decoding import DecodingSession
from chessreg.models.tree import Beginning, Continuations
from chessreg.noise import uniform

if TYPE_CHECKING:
    import chess

    from chessreg.games.tokenizers import Tokenizer

FLOOR = 1e-7  # texts behind a beginning less probable than this are not followed; their sum is reported


def text_logprobs(
    session: DecodingSession,
    texts: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    rows: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """log P of each text as the continuation of its row: a float64 array for each row (or for each of `rows`).

    Equal to feeding the texts one by one, under the session's edits too. Texts end with their terminator if its
    probability is to count. Raises ContextFullError when a text would pass the model's last position.
    """
    chosen = list(range(len(session))) if rows is None else list(rows)
    if len(texts) != len(chosen):
        raise BadInputError(f"texts for {len(texts)} rows, {len(chosen)} rows are asked for")
    if any(not session.tokens[row] for row in chosen):
        raise BadInputError("a row without a prompt has no continuation to score")
    encoded = [[tuple(tokenizer.encode(text).tolist()) for text in row] for row in texts]
    return sequence_logprobs(Continuations(session, chosen), encoded)


def sequence_logprobs(trees: Continuations, sequences: Sequence[Sequence[Beginning]]) -> list[np.ndarray]:
    """log P of each sequence of token ids after its row: a float64 array for each row. Grows the trees by them."""
    trees.grow([[ids[:-1] for ids in row] for row in sequences])
    found = []
    for place, row in enumerate(sequences):
        steps = [(number, ids[:depth], token) for number, ids in enumerate(row) for depth, token in enumerate(ids)]
        lines = trees.lines(place, [beginning for _, beginning, _ in steps]).astype(np.float64)
        values = lines[np.arange(len(steps)), [token for _, _, token in steps]]
        found.append(np.bincount([number for number, _, _ in steps], values, minlength=len(row)))
    return found


def move_logprobs(
    session: DecodingSession,
    boards: Sequence[chess.Board],
    tokenizer: Tokenizer,
    rows: Sequence[int] | None = None,
) -> list[dict[str, float]]:
    """{UCI: log P} of every legal move's canonical text with its terminator, for the board of each row.

    The exponentials sum to the legal move mass; the rest is illegal moves and other spellings.
    """
    moves = [list(board.legal_moves) for board in boards]
    spelt = [[tokenizer.spell(board, move) for move in legal] for board, legal in zip(boards, moves, strict=True)]
    scored = text_logprobs(session, spelt, tokenizer, rows)
    return [
        {move.uci(): float(value) for move, value in zip(legal, values, strict=True)}
        for legal, values in zip(moves, scored, strict=True)
    ]


def legal_move_mass(logprobs: Mapping[str, float]) -> float:
    """The probability that the model's next move is one of these, 0 to 1."""
    return float(np.exp(np.array(list(logprobs.values()), np.float64)).sum())


def choose_legal(logprobs: Mapping[str, float], temperature: float, *key: int | str) -> str:
    """A legal move (UCI) drawn from the model's distribution renormalised over legal moves; temperature 0 is greedy.

    One draw of counter-based noise, named by `key`. Raises BadInputError without a legal move.
    """
    if not logprobs:
        raise BadInputError("there is no legal move to choose from")
    moves = sorted(logprobs)
    scores = np.array([logprobs[move] for move in moves], np.float64)
    if temperature <= 0:
        return moves[int(scores.argmax())]
    ladder = np.exp((scores - scores.max()) / temperature).cumsum()
    return moves[int(np.searchsorted(ladder, uniform(*key) * ladder[-1], side="right"))]


@dataclass(frozen=True)
class Mass:
    """A probability in two parts: `found`, and at most `missed` on top, which lies behind beginnings below FLOOR."""

    found: float
    missed: float


def accepted_mass(
    trees: Continuations,
    texts: Sequence[Sequence[Collection[str]]],
    tokenizer: Tokenizer,
    max_tokens: int | None = None,
) -> list[list[Mass]]:
    """For each row and each of its sets of texts: the probability that what the model writes is one of them.

    A move is written as `sampling.sample_moves` writes it: until a stop token, or until `max_tokens`; what follows a
    `;` is another game and does not count (`Tokenizer.parse`). A text of exactly `max_tokens` needs no end. Beginnings
    are followed in the order of their depth while their probability is at least FLOOR; `missed` is exact, so the true
    value lies in [found, found + missed].
    """
    limit = tokenizer.max_move_tokens if max_tokens is None else max_tokens
    stops = [*sorted(tokenizer.stop_ids), *tokenizer.encode(";").tolist()]
    walks = [_Walk(sets, tokenizer, limit, stops) for sets in texts]
    while any(walk.open for walk in walks):
        trees.grow([[beginning for beginning, _, _ in walk.open] for walk in walks])
        for place, walk in enumerate(walks):
            walk.step(trees, place)
    return [[Mass(float(f), float(m)) for f, m in zip(walk.found, walk.missed, strict=True)] for walk in walks]


class _Walk:
    """One row's walk down the texts of its sets, level by level."""

    def __init__(self, sets: Sequence[Collection[str]], tokenizer: Tokenizer, limit: int, stops: list[int]) -> None:
        self.found, self.missed = np.zeros(len(sets)), np.zeros(len(sets))
        self.limit, self.stops = limit, stops
        members: dict[str, list[bool]] = {}
        for number, texts in enumerate(sets):
            for text in texts:
                members.setdefault(text, [False] * len(sets))[number] = True
        ids = [tuple(tokenizer.encode(text).tolist()) for text in members]
        kept = [(sequence, np.array(of)) for sequence, of in zip(ids, members.values(), strict=True)]
        kept = [(sequence, of) for sequence, of in kept if len(sequence) <= limit]
        # beginnings to be followed, the probability of each, and the texts that begin so
        self.open: list[tuple[Beginning, float, list[tuple[Beginning, np.ndarray]]]] = [((), 1.0, kept)] if kept else []

    def step(self, trees: Continuations, place: int) -> None:
        """Take what ends here, and open the beginnings that are one token longer."""
        opened = []
        for beginning, probability, texts in self.open:
            depth = len(beginning)
            after = probability * np.exp(trees.logprobs(place, beginning).astype(np.float64))
            branches: dict[int, list[tuple[Beginning, np.ndarray]]] = {}
            for text in texts:
                if len(text[0]) == depth:
                    self.found[text[1]] += after[self.stops].sum()
                else:
                    branches.setdefault(text[0][depth], []).append(text)
            for token, behind in branches.items():
                of = np.any([text[1] for text in behind], axis=0)
                if depth + 1 == self.limit:
                    self.found[of] += after[token]
                elif after[token] < FLOOR:
                    self.missed[of] += after[token]
                else:
                    opened.append(((*beginning, token), float(after[token]), behind))
        self.open = opened
