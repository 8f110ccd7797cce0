"""One pass of a model over new tokens of many rows, with a different number per row.

There are two equivalent ways. As a rectangle: shorter rows are padded, and all rows attend together. Packed: the tokens
are concatenated without padding, and each row attends to its own keys (`slot_cache.attend_by_rows`). On a CPU, a
padding token costs as much as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chessreg.models.edits import ResidualEdit, apply_edits
from chessreg.models.slot_cache import CacheSlots, SlotCache, plan_row_spans

if TYPE_CHECKING:
    from chessreg.models.language_model import LanguageModel

Keep = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class RaggedTokens:
    """New tokens of some rows of a session, T in total, concatenated by row; a row may have none.

    Row i has counts[i] tokens, written from cache column first[i] on. visible[i] bool [counts[i], keys] are the columns
    that each of its tokens attends to, including its own; None: all columns up to its own. `masks`, one per edit, bool
    [T]: the tokens that it changes (None: all).

    `owners` int [T]: the row of the edits' directions for each token (None: its own row). `after`: a layer and its
    unedited output [T, d_model], if known; a model with a cache then computes only the layers after it.
    """

    rows: list[int]
    counts: np.ndarray
    first: np.ndarray
    ids: np.ndarray
    positions: np.ndarray
    visible: Sequence[np.ndarray] | None
    masks: Sequence[np.ndarray | None]
    owners: np.ndarray | None = None
    after: tuple[int, Tensor] | None = None

    @cached_property
    def place(self) -> np.ndarray:
        """The index in `rows` of each token, int [T]."""
        return np.repeat(np.arange(len(self.rows)), self.counts)

    @cached_property
    def offset(self) -> np.ndarray:
        """The index of each token among its row's new tokens, int [T]."""
        return np.arange(len(self.ids)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    @property
    def is_fresh(self) -> bool:
        """Whether no row has earlier tokens, so that nothing is read from the cache."""
        return self.visible is None and not self.first.any()


def run_packed_pass(
    model: LanguageModel,
    cache: SlotCache,
    edits: Sequence[ResidualEdit],
    new: RaggedTokens,
    watched_points: set[str],
    keep: Keep,
) -> Tensor:
    """Return final hidden states [T, d_model] of the new tokens. Every token is a batch row of width 1, so nothing is
    padded.

    `keep` receives the residuals [T, d_model] at the hook points in `watched_points`.
    """
    device = model.device
    columns = (new.first[new.place] + new.offset)[:, None]
    rows = torch.tensor(np.array(new.rows)[new.place], device=device)
    parts = plan_row_spans(new.rows, new.first, new.counts, new.visible, model.dtype)
    cache.place(CacheSlots(rows, torch.from_numpy(columns).to(device), int(columns.max()) + 1, False, parts))
    masks = [None if mask is None else torch.from_numpy(mask[:, None]) for mask in new.masks]
    owners = rows if new.owners is None else torch.from_numpy(new.owners)
    row_edits = [edit.take(owners) if edit.per_row else edit for edit in edits]
    positions = new.positions.clip(max=model.block_size - 1)[:, None]
    after = None if new.after is None else (new.after[0], new.after[1][:, None])
    hidden = _run_network(model, cache, new.ids[:, None], positions, None, list(zip(row_edits, masks, strict=True)),
                        watched_points, lambda point, residual: keep(point, residual[:, 0]), after)  # fmt: skip
    return hidden[:, 0]


def run_rectangular_pass(
    model: LanguageModel,
    cache: SlotCache,
    edits: Sequence[ResidualEdit],
    new: RaggedTokens,
    watched_points: set[str],
    keep: Keep,
) -> Tensor:
    """Return final hidden states [T, d_model], with the arguments of `run_packed_pass`. Rows are padded to equal
    length."""
    device, width = model.device, int(new.counts.max())
    shape, at = (len(new.rows), width), (new.place, new.offset)
    columns = new.first[:, None] + np.arange(width)

    def pad_rows(values: np.ndarray, padding: np.ndarray) -> np.ndarray:
        padding[at] = values
        return padding

    ids, positions = pad_rows(new.ids, np.zeros(shape, np.int64)), pad_rows(new.positions, columns.copy())
    masks = [None if m is None else torch.from_numpy(pad_rows(m, np.zeros(shape, bool))) for m in new.masks]
    is_whole = new.rows == list(range(cache.row_count))
    rows = None if is_whole else torch.tensor(new.rows, device=device)
    column_tensor = torch.from_numpy(columns).to(device)
    cache.place(CacheSlots(rows, column_tensor, int(columns.max()) + 1, new.is_fresh))
    if new.owners is not None:
        owners = torch.from_numpy(pad_rows(new.owners, np.zeros(shape, np.int64)))
        row_edits = [edit.take(owners) if edit.per_row else edit for edit in edits]
    else:
        row_edits = [edit.take(torch.tensor(new.rows)) if edit.per_row and not is_whole else edit for edit in edits]
    indices = torch.from_numpy(new.place).to(device), torch.from_numpy(new.offset).to(device)
    after = None
    if new.after is not None:
        first_residual = new.after[1].new_zeros(*shape, model.d_model)
        first_residual[indices] = new.after[1]
        after = new.after[0], first_residual
    mask = _make_attention_mask(model, new, columns, column_tensor)
    hidden = _run_network(model, cache, ids, positions.clip(max=model.block_size - 1), mask,
                        list(zip(row_edits, masks, strict=True)), watched_points,
                        lambda point, residual: keep(point, residual[indices]), after)  # fmt: skip
    return hidden[indices]


def _make_attention_mask(
    model: LanguageModel, new: RaggedTokens, columns: np.ndarray, column_tensor: Tensor
) -> Tensor | None:
    """Return the attention mask of a rectangle, [rows, 1, width, columns]; None: plain causal attention."""
    if new.is_fresh:
        return None
    reach = int(columns.max()) + 1
    if new.visible is None:
        mask = torch.arange(reach, device=model.device) <= column_tensor[:, :, None]
    else:
        is_visible = np.zeros((*columns.shape, reach), bool)
        for i, visible_columns in enumerate(new.visible):
            is_visible[i, np.arange(columns.shape[1]), columns[i]] = (
                True  # padding sees itself, because attention to nothing is NaN
            )
            is_visible[i, : visible_columns.shape[0], : visible_columns.shape[1]] = visible_columns
        mask = torch.from_numpy(is_visible).to(model.device)
    if model.device.type == "cpu":  # every layer would convert a boolean mask to numbers
        mask = torch.where(mask, 0.0, -torch.inf).to(model.dtype)
    return mask[:, None]


def _run_network(
    model: LanguageModel,
    cache: SlotCache,
    ids: np.ndarray,
    positions: np.ndarray,
    mask: Tensor | None,
    edits: Sequence[tuple[ResidualEdit, Tensor | None]],
    watched_points: set[str],
    keep: Keep,
    after: tuple[int, Tensor] | None = None,
) -> Tensor:
    """Run the network with its edits and return final hidden states [rows, width, d_model].

    `ids` and `positions` are int [rows, width]. Each edit comes with a mask of the tokens it changes, None for all.
    `keep` is called with each of the `watched_points` and its residual. `after` is a layer and its output, to compute
    only later layers.
    """
    with ExitStack() as stack:
        stack.enter_context(apply_edits(model.network, edits))
        if watched_points:
            stack.enter_context(model.watch_hook_points(watched_points, keep))
        tokens, places = torch.from_numpy(ids).to(model.device), torch.from_numpy(positions).to(model.device)
        if after is None:
            return model.network.hidden(tokens, places, cache, mask)
        layer, residual = after
        for edit, row_mask in edits:
            if edit.layer == layer:  # its block, which a hook would edit, is not computed
                residual = edit.apply_to(residual, row_mask)
        network: Any = model.network  # only networks with a cache accept `after`
        hidden: Tensor = network.hidden(tokens, places, cache, mask, after=(layer, residual))
        return hidden
