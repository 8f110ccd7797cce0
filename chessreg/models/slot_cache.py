"""A key-value cache in which column p of a row is the row's position p, and attention of each row over its own keys.

Rows of different lengths then need no padding columns, gaps or compaction: removing tokens only changes a length, and
the columns beyond it are overwritten by the next append. Every query has its own mask.

Attention by rows serves passes on a CPU over rows of different lengths. One call for all rows reads each row's keys up
to the longest row's end, including idle rows: memory traffic that dominates a decoding pass. By rows, each row is a
separate call over its part of the cache, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

GROWTH_COLUMNS = 128  # columns are added in steps, so that the cache is rarely copied
CALL_COST_KEYS = 64  # overhead of a call, in keys read


@dataclass(frozen=True)
class RowSpan:
    """One row of a pass: its row in the cache, its tokens in the pass, its number of keys, and the summand of its
    scores [tokens, keys] (None: every token sees every key)."""

    row: int
    tokens: slice
    keys: int
    bias: Tensor | None


@dataclass(frozen=True)
class RowKeys:
    """A layer's keys and values of all rows [row, head, column, d_head], and the spans that this pass reads."""

    keys: Tensor
    values: Tensor
    spans: Sequence[RowSpan]


@dataclass
class CacheSlots:
    """The columns that one pass writes and reads: rows [r] (None: all, in order), columns [r, q], the first `width`
    columns.

    `is_fresh` means that no row has earlier tokens, so that nothing is read back. With `spans`, rows are read one by
    one, and [r, q] is [tokens, 1]: a row is repeated for each of its tokens.
    """

    rows: Tensor | None
    columns: Tensor
    width: int
    is_fresh: bool
    spans: Sequence[RowSpan] | None = None


class SlotLayer:
    """One layer's keys and values, [row, head, column, d_head]; unwritten columns are zero."""

    def __init__(self, rows: int) -> None:
        self.row_count = rows
        self.slots: CacheSlots | None = None
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor] | RowKeys:
        """Write a pass's keys and values, and return those it attends to: its own, or all in the cache."""
        slots = self.slots
        assert slots is not None
        kept_keys = self.keys = self._grow_columns(self.keys, keys, slots.width)
        kept_values = self.values = self._grow_columns(self.values, values, slots.width)
        rows = torch.arange(self.row_count, device=keys.device) if slots.rows is None else slots.rows
        kept_keys[rows[:, None], :, slots.columns] = keys.transpose(1, 2)
        kept_values[rows[:, None], :, slots.columns] = values.transpose(1, 2)
        if slots.spans is not None:
            return RowKeys(kept_keys, kept_values, slots.spans)
        if slots.is_fresh:
            return keys, values
        if slots.rows is None:
            return kept_keys[:, :, : slots.width], kept_values[:, :, : slots.width]
        # select whole rows first: one memory copy per row, four times faster than selecting columns at the same time
        picked_values = kept_keys.index_select(0, slots.rows), kept_values.index_select(0, slots.rows)
        return picked_values[0][:, :, : slots.width], picked_values[1][:, :, : slots.width]

    def take(self, rows: Tensor) -> None:
        """Reduce the cache to these rows, which may repeat."""
        self.row_count = len(rows)
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def copy(self) -> SlotLayer:
        """Return an independent copy."""
        other = SlotLayer(self.row_count)
        if self.keys is not None and self.values is not None:
            other.keys, other.values = self.keys.clone(), self.values.clone()
        return other

    def _grow_columns(self, kept_columns: Tensor | None, new: Tensor, width: int) -> Tensor:
        """Return `kept_columns` with at least `width` columns."""
        if kept_columns is None:
            kept_columns = new.new_zeros(self.row_count, new.shape[1], 0, new.shape[3])
        missing_columns = width - kept_columns.shape[2]
        if missing_columns <= 0:
            return kept_columns
        return torch.nn.functional.pad(kept_columns, (0, 0, 0, -(-missing_columns // GROWTH_COLUMNS) * GROWTH_COLUMNS))


class SlotCache:
    """The cache of all layers of a model."""

    def __init__(self, n_layers: int, rows: int) -> None:
        self.row_count = rows
        self.layers = [SlotLayer(rows) for _ in range(n_layers)]

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor] | RowKeys:
        """Write a layer's new keys and values [row, head, q, d_head]; return those that its attention reads in this
        pass."""
        return self.layers[layer].update(keys, values)

    def place(self, slots: CacheSlots) -> None:
        """Set the columns that the next forward pass writes and reads."""
        for layer in self.layers:
            layer.slots = slots

    def take(self, rows: Tensor) -> None:
        self.row_count = len(rows)
        for layer in self.layers:
            layer.take(rows)

    def copy(self) -> SlotCache:
        """Return an independent copy."""
        other = SlotCache(0, self.row_count)
        other.layers = [layer.copy() for layer in self.layers]
        return other


def plan_row_spans(
    rows: Sequence[int],
    first_columns: np.ndarray,
    counts: np.ndarray,
    visible_masks: Sequence[np.ndarray] | None,
    dtype: torch.dtype,
) -> list[RowSpan]:
    """Return the spans that a pass reads, without rows that have no new tokens.

    For each of `rows`: `first_columns` has the column of its first new token, `counts` the number of new tokens, and
    `visible_masks` their visible keys, bool [tokens, keys] (None: all columns up to their own). `dtype` is the type of
    the masks.
    """
    row_spans, begin = [], 0
    for i, (row, start, count) in enumerate(zip(rows, first_columns.tolist(), counts.tolist(), strict=True)):
        if not count:
            continue
        keys, bias = start + count, None
        if visible_masks is not None:
            bias = torch.where(torch.from_numpy(visible_masks[i]), 0.0, -torch.inf).to(dtype)
        elif count > 1:
            bias = torch.full((count, keys), -torch.inf, dtype=dtype).triu(start + 1)
        row_spans.append(RowSpan(row, slice(begin, begin + count), keys, bias))
        begin += count
    return row_spans


def attend_by_rows(query: Tensor, cached_rows: RowKeys) -> Tensor:
    """Return attention [token, head, 1, d_head] of queries of this shape, in which every token is a
    separate batch row."""
    scale = query.shape[-1] ** -0.5
    attended_rows = []
    for span in cached_rows.spans:
        part = slice(span.row, span.row + 1)
        keys, values = cached_rows.keys[part, :, : span.keys], cached_rows.values[part, :, : span.keys]
        queries = query[span.tokens].transpose(0, 2)
        attended_rows.append(scaled_dot_product_attention(queries, keys, values, attn_mask=span.bias, scale=scale))
    return torch.cat(attended_rows, 2).transpose(0, 2)
