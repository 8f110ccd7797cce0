"""Hook points of the residual stream, by TransformerLens' names: where a model is looked at.

A name with `*` stands for one of every block: `blocks.*.hook_resid_post`. `hook_resid_pre` of block 0 is what the
blocks begin with, Davis's "embeddings": tokens and positions added. `ln_final.hook_out` is the final LayerNorm's
output, its weight and bias applied, which TransformerBridge distinguishes from `hook_normalized`.
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
"""All that an adapter may have, in the order in which a pass meets them."""

BLOCK = re.compile(r"blocks\.(\d+)\.")


def hook_point(layer: int, pattern: str = RESID_POST) -> str:
    """The hook point of a layer; of a pattern without `*` there is one.

    >>> hook_point(3)
    'blocks.3.hook_resid_post'
    """
    return pattern.replace("*", str(layer))


def pattern_of(name: str) -> str:
    """The name with `*` for its block's number.

    >>> pattern_of("blocks.3.hook_resid_pre")
    'blocks.*.hook_resid_pre'
    """
    return BLOCK.sub("blocks.*.", name)


def layer_of(name: str, n_layers: int) -> int:
    """The layer of a hook point, 0-based: a block's number, 0 of the embedding, the last of the final LayerNorm."""
    block = BLOCK.match(name)
    return int(block[1]) if block else n_layers - 1 if name == LN_FINAL else 0


def check_editable(what: str, name: str) -> None:
    """Raise BadInputError for directions that are not of the residual stream after a block, where edits are made."""
    if pattern_of(name) != RESID_POST:
        raise BadInputError(
            f"an edit changes {RESID_POST}; {what} is of {pattern_of(name)}", f"fit it with --hook-point {RESID_POST}"
        )


def named_points(
    patterns: Sequence[str], layers: Sequence[int], n_layers: int, there: Sequence[str] = PATTERNS
) -> list[str]:
    """The hook points of these names, once each, in the order given; `*` is every one of `layers`.

    Raises NotFoundError for a name that is not of one of the patterns `there`, BadInputError for a layer that the model
    does not have.
    """
    points: dict[str, None] = {}
    for name in patterns:
        pattern = pattern_of(name)
        if pattern not in there:
            raise NotFoundError(f"the model has no hook point {name!r}", f"it has {', '.join(there)}")
        points |= dict.fromkeys(hook_point(layer, name) for layer in (layers if "*" in name else (0,)))
    for name in points:
        if not 0 <= layer_of(name, n_layers) < n_layers:
            raise BadInputError(f"{name} is not of one of the model's layers 0 to {n_layers - 1}")
    return list(points)
