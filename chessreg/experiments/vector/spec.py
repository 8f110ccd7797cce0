"""The settings of a vector run, one class for each source of directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.games.datasets.labels import normalize_board_changes
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.activations import list_cached_layers
from chessreg.runs.fitted import read_probe_rows, read_vector_rows
from chessreg.runs.inputs import Inputs
from chessreg.runs.spec import ExecutionOptions, Layers, Plies, Ref, Spec

PAPER_CASCADE = 0.15  # factor of vectors that are sums over eight positions (Karvonen's caa.py)
AUTHORS_POSITIONS = 8  # dots 25 to 32, over which Karvonen's stored averages sum (caa.py)

CacheRef = Annotated[str, Ref("run:cache")]
ProbeRef = Annotated[str, Ref("run:probe")]
VectorRef = Annotated[str, Ref("run:vector")]


def convert_coefficient(coefficient: float, positions_summed: int, authors_positions: int = AUTHORS_POSITIONS) -> float:
    """Return the scale at which a stored vector has the effect of the paper's coefficient on the author's vector.

    positions_summed: positions summed in each side of the stored vector (1: averages). The author's sum 8.

    >>> convert_coefficient(0.1, positions_summed=1), convert_coefficient(0.1, positions_summed=8)
    (0.8, 0.1)
    """
    return coefficient * authors_positions / positions_summed


class VectorSettings(Spec):
    """The settings of every source."""

    layers: Layers = Field((), description="layers, 0-based. Left out: every layer of the input")
    place: ClassVar[str]  # where the layers come from, for an error message

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        """Return the layers for which a direction can be made."""
        raise NotImplementedError


# -- contrasts of games of strong and of weak players -------------------------------------------------------------


class Contrast(VectorSettings):
    reduction: Literal["averaged", "summed"] = Field(
        "averaged",
        description="mean over sites, or mean of each game's sums over sites, as the author's code stores them",
    )
    first_ply: Plies = Field(50, ge=0, description="only sites from this ply on (Karvonen: dot 25)")
    last_ply: Plies | None = Field(
        None,
        ge=0,
        description="only token positions up to this ply (Karvonen: dot 32, ply 64). Left out: to the end of the game",
    )
    whole_games: bool = Field(
        False, description="only games that have every site of that range, as in the author's data"
    )
    skill: SkillSettings = Field(SkillSettings(), description="the classes of games")
    total: int | None = Field(
        None, ge=2, description="use only the first N classed games (the author's code: 2,000). Left out: all"
    )
    per_class: int | None = Field(
        None, ge=1, description="use only the first N games of each class (the paper: 2,000). Left out: all"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.last_ply is not None and self.last_ply < self.first_ply:
            raise BadInputError(f"no ply is between {self.first_ply} and {self.last_ply}", "raise --last-ply")
        if self.whole_games and self.last_ply is None:
            raise BadInputError("--whole-games needs an end of the range", "give --last-ply (the author's: 64)")
        return self

    @property
    def pattern(self) -> str:
        """The hook point at which the residual stream is read, with * for the layer."""
        return RESID_POST

    def model(self, inputs: Inputs) -> str:
        """Return the input reference of the model whose activations are contrasted."""
        raise NotImplementedError


class OfCache(Contrast):
    cache: CacheRef = Field(description="activations to contrast")
    place: ClassVar[str] = "the cache"

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        return list_cached_layers(inputs, self.cache, self.pattern)

    def model(self, inputs: Inputs) -> str:
        return str(inputs.run(self.cache, "cache").spec["checkpoint"])


class OfModel(Contrast, GameSelection):
    checkpoint: Annotated[str, Ref("checkpoint")] = Field(description="the model, run once for all layers")
    games: int = Field(100_000, ge=1, description="put at most this many games into classes")
    sites: str = Field("dots", description="tokens to read: dots or white-turns (White to move), black-turns, …")
    place: ClassVar[str] = "the model"

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        return range(inputs.checkpoint(self.checkpoint)[0].layers)

    def model(self, inputs: Inputs) -> str:
        return self.checkpoint


class Cascade(Contrast):
    cascade_scale: float | None = Field(
        None, description="factor on each earlier vector  [default: 0.15, times 8 for averages]"
    )

    @model_validator(mode="after")
    def _set_cascade_scale(self) -> Self:
        if self.cascade_scale is None:
            scale = convert_coefficient(PAPER_CASCADE, AUTHORS_POSITIONS if self.reduction == "summed" else 1)
            object.__setattr__(self, "cascade_scale", scale)
        return self


class CachedContrast(OfCache):
    source: Literal["contrastive"] = Field(
        description="mean cached activation of strong players' games minus that of weak players' games"
    )
    hook_point: str = Field(
        RESID_POST, description=f"which of the cached hook points, * for each layer: one of {', '.join(PATTERNS)}"
    )

    @property
    def pattern(self) -> str:
        return self.hook_point


class UncachedContrast(OfModel):
    source: Literal["contrastive-uncached"] = Field(description="the same, with games that the model reads in this run")


class CachedCascade(OfCache, Cascade):
    source: Literal["cascade"] = Field(
        description="contrasts of cached games, each layer with the earlier layers' vectors added"
    )


class UncachedCascade(OfModel, Cascade):
    source: Literal["cascade-uncached"] = Field(description="the same, without a cache")


# -- readouts of probes, and controls ----------------------------------------------------------------------------


class OfProbe(VectorSettings):
    probe: ProbeRef = Field(description="the probes")
    direction_norm: Literal["none", "unit"] = Field("unit", description="scale to unit norm, or leave as fitted")
    place: ClassVar[str] = "that probe run"

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        return list(read_probe_rows(inputs, self.probe))


class SkillDirection(OfProbe):
    source: Literal["probe"] = Field(description="the class difference of a skill probe")
    side: Literal["both", "high", "low"] = Field(
        "both", description="high minus low, or high alone, or minus low alone (Karvonen Appendix C)"
    )


class BoardDirection(OfProbe):
    source: Literal["board"] = Field(description="the direction along which a probe of pieces reads a changed board")
    board: str = Field(description="squares and their new contents, such as d1=. e5=p")

    @field_validator("board")
    @classmethod
    def _normalize_board(cls, board: str) -> str:
        if not (changes := normalize_board_changes(board)):
            raise ValueError("the board changes no square")
        return changes


class Control(VectorSettings):
    of: VectorRef = Field(description="the control's original vectors")
    place: ClassVar[str] = "that vector run"

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        return list(read_vector_rows(inputs, self.of))


class RandomVector(Control):
    source: Literal["random"] = Field(description="control: random directions with the norms of another vector run")


class ShuffledVector(Control):
    source: Literal["shuffled"] = Field(
        description="control: a contrast or cascade again, with permuted labels and the same norms"
    )


class ShuffledProbeVector(Control):
    source: Literal["shuffled-probe"] = Field(
        description="control: the direction of a probe run, from a probe of shuffled labels, with the same norms"
    )
    probe: ProbeRef = Field(description="the probe of those vectors, fitted again with --shuffled-label-control N")
    place: ClassVar[str] = "both that vector run and those probes"

    def list_available_layers(self, inputs: Inputs) -> Sequence[int]:
        probe_rows = read_probe_rows(inputs, self.probe)
        fitted_layers = [layer for layer in read_vector_rows(inputs, self.of) if layer in probe_rows]
        if not fitted_layers:
            raise BadInputError("the vectors and the shuffled probes have no layer in common", "probe the same layers")
        return fitted_layers


VectorSpec = Annotated[
    CachedContrast
    | UncachedContrast
    | CachedCascade
    | UncachedCascade
    | SkillDirection
    | BoardDirection
    | RandomVector
    | ShuffledVector
    | ShuffledProbeVector,
    Field(discriminator="source"),
]


class VectorOptions(ExecutionOptions):
    batch_games: int = Field(32, ge=1, description="games in one forward pass")
    keep_sums: bool = Field(True, description="store each game's sums, so that shuffled controls need no forward pass")


# The author also cut games to 365 characters and required 66 complete words. For nearly all games
# that equals `--min-plies 66`, a setting of the cache if there is one.
AUTHORS: dict[str, Any] = {
    "reduction": "summed",
    "first_ply": 50,
    "last_ply": 64,
    "whole_games": True,
    "skill": {"rating": "white_elo", "bins": 6, "keep": (0, -1), "strata": "pooled"},
}


def resolve_vector_layers(spec: VectorSettings, inputs: Inputs) -> tuple[int, ...]:
    """Return the layers to make, ascending. Raises BadInputError for a layer that cache, model, probes or vectors
    lack."""
    available_layers = sorted(spec.list_available_layers(inputs))
    if missing_layers := set(spec.layers) - set(available_layers):
        raise BadInputError(
            f"{spec.place} has no layer {min(missing_layers)}",
            f"its layers are {', '.join(map(str, available_layers))}",
        )
    return tuple(sorted(set(spec.layers))) or tuple(available_layers)
