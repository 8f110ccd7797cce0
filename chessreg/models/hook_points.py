"""The hook points that experiments read, by TransformerLens's names: four patterns of the residual stream.

A name with `*` is a pattern with one hook point per block, such as `blocks.*.hook_resid_post`. `hook_resid_pre` of
block 0 is the sum of token and position embeddings (Davis's "embeddings"). `ln_final.hook_out` is the output of the
final LayerNorm with its weight and bias, which TransformerBridge distinguishes from `hook_normalized`.

Other activations, such as attention patterns, are read by `LanguageModel.activations` through TransformerBridge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from chessreg.errors import BadInputError, NotFoundError

EMBED = "hook_embed"
RESID_PRE = "blocks.*.hook_resid_pre"
RESID_POST = "blocks.*.hook_resid_post"
LN_FINAL = "ln_final.hook_out"
PATTERNS = (EMBED, RESID_PRE, RESID_POST, LN_FINAL)
"""The patterns that an adapter may have, in the order of a forward pass."""

BLOCK = re.compile(r"blocks\.(\d+)\.")


def format_hook_point(layer: int, pattern: str = RESID_POST) -> str:
    """Return the hook point of a layer, or the pattern itself if it has no `*`.

    >>> format_hook_point(3)
    'blocks.3.hook_resid_post'
    """
    return pattern.replace("*", str(layer))


def to_hook_pattern(name: str) -> str:
    """Return the name with `*` in place of its block's number.

    >>> to_hook_pattern("blocks.3.hook_resid_pre")
    'blocks.*.hook_resid_pre'
    """
    return BLOCK.sub("blocks.*.", name)


def get_hook_layer(name: str, n_layers: int) -> int:
    """Return the 0-based layer of a hook point: the block, 0 for the embedding, the last for the final LayerNorm."""
    block = BLOCK.match(name)
    return int(block[1]) if block else n_layers - 1 if name == LN_FINAL else 0


def check_editable(subject: str, name: str) -> None:
    """Raise BadInputError unless directions are of the residual stream after a block, the only place of edits."""
    if to_hook_pattern(name) != RESID_POST:
        raise BadInputError(
            f"an edit changes {RESID_POST}; {subject} is of {to_hook_pattern(name)}",
            f"fit it with --hook-point {RESID_POST}",
        )


def list_hook_points(
    patterns: Sequence[str], layers: Sequence[int], n_layers: int, available: Sequence[str] = PATTERNS
) -> list[str]:
    """Return the hook points of these patterns without repetition, in the order given; `*` becomes each of `layers`.

    Raises NotFoundError for a name that matches none of the patterns in `available`, BadInputError for a layer that the
    model does not have.
    """
    points: dict[str, None] = {}
    for name in patterns:
        pattern = to_hook_pattern(name)
        if pattern not in available:
            raise NotFoundError(f"experiments have no hook point {name!r}", f"use {', '.join(available)}")
        points |= dict.fromkeys(format_hook_point(layer, name) for layer in (layers if "*" in name else (0,)))
    for name in points:
        if not 0 <= get_hook_layer(name, n_layers) < n_layers:
            raise BadInputError(f"{name} is not of one of the model's layers 0 to {n_layers - 1}")
    return list(points)
