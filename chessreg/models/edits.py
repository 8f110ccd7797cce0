"""Edits of the residual stream: a vector added to, or subtracted from, `blocks.L.hook_resid_post`.

Karvonen 2024, sections 3.4 and 4: board edits subtract a probe's direction, skill edits add one. An edit of every token
has two forms that give the same result: a hook after the block, and a bias of the block's last matrix (7.1 there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from chessreg.encodings import positions as text_positions
from chessreg.encodings.tokenizers import tokenizer
from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import Registry

if TYPE_CHECKING:
    from chessreg.models.adapters.base import Network


@dataclass(frozen=True)
class PositionSet:
    """Which positions of a sequence an edit touches.

    mask(tokens int [n], tokenizer name) → bool [n]. settled says whether a position's membership depends only on the
    tokens up to it: then keys and values computed once stay right as the sequence grows.
    """

    name: str
    settled: bool
    mask: Callable[[np.ndarray, str], np.ndarray]


POSITION_SETS: Registry[PositionSet] = Registry("position set")


def register_positions(positions: PositionSet) -> None:
    """Make a position set known by its name. Raises ValueError when the name is taken."""
    POSITION_SETS[positions.name] = positions


def position_set(name: str) -> PositionSet:
    """The position set of this name, or NotFoundError. `white_segments` is `white-segments`."""
    return POSITION_SETS[name.replace("_", "-")]


register_positions(PositionSet("all", True, lambda tokens, tokenizer: np.ones(len(tokens), bool)))
register_positions(PositionSet("last", False, lambda tokens, tokenizer: np.arange(len(tokens)) == len(tokens) - 1))


def _of_text(name: str) -> PositionSet:
    """Positions that games.positions finds in the text. Each depends on the characters up to it: they are settled."""

    def mask(tokens: np.ndarray, language: str) -> np.ndarray:
        chosen = np.zeros(len(tokens), bool)
        chosen[text_positions.find(name, tokenizer(language).decode(tokens))[0]] = True
        return chosen

    return PositionSet(name, True, mask)


for _name in ("white-segments", "black-segments", "dots"):
    register_positions(_of_text(_name))


@dataclass(frozen=True, eq=False)
class Edit:
    """residual ± scale · vector after block `layer` (0-based), at a set of positions.

    vector is [d_model], or [batch, d_model] for a direction of its own for each row; scale is a number, or [batch].
    The vector is not normalised here. The form `mlp-bias` adds it to the bias of the block's `mlp.c_proj` instead of
    hooking the block's output: the same at every token, as chess_gpt_eval does it, for one vector at all positions.
    Raises BadInputError for other shapes or an unknown op, form or position set.
    """

    layer: int
    vector: Tensor
    scale: float | Tensor = 1.0
    positions: str = "all"
    op: Literal["add", "subtract"] = "add"
    form: Literal["hook", "mlp-bias"] = "hook"

    def __post_init__(self) -> None:
        if self.vector.dim() not in (1, 2):
            raise BadInputError(f"an edit's vector is [d_model] or [batch, d_model], not {list(self.vector.shape)}")
        if self.op not in ("add", "subtract"):
            raise BadInputError(f"an edit adds or subtracts; there is no op {self.op}")
        position_set(self.positions)
        if self.form not in ("hook", "mlp-bias"):
            raise BadInputError(f"an edit is a hook or an mlp-bias; there is no form {self.form}")
        if self.form == "mlp-bias" and (self.positions != "all" or self.per_row):
            raise BadInputError("a bias is one vector at every position", "other positions or rows need the form hook")

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
def editing(network: Network, edits: Sequence[tuple[Edit, Tensor | None]]) -> Iterator[None]:
    """Apply edits to every forward pass inside, in order; each with a mask bool [batch, length] or None (all).

    Raises NotFoundError for a layer that the model does not have.
    """
    handles = []
    biases: list[tuple[nn.Linear, nn.Parameter]] = []
    blocks = network.blocks
    try:
        for edit, mask in edits:
            if not 0 <= edit.layer < len(blocks):
                raise NotFoundError(f"no layer {edit.layer}: the model has layers 0 to {len(blocks) - 1}")
            if edit.form == "mlp-bias":
                biases.append(_add_bias(network.bias_matrix(edit.layer), edit))
            else:
                handles.append(blocks[edit.layer].register_forward_hook(_hook(edit, mask)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for matrix, bias in reversed(biases):
            matrix.bias = bias


def _add_bias(matrix: nn.Linear, edit: Edit) -> tuple[nn.Linear, nn.Parameter]:
    """Give a block's last matrix a bias with the edit in it; returns the matrix and the bias that it had.

    chess_gpt_eval sets the bias; its models have none, so adding is the same there, and right for folded models too.
    """
    bias: nn.Parameter = matrix.bias
    matrix.bias = nn.Parameter(bias.detach() + edit.delta(bias)[0, 0], requires_grad=False)
    return matrix, bias


def _hook(edit: Edit, mask: Tensor | None) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(block: nn.Module, arguments: Any, residual: Tensor) -> Tensor:
        delta = edit.delta(residual)
        return residual + (delta if mask is None else delta * mask[:, :, None].to(residual.device, residual.dtype))

    return hook
