"""Tiny checkpoints in the layouts of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fixtures.maia2 import make as maia2

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


def draw_maia2_weights() -> dict[str, Tensor]:
    """The weights of the tiny model in tests/fixtures/maia2."""
    with np.load(maia2.HERE / "expected.npz") as file:
        shapes = json.loads(file["facts"].tobytes())["weights"]
    return {name: torch.from_numpy(array) for name, array in maia2.draw_weights(shapes).items()}


def save_maia2_file(path: Path, state: dict[str, Any] | None = None, prefix: str = "module.") -> Path:
    """Write a file with the keys of the package's training code."""
    named = {f"{prefix}{name}": tensor for name, tensor in (draw_maia2_weights() if state is None else state).items()}
    generators = {"python": (3, tuple(range(625)), None), "numpy": {"keys": [1, 2]}, "torch_cpu": torch.get_rng_state()}
    optimizer = {"state": {0: {"step": torch.tensor(7.0)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    torch.save({"model_state_dict": named, "optimizer_state_dict": optimizer, "accumulated_samples": 3,
                "accumulated_games": 2, "training_metadata": {"epoch": 1}, "rng_state": generators}, path)  # fmt: skip
    return path
