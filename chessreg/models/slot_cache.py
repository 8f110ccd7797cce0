"""A key-value cache in which column p of a row holds the row's position p.

Rows of different lengths then need no padding columns, no holes and no compaction: taking tokens back is forgetting a
length, and whatever stands beyond it is overwritten by the next append. Every query carries a mask of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from chessreg.models.row_attention import RowKeys, RowSpan

STEP = 128  # columns are added in steps, so that growing copies the cache rarely


@dataclass
class Slots:
    """Where one pass writes and reads: rows [r] (None: all, in order), columns [r, q], the first `width` columns.

    fresh says that no row has earlier tokens, so that nothing needs reading back. With spans rows are read one by one,
    and [r, q] is [tokens, 1]: a row comes once for each of its tokens.
    """

    rows: Tensor | None
    columns: Tensor
    width: int
    fresh: bool
    spans: Sequence[RowSpan] | None = None


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, [row, head, column, d_head]; zeros where nothing was written, never garbage."""

    is_compileable = False
    is_sliding = False

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.row_count = rows
        self.slots: Slots | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        _, heads, _, d_head = key_states.shape
        self.keys = key_states.new_zeros(self.row_count, heads, 0, d_head)
        self.values = value_states.new_zeros(self.row_count, heads, 0, d_head)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots = self.slots
        assert slots is not None
        self._grow(slots.width)
        rows = torch.arange(self.row_count, device=self.device) if slots.rows is None else slots.rows
        self.keys[rows[:, None], :, slots.columns] = key_states.transpose(1, 2)
        self.values[rows[:, None], :, slots.columns] = value_states.transpose(1, 2)
        if slots.spans is not None:
            return RowKeys(self.keys, slots.spans), RowKeys(self.values, slots.spans)
        if slots.fresh:
            return key_states, value_states
        if slots.rows is None:
            return self.keys[:, :, : slots.width], self.values[:, :, : slots.width]
        # whole rows first: that is one copy of memory a row, four times faster than picking columns at the same time
        picked = self.keys.index_select(0, slots.rows), self.values.index_select(0, slots.rows)
        return picked[0][:, :, : slots.width], picked[1][:, :, : slots.width]

    def take(self, rows: Tensor) -> None:
        """Become the cache of these rows, some of which may be repeated."""
        self.row_count = len(rows)
        if self.is_initialized:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def copy(self) -> SlotLayer:
        """A layer of its own with the same keys and values."""
        other = SlotLayer(self.row_count)
        if self.is_initialized:
            other.lazy_initialization(self.keys, self.values)
            other.keys, other.values = self.keys.clone(), self.values.clone()
        return other

    def _grow(self, width: int) -> None:
        missing = width - self.keys.shape[2]
        if missing > 0:
            missing = -(-missing // STEP) * STEP
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, missing))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, missing))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """For a pass without a mask of its own, which only happens when nothing came before: plain causal."""
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):
    """The cache of all layers of a model."""

    def __init__(self, n_layers: int, rows: int) -> None:
        self.row_count = rows
        super().__init__(layers=[SlotLayer(rows) for _ in range(n_layers)])

    def place(self, slots: Slots) -> None:
        """Say where the next forward pass writes and reads."""
        for layer in self.layers:
            layer.slots = slots

    def take(self, rows: Tensor) -> None:
        self.row_count = len(rows)
        for layer in self.layers:
            layer.take(rows)

    def copy(self) -> SlotCache:
        """A cache of its own with the same keys and values."""
        other = SlotCache(0, self.row_count)
        other.layers = [layer.copy() for layer in self.layers]
        return other
