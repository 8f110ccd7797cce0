"""The settings of a probe run, and the extra columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.games.datasets.labels import LABEL_ALIASES
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.kind import SparseRow
from chessreg.runs.spec import AtMost, Beta, ExecutionOptions, Layers, NotWith, Ref, Spec

PAPER: Mapping[str, Any] = {  # Karvonen 2024, Table 4, and its code
    "learning_rate": 1e-3,
    "schedule": "constant",
    "batch_games": 2,
    "init": 1.0,
    "normalize_activations": False,
}


_DAVIS: Mapping[str, Any] = {  # from Davis's code; torch.nn.Linear initializes weights with this spread
    "last_sites": 5,
    "epochs": 15,
    "learning_rate": 0.009,
    "schedule": "cosine",
    "weight_decay": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "init": 3**-0.5,
    "normalize_activations": False,
    "validation": 0.05,
}
_READINGS: Mapping[str, Mapping[str, Any]] = {  # the paper's text, its code, and the corrected protocol (1.3, 4.2, 8)
    "paper": {"alignment": "post-ply", "split": "row"},
    "published-code": {"alignment": "pre-ply", "split": "row", "seed": 42, "max_grad_norm": 1.0},
    "corrected": {"alignment": "post-ply", "split": "game"},
}
DAVIS: Mapping[str, Mapping[str, Any]] = {  # one for each label; the joint label has smaller steps
    f"davis-{reading}{suffix}": {**_DAVIS, **settings, "label": label, "batch_positions": positions}
    for reading, settings in _READINGS.items()
    for suffix, label, positions in (("", "piece", 2000), ("-color", "color", 3000), ("-type", "type", 3000))
}


PHASE_JSON_SCHEMA = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def parse_phase(phase: Any) -> Any:
    """Return the number of a phase given as a number or by its name. A spec holds the number."""
    if not isinstance(phase, str):
        return phase
    if phase.strip().isascii() and phase.strip().isdigit():
        return int(phase)
    from chessreg.encodings import get_phase_number

    return get_phase_number(phase)


FIT_STATES = "fit-*.pt"
"""Pattern of the files in a run's folder that hold an unfinished fit."""


class ProbeSpec(Spec):
    cache: Annotated[str, Ref("run:cache")] = Field(description="activations to fit on")
    test_cache: Annotated[str | None, Ref("run:cache")] = Field(
        None,
        description="activations of other games to test on. Left out: games of --cache, see --split",
    )
    label: Annotated[str, BeforeValidator(lambda name: LABEL_ALIASES.get(name, name))] = Field(
        "piece",
        description="label to read: piece (Davis's joint), color, type, threat, legal-move, pin, "
        "previous-move, random; skill or rating",
    )
    shuffled_label_control: Annotated[int | None, AtMost(1_000_000, "draws are numbered from 0")] = Field(
        None,
        ge=0,
        description="fit to labels permuted among the fitted games (for boards: among the fitted positions), and test "
        "on the true labels; the value numbers the permutation. Left out: the true labels",
    )
    skill: SkillSettings = SkillSettings()
    skip_sites: int = Field(
        0, ge=0, description="leave out this many token positions at the start of each game (Karvonen: 25 for skill)"
    )
    max_sites: int | None = Field(
        None, ge=1, description="keep only the first N token positions of each game (Karvonen: 33). Left out: all"
    )
    last_sites: Annotated[int | None, NotWith("max_sites", "the token positions to read")] = Field(
        None,
        ge=1,
        description="keep only the last N token positions of each game that fits the context (Davis: 5). Left out: all",
    )
    phase: Annotated[int | str | None, BeforeValidator(parse_phase), WithJsonSchema(PHASE_JSON_SCHEMA)] = Field(
        None,
        description="only tokens of this phase; UCI squares: 0 white-origin, 1 white-destination, 2 black-origin, 3 "
        "black-destination, 4 promotion, 5 special (Davis, Appendix A). Left out: all tokens",
    )
    alignment: Literal["post-ply", "pre-ply"] | None = Field(
        None, description="board of a token that ends a move: after the move, or before it (Davis). Left out: as cached"
    )
    min_positions: int | None = Field(
        None,
        ge=1,
        description="minimum number of positions to fit on. Left out: 1,000 with --phase, because promotions are rare",
    )
    layers: Layers = Field((), description="layers, 0-based. Left out: all that are cached")
    hook_point: str = Field(
        RESID_POST, description=f"hook point of the cache, * for each layer: one of {', '.join(PATTERNS)}"
    )
    source: Literal["residual", "sae-latents", "sae-contrast", "means"] = Field(
        "residual",
        description="input of the fit: the residual (Davis: Probe) or an SAE's latents (SAE-Probe); or, "
        "without fitting, the mean of each class minus that of the others, of latents "
        "(sae-contrast: CD-Probe) or of residuals (means: DM-Probe)",
    )
    sae: Annotated[str | None, Ref("run:sae")] = Field(
        None,
        description="SAEs of every fitted layer, for --source sae-latents and sae-contrast. Left out: the residual is "
        "read",
    )
    expansion: int | None = Field(
        None, ge=1, description="expansion of --sae, in latents per dimension. Left out: the only one"
    )
    min_class_positions: int = Field(
        10, ge=1, description="for differences of means: a class with fewer positions has no direction"
    )
    validation: float = Field(0.1, gt=0, lt=1, description="share of the games held out of fitting")
    split: Literal["game", "row"] = Field(
        "game", description="unit of --validation: whole games, or single positions of all games as in Davis's code"
    )
    epochs: Annotated[int, AtMost(100_000, "more passes learn nothing")] = Field(
        5, ge=1, description="passes over the cache (Karvonen Table 4)"
    )
    batch_positions: Annotated[int, AtMost(10_000_000, "more positions do not fit in memory")] = Field(
        256, ge=1, description="positions in one step"
    )
    batch_games: Annotated[
        int | None,
        AtMost(100_000, "more positions do not fit in memory"),
        NotWith("batch_positions", "the batch size"),
    ] = Field(
        None,
        ge=1,
        description="whole games in one step, with all their positions (Karvonen: 2). Left out: --batch-positions",
    )
    learning_rate: float = Field(1e-2, gt=0, description="learning rate of AdamW")
    schedule: Literal["linear", "constant", "cosine"] = Field(
        "linear", description="linear: the rate falls to a tenth; constant: as Karvonen's; cosine: to 0, as Davis's"
    )
    weight_decay: float = Field(0.01, ge=0, description="weight decay of AdamW (Karvonen Table 4)")
    beta1: Beta = Field(0.9, description="β₁ of AdamW (Karvonen Table 4)")
    beta2: Beta = Field(0.99, description="β₂ of AdamW (Karvonen Table 4)")
    max_grad_norm: float | None = Field(
        None,
        gt=0,
        description="clip each layer's gradient, of the loss averaged over positions and squares, to this "
        "norm (Davis's code: 1.0, its trainer's default). Left out: no clipping",
    )
    init: float = Field(0.1, ge=0, description="standard deviation of the initial weights, times 1/sqrt(d_model)")
    normalize_activations: bool = Field(True, description="divide each layer's activations by their root mean square")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


def get_shared_settings(spec: Mapping[str, Any]) -> ProbeSpec:
    """Return the settings of `probe` in the recorded spec of a run of `probe` or of a user's kind of probe."""
    return ProbeSpec(**{name: value for name, value in spec.items() if name in ProbeSpec.model_fields})


class ProbeOptions(ExecutionOptions):
    memory_mib: int = Field(
        4096, ge=0, description="memory for labels; more labels go to scratch files (activations always stream)"
    )


class ProbeScore(SparseRow):
    """The columns that probes add to their scores.

    `right_at` holds the number of correct squares of each position of the game, in order: two hex digits each, a list
    in SQL. The ply of position i is `ply_first + i * ply_step`. If plies are not evenly spaced, `ply_at` holds them:
    three hex digits each, a list in SQL. SQL lists count from 1:

        WITH read AS (SELECT *, unnest(range(1, len(right_at) + 1)) AS i FROM probe_score)
        SELECT CASE WHEN ply_at IS NULL THEN ply_first + (i - 1) * ply_step ELSE ply_at[i] END AS ply,
               sum(right_at[i]) / sum(n // positions) AS accuracy
        FROM read GROUP BY ply ORDER BY ply
    """

    hook_point: str
    label: str
    positions: int  # sites of this game
    exact: int  # of them, sites with every square correct
    majority: int  # squares predicted correctly by the class most frequent on that square in the fitting games
    unseen: int | None = None  # positions that equal no fitted position (pieces and side to move)
    unseen_correct: int | None = None  # correct squares in them
    right_at: str | None = Field(None, pattern="^([0-9a-f]{2})*$")
    ply_first: int | None = None
    ply_step: int | None = None
    ply_at: str | None = Field(None, pattern="^([0-9a-f]{3})*$")
    game_class: int | None = None  # skill: the game's class, 0 the weakest
    vote_class: int | None = None  # with one square: the class read at most positions of the game
    mean_class: int | None = None  # with one square: the class of the mean logit over the game
    length_class: int | None = None  # skill: predicted from the game's length alone
    source_class: int | None = None  # skill: predicted from source and time control alone
    majority_class: int | None = None  # skill: the most frequent class of the fitted games


class RatingRow(SparseRow):
    """The columns of a rating read by regression from a game. Errors are in Elo, summed over `positions`."""

    split: str
    layer: int
    hook_point: str
    positions: int
    elo: float  # the true rating
    absolute_error: float | None = None
    majority_error: float | None = None  # of one position: the error of the mean of the fitted games
    length_error: float | None = None  # the error of the mean of the fitted games of similar length
    source_error: float | None = None  # the error of the mean of the fitted games of that source and time control


class ReadRow(SparseRow):
    """The reading of a skill or rating probe on one game. `value` is the class read at most positions, or Elo."""

    layer: int
    hook_point: str
    label: str
    positions: int
    lowest: int | None = None  # positions read as the lowest class
    highest: int | None = None  # positions read as the highest class
    vote_class: int | None = None
    mean_class: int | None = None  # the class of the mean logit over the game
