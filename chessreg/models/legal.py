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

    from chessreg.encodings.tokenizers import Tokenizer

FLOOR = 1e-6  # texts behind a beginning less probable than this are not followed; their sum is reported


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


class Trie:
    """Texts by their tokens, with the sets that they belong to: made once, walked under every edit."""

    __slots__ = ("below", "children", "ends")

    def __init__(self) -> None:
        self.children: dict[int, Trie] = {}
        self.ends = 0  # bit k: the text that ends here is in set k
        self.below = 0  # bit k: a text that begins so is in set k

    @classmethod
    def of(cls, sets: Sequence[Collection[str]], tokenizer: Tokenizer) -> Trie:
        """The texts of several sets."""
        members: dict[str, int] = {}
        for number, texts in enumerate(sets):
            for text in texts:
                members[text] = members.get(text, 0) | 1 << number
        ids, offsets = tokenizer.encode_many(list(members))
        tokens, root = ids.tolist(), cls()
        for start, end, of in zip(offsets[:-1].tolist(), offsets[1:].tolist(), members.values(), strict=True):
            node = root
            node.below |= of
            for token in tokens[start:end]:
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = cls()
                node = child
                node.below |= of
            node.ends |= of
        return root


def accepted_mass(
    trees: Continuations, tries: Sequence[Trie], tokenizer: Tokenizer, max_tokens: int | None = None, sets: int = 1
) -> list[list[Mass]]:
    """For each row and each of the `sets` of its trie: the probability that what the model writes is a text of it.

    A move is written as `sampling.sample_moves` writes it: until a stop token, or until `max_tokens`; what follows a
    `;` is another game and does not count (`Tokenizer.parse`). A text of exactly `max_tokens` needs no end. Beginnings
    are followed in the order of their depth while their probability is at least FLOOR; `missed` is exact, so the true
    value lies in [found, found + missed].
    """
    limit = tokenizer.max_move_tokens if max_tokens is None else max_tokens
    stops = [*sorted(tokenizer.stop_ids), *tokenizer.encode(";").tolist()]
    found, missed = np.zeros((len(tries), sets)), np.zeros((len(tries), sets))
    open_: list[list[tuple[Beginning, float, Trie]]] = [[((), 1.0, trie)] for trie in tries]
    bits = [[number for number in range(sets) if of >> number & 1] for of in range(1 << sets)]
    while any(open_):
        trees.grow([[beginning for beginning, _, _ in row] for row in open_])
        for place, row in enumerate(open_):
            if not row:
                continue
            lines = np.exp(trees.lines(place, [beginning for beginning, _, _ in row]).astype(np.float64))
            lines *= np.array([probability for _, probability, _ in row])[:, None]
            ended = lines[:, stops].sum(1).tolist()
            opened: list[tuple[Beginning, float, Trie]] = []
            for (beginning, _, node), after, end in zip(row, lines.tolist(), ended, strict=True):
                found[place, bits[node.ends]] += end
                for token, child in node.children.items():
                    if len(beginning) + 1 == limit:  # cut here; only texts that end here are texts of the set
                        found[place, bits[child.ends]] += after[token]
                    elif after[token] < FLOOR:
                        missed[place, bits[child.below]] += after[token]
                    else:
                        opened.append(((*beginning, token), after[token], child))
            open_[place] = opened
    return [[Mass(float(f), float(m)) for f, m in zip(*row, strict=True)] for row in zip(found, missed, strict=True)]
