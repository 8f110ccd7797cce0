"""Attention of every row over its own keys alone: for passes on a CPU over rows of different lengths.

One call for all rows reads each row's keys up to the end of the longest, and rows that wait are read along: from
memory, which is most of a decoding pass. Here each row is a call of its own over its part of the cache, in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

CALL = 64  # keys that could be read in the time that a call takes by itself


@dataclass(frozen=True)
class RowSpan:
    """One row of a pass: its place in the cache, which of the pass's tokens are its own, how many keys it has, and what
    is added to their scores [tokens, keys] (None: every token sees every key)."""

    row: int
    tokens: slice
    keys: int
    bias: Tensor | None


@dataclass(frozen=True)
class RowKeys:
    """A layer's keys and values of all rows [row, head, column, d_head], and what this pass reads of them."""

    keys: Tensor
    values: Tensor
    spans: Sequence[RowSpan]


def spans(
    rows: Sequence[int],
    first: np.ndarray,
    counts: np.ndarray,
    visible: Sequence[np.ndarray] | None,
    dtype: torch.dtype,
) -> list[RowSpan]:
    """What each row of a pass reads, rows without new tokens left out. Of each: the column of its first new token, the
    number of its tokens, and what they see, bool [tokens, keys] (None: every column up to their own)."""
    found, begin = [], 0
    for i, (row, start, count) in enumerate(zip(rows, first.tolist(), counts.tolist(), strict=True)):
        if not count:
            continue
        keys, bias = start + count, None
        if visible is not None:
            bias = torch.where(torch.from_numpy(visible[i]), 0.0, -torch.inf).to(dtype)
        elif count > 1:
            bias = torch.full((count, keys), -torch.inf, dtype=dtype).triu(start + 1)
        found.append(RowSpan(row, slice(begin, begin + count), keys, bias))
        begin += count
    return found


def attend_by_rows(query: Tensor, cached: RowKeys) -> Tensor:
    """Attention [token, head, 1, d_head] of queries of this shape: every token is a batch row of its own."""
    scale = query.shape[-1] ** -0.5
    found = []
    for span in cached.spans:
        part = slice(span.row, span.row + 1)
        keys, values = cached.keys[part, :, : span.keys], cached.values[part, :, : span.keys]
        asked = query[span.tokens].transpose(0, 2)
        found.append(scaled_dot_product_attention(asked, keys, values, attn_mask=span.bias, scale=scale))
    return torch.cat(found, 2).transpose(0, 2)
