"""The settings of a run of sparse autoencoders, and the extra columns of its rows."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameBatches
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.parallel import ParallelOptions
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.spec import AtMost, Beta, Distinct, Layers, Plies, Ref, Spec

Precision = Literal["float32", "tf32", "bfloat16"]
STREAM_SETTINGS = ("checkpoint", "dataset", "games", "min_plies", "keep_duplicates", "sites", "mix_tokens")
L0_SEARCH_COEFFICIENTS = (0.25, 0.5, 1.0, 2.0, 4.0)


class SaeSpec(Spec):
    cache: Annotated[str | None, Ref("run:cache")] = Field(
        None, description="activations to train on. Left out: --checkpoint and --dataset"
    )
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="model that is run once for all hook points. Left out: --cache"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(
        None, description="games to train on: a dataset, or one part of it (NAME:PART). Left out: --cache"
    )
    games: int = Field(1_000_000_000, ge=1, description="without a cache: at most this many games")
    min_plies: Plies = Field(0, ge=0, description="without a cache: leave out shorter games")
    keep_duplicates: bool = Field(False, description="without a cache: also games whose moves occurred before")
    sites: str = Field("all", description="without a cache: tokens to train on: all, turns, white-turns, …")
    heldout: Annotated[str | None, Ref("dataset")] = Field(
        None, description="games to measure on. Left out: some games of the dataset or cache, which are not trained on"
    )
    heldout_games: Annotated[int, AtMost(1_000_000, "memory holds their sums")] = Field(
        200, ge=2, description="measure on at most this many games"
    )
    layers: Layers = Field((), description="layers, 0-based. Left out: all")
    hook_points: Annotated[tuple[str, ...], Distinct()] = Field(
        (),
        description=f"hook points to read: {', '.join(PATTERNS)} (* for each layer). Left out: all that are "
        f"cached, or {RESID_POST}",
    )
    exclude_special: bool = Field(True, description="leave out tokens outside of a game: begin, end, padding")
    expansions: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Distinct()] = Field(
        (16,),
        min_length=1,
        description="latents per dimension of the residual stream (Davis: 16); several: one SAE of each expansion at "
        "every hook point, all trained in one pass over the tokens",
    )
    tokens: Annotated[int, AtMost(10**13, "no dataset is longer")] = Field(
        4_000_000, ge=1, description="tokens to train on, in several epochs over the games if necessary (Davis: 1e9)"
    )
    batch_tokens: Annotated[int, AtMost(10_000_000, "memory holds them")] = Field(
        4096, ge=1, description="tokens in one step"
    )
    mix_tokens: Annotated[int, AtMost(100_000_000, "memory holds them")] = Field(
        65_536,
        ge=1,
        description="without a cache: tokens in each chunk whose order is permuted; larger chunks mix more games",
    )
    learning_rate: float = Field(3e-4, gt=0, description="learning rate of Adam (the authors of gated SAEs)")
    warmup_steps: Annotated[int | None, AtMost(10**9, "no training is longer")] = Field(
        None, ge=0, description="steps until the full learning rate. Left out: 1,000, at most a tenth of all"
    )
    final_fraction: float = Field(0.1, ge=0, le=1, description="share of the learning rate at the end of the cosine")
    beta1: Beta = Field(0.9, description="β₁ of Adam")
    beta2: Beta = Field(0.999, description="β₂ of Adam")
    l1_coefficient: float | None = Field(
        None,
        ge=0,
        description="λ, the weight of the L1 norm of the gate path. Left out: 1, or the value that --l0 finds",
    )
    l1_warmup: float = Field(0.05, ge=0, le=1, description="share of the steps in which λ rises from 0")
    l0: float | None = Field(
        None,
        gt=0,
        description="target number of active latents per token; short trainings search for the λ. Left out: "
        "--l1-coefficient",
    )
    l0_search: Annotated[tuple[float, ...], Distinct()] = Field(
        (), description="values of λ that --l0 tries. Left out: 0.25,0.5,1,2,4"
    )
    l0_search_tokens: Annotated[int | None, AtMost(10**13, "no dataset is longer")] = Field(
        None, ge=1, description="tokens of each short training of --l0. Left out: a quarter of --tokens"
    )
    precision: Precision = Field(
        "float32",
        description="number format of matrix products in training: float32; tf32 (a GPU rounds factors, in "
        "the model too); or bfloat16 (rounds factors, results and latents; the model computes in "
        "tf32). Parameters, gradients and metrics are float32",
    )
    normalize_activations: bool = Field(True, description="scale activations to a mean norm of sqrt(d_model)")
    centre: bool = Field(
        False,
        description="start with the decoder's bias at the mean activation, and scale by the distance from it "
        "instead of the norm, for residuals with a large mean",
    )
    dead_tokens: Annotated[int, AtMost(10**13, "no dataset is longer")] = Field(
        10_000_000, ge=1, description="tokens after which an inactive latent counts as dead"
    )
    boards: Annotated[int, AtMost(100, "more boards add no information")] = Field(
        8, ge=0, description="strongest held-out positions to keep of each latent"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.cache is not None:
            idle |= dict.fromkeys(STREAM_SETTINGS, "the cache determines it")
        return idle | (
            dict.fromkeys(("l0_search", "l0_search_tokens"), "it needs --l0")
            if self.l0 is None
            else {"l1_coefficient": "--l0 sets the sparsity"}
        )

    @model_validator(mode="after")
    def _set_defaults(self) -> Self:
        """Set the defaults that depend on other settings, and refuse settings without effect.

        Settings without effect would make two runs of one experiment. Raises BadInputError.
        """
        fields = type(self).model_fields
        if self.cache is None and not (self.checkpoint and self.dataset):
            raise BadInputError("an SAE needs activations", "give --cache RUN, or --checkpoint and --dataset")
        for name in STREAM_SETTINGS if self.cache is not None else ():
            if getattr(self, name) != fields[name].default:
                raise BadInputError(
                    f"--{name.replace('_', '-')} is set together with --cache", "the cache determines it"
                )
        if self.l0 is None and (self.l0_search or self.l0_search_tokens):
            raise BadInputError("--l0-search has no effect without --l0", "give --l0 TARGET, or leave it out")
        if self.l0 is not None and self.l1_coefficient is not None:
            raise BadInputError("--l1-coefficient and --l0 both set the sparsity", "give one of them")
        if self.l0 is not None and self.l0_search and (len(self.l0_search) < 2 or min(self.l0_search) <= 0):
            raise BadInputError("--l0-search needs at least two λ above 0", "for example --l0-search 0.5,1,2")
        defaults = {
            "warmup_steps": min(1000, self.steps // 10),
            "l1_coefficient": 1.0 if self.l0 is None else None,
            "l0_search": L0_SEARCH_COEFFICIENTS if self.l0 is not None else (),
            "l0_search_tokens": max(1, self.tokens // 4) if self.l0 is not None else None,
        }
        for name, value in defaults.items():
            if getattr(self, name) in (None, ()):
                object.__setattr__(self, name, value)
        return self

    @property
    def steps(self) -> int:
        """The number of updates of the training."""
        return -(-self.tokens // self.batch_tokens)


class SaeOptions(ParallelOptions, GameBatches):
    checkpoint_seconds: float = Field(300.0, gt=0, description="seconds between saved states")


class LatentRow(BaseModel):
    """A latent on the held-out tokens. `value` is its strongest activation.

    The lists have its strongest positions in descending order, at most one of each game: rows of the games in their
    dataset, tokens, plies, activations.
    """

    frequency: float  # share of the tokens at which it is active
    games: list[int]
    tokens: list[int]
    plies: list[int]
    activations: list[float]
