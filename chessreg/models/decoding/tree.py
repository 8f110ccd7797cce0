"""Token trees: many sequences after each row of a session, whose shared prefixes are computed once.

A node is a prefix of a sequence. All new nodes of all rows go through the model in one pass: a node attends to its
row's prompt and to its ancestors (tree attention), at the position of its depth. Nodes are written beyond the rows'
lengths, so the session is unchanged afterwards; feeding it discards them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from chessreg.models.decoding.passes import RaggedTokens
from chessreg.models.decoding.session import ContextFullError, DecodingSession
from chessreg.models.edits import get_token_mask

TREE_TOKENS = 8192  # maximum nodes per pass; limits memory, not results

Prefix = tuple[int, ...]


@dataclass
class _RowTree:
    """The nodes of one row. Columns are counted from the first column that the tree may write.

    With edits whose mask is not prefix-stable, a node with children exists twice: clean, for its descendants to attend
    to, and edited as the last token, to be read.
    """

    columns: int = 0
    index: dict[Prefix, int] = field(default_factory=dict)  # node → its row in `logprobs`
    paths: dict[Prefix, list[int]] = field(default_factory=dict)  # node → columns that its children attend to
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))


@dataclass
class _Batch:
    """The new tokens of one row in one pass, as parallel lists; parents come before children."""

    first: int
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    attended_columns: list[list[int]] = field(default_factory=list)  # columns of the tree, including its own
    edit_masks: list[list[bool]] = field(default_factory=list)  # one value per edit of the session
    read_nodes: list[int] = field(
        default_factory=list
    )  # the fed nodes that are read, in the order of their rows in `logprobs`


class TokenTree:
    """Trees after the rows of a session (all, or `rows`), which grow lazily.

    The root of a tree is the row's prompt, the empty prefix, which always exists. The session must not be fed while a
    tree is in use. Everything equals feeding the texts one by one, also under the session's edits.
    """

    def __init__(self, session: DecodingSession, rows: Sequence[int] | None = None) -> None:
        self.session = session
        self.rows = list(range(len(session))) if rows is None else list(rows)
        session.refresh()
        prompts = session.logprobs[self.rows].cpu().numpy()
        self._trees = [_RowTree(index={(): 0}, logprobs=prompts[i : i + 1]) for i in range(len(self.rows))]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> TokenTree:
        """Return the trees of these rows, after `DecodingSession.select` reduced the session to them."""
        other = TokenTree.__new__(TokenTree)
        other.session, other.rows = self.session, list(range(len(rows)))
        other._trees = [self._trees[row] for row in rows]
        return other

    def logprobs(self, place: int, prefix: Prefix = ()) -> np.ndarray:
        """Return log-probabilities float32 [vocab] of the next token after a computed prefix."""
        tree = self._trees[place]
        line: np.ndarray = tree.logprobs[tree.index[prefix]]
        return line

    def lines(self, place: int, prefixes: Iterable[Prefix]) -> np.ndarray:
        """Return log-probabilities float32 [n, vocab] after several computed prefixes."""
        tree = self._trees[place]
        logprobs: np.ndarray = tree.logprobs[[tree.index[prefix] for prefix in prefixes]]
        return logprobs

    def has(self, place: int, prefix: Prefix) -> bool:
        """Return whether `prefix` is computed in tree number `place`."""
        return prefix in self._trees[place].index

    def grow(self, wanted_prefixes: Sequence[Iterable[Prefix]]) -> None:
        """Compute these prefixes of each row, including their own prefixes.

        Raises ContextFullError before anything is computed if one would exceed the model's positions.
        """
        full_nodes = [
            row
            for row, prefixes in zip(self.rows, wanted_prefixes, strict=True)
            if len(self.session.tokens[row]) + max(map(len, prefixes), default=0) > self.session.model.block_size
        ]
        if full_nodes:
            raise ContextFullError(full_nodes, self.session.model.block_size)
        batches = [self._plan(place, prefixes) for place, prefixes in enumerate(wanted_prefixes)]
        pending_batches = [i for i in range(len(batches)) if batches[i].tokens]
        if not pending_batches:
            return
        rows, counts = [self.rows[i] for i in pending_batches], [len(batches[i].tokens) for i in pending_batches]
        for group in self.session.group_rows(rows, counts, TREE_TOKENS):
            group_batches = [pending_batches[i] for i in group]
            scores = self._compute(group_batches, [batches[i] for i in group_batches])
            for i, batch_scores in zip(group_batches, scores, strict=True):
                tree = self._trees[i]
                tree.logprobs = np.concatenate([tree.logprobs, batch_scores[batches[i].read_nodes]])

    def _plan(self, place: int, prefixes: Iterable[Prefix]) -> _Batch:
        """Return the tokens that a row must feed for these prefixes."""
        session, row, tree = self.session, self.rows[place], self._trees[place]
        history = session.tokens[row]
        batch = _Batch(tree.columns)
        for prefix in prefixes:
            for depth in range(1, len(prefix) + 1):
                node = prefix[:depth]
                if node in tree.index:
                    continue
                above, path = self._list_attended_columns(place, batch, node[:-1]), [*history, *node]
                tree.index[node] = len(tree.index)
                batch.read_nodes.append(len(batch.tokens))
                columns = self._add(tree, batch, path, above)
                if session.prefix_stable:
                    tree.paths[node] = columns
        return batch

    def _list_attended_columns(self, place: int, batch: _Batch, node: Prefix) -> list[int]:
        """Return the columns that a node's children attend to; under an edit of the last token, feed the node clean
        first."""
        tree, row = self._trees[place], self.rows[place]
        if node not in tree.paths:
            history = self.session.tokens[row]
            if node:
                above = self._list_attended_columns(place, batch, node[:-1])
                tree.paths[node] = self._add(tree, batch, [*history, *node], above, clean=True)
            else:
                root: list[int] = []
                for position in range(
                    self.session.count_reusable_columns(row), len(history)
                ):  # an edited last token has to be fed clean
                    root = self._add(tree, batch, history[: position + 1], root, clean=True)
                tree.paths[()] = root
        return tree.paths[node]

    def _add(self, tree: _RowTree, batch: _Batch, path: list[int], above: list[int], clean: bool = False) -> list[int]:
        """Feed the last token of `path`; return the columns its children attend to. `clean`: not as the last token."""
        touched_nodes = []
        for edit in self.session.edits:
            mask = get_token_mask(edit.token_mask)
            if edit.token_mask == "all":
                hit = True
            elif edit.token_mask == "last":
                hit = not clean
            else:
                hit = bool(mask.compute(np.array(path, np.int64), self.session.model.encoding)[-1])
                hit = hit and not (clean and not mask.prefix_stable)
            touched_nodes.append(hit)
        batch.tokens.append(path[-1])
        batch.positions.append(len(path) - 1)
        batch.attended_columns.append([*above, tree.columns])
        batch.edit_masks.append(touched_nodes)
        tree.columns += 1
        return batch.attended_columns[-1]

    @torch.inference_mode()
    def _compute(self, group: list[int], batches: list[_Batch]) -> list[np.ndarray]:
        """Return log-probabilities after each fed node: one float32 [nodes, vocab] per row."""
        session, rows = self.session, [self.rows[i] for i in group]
        clean = [session.count_reusable_columns(row) for row in rows]
        first_tokens = np.array([at + batch.first for at, batch in zip(clean, batches, strict=True)])
        counts = np.array([len(batch.tokens) for batch in batches])
        visible_masks = []
        for at, batch in zip(clean, batches, strict=True):
            count = len(batch.tokens)
            mask = np.zeros((count, at + batch.first + count), bool)
            mask[:, :at] = True
            node = np.repeat(np.arange(count), [len(columns) for columns in batch.attended_columns])
            mask[node, at + np.concatenate(batch.attended_columns)] = True
            visible_masks.append(mask)
        ids = np.concatenate([batch.tokens for batch in batches])
        positions = np.concatenate([batch.positions for batch in batches])
        edit_masks = np.concatenate(
            [np.array(batch.edit_masks, bool).reshape(len(batch.tokens), -1) for batch in batches]
        )
        hidden = session.forward(
            RaggedTokens(rows, counts, first_tokens, ids, positions, visible_masks, list(edit_masks.T))
        )
        return np.split(session.head(hidden).cpu().numpy(), np.cumsum(counts)[:-1])
