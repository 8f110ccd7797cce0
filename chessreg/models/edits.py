"""Edits of the residual stream: a vector added to, or subtracted from, `blocks.L.hook_resid_post`.

Karvonen 2024, sections 3.4 and 4: board edits subtract a probe's direction, skill edits add one. An edit of every token
has two forms with the same result: a hook after the block, and a bias of the block's last matrix (7.1 there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.adapters.base import Network


@dataclass(frozen=True)
class TokenMask:
    """Selects the tokens of a sequence that an edit changes.

    `compute(tokens int [n], encoding)` returns bool [n]. `prefix_stable` means that a token's membership depends only
    on the tokens up to it, so that cached keys and values stay valid as the sequence grows.
    """

    name: str
    prefix_stable: bool
    compute: Callable[[np.ndarray, Encoding], np.ndarray]


TOKEN_MASKS: NameRegistry[TokenMask] = NameRegistry("token mask")


def register_token_mask(mask: TokenMask) -> None:
    """Register a token mask under its name. Raises ValueError if the name is taken."""
    TOKEN_MASKS[mask.name] = mask


def get_token_mask(name: str) -> TokenMask:
    """Return the token mask with this name, in which `_` may replace `-` (`white_segments`). Raises NotFoundError."""
    return TOKEN_MASKS[name.replace("_", "-")]


register_token_mask(TokenMask("all", True, lambda tokens, encoding: np.ones(len(tokens), bool)))
register_token_mask(TokenMask("last", False, lambda tokens, encoding: np.arange(len(tokens)) == len(tokens) - 1))


def _make_site_mask(name: str, prefix_stable: bool = True) -> TokenMask:
    """Return the mask of the sites with this name.

    Sites of segments depend only on the tokens up to them; in UCI squares, a turn begins with a destination only if no
    promotion follows.
    """

    def mask(tokens: np.ndarray, encoding: Encoding) -> np.ndarray:
        from chessreg.encodings import Tokens

        token_mask = np.zeros(len(tokens), bool)
        token_mask[encoding.sites(name, Tokens.from_items([tokens])).token] = True
        return token_mask

    return TokenMask(name, prefix_stable, mask)


for _name in ("white-segments", "black-segments", "dots"):
    register_token_mask(_make_site_mask(_name))
register_token_mask(_make_site_mask("turns", prefix_stable=False))


@dataclass(frozen=True, eq=False)
class ResidualEdit:
    """residual ± scale · vector after block `layer` (0-based), at the tokens of a mask.

    `vector` is [d_model], [batch, d_model] for one direction per row, or [batch, length, d_model] for one per token;
    `scale` is a number, [batch] or [batch, length]. The vector is not normalized. `reference` multiplies the scale
    at each token by the norm of `reference(residual)` there (Davis equation 1, where it is the model's final LayerNorm;
    `Network.norm`). The form `mlp-bias` adds the vector to the bias of the block's `mlp.c_proj` instead of hooking the
    block's output, as in chess_gpt_eval; it needs one vector at all tokens and gives the same result. `instead`
    replaces the residual float32 [batch, length, d_model] by `instead(residual)` before the vector is added, such as an
    autoencoder's reconstruction.

    Raises BadInputError for other shapes and for an unknown op, form or token mask.
    """

    layer: int
    vector: Tensor
    scale: float | Tensor = 1.0
    token_mask: str = "all"
    op: Literal["add", "subtract"] = "add"
    form: Literal["hook", "mlp-bias"] = "hook"
    reference: Callable[[Tensor], Tensor] | None = None
    instead: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.vector.dim() not in (1, 2, 3):
            raise BadInputError(f"an edit's vector is [d_model] or [batch, d_model], not {list(self.vector.shape)}")
        if self.op not in ("add", "subtract"):
            raise BadInputError(f"an edit adds or subtracts; op {self.op!r} does not exist")
        get_token_mask(self.token_mask)
        if self.form not in ("hook", "mlp-bias"):
            raise BadInputError(f"an edit is a hook or an mlp-bias; form {self.form!r} does not exist")
        if self.form == "mlp-bias" and (self.token_mask != "all" or self.per_row or self.reference or self.instead):
            raise BadInputError("a bias is one vector at every token", "other tokens or rows need the form hook")

    @property
    def per_row(self) -> bool:
        return self.vector.dim() == 2 or (isinstance(self.scale, Tensor) and self.scale.dim() == 1)

    @property
    def rows(self) -> int:
        """The number of rows with a separate direction or scale; 1 if one serves all rows."""
        parts = [self.vector] if self.vector.dim() == 2 else []
        if isinstance(self.scale, Tensor) and self.scale.dim() == 1:
            parts.append(self.scale)
        return max(map(len, parts), default=1)

    def take(self, rows: Tensor) -> ResidualEdit:
        """Return the edit for a batch of these rows. With rows [batch, length], each token takes its own row's
        direction."""
        vector = self.vector[rows.to(self.vector.device)] if self.vector.dim() == 2 else self.vector
        scale = self.scale
        if isinstance(scale, Tensor) and scale.dim() == 1:
            scale = scale[rows.to(scale.device)]
        return replace(self, vector=vector, scale=scale)

    def delta(self, residual: Tensor) -> Tensor:
        """Return the summand [1 or batch, 1 or length, d_model] in the residual's dtype and on its device (the only
        cast)."""
        scale = self.scale.float()[..., None] if isinstance(self.scale, Tensor) and self.scale.dim() else self.scale
        scaled_vector = self.vector.float() * (scale.to(self.vector.device) if isinstance(scale, Tensor) else scale)
        scaled_vector = -scaled_vector if self.op == "subtract" else scaled_vector
        scaled_vector = (
            scaled_vector if scaled_vector.dim() == 3 else scaled_vector.reshape(-1, 1, scaled_vector.shape[-1])
        )
        if self.reference is not None:
            scaled_vector = scaled_vector.to(residual.device) * self.reference(residual).float().norm(
                dim=-1, keepdim=True
            )
        if self.instead is not None:
            scaled_vector = scaled_vector.to(residual.device) + (self.instead(residual.float()) - residual.float())
        return scaled_vector.to(residual.device, residual.dtype)

    def apply_to(self, residual: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the residual [batch, length, d_model], edited at the tokens of a mask bool [batch, length] (None: all
        tokens)."""
        delta = self.delta(residual)
        return residual + (delta if mask is None else delta * mask[:, :, None].to(residual.device, residual.dtype))


@contextmanager
def apply_edits(network: Network, edits: Sequence[tuple[ResidualEdit, Tensor | None]]) -> Iterator[None]:
    """Apply edits, in order, to every forward pass inside the block; each has a mask bool [batch, length] or None
    (all).

    Raises NotFoundError for a layer that the model does not have.
    """
    handles = []
    biases: list[tuple[nn.Linear, nn.Parameter]] = []
    blocks = network.blocks
    try:
        for edit, mask in edits:
            if not 0 <= edit.layer < len(blocks):
                raise NotFoundError(f"layer {edit.layer} does not exist: the model has layers 0 to {len(blocks) - 1}")
            if edit.form == "mlp-bias":
                biases.append(_add_bias(network.bias_matrix(edit.layer), edit))
            else:
                handles.append(blocks[edit.layer].register_forward_hook(_make_hook(edit, mask)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for matrix, bias in reversed(biases):
            matrix.bias = bias


def _add_bias(matrix: nn.Linear, edit: ResidualEdit) -> tuple[nn.Linear, nn.Parameter]:
    """Add the edit to the bias of a block's last matrix; return the matrix and its previous bias.

    chess_gpt_eval sets the bias. Its models have none, so adding is equivalent, and also correct for folded models.
    """
    bias: nn.Parameter = matrix.bias
    matrix.bias = nn.Parameter(bias.detach() + edit.delta(bias)[0, 0], requires_grad=False)
    return matrix, bias


def _make_hook(edit: ResidualEdit, mask: Tensor | None) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(block: nn.Module, arguments: Any, residual: Tensor) -> Tensor:
        return edit.apply_to(residual, mask)

    return hook
