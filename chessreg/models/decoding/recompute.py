"""Sessions of models without a key-value cache: every pass recomputes whole sequences. Slow, with the same results.

A TokenCache replaces the SlotCache: it stores a column's token and the edits that change it, instead of its keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chessreg.models.edits import apply_edits

if TYPE_CHECKING:
    from chessreg.models.decoding.passes import Keep, RaggedTokens
    from chessreg.models.language_model import LanguageModel

BATCH_SEQUENCES = 64  # limits memory, not results


class TokenCache:
    """Columns of tokens, int64 [2, row, column]: the token, and one bit per edit that changes it."""

    def __init__(self, rows: int) -> None:
        self.row_count = rows
        self.columns = np.zeros((2, rows, 0), np.int64)

    def write(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """Write values int64 [2, n] at these places."""
        missing_columns = int(columns.max()) + 1 - self.columns.shape[2]
        if missing_columns > 0:
            self.columns = np.pad(self.columns, ((0, 0), (0, 0), (0, missing_columns)))
        self.columns[:, rows, columns] = values

    def take(self, rows: Tensor) -> None:
        self.row_count = len(rows)
        self.columns = self.columns[:, rows.cpu().numpy()]

    def copy(self) -> TokenCache:
        other = TokenCache(self.row_count)
        other.columns = self.columns.copy()
        return other


def run_recomputed_pass(
    model: LanguageModel,
    cache: TokenCache,
    edits: Sequence[Any],
    new: RaggedTokens,
    watched_points: set[str],
    keep: Keep,
) -> Tensor:
    """Return the final hidden states [T, d_model] of the T new tokens, like `passes.run_packed_pass`. All earlier
    tokens of the rows are computed again, because the model keeps no keys and values."""
    rows, columns = np.array(new.rows)[new.place], new.first[new.place] + new.offset
    bits = np.zeros(len(new.ids), np.int64)
    for number, mask in enumerate(new.masks):
        bits |= (1 if mask is None else mask.astype(np.int64)) << number
    cache.write(rows, columns, np.stack([new.ids, bits]))
    sequences: list[np.ndarray] = []  # each [2, length]
    read_columns: list[np.ndarray] = []  # for each, the tokens of the pass at its end
    ends = np.cumsum(np.bincount(new.place, minlength=len(new.rows)))
    by_row = np.split(np.argsort(new.place, kind="stable"), ends[:-1])
    for i, (row, token_rows) in enumerate(zip(new.rows, by_row, strict=True)):
        if len(token_rows) and new.visible is None:
            sequences.append(cache.columns[:, row, : new.first[i] + len(token_rows)])
            read_columns.append(token_rows)
        elif len(token_rows):
            for number, visible_columns in enumerate(new.visible[i]):  # type: ignore[index]
                sequences.append(cache.columns[:, row, : len(visible_columns)][:, visible_columns])
                read_columns.append(token_rows[number : number + 1])
    hidden = torch.empty(len(new.ids), model.d_model, dtype=model.dtype, device=model.device)
    residuals = {point: torch.empty_like(hidden) for point in watched_points}
    lengths = [sequence.shape[1] for sequence in sequences]
    for group in _group_sequences(lengths, is_padded=model.attention == "causal"):
        at = torch.from_numpy(np.concatenate([read_columns[i] for i in group])).to(model.device)
        group_places = np.repeat(np.arange(len(group)), [len(read_columns[i]) for i in group])
        column = np.concatenate([np.arange(lengths[i] - len(read_columns[i]), lengths[i]) for i in group])
        indices = tuple(torch.from_numpy(index).to(model.device) for index in (group_places, column))

        def put_residual(point: str, residual: Tensor, at: Tensor = at, indices: Any = indices) -> None:
            residuals[point][at] = residual[indices]

        batch = np.zeros((2, len(group), max(lengths[i] for i in group)), np.int64)
        for place, i in enumerate(group):
            batch[:, place, : lengths[i]] = sequences[i]
        visible_columns = rows if new.owners is None else new.owners
        owners = torch.tensor([int(visible_columns[read_columns[i][0]]) for i in group], device=model.device)
        hidden[at] = _run_batch(model, batch, owners, edits, watched_points, put_residual)[indices]
    for point, residual in residuals.items():
        keep(point, residual)
    return hidden


def _group_sequences(lengths: Sequence[int], is_padded: bool) -> list[list[int]]:
    """Return the indices of sequences in groups of at most BATCH_SEQUENCES, one group per pass.

    Sequences of a group have equal lengths unless `is_padded` allows padding.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups and len(groups[-1]) < BATCH_SEQUENCES and (is_padded or lengths[groups[-1][0]] == lengths[i]):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _run_batch(
    model: LanguageModel,
    batch: np.ndarray,
    owners: Tensor,
    edits: Sequence[Any],
    watched_points: set[str],
    put_residual: Callable[[str, Tensor], None],
) -> Tensor:
    """Return final hidden states [batch, length, d_model] of a batch int64 [2, batch, length]; `owners` are session
    rows."""
    tokens, bits = torch.from_numpy(batch)
    masked_edits = [
        (edit.take(owners) if edit.per_row else edit, (bits >> number & 1).bool()) for number, edit in enumerate(edits)
    ]
    with ExitStack() as stack:
        stack.enter_context(apply_edits(model.network, masked_edits))
        if watched_points:
            stack.enter_context(model.watch_hook_points(watched_points, put_residual))
        return model.network.hidden(tokens.to(model.device))
