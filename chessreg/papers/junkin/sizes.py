"""How much of Junkin's paper is done: `small` in minutes, `reference` in hours on two cores, `paper` as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chessreg.papers.plan import SizeName


@dataclass(frozen=True)
class Shape:
    """Layers, heads and width of one trio of twins, and the seeds that they are trained with."""

    n_layer: int
    n_head: int
    n_embd: int
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.n_layer}x{self.n_embd}"


@dataclass(frozen=True)
class Size:
    """How much of everything is done at one size. `training` and `tuning` are settings of `train` and `finetune`,
    `language_model` those of the model of initial weights that is tuned."""

    shapes: tuple[Shape, ...]
    training: Mapping[str, Any]
    steps: int
    batch_moves: int
    heldout_moves: int
    heldout_steps: int
    positions: int  # that the twins are asked
    puzzles: int
    language_model: Mapping[str, Any]
    tuning: Mapping[str, Any]
    templates: tuple[str, ...]  # that models are tuned on
    decoding_positions: int  # positions that language models are asked by these
    prompts: tuple[str, ...]  # that are asked before and after tuning
    prompt_positions: int  # positions that are asked by these
    rungs: tuple[str, ...]
    games: int  # on each rung
    steps_at_games_compute: int | None = None  # of the causal control; None: counted of the twin of games


QUICK: Mapping[str, Any] = {  # short trainings on a CPU; the author's settings otherwise
    "optimizer": "muon", "learning_rate": 3e-3, "final_fraction": 0.0,
}  # fmt: skip
DRAWN: Mapping[str, Any] = {"heldout_order": "drawn"}
"""Curves over held-out positions of many games; `reference` keeps those that its results were trained with: the first
of the file."""
LEVELS = "stockfish:0-10@nodes=1000"
BELOW = ("random", "capture", "stockfish:-1+random=0.4", "stockfish:-1+random=0.2", "stockfish:-1+random=0.1",
         "stockfish:-1")  # fmt: skip
LLAMA: Mapping[str, Any] = {"family": "llama", "tokenizer": "bpe"}
BRIEF: Mapping[str, Any] = {"steps": 600, "learning_rate": 2e-3}
"""Of a language model's first reading, before it is tuned. Short: each prompt teaches it some thirty legal moves, which
it then knows without the list, too."""
PROMPTS = tuple(f"junkin-{number}" for number in range(1, 7))

SIZES: dict[SizeName, Size] = {
    "small": Size(
        shapes=(Shape(2, 2, 32, (1,)),), training={**QUICK, **DRAWN, "warmup_steps": 5}, steps=40, batch_moves=64,
        heldout_moves=100, heldout_steps=20, positions=300, puzzles=100,
        language_model={**LLAMA, "n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 640},
        tuning={"steps": 12, "batch_positions": 8, "learning_rate": 3e-3, "warmup_steps": 2, "heldout_positions": 20,
                "heldout_steps": 12},
        templates=("junkin-small", "junkin-1"), decoding_positions=24, prompts=("junkin-2",), prompt_positions=12,
        rungs=("random", "capture"), games=4,
    ),
    "reference": Size(
        shapes=(Shape(4, 4, 128, (1, 2)), Shape(6, 6, 192, (1,))), training={**QUICK, "warmup_steps": 200}, steps=4454,
        batch_moves=256, heldout_moves=1000, heldout_steps=440, positions=50_000, puzzles=10_000,
        language_model={**LLAMA, "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 640, **BRIEF},
        tuning={"steps": 2000, "batch_positions": 32, "learning_rate": 1e-3, "warmup_steps": 100},
        templates=("junkin-small", "junkin-1"), decoding_positions=12_800, prompts=PROMPTS, prompt_positions=1000,
        rungs=(*BELOW, LEVELS), games=100, steps_at_games_compute=1656,  # that its results were trained with
    ),
    "paper": Size(
        shapes=(Shape(8, 8, 512, (1, 2, 3)),), training={**DRAWN, "warmup_steps": 2000}, steps=200_000,
        batch_moves=2048, heldout_moves=8000, heldout_steps=8000, positions=1_000_000, puzzles=10_000,
        language_model={**LLAMA, "n_layer": 16, "n_head": 32, "n_embd": 2048, "block_size": 700},
        tuning={"steps": 100_000, "batch_positions": 8192, "learning_rate": 8e-5, "warmup_steps": 1000},
        templates=("junkin-small", *PROMPTS), decoding_positions=12_800, prompts=PROMPTS, prompt_positions=12_800,
        rungs=("stockfish:0-10@time=0.1",), games=1000,
    ),
}  # fmt: skip
