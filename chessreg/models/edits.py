"""Edits of the residual stream: a vector added to, or subtracted from, `blocks.L.hook_resid_post`.

Karvonen 2024, sections 3.4 and 4: board edits subtract a probe's direction, skill edits add one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from chessreg.errors import BadInputError, NotFoundError


@dataclass(frozen=True)
class PositionSet:
    """Which positions of a sequence an edit touches.

    mask(tokens int [n], tokenizer name) → bool [n]. settled says whether a position's membership depends only on the
    tokens up to it: then keys and values computed once stay right as the sequence grows.
    """

    name: str
    settled: bool
    mask: Callable[[np.ndarray, str], np.ndarray]


POSITION_SETS: dict[str, PositionSet] = {}


def register_positions(positions: PositionSet) -> None:
    """Add a position set. Raises ValueError for a name that is taken."""
    if positions.name in POSITION_SETS:
        raise ValueError(f"position set {positions.name} is registered twice")
    POSITION_SETS[positions.name] = positions


def position_set(name: str) -> PositionSet:
    """The position set of this name, or NotFoundError."""
    if name not in POSITION_SETS:
        raise NotFoundError(f"no position set {name}", f"there are {', '.join(sorted(POSITION_SETS))}")
    return POSITION_SETS[name]


register_positions(PositionSet("all", True, lambda tokens, tokenizer: np.ones(len(tokens), bool)))
register_positions(PositionSet("last", False, lambda tokens, tokenizer: np.arange(len(tokens)) == len(tokens) - 1))


@dataclass(frozen=True, eq=False)
class Edit:
    """residual ± scale · vector after block `layer` (0-based), at a set of positions.

    vector is [d_model], or [batch, d_model] for a direction of its own for each row; scale is a number, or [batch].
    The vector is not normalised here. Raises BadInputError for other shapes or an unknown op or position set.
    """

    layer: int
    vector: Tensor
    scale: float | Tensor = 1.0
    positions: str = "all"
    op: Literal["add", "subtract"] = "add"

    def __post_init__(self) -> None:
        if self.vector.dim() not in (1, 2):
            raise BadInputError(f"an edit's vector is [d_model] or [batch, d_model], not {list(self.vector.shape)}")
        if self.op not in ("add", "subtract"):
            raise BadInputError(f"an edit adds or subtracts; there is no op {self.op}")
        position_set(self.positions)

    @property
    def per_row(self) -> bool:
        return self.vector.dim() == 2 or (isinstance(self.scale, Tensor) and self.scale.dim() == 1)

    def take(self, rows: Tensor) -> Edit:
        """The edit of a batch that consists of these rows of the present one."""
        vector = self.vector[rows.to(self.vector.device)] if self.vector.dim() == 2 else self.vector
        scale = self.scale
        if isinstance(scale, Tensor) and scale.dim() == 1:
            scale = scale[rows.to(scale.device)]
        return replace(self, vector=vector, scale=scale)

    def delta(self, residual: Tensor) -> Tensor:
        """What is added, [1 or batch, 1, d_model], in the residual's dtype and on its device: the one cast there is."""
        scale = self.scale.float()[:, None] if isinstance(self.scale, Tensor) and self.scale.dim() else self.scale
        signed = self.vector.float() * (scale.to(self.vector.device) if isinstance(scale, Tensor) else scale)
        signed = -signed if self.op == "subtract" else signed
        return signed.reshape(-1, 1, signed.shape[-1]).to(residual.device, residual.dtype)


@contextmanager
def editing(blocks: Sequence[nn.Module], edits: Sequence[tuple[Edit, Tensor | None]]) -> Iterator[None]:
    """Apply edits to every forward pass inside, in order; each with a mask bool [batch, length] or None (all).

    Raises NotFoundError for a layer that the model does not have.
    """
    handles = []
    try:
        for edit, mask in edits:
            if not 0 <= edit.layer < len(blocks):
                raise NotFoundError(f"no layer {edit.layer}: the model has layers 0 to {len(blocks) - 1}")
            handles.append(blocks[edit.layer].register_forward_hook(_hook(edit, mask)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(edit: Edit, mask: Tensor | None) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(block: nn.Module, arguments: Any, residual: Tensor) -> Tensor:
        delta = edit.delta(residual)
        return residual + (delta if mask is None else delta * mask[:, :, None].to(residual.device, residual.dtype))

    return hook
