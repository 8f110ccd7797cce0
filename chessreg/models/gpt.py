"""The GPT of Karvonen 2024 (section 3, Table 5): pre-LN GPT-2 without biases, exact GELU, tied embeddings.

Used for training only. Checkpoints leave this module in the Hugging Face GPT-2 layout (`hf_state`), which everything
else in the house loads. Imports torch and nothing of chessreg, so that it runs on a bare GPU box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    n_layer: int = 8
    n_head: int = 8
    n_embd: int = 512
    block_size: int = 1023
    vocab_size: int = 32


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q, k, v [batch, head, length, d_head]; the same shape comes back.

    On a CPU the fused kernel's backward pass is slow for small heads; slices of 128 queries, each over the keys it can
    see, take half its time (2 cores, d_head 32, length 416). Elsewhere the fused kernel is used.
    """
    batch, heads, length, d_head = q.shape
    if q.device.type != "cpu" or length < 256:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    q, k, v = (x.reshape(batch * heads, length, d_head) for x in (q, k, v))
    slices = []
    for start in range(0, length, 128):
        end = min(start + 128, length)
        mask = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1)
        scores = torch.baddbmm(mask, q[:, start:end], k[:, :end].transpose(1, 2), alpha=d_head**-0.5)
        slices.append(torch.softmax(scores, -1) @ v[:, :end])
    return torch.cat(slices, 1).view(batch, heads, length, d_head)


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm, each added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        d = config.n_embd
        self.n_head = config.n_head
        self.ln_1 = nn.LayerNorm(d, bias=False)
        self.c_attn = nn.Linear(d, 3 * d, bias=False)
        self.attn_proj = nn.Linear(d, d, bias=False)
        self.ln_2 = nn.LayerNorm(d, bias=False)
        self.c_fc = nn.Linear(d, 4 * d, bias=False)
        self.mlp_proj = nn.Linear(4 * d, d, bias=False)

    def forward(self, residual: Tensor) -> Tensor:
        batch, length, d = residual.shape
        qkv = self.c_attn(self.ln_1(residual)).view(batch, length, 3, self.n_head, d // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = causal_attention(q, k, v)
        residual = residual + self.attn_proj(mixed.transpose(1, 2).reshape(batch, length, d))
        return residual + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(residual))))


class GPT(nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocab_size]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                narrow = name.endswith("proj.weight")
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * config.n_layer) if narrow else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        residual = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            residual = block(residual)
        return F.linear(self.ln_f(residual), self.wte.weight)

    def matrices(self) -> list[nn.Parameter]:
        """The weight matrices of the blocks: what Muon optimises; embeddings and norms stay with AdamW."""
        return [p for p in self.h.parameters() if p.dim() == 2]
