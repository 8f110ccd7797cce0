"""GPT-2 written out once more, straight from raw weights: what imports are verified against.

It shares no code with Hugging Face's classes or with the trainer, so that a wrong transpose, name, activation or
epsilon in a conversion shows as different logits. Slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def gpt2_logits(
    weights: Mapping[str, Tensor], tokens: Tensor, n_head: int, activation: str = "gelu", epsilon: float = 1e-5
) -> Tensor:
    """Logits float32 [batch, length, vocab] of tokens [batch, length].

    weights are named as in nanoGPT (`transformer.h.0.attn.c_attn.weight`), matrices [out, in], biases optional.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"].float(), bias(name))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"].float(), bias(name), epsilon)

    def bias(name: str) -> Tensor | None:
        found = weights.get(f"{name}.bias")
        return None if found is None else found.float()

    length = tokens.shape[1]
    hidden = torch.full((length, length), -torch.inf).triu(1)
    residual = weights["transformer.wte.weight"].float()[tokens]
    residual = residual + weights["transformer.wpe.weight"].float()[:length]
    n_layer = sum(name.endswith(".ln_1.weight") for name in weights)
    for layer in range(n_layer):
        block = f"transformer.h.{layer}"
        heads = linear(norm(residual, f"{block}.ln_1"), f"{block}.attn.c_attn").unflatten(-1, (3, n_head, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        pattern = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + hidden, -1)
        residual = residual + linear((pattern @ v).transpose(1, 2).flatten(2), f"{block}.attn.c_proj")
        inner = linear(norm(residual, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        residual = residual + linear(F.gelu(inner, approximate=ACTIVATIONS[activation]), f"{block}.mlp.c_proj")
    head = weights.get("lm_head.weight", weights["transformer.wte.weight"])
    return norm(residual, "transformer.ln_f") @ head.float().T


def transformer_lens_logits(weights: Mapping[str, Tensor], tokens: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Logits float32 [batch, length, vocab] from a HookedTransformer's state dict, LayerNorms folded in or not.

    Heads stay apart as they are in the file: W_Q [head, d_model, d_head], W_O [head, d_head, d_model]; exact GELU.
    """

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
        return x if f"{name}.w" not in weights else x * weights[f"{name}.w"].float() + weights[f"{name}.b"].float()

    length = tokens.shape[1]
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    residual = weights["embed.W_E"].float()[tokens] + weights["pos_embed.W_pos"].float()[:length]
    for layer in range(sum(name.endswith(".mlp.W_in") for name in weights)):
        part = {
            name.rsplit(".", 1)[1]: tensor.float()
            for name, tensor in weights.items()
            if name.startswith((f"blocks.{layer}.attn.", f"blocks.{layer}.mlp."))
        }
        x = norm(residual, f"blocks.{layer}.ln1")
        q, k, v = (torch.einsum("bpd,hde->bhpe", x, part[f"W_{i}"]) + part[f"b_{i}"][:, None] for i in "QKV")
        scores = torch.einsum("bhqe,bhke->bhqk", q, k) / q.shape[-1] ** 0.5
        pattern = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        residual = residual + torch.einsum("bhqk,bhke,hed->bqd", pattern, v, part["W_O"]) + part["b_O"]
        x = norm(residual, f"blocks.{layer}.ln2") @ part["W_in"] + part["b_in"]
        residual = residual + F.gelu(x) @ part["W_out"] + part["b_out"]
    return norm(residual, "ln_final") @ weights["unembed.W_U"].float() + weights["unembed.b_U"].float()
