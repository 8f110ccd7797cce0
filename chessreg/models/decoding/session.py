"""Decoding sessions: many rows of text at once, with a key-value cache across moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError, ChessregError, DivergedError
from chessreg.models.adapters.base import VALUE_HEADS
from chessreg.models.decoding.passes import Keep, RaggedTokens, run_packed_pass, run_rectangular_pass
from chessreg.models.decoding.recompute import TokenCache, run_recomputed_pass
from chessreg.models.devices import avoid_cudnn_attention
from chessreg.models.edits import ResidualEdit, get_token_mask
from chessreg.models.hook_points import format_hook_point
from chessreg.models.slot_cache import CALL_COST_KEYS, SlotCache

if TYPE_CHECKING:
    from chessreg.models.decoding.values import MoveValues
    from chessreg.models.language_model import LanguageModel

PREFILL_TOKENS = 16_384  # maximum query positions per pass; limits memory, not results
DECODE_TOKENS = 16  # appends up to this length share one pass, however ragged
MAX_PADDING_FACTOR = 1.25  # longer appends are grouped so that padding adds at most a quarter
TOKEN_COST_KEYS = 64  # cost of a token outside attention, in keys read


class ContextFullError(ChessregError):
    """Raised for tokens that exceed the model's positions. `rows` are the rows concerned; nothing was fed
    to any row."""

    def __init__(self, rows: list[int], block_size: int) -> None:
        super().__init__(f"{len(rows)} rows would exceed the model's {block_size} positions", "crop or end those games")
        self.rows = rows


class DecodingSession:
    """Rows of token ids with their keys and values, and the log-probabilities of the next token.

    `tokens[r]` is the content of row r. Rows begin empty. Everything equals a full recompute of each row to about 1e-5,
    also under edits. With an edit whose mask is not prefix-stable (`last`), the last token's keys and values cannot be
    reused: the token is fed again, clean, together with the next tokens.
    """

    def __init__(self, model: LanguageModel, rows: int, edits: Sequence[ResidualEdit] = ()) -> None:
        self.model = model
        self.edits = list(edits)
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.cache: Any = SlotCache(model.n_layers, rows) if model.network.can_cache else TokenCache(rows)
        self.logprobs = torch.full((rows, model.outputs), torch.nan, device=model.device)
        self._reusable_columns = [0] * rows  # number of a row's columns whose keys and values can be reused
        self._has_logprobs = [True] * rows  # whether a row's logprobs belong to its last token
        self._watched_points: dict[str, int] = {}  # hook points whose residuals are being kept, with their indices
        for edit in self.edits:
            if edit.per_row and edit.rows != rows:
                raise BadInputError(f"the edit has {edit.rows} directions, but there are {rows} rows")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prefix_stable(self) -> bool:
        """Whether keys and values of every token can be reused."""
        return all(get_token_mask(edit.token_mask).prefix_stable for edit in self.edits)

    def feed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens (one list per row, possibly empty) and return the log-probabilities of the next token.

        Returns float32 [rows, vocab], the session's `logprobs`; NaN for a row without tokens. Raises ContextFullError
        before anything is fed.
        """
        self.extend(rows)
        return self.refresh()

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Append tokens like `feed`; they are computed with the next `refresh`, together with other new tokens."""
        if len(rows) != len(self):
            raise BadInputError(f"{len(rows)} lists of tokens for a session of {len(self)} rows")
        block = self.model.block_size
        full_rows = [r for r, new in enumerate(rows) if len(self.tokens[r]) + len(new) > block]
        if full_rows:
            raise ContextFullError(full_rows, block)
        for row, new in enumerate(rows):
            self.tokens[row].extend(int(token) for token in new)
            if len(new):
                self._has_logprobs[row] = False

    def sync(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Set the content of each row, reusing the longest common prefix. Returns the same as `feed`.

        Raises ContextFullError before anything changes.
        """
        self.set_rows(rows)
        return self.refresh()

    def set_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the content of each row like `sync`; it is computed with the next `refresh`."""
        block = self.model.block_size
        full_rows = [r for r, new in enumerate(rows) if len(new) > block]
        if full_rows:
            raise ContextFullError(full_rows, block)
        shared_lengths = [count_common_prefix(old, new) for old, new in zip(self.tokens, rows, strict=True)]
        self.rollback([len(old) - n for old, n in zip(self.tokens, shared_lengths, strict=True)])
        self.extend([list(new[n:]) for new, n in zip(rows, shared_lengths, strict=True)])

    def rollback(self, counts: Sequence[int]) -> None:
        """Remove the last counts[r] tokens of each row. Log-probabilities are recomputed when needed."""
        for row, count in enumerate(counts):
            if count < 0 or count > len(self.tokens[row]):
                raise BadInputError(f"row {row} holds {len(self.tokens[row])} tokens, {count} cannot be taken back")
            if count:
                del self.tokens[row][len(self.tokens[row]) - count :]
                self._reusable_columns[row] = min(self._reusable_columns[row], len(self.tokens[row]))
                self._has_logprobs[row] = False
            if not self.tokens[row]:
                self._has_logprobs[row] = True
                self.logprobs[row] = torch.nan

    def rewind(self, row: int, length: int, logprobs: Tensor) -> None:
        """Reset one row to its first `length` tokens, whose log-probabilities [vocab] are given."""
        if length == len(self.tokens[row]):
            return
        del self.tokens[row][length:]
        self._reusable_columns[row] = min(self._reusable_columns[row], length)
        self._has_logprobs[row] = True
        self.logprobs[row] = logprobs

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; rows may repeat. Edits with one direction per row follow."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.model.device)
        self.tokens = [list(self.tokens[r]) for r in rows]
        self._reusable_columns = [self._reusable_columns[r] for r in rows]
        self._has_logprobs = [self._has_logprobs[r] for r in rows]
        self.edits = [edit.take(index) for edit in self.edits]
        self.logprobs = self.logprobs[index]
        self.cache.take(index)

    def branch(self, edits: Sequence[ResidualEdit]) -> DecodingSession:
        """Return a session of the same rows under edits; this session must have none. Both are independent afterwards.

        Keys and values before the first edited position are reused. Raises BadInputError if this session has edits.
        """
        if self.edits:
            raise BadInputError("an edited session has no clean keys and values to branch from")
        other = type(self)(self.model, len(self), edits)
        other.tokens = [list(tokens) for tokens in self.tokens]
        first_touched = [self._first_touched(edits, tokens) for tokens in self.tokens]
        other._reusable_columns = [
            min(columns, first) for columns, first in zip(self._reusable_columns, first_touched, strict=True)
        ]
        other._has_logprobs = [not tokens for tokens in self.tokens]
        if any(other._reusable_columns):
            other.cache = self.cache.copy()
        other.refresh()
        return other

    def _first_touched(self, edits: Sequence[ResidualEdit], tokens: list[int]) -> int:
        """Return the first position that one of the edits changes; the length if none does."""
        if any(edit.token_mask == "all" for edit in edits):
            return 0
        ids, encoding = np.array(tokens, np.int64), self.model.encoding
        masks = [get_token_mask(edit.token_mask).compute(ids, encoding) for edit in edits if len(ids)]
        return min((int(mask.argmax()) for mask in masks if mask.any()), default=len(tokens))

    @torch.inference_mode()
    def refresh(self) -> Tensor:
        """Compute all new tokens and return `logprobs`."""
        counts = [len(tokens) - self.start(row) for row, tokens in enumerate(self.tokens)]
        for group in self._group_new_rows(counts):
            self._advance(group)
        return self.logprobs

    @torch.inference_mode()
    def residuals(self, layers: Sequence[int]) -> Tensor:
        """Return `blocks.L.hook_resid_post` at each row's last token, [layers, rows, d_model], under the session's
        edits.

        That token is recomputed, so no `TokenTree` of this session may be in use. Zeros for an empty row.
        """
        self._residuals = torch.zeros(
            len(layers), len(self), self.model.d_model, dtype=self.model.dtype, device=self.model.device
        )
        self._watched_points = {format_hook_point(layer): place for place, layer in enumerate(layers)}
        self._has_logprobs = [not tokens for tokens in self.tokens]
        try:
            self.refresh()
            return self._residuals
        finally:
            self._watched_points = {}

    def start(self, row: int) -> int:
        """Return the first position of a row that the next pass must compute; its length if none."""
        length = len(self.tokens[row])
        if self._has_logprobs[row]:
            return length
        return min(self._reusable_columns[row], length - 1)

    def count_reusable_columns(self, row: int) -> int:
        """Return the number of a row's positions whose keys and values later tokens can attend to."""
        return self._reusable_columns[row]

    def _group_new_rows(self, counts: list[int]) -> list[list[int]]:
        """Return the rows with new tokens in groups, one per pass."""
        pending_rows = [r for r, count in enumerate(counts) if count]
        row_counts = [counts[r] for r in pending_rows]
        history = any(self.start(r) for r in pending_rows)
        if not pending_rows:
            return []
        if max(row_counts) > DECODE_TOKENS or self._should_pack(pending_rows, row_counts, history):
            return [
                [pending_rows[i] for i in group]
                for group in self.group_rows(pending_rows, row_counts, PREFILL_TOKENS, history)
            ]
        # a pass over all rows reads the cache in place; gathering a subset doubles the cost
        return [list(range(len(counts)))] if 2 * len(pending_rows) > len(counts) else [pending_rows]

    def group_rows(
        self, rows: Sequence[int], counts: Sequence[int], limit: int, history: bool = True
    ) -> list[list[int]]:
        """Return the passes in which to compute counts[i] new tokens of rows[i], as lists of indices i.

        A pass has at most `limit` tokens, or one row. `history` states whether the rows have earlier tokens.
        """
        if self._should_pack(rows, counts, history):
            return group_by_length(range(len(rows)), counts, limit, is_packed=True)
        order = sorted(range(len(rows)), key=counts.__getitem__)
        return [sorted(group) for group in group_by_length(order, [counts[i] for i in order], limit)]

    def _advance(self, group: list[int]) -> None:
        """Run one pass over the new tokens of these rows, some of which may have none."""
        lengths = np.array([len(self.tokens[r]) for r in group])
        first_columns = np.array([self.start(r) for r in group])
        counts = lengths - first_columns
        ids = np.array(
            [token for r, start in zip(group, first_columns, strict=True) for token in self.tokens[r][start:]]
        )
        positions = np.concatenate([np.arange(start, end) for start, end in zip(first_columns, lengths, strict=True)])
        masks = [self._edit_mask(edit, group, first_columns) for edit in self.edits]
        computed_rows = np.flatnonzero(counts)
        last_columns = torch.from_numpy((np.cumsum(counts) - 1)[computed_rows]).to(self.model.device)
        rows = torch.tensor([group[i] for i in computed_rows], device=self.model.device)

        def keep(point: str, residual: Tensor) -> None:
            self._residuals[self._watched_points[point], rows] = residual[last_columns]

        hidden = self.forward(RaggedTokens(group, counts, first_columns, ids, positions, None, masks), keep)
        self.logprobs[rows] = self.predict([group[i] for i in computed_rows], hidden[last_columns])
        reusable = int(self.prefix_stable)
        for i in computed_rows.tolist():
            self._has_logprobs[group[i]] = True
            self._reusable_columns[group[i]] = int(lengths[i]) - 1 + reusable

    def _edit_mask(self, edit: ResidualEdit, group: list[int], first_columns: np.ndarray) -> np.ndarray | None:
        """Return which tokens from these positions on the edit changes, bool [tokens]."""
        if edit.token_mask == "all":
            return None
        token_mask, encoding = get_token_mask(edit.token_mask), self.model.encoding
        masks = [token_mask.compute(np.array(self.tokens[row], np.int64), encoding) for row in group]
        return np.concatenate([mask[start:] for mask, start in zip(masks, first_columns, strict=True)])

    def predict(self, rows: Sequence[int], hidden: Tensor) -> Tensor:
        """Return log-probabilities float32 [rows, outputs] of the next token, given the final hidden states [rows,
        d_model] at these rows' last tokens."""
        return self.head(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities float32 [..., vocab] of final hidden states [..., d_model].

        Raises DivergedError for NaN, which would otherwise count as illegal moves.
        """
        logprobs = torch.log_softmax(self.model.network.unembed(hidden).float(), -1)
        if bool(logprobs.isnan().any()):
            if self.edits:
                raise DivergedError(
                    "the edited model's logits are NaN: the edit is out of its range", "a smaller scale"
                )
            raise DivergedError("the model's logits are NaN: its activations overflow")
        return logprobs

    def forward(
        self,
        new: RaggedTokens,
        keep: Keep = lambda point, residual: None,
        edits: Sequence[ResidualEdit] | None = None,
        watched_points: Iterable[str] | None = None,
    ) -> Tensor:
        """Return final hidden states [T, d_model] of these tokens, under `edits` (None: the session's).

        The caller updates the session's state; `keep` receives the residuals [T, d_model] at the hook points
        `watched_points`.
        """
        packs = self._should_pack(new.rows, new.counts.tolist(), not new.is_fresh)
        run_pass: Any = (
            run_packed_pass if packs else run_rectangular_pass if self.model.network.can_cache else run_recomputed_pass
        )
        points = set(self._watched_points if watched_points is None else watched_points)
        with avoid_cudnn_attention():
            return run_pass(self.model, self.cache, self.edits if edits is None else edits, new, points, keep)

    @property
    def packable(self) -> bool:
        """Whether passes can be packed (only on a CPU). Rows without new tokens then cost nothing."""
        return self.model.device.type == "cpu" and self.model.network.can_cache

    def _should_pack(self, rows: Sequence[int], counts: Sequence[int], history: bool) -> bool:
        """Return whether packing is cheaper for a pass with these counts of new tokens; `history`: whether rows have
        earlier ones."""
        if not self.packable or not history:
            return False
        lengths = [len(self.tokens[row]) for row in rows]
        unpacked_cost = sum(lengths) + CALL_COST_KEYS * len(lengths) + TOKEN_COST_KEYS * sum(counts)
        rows_read = len(self) if 2 * len(rows) > len(self) else 3 * len(rows)
        return unpacked_cost < max(lengths) * rows_read + TOKEN_COST_KEYS * max(counts) * len(rows)


class ValueSession(DecodingSession):
    """A session of a model of values, whose rows are positions.

    Its log-probabilities are over the actions: the softmax of the legal moves' expected returns at temperature 1, -inf
    for all others. A policy with temperature T thus draws from the softmax of returns / T, like DeepMind's engines.
    """

    def __init__(self, model: LanguageModel, rows: int, edits: Sequence[ResidualEdit] = ()) -> None:
        super().__init__(model, rows, edits)
        self._values_by_row: dict[int, tuple[list[int], MoveValues]] = {}

    def select(self, rows: Sequence[int]) -> None:
        self._values_by_row.clear()
        super().select(rows)

    def predict(self, rows: Sequence[int], hidden: Tensor) -> Tensor:
        from chessreg.models.decoding.values import compute_action_log_probs

        return compute_action_log_probs(self._score(rows), self.model.outputs).to(self.model.device)

    def values(self, row: int) -> MoveValues:
        """Return the values of the legal moves of a row's position."""
        self.refresh()
        tokens, values = self._values_by_row.get(row, ([], None))
        return values if values is not None and tokens == self.tokens[row] else self._score([row])[0]

    def _score(self, rows: Sequence[int]) -> list[MoveValues]:
        """Compute, store and return the values of the legal moves of these rows' positions."""
        from chessreg.models.decoding.values import score_positions

        values = score_positions(self.model, [self.tokens[row] for row in rows], self.edits, rows)
        self._values_by_row |= {row: (list(self.tokens[row]), each) for row, each in zip(rows, values, strict=True)}
        return values


def group_by_length(rows: Sequence[int], counts: Sequence[int], limit: int, is_packed: bool = False) -> list[list[int]]:
    """Split rows, ordered by ascending counts, into passes of at most `limit` positions and little padding.

    `is_packed` passes have no padding, so the order does not matter.
    """
    groups: list[list[int]] = []
    used_tokens = 0
    for row, count in zip(rows, counts, strict=True):
        padded_cost = (
            count * (len(groups[-1]) + 1) if groups else 0
        )  # the longest row so far determines the width of its group
        if groups and (
            used_tokens + count <= limit
            if is_packed
            else padded_cost <= min(limit, MAX_PADDING_FACTOR * (used_tokens + count))
        ):
            groups[-1].append(row)
            used_tokens += count
        else:
            groups.append([row])
            used_tokens = count
    return groups


def count_common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens that two sequences share from the start."""
    shorter_length = min(len(one), len(other))
    if list(one[:shorter_length]) == list(other[:shorter_length]):
        return shorter_length
    return next(i for i in range(shorter_length) if one[i] != other[i])


def open_decoding_session(model: LanguageModel, rows: int, edits: Sequence[ResidualEdit] = ()) -> DecodingSession:
    """Return a session of a model that can write the answers of its encoding. Raises the errors of
    `LanguageModel.check_answers` does.
    """
    model.check_answers()
    return (ValueSession if model.head in VALUE_HEADS else DecodingSession)(model, rows, edits)
