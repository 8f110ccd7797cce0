"""Training configurations: everything that determines the trained weights, apart from the data.

Plain dataclasses with marked fields. The specs of kind `train` inherit them, so each setting is defined once: `Doc` is
its help, and the spec checks the bounds. They import neither pydantic, so that a machine with only torch and numpy can
train, nor torch, so that help and launch forms load quickly. The defaults are Karvonen's (2024, Table 5) if the paper
gives one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from chessreg.marks import Above, AtLeast, AtMost, Doc, Share

FRACTION = AtMost(1, "it is a fraction")
MEMORY = "memory holds them"
Attention = Annotated[
    Literal["causal", "bidirectional"], Doc("whether a character of the position sees the later ones")
]  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """The model's size, the optimizer and the schedule, common to all trainings."""

    n_layer: Annotated[
        int, Doc("layers (Karvonen Table 5: 8 and 16)"), AtLeast(1), AtMost(1000, "no model has more")
    ] = 8
    n_head: Annotated[int, Doc("attention heads (Table 5)"), AtLeast(1)] = 8
    n_embd: Annotated[int, Doc("d_model (Table 5)"), AtLeast(8), AtMost(100_000, "no model has more")] = 512
    dropout: Annotated[float, Doc("dropout of embeddings, attention and residual"), Share()] = 0.0
    steps: Annotated[int, Doc("updates (Table 5)"), AtLeast(1), AtMost(1_000_000_000, "the schedule is no longer")] = (
        600_000
    )
    optimizer: Annotated[Literal["adamw", "muon"], Doc("muon: for the blocks' matrices, AdamW elsewhere")] = "adamw"
    learning_rate: Annotated[float, Doc("learning rate of AdamW (Table 5)"), Above(0)] = 3e-4
    muon_learning_rate: Annotated[float, Doc("learning rate of Muon"), Above(0)] = 0.02
    schedule: Annotated[Literal["cosine", "trapezoid"], Doc("schedule of the rates (Table 5: cosine)")] = "cosine"
    warmup_steps: Annotated[int, Doc("steps until the full rate (Table 5)"), AtLeast(0)] = 2000
    decay_steps: Annotated[int, Doc("trapezoid: steps of linear decay to the final fraction"), AtLeast(0)] = 0
    final_fraction: Annotated[float, Doc("final share of the rate (Table 5: 3e-5 of 3e-4)"), AtLeast(0), FRACTION] = 0.1
    weight_decay: Annotated[float, Doc("weight decay on matrices (Table 5)"), AtLeast(0)] = 0.1
    beta1: Annotated[float, Doc("β₁ of AdamW (Table 5)"), Share()] = 0.9
    beta2: Annotated[float, Doc("β₂ of AdamW (Table 5)"), Share()] = 0.95
    grad_clip: Annotated[float, Doc("largest gradient norm (Table 5)"), Above(0)] = 1.0
    seed: int = 1337

    @property
    def draw_seed(self) -> int:
        """The seed of all random draws."""
        return self.seed

    @property
    def explicit_attention(self) -> bool:
        """Whether attention over fewer than 256 tokens computes explicit scores on a CPU: faster than the fused kernel,
        with other last digits."""
        return False

    def rate(self, step: int) -> float:
        """Return the factor on the learning rates at this step (0-based)."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "trapezoid":
            remaining_share = (self.steps - step) / max(self.decay_steps, 1)
            return self.final_fraction + (1 - self.final_fraction) * min(1.0, remaining_share)
        done_share = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * min(done_share, 1.0)))


@dataclass(frozen=True)
class GPT2Training(TrainConfig):
    """Training of a GPT-2."""

    block_size: Annotated[
        int, Doc("context, in tokens (Table 5)"), AtLeast(8), AtMost(1_000_000, MEMORY)
    ] = 1023  # fmt: skip
    activation: Annotated[
        Literal["gelu", "gelu_new"], Doc("GELU of the MLPs: exact, or GPT-2's approximation (Davis)")
    ] = "gelu"  # fmt: skip
    biases: Annotated[bool, Doc("add biases to linear layers and LayerNorms (Davis)")] = False


@dataclass(frozen=True)
class TextTraining(GPT2Training):
    """Training of a GPT-2 on the next token of games.

    packing "blocks" fills rows of block_size + 1 tokens, each starting with a game, as in the paper. "games" gives
    every game its own row, so that a token's position is its index in its game, and batches rows of similar length.
    "stream" uses the items of the corpus unchanged (`training.Corpus.stream`).
    """

    packing: Annotated[
        Literal["blocks", "games", "stream"],
        Doc("rows: blocks that begin with a game, one game each, or a stream cut anywhere (Davis)"),
    ] = "blocks"
    batch_tokens: Annotated[
        int, Doc("tokens in one update (Table 5: 100 rows)"), AtLeast(64), AtMost(1_000_000_000, MEMORY)
    ] = 102_300  # fmt: skip


@dataclass(frozen=True)
class BranchTraining(GPT2Training):
    """Training of a GPT-2 on moves as branches of the games in which they could be played (branches.py)."""

    batch_moves: Annotated[int, Doc("moves to predict in one update"), AtLeast(1), AtMost(1_000_000_000, MEMORY)] = 256
    game_loss: Annotated[float, Doc("weight of the loss on the tokens of the game itself"), AtLeast(0)] = 0.0


@dataclass(frozen=True)
class PositionTraining(TrainConfig):
    """Training of a FEN encoder on the move of a position."""

    attention: Attention = "causal"
    embedding: Annotated[
        Literal["own", "tied"], Doc("rows of the head: separate, or the author's one table for characters and actions")
    ] = "own"  # fmt: skip
    batch_moves: Annotated[
        int, Doc("moves to predict in one update (Junkin: 2,048)"), AtLeast(1), AtMost(1_000_000_000, MEMORY)
    ] = 2048  # fmt: skip


@dataclass(frozen=True)
class SearchlessTraining(TrainConfig):
    """Training of DeepMind's transformer of positions on moves or returns (Ruoss et al. 2024)."""

    head: Annotated[
        Literal["action", "action-value", "state-value"],
        Doc("prediction: the best move, or the return of a move or of a position, in buckets"),
    ] = "action-value"  # fmt: skip
    attention: Attention = "bidirectional"
    buckets: Annotated[
        int, Doc("buckets of the return, of equal width (Ruoss: 128)"), AtLeast(2), AtMost(10_000, MEMORY)
    ] = 128  # fmt: skip
    batch_moves: Annotated[
        int, Doc("moves or positions in one update (Ruoss: 4,096)"), AtLeast(1), AtMost(1_000_000_000, MEMORY)
    ] = 4096  # fmt: skip


POSITION_TRAININGS = (PositionTraining, SearchlessTraining)
"""Trainings whose items are positions with one label each."""
