"""What a probe run is asked for, and the columns of the rows that come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_serializer, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.spec import Added, AtMost, Beta, ExecutionOptions, Layers, Ref, Spec

PAPER: Mapping[str, Any] = {  # Karvonen Table 4 and specification 3.4
    "learning_rate": 1e-3,
    "schedule": "constant",
    "batch_games": 2,
    "init": 1.0,
    "normalise": False,
}


class ProbeSpec(Spec):
    cache: Annotated[str, Ref("run:cache")] = Field(description="activations to fit on")
    test_cache: Annotated[str | None, Ref("run:cache")] = Field(
        None, description="activations of other games to test on"
    )
    label: str = Field(
        "piece",
        description="what is read: piece, colour, threat, legal-move, pin, previous-move, random; skill or rating",
    )
    skill: SkillSettings = SkillSettings()
    first: int = Field(0, ge=0, description="leave out the first positions of each game (Karvonen: 25 for skill)")
    last: int | None = Field(None, ge=1, description="positions counted from the game's start (Karvonen: 33)")
    layers: Layers = Field((), description="layers, 0-based; none given: all that are cached")
    hook_point: Annotated[str, Added()] = Field(
        RESID_POST, description=f"which of the cached hook points, * for each layer: one of {', '.join(PATTERNS)}"
    )
    validation: float = Field(0.1, gt=0, lt=1, description="share of the games held out of fitting, by game")
    epochs: Annotated[int, AtMost(100_000, "nothing is learnt from more")] = Field(
        5, ge=1, description="passes over the cache (Karvonen Table 4)"
    )
    batch_positions: Annotated[int, AtMost(10_000_000, "memory holds them")] = Field(
        256, ge=1, description="positions in one step"
    )
    batch_games: Annotated[int | None, Added(), AtMost(100_000, "memory holds their positions")] = Field(
        None, ge=1, description="instead: whole games in one step, with all their positions (Karvonen: 2)"
    )
    learning_rate: float = Field(1e-2, gt=0, description="AdamW's")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="linear: the rate falls to a tenth; constant: as Karvonen's"
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW's (Karvonen Table 4)")
    beta1: Beta = Field(0.9, description="AdamW's (Karvonen Table 4)")
    beta2: Beta = Field(0.99, description="AdamW's (Karvonen Table 4)")
    init: float = Field(0.1, ge=0, description="standard deviation of the first weights, times 1/sqrt(d_model)")
    normalise: bool = Field(True, description="divide each layer by its root mean square while it is fitted")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        """Settings without effect would make two runs of one experiment."""
        if self.batch_games is not None and self.batch_positions != ProbeSpec.model_fields["batch_positions"].default:
            raise BadInputError("--batch-games and --batch-positions both say what a step sees", "give one of them")
        return self


class ProbeHow(ExecutionOptions):
    memory_mib: int = Field(
        4096, ge=0, description="memory for labels; beyond it they go to scratch files (activations always stream)"
    )


class Sparse(BaseModel):
    """Columns of which those without a value are left out of the row."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: Any) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class ProbeScore(Sparse):
    """The columns that probes add to their scores.

    `right_at` has two hex digits for each position of the game in order: squares right there. The ply of position i is
    `ply_first + i * ply_step`, or where plies are not evenly spaced the three hex digits i of `ply_at`. In SQL:

        WITH read AS (SELECT *, unnest(range(length(right_at) // 2)) AS i FROM probe_score)
        SELECT CASE WHEN ply_at IS NULL THEN ply_first + i * ply_step
                    ELSE ('0x' || substr(ply_at, 3 * i + 1, 3))::INTEGER END AS ply,
               sum(('0x' || substr(right_at, 2 * i + 1, 2))::INTEGER) / sum(n // positions) AS accuracy
        FROM read GROUP BY ply ORDER BY ply
    """

    hook_point: str
    label: str
    positions: int  # looked-at positions of this game
    exact: int  # of them, those with every square right
    majority: int  # squares right by always naming the class most frequent on that square in the fitting games
    unseen: int | None = None  # positions that no fitted position equals (pieces and side to move)
    unseen_correct: int | None = None  # squares right in them
    right_at: str | None = None
    ply_first: int | None = None
    ply_step: int | None = None
    ply_at: str | None = None
    game_class: int | None = None  # skill: the game's class, 0 the weakest
    vote_class: int | None = None  # of one square: the class read at most positions of the game
    mean_class: int | None = None  # of one square: the class of the mean logit over the game
    length_class: int | None = None  # skill: what the game's length alone says
    source_class: int | None = None  # skill: what source and time control alone say
    majority_class: int | None = None  # skill: what is most frequent in the fitted games


class RatingRow(Sparse):
    """The columns of a rating read off a game by regression. Errors are in Elo, summed over `positions`."""

    split: str
    layer: int
    hook_point: str
    positions: int
    elo: float  # the truth
    absolute_error: float | None = None
    majority_error: float | None = None  # of one position: always naming the mean of the fitted games
    length_error: float | None = None  # naming the mean of fitted games as long
    source_error: float | None = None  # naming the mean of fitted games of that source and time control


class ReadRow(Sparse):
    """What a probe of skill or rating reads off one game. `value` is the class most positions vote for, or Elo."""

    layer: int
    hook_point: str
    label: str
    positions: int
    lowest: int | None = None  # positions read as the lowest class
    highest: int | None = None  # positions read as the highest class
    vote_class: int | None = None
    mean_class: int | None = None  # the class of the mean logit over the game
