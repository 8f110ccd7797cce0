"""Exact probabilities of legal moves, out of one forward pass.

The spellings of a position's moves share beginnings, so they form a tree of characters. All nodes of all rows go
through the model at once: a node attends to its row's prompt and to its own ancestors (tree attention), at the position
that its depth gives. Nodes are written beyond the rows' lengths, so the session is as it was afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from chessreg.errors import BadInputError
from chessreg.models.decoding import ContextFullError, DecodingSession, group_by_length
from chessreg.models.edits import position_set
from chessreg.noise import uniform

if TYPE_CHECKING:
    import chess

    from chessreg.games.tokenizers import Tokenizer

TREE_TOKENS = 8192  # the most nodes in one pass: bounds memory, not results


@dataclass
class _Tree:
    """The nodes that one row feeds. Lists are parallel; a parent comes before its children.

    With edits of unsettled positions a node exists twice: clean, for its descendants to attend to, and as the last
    token that the edit touches, to be read.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ancestors: list[list[int]] = field(default_factory=list)  # own index included
    edited: list[list[bool]] = field(default_factory=list)  # for each edit of the session
    reads: list[tuple[int, int, int]] = field(default_factory=list)  # (text, node read or -1 for the prompt, token)


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
    encoded = [[[int(i) for i in tokenizer.encode(text)] for text in row] for row in texts]
    longest = [max((len(ids) for ids in row), default=0) for row in encoded]
    full = [
        row
        for row, length in zip(chosen, longest, strict=True)
        if len(session.tokens[row]) + length - 1 > session.model.block_size
    ]
    if full:
        raise ContextFullError(full, session.model.block_size)
    session.refresh()
    trees = [_tree(session, row, ids) for row, ids in zip(chosen, encoded, strict=True)]
    out: list[np.ndarray] = [np.zeros(0)] * len(texts)
    order = sorted(range(len(chosen)), key=lambda i: len(trees[i].tokens))
    for group in group_by_length(order, [len(trees[i].tokens) for i in order], TREE_TOKENS):
        group.sort()  # all rows in order are read in place
        scores = _score(session, [chosen[i] for i in group], [trees[i] for i in group])
        prompts = session.logprobs[[chosen[i] for i in group]].double().cpu().numpy()
        for place, i in enumerate(group):
            reads = np.array(trees[i].reads, np.int64).reshape(-1, 3)
            text, node, token = reads.T
            values = np.where(node < 0, prompts[place, token], scores[place, node, token])
            out[i] = np.bincount(text, values, minlength=len(texts[i]))
    return out


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


def _tree(session: DecodingSession, row: int, texts: Sequence[Sequence[int]]) -> _Tree:
    """The row's nodes: every proper, non-empty beginning of a text, once."""
    tree = _Tree()
    history = session.tokens[row]
    root: list[int] = []
    for position in range(session.clean(row), len(history)):  # an edited last token, which descendants see clean
        root = _add(session, tree, history[: position + 1], root, clean=True)
    nodes: dict[tuple[int, ...], tuple[int, list[int]]] = {(): (-1, root)}  # beginning → (read here, attend to these)
    for number, ids in enumerate(texts):
        for depth, token in enumerate(ids):
            beginning = tuple(ids[:depth])
            if beginning not in nodes:
                above, path = nodes[beginning[:-1]][1], [*history, *beginning]
                read = seen = _add(session, tree, path, above)
                if not session.settled:
                    seen = _add(session, tree, path, above, clean=True)
                nodes[beginning] = read[-1], seen
            tree.reads.append((number, nodes[beginning][0], token))
    return tree


def _add(session: DecodingSession, tree: _Tree, path: list[int], above: list[int], clean: bool = False) -> list[int]:
    """Add the last token of `path`; return its ancestors and itself. clean leaves out edits of unsettled positions."""
    touched = []
    for edit in session.edits:
        if edit.positions == "all":
            touched.append(True)
            continue
        positions = position_set(edit.positions)
        hit = positions.mask(np.array(path, np.int64), session.model.tokenizer)[-1]
        touched.append(bool(hit) and not (clean and not positions.settled))
    tree.tokens.append(path[-1])
    tree.positions.append(len(path) - 1)
    tree.ancestors.append([*above, len(tree.ancestors)])
    tree.edited.append(touched)
    return tree.ancestors[-1]


@torch.inference_mode()
def _score(session: DecodingSession, rows: list[int], trees: list[_Tree]) -> np.ndarray:
    """Log-probabilities float64 [rows, nodes, vocab] after each node."""
    width = max(max(len(tree.tokens) for tree in trees), 1)
    clean = np.array([session.clean(row) for row in rows])
    columns = clean[:, None] + np.arange(width)
    ids = np.zeros((len(rows), width), np.int64)
    positions = columns.copy()
    visible = np.zeros((len(rows), width, int(columns.max()) + 1), bool)
    masks = [np.zeros((len(rows), width), bool) for _ in session.edits]
    for i, tree in enumerate(trees):
        count = len(tree.tokens)
        ids[i, :count], positions[i, :count] = tree.tokens, tree.positions
        visible[i, :, : clean[i]] = True
        visible[i, np.arange(width), columns[i]] = True  # padding attends to itself: a row of nothing would be NaN
        for node, ancestors in enumerate(tree.ancestors):
            visible[i, node, clean[i] + np.array(ancestors)] = True
        for number, mask in enumerate(masks):
            mask[i, :count] = [edited[number] for edited in tree.edited]
    if not any(tree.tokens for tree in trees):
        return np.zeros((len(rows), width, session.model.vocab_size))
    hidden = session.forward(rows, ids, columns, positions, visible, masks)
    return session.head(hidden).double().cpu().numpy()
