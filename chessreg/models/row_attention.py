"""Attention of every row over its own keys alone: for passes on a CPU over rows of different lengths.

One call for all rows reads each row's keys up to the end of the longest, and rows that wait are read along: from
memory, which is most of a decoding pass. Here each row is a call of its own over its part of the cache, in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "chessreg-rows"
CALL = 64  # keys that could be read in the time that a call takes by itself


@dataclass(frozen=True)
class RowSpan:
    """One row of a pass: its place in the cache, how many of the pass's tokens are its own, how many keys it has, and
    what is added to their scores [tokens, keys] (None: every token sees every key)."""

    row: int
    tokens: int
    keys: int
    bias: Tensor | None


@dataclass(frozen=True)
class RowKeys:
    """A layer's keys, or its values, of all rows [row, head, column, d_head], and what this pass reads of them."""

    cached: Tensor
    spans: Sequence[RowSpan]


def spans(
    rows: Sequence[int], columns: np.ndarray, counts: np.ndarray, visible: np.ndarray | None, dtype: torch.dtype
) -> list[RowSpan]:
    """What each row of a pass reads. columns int [rows, width] are where its tokens are written, counts int [rows] how
    many are its own; visible bool [rows, width, columns] says what they see, None: every column up to their own."""
    found = []
    for i, row in enumerate(rows):
        tokens = int(counts[i])
        keys = int(columns[i, tokens - 1]) + 1 if tokens else 0
        bias = None
        if tokens and (tokens > 1 or visible is not None):
            sees = np.arange(keys) <= columns[i, :tokens, None] if visible is None else visible[i, :tokens, :keys]
            bias = torch.where(torch.from_numpy(sees), 0.0, -torch.inf).to(dtype)
        found.append(RowSpan(row, tokens, keys, bias))
    return found


def attend(
    module: nn.Module, query: Tensor, key: RowKeys, value: RowKeys, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Attention [row, token, head, d_head] of queries [row, head, token, d_head]; zeros for tokens of padding."""
    out = torch.zeros_like(query)
    for i, span in enumerate(key.spans):
        if span.tokens:
            part = slice(span.row, span.row + 1)
            keys, values = key.cached[part, :, : span.keys], value.cached[part, :, : span.keys]
            asked = query[i : i + 1, :, : span.tokens]
            out[i : i + 1, :, : span.tokens] = scaled_dot_product_attention(
                asked, keys, values, attn_mask=span.bias, scale=scaling
            )
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, attend)


@contextmanager
def by_rows(model: nn.Module) -> Iterator[None]:
    """Within, the model's attention layers call `attend`."""
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
