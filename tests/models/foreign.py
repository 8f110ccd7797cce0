"""Tiny checkpoints in the layouts of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ARGUMENTS = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "bias": False, "vocab_size": 32, "dropout": 0.0}


def nanogpt_checkpoint(bias: bool = False, **arguments: Any) -> dict[str, Any]:
    """The content that Karvonen's training code saves, under the names of torch.compile."""
    generator = torch.Generator().manual_seed(0)
    shape = {**ARGUMENTS, "bias": bias, **arguments}
    d = shape["n_embd"]
    sizes = {"transformer.wte.weight": (shape["vocab_size"], d), "transformer.wpe.weight": (shape["block_size"], d)}
    for i in range(shape["n_layer"]):
        block = f"transformer.h.{i}"
        sizes |= {f"{block}.ln_1.weight": (d,), f"{block}.ln_2.weight": (d,)}
        sizes |= {f"{block}.attn.c_attn.weight": (3 * d, d), f"{block}.attn.c_proj.weight": (d, d)}
        sizes |= {f"{block}.mlp.c_fc.weight": (4 * d, d), f"{block}.mlp.c_proj.weight": (d, 4 * d)}
    sizes["transformer.ln_f.weight"] = (d,)
    if bias:
        layers = [n for n in sizes if n.endswith(".weight") and n.split(".")[1] not in ("wte", "wpe")]
        sizes |= {n.removesuffix("weight") + "bias": (sizes[n][0],) for n in layers}
    weights = {n: 0.3 * torch.randn(*s, generator=generator) for n, s in sizes.items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()  # the mask buffer of older torch
    model = {f"_orig_mod.{name}": tensor for name, tensor in weights.items()}
    return {"model": model, "model_args": shape, "iter_num": 7, "best_val_loss": torch.tensor(1.5), "config": {"a": 1}}


def written(checkpoint: Any, path: Path) -> Path:
    torch.save(checkpoint, path)
    return path
