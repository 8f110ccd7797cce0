"""TransformerLens' hook points over a Hugging Face model, by TransformerBridge.

Two bridges exist. One keeps the model's own attention (fused, full speed) and has no hook points inside it. The
default one rebuilds attention with explicit scores, four times slower at full length, and has them all. Hook points of
the first kind whose value fused attention never computes stay silent there, so a bridge is chosen by what really fires.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from chessreg.errors import NotFoundError

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.language_model import LanguageModel

RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_resid_post")


def bridge(model: LanguageModel, hook_points: Sequence[str] = ()) -> Any:
    """A TransformerBridge on which all of `hook_points` fire, with native attention where that is possible.

    Bridging changes a model in place, so the bridge gets a copy. Treat it as read-only and do not compile it: hooks
    registered after torch.compile are ignored. Raises NotFoundError, with near misses, for names that never fire.
    """
    native = build(model, native=True)
    names = set(hook_points)
    if names <= firing(native):
        return native
    default = build(model, native=False)
    known = firing(default)
    if unknown := sorted(names - known):
        near = difflib.get_close_matches(unknown[0], known, 3)
        hint = f"near: {', '.join(near)}" if near else "names are TransformerLens', as blocks.3.hook_resid_post"
        raise NotFoundError(f"no hook point {unknown[0]} in {model.name}", hint)
    return default


def all_hook_points(model: LanguageModel) -> list[str]:
    """Every name that fires on the default bridge, sorted."""
    return sorted(firing(build(model, native=False)))


def activations(model: LanguageModel, tokens: Tensor, hook_points: Sequence[str]) -> dict[str, Tensor]:
    """{hook point: activation [batch, length, …]} in one pass, in each hook's own dtype.

    When only residual streams are asked for, no bridge is built.
    """
    layers = {name: int(found[1]) for name in hook_points if (found := RESIDUAL.fullmatch(name))}
    if len(layers) == len(set(hook_points)):
        return dict(zip(layers, model.residuals(tokens, list(layers.values())), strict=True))
    over = bridge(model, hook_points)
    with torch.inference_mode():
        _, cache = over.run_with_cache(tokens.to(model.device), names_filter=list(hook_points))
    return {name: cache[name] for name in hook_points}  # aliases of a hook come too: keep the names asked for


def build(model: LanguageModel, native: bool) -> Any:
    from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    def keep_attention(adapter: Any) -> None:
        adapter.component_mapping["blocks"].submodules["attn"] = AttentionBridge(
            name="attn",
            config=adapter.cfg,
            submodules={"o": LinearBridge(name="c_proj")},
            maintain_native_attention=True,
            fused_qkv=True,
        )

    hf = copy.deepcopy(model.hf)
    return build_bridge_from_module(
        hf,
        "GPT2LMHeadModel",
        hf_config=hf.config,
        model_name=model.name,
        post_adapter_hook=keep_attention if native else None,
    )


def firing(over: Any) -> set[str]:
    """The hook points that fire in a forward pass, found by running one over two tokens."""
    device = next(over.parameters()).device
    with torch.inference_mode():
        _, cache = over.run_with_cache(torch.zeros(1, 2, dtype=torch.int64, device=device))
    return set(cache.keys())
