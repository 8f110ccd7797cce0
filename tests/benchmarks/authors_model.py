"""The network as Karvonen's scripts run it, for comparison in benchmarks: the computation of TransformerLens 1.10, with
our weights. Reimplemented from its behavior.

Norms are folded into the matrices that read them, heads are separate, every product has a bias (zero, because the
models have none), the attention pattern is searched for NaN, there is no key-value cache, and every pass covers the
whole text; a pass with a cache keeps every activation of every layer, including attention patterns. Where it differs
from his: no checks of shapes and types at run time, and no hooks where none edits, so it is if anything faster than
his.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel


class FoldedBlock:
    """A block as TransformerLens computes it: norms folded into the matrices that read, heads apart, all kept."""

    def __init__(self, block: Any, heads: int) -> None:
        reads, mlp = block.attn.c_attn.weight * block.ln_1.weight, block.mlp
        width = reads.shape[1]
        self.qkv = [part.view(heads, -1, width).mT.contiguous() for part in reads.split(width)]
        self.out = block.attn.c_proj.weight.T.reshape(heads, -1, width).contiguous()
        self.to_mlp, self.from_mlp = (mlp.c_fc.weight * block.ln_2.weight).T.contiguous(), mlp.c_proj.weight.T
        self.no_bias = {size: torch.zeros(size) for size in (width // heads, width, self.to_mlp.shape[1])}

    def run(self, residual: Tensor, later: Tensor, kept: list[Tensor]) -> Tensor:
        normal = normalised(residual, kept)
        q, k, v = (self.biased(torch.einsum("bpd,hde->bphe", normal, matrix)) for matrix in self.qkv)
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = torch.where(later, -torch.inf, scores)
        pattern = scores.softmax(-1)
        pattern = torch.where(pattern.isnan(), torch.zeros_like(pattern), pattern)
        mixed = torch.einsum("bkhe,bhqk->bqhe", v, pattern)
        written = self.biased(torch.einsum("bqhe,hed->bqd", mixed, self.out))
        middle = residual + written
        before = self.biased(normalised(middle, kept) @ self.to_mlp)
        after = torch.nn.functional.gelu(before)
        from_mlp = self.biased(after @ self.from_mlp)
        kept += [q, k, v, scores, pattern, mixed, written, middle, before, after, from_mlp]
        return middle + from_mlp

    def biased(self, product: Tensor) -> Tensor:
        return product + self.no_bias[product.shape[-1]]


def normalised(residual: Tensor, kept: list[Tensor]) -> Tensor:
    """TransformerLens' LayerNormPre: a norm without weights, its scale kept."""
    centred = residual - residual.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    kept += [scale, centred / scale]
    return kept[-1]


class FoldedModel:
    """All blocks and the head of one of our GPT-2 models."""

    @torch.inference_mode()
    def __init__(self, model: LanguageModel) -> None:
        self.network: Any = model.network
        self.blocks = [FoldedBlock(block, self.network.config.n_head) for block in self.network.h]
        self.later = ~torch.ones(model.block_size, model.block_size, dtype=torch.bool).tril()
        self.head = (self.network.wte.weight * self.network.ln_f.weight).T.contiguous()

    @torch.inference_mode()
    def run_with_cache(self, ids: Tensor) -> list[Tensor]:
        """The residual after each block, of ids [games, length]; he asks for no logits."""
        return self._residuals(ids, (), [])

    @torch.inference_mode()
    def logits(self, ids: Tensor, edits: Sequence[ResidualEdit] = ()) -> Tensor:
        """Logits [games, length, 32] at every token, while edits of every token, or of the last, are made by hooks."""
        return normalised(self._residuals(ids, edits, None)[-1], []) @ self.head

    def _residuals(self, ids: Tensor, edits: Any, kept: list[Tensor] | None) -> list[Tensor]:
        length = ids.shape[1]
        residual, later = self.network.wte(ids) + self.network.wpe.weight[:length], self.later[:length, :length]
        after = []
        for layer, block in enumerate(self.blocks):
            residual = block.run(residual, later, [] if kept is None else kept)
            for edit in edits:
                if edit.layer == layer:
                    delta = edit.delta(residual)
                    residual[:, -1 if edit.token_mask == "last" else slice(None)] += (
                        delta[:, 0] if edit.token_mask == "last" else delta
                    )
            after.append(residual)
        return after
