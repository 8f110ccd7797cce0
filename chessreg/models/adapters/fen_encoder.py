"""The FEN encoder: nanoGPT's blocks over the 77 characters of a position, with or without a causal mask, and a head
over 1,968 actions at the last token (Junkin 2025).

One token precedes the 77. With `embedding` "tied", as in the author's model, one table of 1,968 rows is both embedding
and head, and the preceding token is 0, so that `0`, that token and the action a1b1 share a row. "own" is the corrected
model: the 31 characters and the preceding token have separate rows, and the head is a separate matrix.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.errors import BadInputError
from chessreg.models.adapters.base import ADAPTERS, AttentionKind
from chessreg.models.adapters.gpt2 import GPT2Block, GPT2Config, Kernel, attend_fused, compute_initial_deviation
from chessreg.models.adapters.position_model import ACTIONS, CHARACTERS, TOKENS, PositionModel


@dataclass(frozen=True)
class FenConfig:
    """The shape of a FEN encoder."""

    n_layer: int = 8
    n_head: int = 8
    n_embd: int = 512
    attention: AttentionKind = "bidirectional"
    embedding: Literal["own", "tied"] = "own"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise BadInputError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")

    def blocks(self) -> GPT2Config:
        """Return the shape of its blocks as a GPT-2 configuration."""
        rows = ACTIONS if self.embedding == "tied" else CHARACTERS + 1
        shape = self.n_layer, self.n_head, self.n_embd, TOKENS + 1, rows
        return GPT2Config(*shape, tied_head=self.embedding == "tied", bias=False, dropout=self.dropout)


class FenEncoder(PositionModel):
    """Maps token ids [batch, 77] to logits [batch, 1, 1968]. No biases, exact GELU, learned positions,
    final LayerNorm."""

    architecture = "fen-encoder"
    title = "FEN encoder"
    config_type = FenConfig
    config: FenConfig
    head = "action"

    def __init__(self, config: FenConfig, kernel: Kernel | None = None) -> None:
        super().__init__(config)
        shape = config.blocks()
        self.first_token = 0 if config.embedding == "tied" else CHARACTERS
        kernel = kernel or functools.partial(attend_fused, causal=config.attention == "causal")
        self.wte = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.h = nn.ModuleList(GPT2Block(shape, layer, kernel) for layer in range(shape.n_layer))
        self.ln_f = nn.LayerNorm(shape.n_embd, bias=False)
        if not shape.tied_head:
            self.action_head = nn.Linear(shape.n_embd, ACTIONS, bias=False)

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        residual = self.compute_residual(tokens, self.n_layer)
        hidden: Tensor = self.normalised.run_hooks(self.ln_f(residual))[:, 1:]
        return hidden

    def compute_residual(self, tokens: Tensor, layers: int) -> Tensor:
        """Return the residual stream [batch, 78, d_model] after `layers` blocks."""
        if tokens.shape[1] != TOKENS:
            raise BadInputError(f"a FEN encoder reads {TOKENS} tokens, not {tokens.shape[1]}", "encode with fen-77")
        embeddings = self.embedded.run_hooks(self.wte(F.pad(tokens, (1, 0), value=self.first_token)))
        residual = self.first_residual.run_hooks(
            F.dropout(embeddings + self.wpe.weight, self.config.dropout, self.training)
        )
        for block, point in zip(self.h[:layers], self.after, strict=False):
            residual = point.run_hooks(block(residual))  # type: ignore[operator]
        return residual

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, 1, 1968]. Without hooks, the last block computes only the last token."""
        last_block: GPT2Block = self.h[-1]  # type: ignore[assignment]
        hooked_points = (last_block, self.after[-1], self.normalised)
        if any(module._forward_hooks for module in hooked_points):
            return super().forward(tokens)
        return self.unembed(self.ln_f(last_block.last(self.compute_residual(tokens, self.n_layer - 1))))

    def unembed(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.wte.weight if self.config.embedding == "tied" else self.action_head.weight)

    def initialise(self) -> None:
        """Draw nanoGPT's initial weights, like `GPT2.initialise`."""
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, 0.0, compute_initial_deviation(name, self.n_layer))

    def shape(self) -> dict[str, Any]:
        config = asdict(self.config)
        del config["dropout"]
        sizes = {"d_mlp": 4 * self.d_model, "block_size": TOKENS, "vocab_size": CHARACTERS, "actions": ACTIONS}
        return {"family": self.architecture, **config, **sizes, "activation": "gelu", "bias": False}


ADAPTERS[FenEncoder.architecture] = FenEncoder
