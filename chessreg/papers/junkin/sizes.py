"""Sizes of Junkin's paper: `small` in minutes, `reference` in hours on two cores, `paper` as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chessreg.experiments.finetune import Finetune
from chessreg.papers.plan import SizeName


@dataclass(frozen=True)
class TwinShape:
    """Layers, heads and width of a trio of twins, and the seeds of their trainings."""

    n_layer: int
    n_head: int
    n_embd: int
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.n_layer}x{self.n_embd}"


@dataclass(frozen=True)
class JunkinSize:
    """The amounts and settings of one size.

    `training` are settings of `train`. `tuning` are settings of `finetune` by family of language models; other
    families use Llama's. `language_models` are settings of models with initial weights, by name. `written` are
    settings of prompts. `protocol` are settings of the ladder's games.
    """

    shapes: tuple[TwinShape, ...]
    training: Mapping[str, Any]
    steps: int
    batch_moves: int
    heldout_moves: int
    heldout_steps: int
    positions: int  # test positions per model
    puzzles: int
    language_models: Mapping[str, Mapping[str, Any]]
    tuning: Mapping[str, Mapping[str, Any]]
    templates: tuple[str, ...]  # templates of tunings
    decoding_positions: int  # test positions with each of `templates`
    prompts: tuple[str, ...]  # templates of the tests before tuning
    prompt_positions: int  # test positions with each of `prompts`
    rungs: tuple[str, ...]
    games: int  # on each rung
    protocol: Mapping[str, Any]
    prompt_settings: Mapping[str, Any] = field(default_factory=dict)
    twins_that_play: tuple[str, ...] = ("bidirectional", "causal", "games")
    language_models_play: bool = True
    has_prompts_after_tuning: bool = False  # also test `prompts` after tuning
    distance_positions: int = 0  # positions of each part whose answers are sampled
    one_set: bool = True  # all models are trained and tested on the same positions
    steps_at_games_compute: int | None = None  # of the causal control; None: computed from the twin of games

    def get_tuning(self, family: str) -> Mapping[str, Any]:
        """Return the settings of `finetune` for a model of this family."""
        return self.tuning.get(family, self.tuning["llama"])


QUICK_TRAINING: Mapping[str, Any] = {  # short trainings on a CPU; the author's settings otherwise
    "optimizer": "muon", "learning_rate": 3e-3, "final_fraction": 0.0,
}  # fmt: skip
DRAWN_HELDOUT: Mapping[str, Any] = {"heldout_order": "drawn"}
"""Held-out positions are drawn from many games. `reference` uses the first of the file, as in its stored results."""
STOCKFISH_LEVELS = "stockfish:0-10@nodes=1000"
WEAK_OPPONENTS = ("random", "capture", "stockfish:-1+random=0.4", "stockfish:-1+random=0.2", "stockfish:-1+random=0.1",
         "stockfish:-1")  # fmt: skip
LLAMA_MODEL: Mapping[str, Any] = {"family": "llama", "tokenizer": "bpe"}
PYTHIA_MODEL: Mapping[str, Any] = {"family": "gpt_neox", "tokenizer": "bpe"}
BRIEF_PRETRAINING: Mapping[str, Any] = {"steps": 600, "learning_rate": 2e-3}
"""Settings of a language model's first training, before tuning. It is short because each prompt teaches about thirty
legal moves, which the model then also knows when the prompt has no list."""
PUBLISHED_TEMPLATES = tuple(f"junkin-{number}" for number in range(1, 7))
PUBLISHED_NOTATION: Mapping[str, Any] = {"notation": "san", "layout": "flattened_with_slashes"}
"""Moves in SAN and positions with slashes, as the paper states; its code differs in both."""
UNAIDED_PROTOCOL: Mapping[str, Any] = {
    "color": "both",
    "opening": "random:6",
    "policy": "legal",
    "temperatures": (0.001,),
}
"""Settings of the reference's ladder, with the temperature of the author's first attempt."""
PUBLISHED_PROTOCOL: Mapping[str, Any] = {"preset": "junkin-2025"}
TINY_MODEL: Mapping[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 640}
BRIEF_TUNING: Mapping[str, Any] = {"steps": 12, "batch_positions": 8, "warmup_steps": 2, "heldout_positions": 20,
                              "heldout_steps": 12, "template": "junkin-1", **PUBLISHED_NOTATION}  # fmt: skip

SIZES: dict[SizeName, JunkinSize] = {
    "small": JunkinSize(
        shapes=(TwinShape(2, 2, 32, (1,)),), training={**QUICK_TRAINING, **DRAWN_HELDOUT, "warmup_steps": 5},
        steps=40, batch_moves=64,
        heldout_moves=100, heldout_steps=20, positions=300, puzzles=100,
        language_models={"llama": {**LLAMA_MODEL, **TINY_MODEL}, "pythia": {**PYTHIA_MODEL, **TINY_MODEL}},
        tuning={"llama": {**BRIEF_TUNING, "learning_rate": 3e-3}, "gpt_neox": {**BRIEF_TUNING, "learning_rate": 1e-2}},
        templates=("junkin-1",), decoding_positions=24, prompts=("junkin-1", "junkin-2"), prompt_positions=12,
        distance_positions=6,
        rungs=("random", STOCKFISH_LEVELS), games=2, protocol=PUBLISHED_PROTOCOL, prompt_settings=PUBLISHED_NOTATION,
    ),
    "reference": JunkinSize(
        shapes=(TwinShape(4, 4, 128, (1, 2)), TwinShape(6, 6, 192, (1,))),
        training={**QUICK_TRAINING, "warmup_steps": 200}, steps=4454,
        batch_moves=256, heldout_moves=1000, heldout_steps=440, positions=50_000, puzzles=10_000,
        language_models={"llama": {**LLAMA_MODEL, "n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 640,
                                   **BRIEF_PRETRAINING}},
        tuning={"llama": {"steps": 2000, "batch_positions": 32, "learning_rate": 1e-3, "warmup_steps": 100}},
        templates=("junkin-small", "junkin-1"), decoding_positions=12_800, prompts=PUBLISHED_TEMPLATES,
        prompt_positions=1000,
        rungs=(*WEAK_OPPONENTS, STOCKFISH_LEVELS), games=100, protocol=UNAIDED_PROTOCOL,
        twins_that_play=("bidirectional", "causal"),
        language_models_play=False, has_prompts_after_tuning=True, one_set=False,
        steps_at_games_compute=1656,  # as in the stored results
    ),
    "paper": JunkinSize(
        shapes=(TwinShape(8, 8, 512, (1, 2, 3)),), training={**DRAWN_HELDOUT, "warmup_steps": 2000}, steps=200_000,
        batch_moves=2048, heldout_moves=8000, heldout_steps=8000, positions=12_800, puzzles=10_000,
        language_models={
            "llama": {**LLAMA_MODEL, "n_layer": 16, "n_head": 32, "n_embd": 2048, "block_size": 700},
            "pythia": {**PYTHIA_MODEL, "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 700},
        },
        tuning={"llama": Finetune.presets["paper"], "gpt_neox": Finetune.presets["paper-pythia"]},
        templates=("junkin-1",), decoding_positions=12_800, prompts=PUBLISHED_TEMPLATES, prompt_positions=12_800,
        distance_positions=800,
        rungs=("stockfish:0-10@time=0.1",), games=1000, protocol=PUBLISHED_PROTOCOL, prompt_settings=PUBLISHED_NOTATION,
    ),
}  # fmt: skip
FEW_STEPS: Mapping[str, Any] = {"steps": 2, "batch_positions": 48, "warmup_steps": 1, "heldout_positions": 8}
SIZES["rehearsal"] = replace(
    SIZES["paper"],
    training={**SIZES["paper"].training, "warmup_steps": 1},
    steps=2,
    batch_moves=420,
    heldout_moves=100,
    heldout_steps=2,
    positions=300,
    puzzles=100,
    tuning={family: {**tuning, **FEW_STEPS} for family, tuning in SIZES["paper"].tuning.items()},
    decoding_positions=24,
    prompt_positions=24,
    distance_positions=6,
    games=2,
)
"""Batches of two forward passes of the largest size: their gradients are accumulated as those of the paper's."""
