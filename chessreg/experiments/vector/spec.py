"""The settings of a vector run, and which of them each source uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.games.labels import in_one_order
from chessreg.models.hook_points import PATTERNS, RESID_POST, check_editable
from chessreg.runs.activations import cached_layers
from chessreg.runs.fitted import probe_rows, vector_rows
from chessreg.runs.inputs import Inputs
from chessreg.runs.spec import ExecutionOptions, Layers, Plies, Ref, Spec

CONTRASTS = ("contrastive", "cascade")
CONTROLS = ("random", "shuffled")
PAPER_CASCADE = 0.15  # times vectors that are sums over eight positions (specification 5.1)


AUTHORS_POSITIONS = 8  # dots 25 to 32: what Karvonen's stored averages are sums over (specification 5.1)


class VectorSpec(Spec):
    source: Literal["contrastive", "cascade", "probe", "random", "shuffled"] = Field(
        "contrastive",
        description="contrastive: strong minus weak; cascade: the same, earlier layers' vectors added on the way; "
        "probe: a skill probe's class difference, or what a probe of boards reads as --board; random, shuffled: "
        "controls with the norms of another vector run",
    )
    cache: Annotated[str | None, Ref("run:cache")] = Field(None, description="activations to contrast")
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="without a cache: the model, run once for all layers"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(
        None, description="without a cache: games, a dataset or one part of it"
    )
    games: int = Field(100_000, ge=1, description="without a cache: put at most this many games into classes")
    min_plies: Plies = Field(0, ge=0, description="without a cache: leave out shorter games")
    keep_duplicates: bool = Field(False, description="without a cache: also games whose moves occurred before")
    sites: str = Field(
        "dots", description="without a cache: tokens to look at: dots or white-turns (White to move), black-turns, …"
    )
    probe: Annotated[str | None, Ref("run:probe")] = Field(
        None,
        description="for source probe: the skill probes; for source shuffled of such vectors: the same probes "
        "fitted with --shuffled-label-control N",
    )
    side: Literal["both", "high", "low"] = Field(
        "both", description="for source probe: high minus low, or high alone, or minus low alone (Karvonen Appendix C)"
    )
    board: str = Field(
        "", description="for source probe of a probe of boards: squares and what it shall read there, as d1=. e5=p"
    )
    of: Annotated[str | None, Ref("run:vector")] = Field(None, description="for controls: the vectors they stand for")
    reduction: Literal["averaged", "summed"] = Field(
        "averaged", description="mean per site, or of sums over each game's sites as the author stores them"
    )
    first_ply: Plies = Field(50, ge=0, description="only sites from this ply on (Karvonen: dot 25)")
    last_ply: Plies | None = Field(None, ge=0, description="only sites up to this ply (Karvonen: dot 32, ply 64)")
    whole_games: bool = Field(False, description="only games that have every site of that range, as the author's")
    skill: SkillSettings = Field(SkillSettings(), description="the classes of games")
    total: int | None = Field(None, ge=2, description="the first so many classed games (the author's code: 2,000)")
    per_class: int | None = Field(None, ge=1, description="the first so many games of each class (the paper: 2,000)")
    cascade_scale: float | None = Field(
        None, description="for cascade: times each earlier vector  [default: 0.15, times 8 for averages]"
    )
    direction_norm: Literal["none", "unit"] | None = Field(
        None, description="scale to unit norm  [default: unit for probe, else none]"
    )
    layers: Layers = Field((), description="layers, 0-based; none given: all that there are")
    hook_point: str = Field(
        RESID_POST, description=f"which of the cached hook points, * for each layer: one of {', '.join(PATTERNS)}"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @field_validator("board")
    @classmethod
    def _one_order(cls, board: str) -> str:
        return in_one_order(board)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        """What a source does not use stays unset: settings without effect would make two runs of one experiment."""
        check_settings(self)
        if self.source == "cascade" and self.cascade_scale is None:
            scale = scale_of(PAPER_CASCADE, AUTHORS_POSITIONS if self.reduction == "summed" else 1)
            object.__setattr__(self, "cascade_scale", scale)
        if self.direction_norm is None:
            object.__setattr__(self, "direction_norm", "unit" if self.source == "probe" else "none")
        return self


USED: dict[str, tuple[str, ...]] = {  # besides seed, replicate, source, layers
    "contrast": ("reduction", "first_ply", "last_ply", "whole_games", "skill", "total", "per_class", "allow_overlap"),
    "model": ("checkpoint", "dataset", "games", "min_plies", "keep_duplicates", "sites"),
    "cascade": ("cascade_scale",),
    "probe": ("probe", "direction_norm", "side", "board"),
    "control": ("of",),
}


def scale_of(coefficient: float, positions_summed: int, authors_positions: int = AUTHORS_POSITIONS) -> float:
    """The scale at which a stored vector acts as the paper's coefficient does on the author's.

    positions_summed is how many positions the stored vector's sides sum (1: averages). The author's are sums over 8.

    >>> scale_of(0.1, positions_summed=1), scale_of(0.1, positions_summed=8)
    (0.8, 0.1)
    """
    return coefficient * authors_positions / positions_summed


def check_settings(spec: VectorSpec) -> None:
    """Raise BadInputError for a source without what it needs, or with a setting that it would not look at."""
    contrasts = spec.source in CONTRASTS
    groups = {
        "contrast": contrasts,
        "model": contrasts and spec.cache is None,
        "cascade": spec.source == "cascade",
        "probe": spec.source == "probe",
        "control": spec.source in CONTROLS,
    }
    used = {name for group, names in USED.items() if groups[group] for name in names} | (
        {"cache"} if contrasts else {"probe"} if spec.source == "shuffled" else set()
    )
    resolved = {"cascade_scale": None, "direction_norm": "none"}
    for name in ("cache", *(name for names in USED.values() for name in names)):
        value, default = getattr(spec, name), type(spec).model_fields[name].default
        if name not in used and value not in (default, resolved.get(name, default)):
            why = "it takes all else from that run" if spec.source in CONTROLS else "it would change nothing"
            why = "the cache decides it" if contrasts and name in USED["model"] else why
            raise BadInputError(f"--{name.replace('_', '-')} is set, but source {spec.source} does not use it", why)
    if spec.source == "cascade":
        check_editable("the cascade", spec.hook_point)
    if spec.hook_point != RESID_POST and spec.cache is None:
        raise BadInputError("--hook-point is of a cache's activations, and there is no --cache", "run cache first")
    if contrasts and spec.cache is None and not (spec.checkpoint and spec.dataset):
        raise BadInputError("a contrast needs activations", "give --cache RUN, or --checkpoint and --dataset")
    if spec.source == "probe" and spec.probe is None:
        raise BadInputError("source probe needs --probe", "a run of skill probes: chessreg probe list")
    if spec.board and spec.side != "both":
        raise BadInputError(f"--side {spec.side} is of a skill probe's classes, and --board of squares", "give one")
    if spec.source in CONTROLS and spec.of is None:
        raise BadInputError(f"a {spec.source} control needs --of", "the vector run that it stands for")
    if spec.last_ply is not None and spec.last_ply < spec.first_ply:
        raise BadInputError(f"no ply lies between {spec.first_ply} and {spec.last_ply}", "raise --last-ply")
    if spec.whole_games and spec.last_ply is None:
        raise BadInputError("whole games need an end of the range", "give --last-ply (the author's: 64)")


class VectorOptions(ExecutionOptions):
    batch_games: int = Field(32, ge=1, description="games in one forward pass")
    keep_sums: bool = Field(True, description="keep each game's sums: shuffled controls then need no pass of their own")


# The author's games were also cut to 365 characters, of which 66 words had to be whole (specification 1.4): in nearly
# all games that is `--min-plies 66`, a setting of the cache where there is one.
AUTHORS: dict[str, Any] = {
    "reduction": "summed",
    "first_ply": 50,
    "last_ply": 64,
    "whole_games": True,
    "skill": {"rating": "white_elo", "bins": 6, "keep": (0, -1), "strata": "pooled"},
}


def checkpoint_of(spec: VectorSpec, inputs: Inputs) -> str:
    """The reference of the model that a contrast is taken in."""
    if spec.cache is None:
        assert spec.checkpoint
        return spec.checkpoint
    return str(inputs.run(spec.cache, "cache").spec["checkpoint"])


def layers_of(spec: VectorSpec, inputs: Inputs) -> tuple[int, ...]:
    """The layers to make, ascending. Raises BadInputError for one that the cache, model, probes or vectors lack."""
    if spec.of is not None:
        there, where = sorted(vector_rows(inputs, spec.of)), "that vector run"
    elif spec.probe is not None:
        there, where = sorted(probe_rows(inputs, spec.probe)), "that probe run"
    elif spec.cache is not None:
        there, where = sorted(cached_layers(inputs, spec.cache, spec.hook_point)), "the cache"
    else:
        assert spec.checkpoint
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        there, where = list(range(checkpoint.layers)), "the model"
    if spec.source == "shuffled" and spec.probe is not None:
        fitted = probe_rows(inputs, spec.probe)
        there, where = [layer for layer in there if layer in fitted], "both that vector run and those probes"
        if not there:
            raise BadInputError("the vectors and the shuffled probes have no layer in common", "probe the same layers")
    if missing := set(spec.layers) - set(there):
        raise BadInputError(f"layer {min(missing)} is not in {where}", f"it has {', '.join(map(str, there))}")
    return tuple(sorted(set(spec.layers))) or tuple(there)
