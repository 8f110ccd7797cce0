"""Sizes of Davis's paper: `small` in minutes, `reference` in hours on two cores, `paper` as published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chessreg.papers.plan import SizeName

PREFIX_PLIES = (4, 9, 14, 19, 24, 29, 34)  # plies of the edited prefixes in the published code


@dataclass(frozen=True)
class DavisSize:
    """The amounts and settings of one size."""

    fit_games: int  # probes are fitted on their last five positions
    test_games: int
    early_games: int  # the probes of the edits are fitted on their first plies
    early_plies: int
    min_plies: int  # of test games of probes and language models: short games resemble each other
    edit_min_plies: int  # of edited games
    has_all_games: bool  # the steps of published numbers read every game, as the author does
    prefixes: tuple[int, ...]  # plies
    twins: int
    epochs: int
    sae_probe_epochs: int
    promotions: tuple[str, ...]  # where probes of the promotion phase are fitted, or refused
    twin_labels: tuple[str, ...]
    expansion: int
    smaller: tuple[int, ...]  # expansions to compare it with
    smaller_everywhere: bool  # at every block, trained in one pass over the tokens with all others; else at three
    sae_tokens: int
    sae_batch: int
    sae_precision: str  # of matrix products in training
    sae_learning_rate: float
    sae_l1: float | None  # λ; None: 1, or the value found by the search for sae_l0
    sae_centre: bool  # begin at the mean residual, and scale by the distance from it
    sae_layers: int  # blocks whose SAEs one run trains
    sae_l0: float | None  # target number of active latents per token; None: no search
    sae_search_tokens: int | None
    heldout_games: int
    sweep_games: int
    scales: tuple[float, ...]
    edit_games: int
    other_games: int  # of edits with other probes, layers, tokens and protocols
    every_layer: bool  # the published protocols at every layer, as the author's 84 files
    markov_games: int
    markov_classes: int
    resamples: int
    lm_games: int
    shortest_games: int
    match_games: int
    opponent: str = "stockfish:-1+random=0.6"  # weak enough that either side wins, and able to mate
    move_limit: int = 90
    adjudication: str = "nodes=1000"


SCALES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)  # Figure 2's are not available
# Equation 1 takes a share of the norm after the final LayerNorm. A model's residuals may be far longer (18 times, of
# one trained with Muon), and so must be what moves them
LARGE_SCALES = (8.0, 16.0, 32.0)

SIZES: dict[SizeName, DavisSize] = {
    "small": DavisSize(
        fit_games=200, test_games=60, early_games=60, early_plies=16, min_plies=12, edit_min_plies=16,
        has_all_games=False, prefixes=(4, 9), twins=1, epochs=2, sae_probe_epochs=1, promotions=("blocks",),
        twin_labels=("joint",), expansion=2, smaller=(1,), smaller_everywhere=False, sae_tokens=8_000,
        sae_batch=500, sae_precision="float32", sae_learning_rate=3e-4, sae_l1=None, sae_centre=False, sae_layers=64,
        sae_l0=None, sae_search_tokens=None, heldout_games=20, sweep_games=12, scales=(0.5, 1.0), edit_games=16,
        other_games=8,
        every_layer=False, markov_games=1000, markov_classes=20, resamples=50, lm_games=20, shortest_games=20,
        match_games=2, opponent="random", move_limit=5, adjudication="none",
    ),
    "reference": DavisSize(
        fit_games=23_000, test_games=5_000, early_games=3_000, early_plies=40, min_plies=20, edit_min_plies=41,
        has_all_games=False, prefixes=PREFIX_PLIES, twins=3, epochs=15, sae_probe_epochs=4,
        promotions=("blocks",), twin_labels=("joint",), expansion=16, smaller=(4,),
        smaller_everywhere=False, sae_tokens=1_500_000, sae_batch=256, sae_precision="float32", sae_learning_rate=1e-2,
        sae_l1=3.0, sae_centre=True, sae_layers=4, sae_l0=None, sae_search_tokens=None,
        heldout_games=200, sweep_games=200, scales=(*SCALES, *LARGE_SCALES),
        edit_games=2_000, other_games=500, every_layer=False, markov_games=23_261, markov_classes=2_000,
        resamples=1_000, lm_games=1_000, shortest_games=1_000, match_games=200,
    ),
    "paper": DavisSize(
        fit_games=120_133, test_games=10_000, early_games=20_000, early_plies=40, min_plies=20, edit_min_plies=20,
        has_all_games=True, prefixes=PREFIX_PLIES, twins=3, epochs=15, sae_probe_epochs=15,
        promotions=("embeddings", "blocks", "final"),
        twin_labels=("joint", "color", "type"), expansion=16, smaller=(2, 4, 8), smaller_everywhere=True,
        sae_tokens=1_000_000_000, sae_batch=4096, sae_precision="tf32", sae_learning_rate=3e-4, sae_l1=None,
        sae_centre=False, sae_layers=64, sae_l0=30.0, sae_search_tokens=10_000_000,
        heldout_games=2_000, sweep_games=2_000, scales=SCALES, edit_games=71_151, other_games=5_000, every_layer=True,
        markov_games=200_000, markov_classes=20_000, resamples=1_000, lm_games=120_000, shortest_games=100_000,
        match_games=1_000,
    ),
}  # fmt: skip
SIZES["rehearsal"] = replace(
    SIZES["paper"], fit_games=200, test_games=60, early_games=60, epochs=1, sae_probe_epochs=1, sae_tokens=65_536,
    sae_search_tokens=8_192, heldout_games=20, sweep_games=12, edit_games=16, other_games=8, markov_games=1000,
    markov_classes=20, resamples=50, lm_games=20, shortest_games=20, match_games=2, move_limit=4,
)  # fmt: skip
