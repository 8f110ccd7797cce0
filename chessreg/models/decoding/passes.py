"""One pass of a model over new tokens of many rows, each with its own number of them.

Two ways, which give the same. As a rectangle: shorter rows are padded, and all attend at once. Packed: the tokens stand
one after the other without padding, and each row attends to its own keys (`slot_cache.attend_by_rows`). On a CPU a
token of padding costs as much as any other.
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
class Ragged:
    """New tokens of some rows of a session, T in all, one row's after the other's; a row may have none.

    Row i has counts[i] of them, written from cache column first[i] on. visible[i] bool [counts[i], keys] says which
    columns each of its tokens attends to, its own included; None: every column up to its own. masks, one for each edit,
    bool [T]: the tokens that it touches (None: all).

    owners int [T]: which row of the edits' directions each token takes (None: that of its row). after: a layer and its
    output [T, d_model], unedited, where that is known already: a model with a cache computes what comes after it only.
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
        """Which of `rows` each token belongs to, int [T]."""
        return np.repeat(np.arange(len(self.rows)), self.counts)

    @cached_property
    def offset(self) -> np.ndarray:
        """The number of each token within its row's, int [T]."""
        return np.arange(len(self.ids)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    @property
    def fresh(self) -> bool:
        """Whether no row has earlier tokens, so that nothing needs reading back."""
        return self.visible is None and not self.first.any()


def forward_packed(
    model: LanguageModel, cache: SlotCache, edits: Sequence[ResidualEdit], new: Ragged, watched: set[str], keep: Keep
) -> Tensor:
    """Final hidden states [T, d_model]. Every token is a batch row of width 1, so nothing is padded.

    keep gets the residuals [T, d_model] at watched hook points.
    """
    device = model.device
    columns = (new.first[new.place] + new.offset)[:, None]
    rows = torch.tensor(np.array(new.rows)[new.place], device=device)
    parts = plan_row_spans(new.rows, new.first, new.counts, new.visible, model.dtype)
    cache.place(CacheSlots(rows, torch.from_numpy(columns).to(device), int(columns.max()) + 1, False, parts))
    masks = [None if mask is None else torch.from_numpy(mask[:, None]) for mask in new.masks]
    owners = rows if new.owners is None else torch.from_numpy(new.owners)
    chosen = [edit.take(owners) if edit.per_row else edit for edit in edits]
    positions = new.positions.clip(max=model.block_size - 1)[:, None]
    after = None if new.after is None else (new.after[0], new.after[1][:, None])
    hidden = _run_network(model, cache, new.ids[:, None], positions, None, list(zip(chosen, masks, strict=True)),
                        watched, lambda point, residual: keep(point, residual[:, 0]), after)  # fmt: skip
    return hidden[:, 0]


def forward_rectangle(
    model: LanguageModel, cache: SlotCache, edits: Sequence[ResidualEdit], new: Ragged, watched: set[str], keep: Keep
) -> Tensor:
    """Final hidden states [T, d_model], as `forward_packed` gives them."""
    device, width = model.device, int(new.counts.max())
    shape, at = (len(new.rows), width), (new.place, new.offset)
    columns = new.first[:, None] + np.arange(width)

    def padded(values: np.ndarray, padding: np.ndarray) -> np.ndarray:
        padding[at] = values
        return padding

    ids, positions = padded(new.ids, np.zeros(shape, np.int64)), padded(new.positions, columns.copy())
    masks = [None if m is None else torch.from_numpy(padded(m, np.zeros(shape, bool))) for m in new.masks]
    whole = new.rows == list(range(cache.row_count))
    rows = None if whole else torch.tensor(new.rows, device=device)
    there = torch.from_numpy(columns).to(device)
    cache.place(CacheSlots(rows, there, int(columns.max()) + 1, new.fresh))
    if new.owners is not None:
        owners = torch.from_numpy(padded(new.owners, np.zeros(shape, np.int64)))
        chosen = [edit.take(owners) if edit.per_row else edit for edit in edits]
    else:
        chosen = [edit.take(torch.tensor(new.rows)) if edit.per_row and not whole else edit for edit in edits]
    picked = torch.from_numpy(new.place).to(device), torch.from_numpy(new.offset).to(device)
    after = None
    if new.after is not None:
        known = new.after[1].new_zeros(*shape, model.d_model)
        known[picked] = new.after[1]
        after = new.after[0], known
    mask = _make_attention_mask(model, new, columns, there)
    hidden = _run_network(model, cache, ids, positions.clip(max=model.block_size - 1), mask,
                        list(zip(chosen, masks, strict=True)), watched,
                        lambda point, residual: keep(point, residual[picked]), after)  # fmt: skip
    return hidden[picked]


def _make_attention_mask(model: LanguageModel, new: Ragged, columns: np.ndarray, there: Tensor) -> Tensor | None:
    """What each token of a rectangle attends to, [rows, 1, width, columns]; None: plain causal attention."""
    if new.fresh:
        return None
    reach = int(columns.max()) + 1
    if new.visible is None:
        attended = torch.arange(reach, device=model.device) <= there[:, :, None]
    else:
        visible = np.zeros((*columns.shape, reach), bool)
        for i, own in enumerate(new.visible):
            visible[i, np.arange(columns.shape[1]), columns[i]] = True  # padding sees itself: of nothing comes NaN
            visible[i, : own.shape[0], : own.shape[1]] = own
        attended = torch.from_numpy(visible).to(model.device)
    if model.device.type == "cpu":  # a boolean mask would be made a number again in every layer
        attended = torch.where(attended, 0.0, -torch.inf).to(model.dtype)
    return attended[:, None]


def _run_network(
    model: LanguageModel,
    cache: SlotCache,
    ids: np.ndarray,
    positions: np.ndarray,
    mask: Tensor | None,
    edits: Sequence[tuple[ResidualEdit, Tensor | None]],
    watched: set[str],
    keep: Keep,
    after: tuple[int, Tensor] | None = None,
) -> Tensor:
    with ExitStack() as stack:
        stack.enter_context(apply_edits(model.network, edits))
        if watched:
            stack.enter_context(model.watching(watched, keep))
        tokens, places = torch.from_numpy(ids).to(model.device), torch.from_numpy(positions).to(model.device)
        if after is None:
            return model.network.hidden(tokens, places, cache, mask)
        layer, residual = after
        for edit, own in edits:
            if edit.layer == layer:  # its block, which a hook would edit, is not computed
                residual = edit.applied(residual, own)
        network: Any = model.network  # one with a cache, which takes it
        hidden: Tensor = network.hidden(tokens, places, cache, mask, after=(layer, residual))
        return hidden
