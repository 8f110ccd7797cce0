"""The FEN encoder: nanoGPT's blocks over the 77 characters of a position, with or without a causal mask, and a head
over 1,968 actions that reads the last token (Junkin & Nathanson; specification 2.1).

It puts a token of its own before the 77. `embedding` "tied" is the author's: one table of 1,968 rows is embedding and
head at once, and the token before is 0, so that `0`, that token and the action a1b1 share a row. "own" is the corrected
one: 31 characters and the token before have rows of their own, and the head is a matrix of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.errors import BadInputError
from chessreg.models.adapters.base import (
    ADAPTERS,
    AttentionKind,
    Network,
    Unfilled,
    all_points,
    check_weights,
    read_weights,
)
from chessreg.models.adapters.gpt2 import Block, GPT2Config, Kernel, fused, spread
from chessreg.models.hook_points import PATTERNS

TOKENS, CHARACTERS, ACTIONS = 77, 31, 1968


@dataclass(frozen=True)
class FenConfig:
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
        rows = ACTIONS if self.embedding == "tied" else CHARACTERS + 1
        shape = self.n_layer, self.n_head, self.n_embd, TOKENS + 1, rows
        return GPT2Config(*shape, tied_head=self.embedding == "tied", bias=False, dropout=self.dropout)


class Residual(nn.Identity):
    """The residual stream at one point, of the 77 characters alone: where hooks see and edit it."""

    def at(self, residual: Tensor) -> Tensor:
        """The stream [batch, 78, d_model] through this point; nothing is copied where nobody looks."""
        if not self._forward_hooks:
            return residual
        return torch.cat([residual[:, :1], self(residual[:, 1:])], 1)


class FenEncoder(Network):
    """Token ids [batch, 77] to logits [batch, 1, 1968]. No biases, exact GELU, learned positions, final LayerNorm."""

    architecture = "fen-encoder"
    points = PATTERNS
    head = "action"
    block_size, vocab_size, outputs = TOKENS, CHARACTERS, ACTIONS

    def __init__(self, config: FenConfig, kernel: Kernel | None = None) -> None:
        super().__init__()
        self.config, self.attention = config, config.attention
        self.n_layer, self.d_model = config.n_layer, config.n_embd
        shape = config.blocks()
        self.first = 0 if config.embedding == "tied" else CHARACTERS
        kernel = kernel or functools.partial(fused, causal=config.attention == "causal")
        self.wte = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.wpe = nn.Embedding(shape.block_size, shape.n_embd)
        self.h = nn.ModuleList(Block(shape, layer, kernel) for layer in range(shape.n_layer))
        self.ln_f = nn.LayerNorm(shape.n_embd, bias=False)
        if not shape.tied_head:
            self.action_head = nn.Linear(shape.n_embd, ACTIONS, bias=False)
        self.embedded, self.begin, self.normalised = Residual(), Residual(), Residual()
        self.after = nn.ModuleList(Residual() for _ in range(shape.n_layer))

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.after)

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        return all_points(self.embedded, self.begin, self.blocks, self.normalised)

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        residual = self.through(tokens, self.n_layer)
        hidden: Tensor = self.normalised.at(self.ln_f(residual))[:, 1:]
        return hidden

    def through(self, tokens: Tensor, layers: int) -> Tensor:
        """The residual stream [batch, 78, d_model] after so many blocks."""
        if tokens.shape[1] != TOKENS:
            raise BadInputError(f"a FEN encoder reads {TOKENS} tokens, not {tokens.shape[1]}", "encode with fen-77")
        embedded = self.embedded.at(self.wte(F.pad(tokens, (1, 0), value=self.first)))
        residual = self.begin.at(F.dropout(embedded + self.wpe.weight, self.config.dropout, self.training))
        for block, point in zip(self.h[:layers], self.after, strict=False):
            residual = point.at(block(residual))  # type: ignore[operator]
        return residual

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, 1, 1968]. Of the last block only the last token is computed, unless somebody looks there."""
        last: Block = self.h[-1]  # type: ignore[assignment]
        hooked = (last, self.after[-1], self.normalised)
        if any(module._forward_hooks for module in hooked):
            return super().forward(tokens)
        return self.unembed(self.ln_f(last.last(self.through(tokens, self.n_layer - 1))))

    def norm(self, layer: int | None = None) -> nn.Module:
        if layer is None or layer == self.n_layer - 1:
            return self.ln_f
        following: nn.Module = self.h[layer + 1].ln_1  # type: ignore[assignment]
        return following

    def unembed(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.wte.weight if self.config.embedding == "tied" else self.action_head.weight)

    def initialise(self) -> None:
        """nanoGPT's initial weights, as `GPT2.initialise` draws them."""
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, 0.0, spread(name, self.n_layer))

    def matrices(self) -> list[nn.Parameter]:
        """The weight matrices of the blocks: what Muon optimises."""
        return [p for p in self.h.parameters() if p.dim() == 2]

    def shape(self) -> dict[str, Any]:
        config = asdict(self.config)
        del config["dropout"]
        sizes = {"d_mlp": 4 * self.d_model, "block_size": TOKENS, "vocab_size": CHARACTERS, "actions": ACTIONS}
        return {"family": self.architecture, **config, **sizes, "activation": "gelu", "bias": False}

    def count_parameters(self) -> tuple[int, int]:
        total = sum(p.numel() for p in self.parameters())
        return total, sum(p.numel() for p in self.h.parameters()) + self.ln_f.weight.numel()

    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        stored = getattr(torch, dtype)
        weights = {n: t.detach().to("cpu", stored).contiguous() for n, t in sorted(self.state_dict().items())}
        config = {name: value for name, value in self.shape().items() if name != "family"}
        return {"model_type": self.architecture, "dtype": dtype, **config}, weights

    @classmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> FenEncoder:
        names = ("n_layer", "n_head", "n_embd", "attention", "embedding")
        return cls.of_weights(FenConfig(**{name: shape[name] for name in names}), read_weights(folder, dtype))

    @classmethod
    def of_weights(cls, config: FenConfig, weights: Mapping[str, Tensor]) -> FenEncoder:
        """A model in eval mode holding these weights, named as in its state_dict. BadInputError for any others."""
        with Unfilled():
            model = cls(config)
        check_weights(weights, {name: tuple(t.shape) for name, t in model.state_dict().items()}, "FEN encoder")
        model.load_state_dict(dict(weights), assign=True)
        return model.eval()

    def trained(self) -> FenEncoder:
        """A copy, float32 on the CPU, in eval mode."""
        weights = {name: tensor.detach().cpu().float().clone() for name, tensor in self.state_dict().items()}
        return FenEncoder.of_weights(self.config, weights)

    def untrained(self, seed: int) -> FenEncoder:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = FenEncoder(self.config)
            model.initialise()
        return model.eval()


ADAPTERS[FenEncoder.architecture] = FenEncoder
