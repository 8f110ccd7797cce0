"""Randomly initialised models: the baseline that every probe is compared with (Karvonen 2024, Table 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from chessreg.models.checkpoint import hf_model

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel


def random_twin(config: GPT2Config, seed: int) -> GPT2LMHeadModel:
    """An untrained model of this shape with nanoGPT's initialisation, a pure function of (config, seed).

    Matrices and embeddings N(0, 0.02), the two projections into the residual stream N(0, 0.02 / sqrt(2 layers)),
    LayerNorm weights 1, biases 0 and frozen.
    """
    import torch
    from transformers import GPT2LMHeadModel

    with torch.device("meta"):
        shapes = {name: p.shape for name, p in GPT2LMHeadModel(config).named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        if name.endswith(".bias"):
            continue
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
            continue
        narrow = name.endswith("c_proj.weight")
        std = 0.02 / math.sqrt(2 * config.n_layer) if narrow else 0.02
        weights[name] = torch.empty(shape).normal_(0.0, std, generator=generator)
    return hf_model(config, weights)
