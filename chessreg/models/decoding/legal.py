"""Exact probabilities of legal moves from one forward pass.

The token sequences of a position's moves share prefixes, so they form a tree (tree.py). There are two masses: of the
canonical answers of all legal moves, and of all texts that are read as a legal move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.tree import Prefix, TokenTree
from chessreg.noise import uniform

if TYPE_CHECKING:
    import chess

    from chessreg.encodings import Encoding
    from chessreg.encodings.base import Form

MIN_PREFIX_PROBABILITY = 1e-6  # less probable prefixes are not expanded; their total probability is reported


def score_answers(
    session: DecodingSession, answers: Sequence[Sequence[Prefix]], rows: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Return log P of each answer as the continuation of its row: one float64 array per row (or per entry of `rows`).

    Equal to feeding the answers one by one, also under the session's edits. Include the token that ends a move if its
    probability should count. Raises ContextFullError if an answer would exceed the model's positions.
    """
    row_numbers = list(range(len(session))) if rows is None else list(rows)
    if len(answers) != len(row_numbers):
        raise BadInputError(f"{len(answers)} answers for {len(row_numbers)} rows")
    if any(not session.tokens[row] for row in row_numbers):
        raise BadInputError("a row without a prompt has no continuation to score")
    return score_sequences(TokenTree(session, row_numbers), answers)


def score_sequences(trees: TokenTree, sequences: Sequence[Sequence[Prefix]]) -> list[np.ndarray]:
    """Return log P of each sequence of token ids after its row: one float64 array per row. Grows the trees
    as needed."""
    trees.grow([[ids[:-1] for ids in row] for row in sequences])
    logprobs = []
    for place, row in enumerate(sequences):
        steps = [(number, ids[:depth], token) for number, ids in enumerate(row) for depth, token in enumerate(ids)]
        lines = trees.lines(place, [prefix for _, prefix, _ in steps]).astype(np.float64)
        values = lines[np.arange(len(steps)), [token for _, _, token in steps]]
        logprobs.append(np.bincount([number for number, _, _ in steps], values, minlength=len(row)))
    return logprobs


def score_legal_moves(
    session: DecodingSession,
    boards: Sequence[chess.Board],
    encoding: Encoding,
    rows: Sequence[int] | None = None,
) -> list[dict[str, float]]:
    """Return {UCI: log P} of every legal move's canonical answer, including its end, for each board.

    `rows` are the session rows of the boards; None: all rows in order. The exponentials sum to the legal move mass; the
    rest is illegal moves and other spellings of legal ones.
    """
    answers = [encoding.answers(board) for board in boards]
    answer_scores = score_answers(session, [list(ids_by_move.values()) for ids_by_move in answers], rows)
    return [
        {move.uci(): float(value) for move, value in zip(ids_by_move, values, strict=True)}
        for ids_by_move, values in zip(answers, answer_scores, strict=True)
    ]


def sum_legal_mass(logprobs: Mapping[str, float]) -> float:
    """Return the probability that the model's next move is one of these, 0 to 1."""
    return float(np.exp(np.array(list(logprobs.values()), np.float64)).sum())


def choose_legal(logprobs: Mapping[str, float], temperature: float, *key: int | str) -> str:
    """Return a legal move (UCI) drawn from the model's distribution renormalized over the legal moves; temperature 0 is
    greedy.

    Uses one draw of counter-based noise, named by `key`. Raises BadInputError without a legal move.
    """
    if not logprobs:
        raise BadInputError("the position has no legal move to choose")
    moves = sorted(logprobs)
    scores = np.array([logprobs[move] for move in moves], np.float64)
    if temperature <= 0:
        return moves[int(scores.argmax())]
    ladder = np.exp((scores - scores.max()) / temperature).cumsum()
    return moves[int(np.searchsorted(ladder, uniform(*key) * ladder[-1], side="right"))]


@dataclass(frozen=True)
class MoveDistribution:
    """A model's distribution over the legal moves of one position; `logprobs` is a result of `score_legal_moves`."""

    logprobs: Mapping[str, float]

    @property
    def legal_mass(self) -> float:
        """The probability that the model's next move is one of these, 0 to 1."""
        return sum_legal_mass(self.logprobs)

    def shares(self, temperature: float = 1.0) -> dict[str, float]:
        """Return {UCI: probability}, renormalized over the legal moves to sum 1, most probable first."""
        moves = sorted(self.logprobs, key=lambda move: (-self.logprobs[move], move))
        scores = np.array([self.logprobs[move] for move in moves], np.float64)
        weights = np.exp((scores - scores.max(initial=-np.inf)) / temperature)
        return dict(zip(moves, (weights / weights.sum()).tolist(), strict=True))

    def choose(self, temperature: float, *key: int | str) -> str:
        """Return a legal move (UCI) drawn at this temperature, as `choose_legal` does."""
        return choose_legal(self.logprobs, temperature, *key)


@dataclass(frozen=True)
class Mass:
    """A probability, of which at most `unexplored` more belongs to prefixes below MIN_PREFIX_PROBABILITY."""

    probability: float
    unexplored: float


class Trie:
    """A prefix tree of the token sequences of several sets. It is built once and walked again for every edit."""

    __slots__ = ("children", "ending_sets", "prefix_sets")

    def __init__(self) -> None:
        self.children: dict[int, Trie] = {}
        self.ending_sets = 0  # bit k: the sequence that ends here is in set k
        self.prefix_sets = 0  # bit k: set k contains a sequence with this prefix

    @classmethod
    def from_sets(cls, sets: Sequence[Sequence[Prefix]]) -> Trie:
        """Return the trie of several sets. Their order determines the order in which probabilities are added."""
        members: dict[Prefix, int] = {}
        for number, sequences in enumerate(sets):
            for ids in sequences:
                members[ids] = members.get(ids, 0) | 1 << number
        root = cls()
        for ids, member_sets in members.items():
            node = root
            node.prefix_sets |= member_sets
            for token in ids:
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = cls()
                node = child
                node.prefix_sets |= member_sets
            node.ending_sets |= member_sets
        return root

    @classmethod
    def from_forms(cls, forms: Sequence[Form]) -> Trie:
        """Return the trie of all sequences with one of these forms, as set 0. Equal remainders share one node."""
        nodes_by_forms: dict[frozenset[Form], Trie] = {}

        def node(remaining_forms: frozenset[Form]) -> Trie:
            if remaining_forms not in nodes_by_forms:
                one = nodes_by_forms[remaining_forms] = cls()
                one.prefix_sets, one.ending_sets = 1, int(() in remaining_forms)
                next_forms: dict[int, set[Form]] = {}
                for form in remaining_forms:
                    for token in form[0] if form else ():
                        next_forms.setdefault(token, set()).add(form[1:])
                one.children = {token: node(frozenset(rest)) for token, rest in sorted(next_forms.items())}
            return nodes_by_forms[remaining_forms]

        return node(frozenset(forms))


_make_form_trie = lru_cache(maxsize=4)(Trie.from_forms)


def compute_valid_masses(session: DecodingSession, encoding: Encoding, rows: Sequence[int]) -> list[Mass]:
    """Return the probability that the text of each row has the form of a move, legal or not (`Encoding.forms`)."""
    trie = _make_form_trie(encoding.forms)
    return [mass for [mass] in compute_accepted_masses(TokenTree(session, rows), [trie] * len(rows), encoding)]


def compute_accepted_masses(
    trees: TokenTree, tries: Sequence[Trie], encoding: Encoding, max_tokens: int | None = None, sets: int = 1
) -> list[list[Mass]]:
    """Return, for each row and each of the `sets` of its trie, the probability that the model's text is in the set.

    A move is written as in `sampling.sample_trees`: until it is complete, or has `max_tokens`. If a stop id ends a
    move, so does a boundary id, and a sequence of exactly `max_tokens` needs no end. Prefixes are expanded by depth
    while their probability is at least MIN_PREFIX_PROBABILITY; `unexplored_masses` is exact, so the true value is in
    [probability, probability + unexplored].
    """
    limit = encoding.max_move_tokens if max_tokens is None else max_tokens
    stops = [*sorted(encoding.stop_ids), *sorted(encoding.boundary_ids)] if encoding.stop_ids else []
    accepted_masses, unexplored_masses = np.zeros((len(tries), sets)), np.zeros((len(tries), sets))
    open_: list[list[tuple[Prefix, float, Trie]]] = [[((), 1.0, trie)] for trie in tries]
    bits = [[number for number in range(sets) if set_bits >> number & 1] for set_bits in range(1 << sets)]
    while any(open_):
        trees.grow([[prefix for prefix, _, _ in row] for row in open_])
        for place, row in enumerate(open_):
            if not row:
                continue
            lines = np.exp(trees.lines(place, [prefix for prefix, _, _ in row]).astype(np.float64))
            lines *= np.array([probability for _, probability, _ in row])[:, None]
            stop_masses = lines[:, stops].sum(1).tolist()
            frontier: list[tuple[Prefix, float, Trie]] = []
            for (prefix, _, node), after, end in zip(row, lines.tolist(), stop_masses, strict=True):
                accepted_masses[place, bits[node.ending_sets]] += end
                for token, child in node.children.items():
                    if len(prefix) + 1 == limit or (child.ending_sets and not stops):  # the text ends here
                        accepted_masses[place, bits[child.ending_sets]] += after[token]
                    elif after[token] < MIN_PREFIX_PROBABILITY:
                        unexplored_masses[place, bits[child.prefix_sets]] += after[token]
                    else:
                        frontier.append(((*prefix, token), after[token], child))
            open_[place] = frontier
    return [
        [Mass(float(f), float(m)) for f, m in zip(*row, strict=True)]
        for row in zip(accepted_masses, unexplored_masses, strict=True)
    ]
