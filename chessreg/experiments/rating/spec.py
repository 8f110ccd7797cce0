"""The settings of a `rating` run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from chessreg.errors import BadInputError
from chessreg.games.engines.estimators import ESTIMATORS
from chessreg.runs.spec import AtMost, Ref, Spec

ALL_ESTIMATORS = "all"


class RatingSpec(Spec):
    runs: Annotated[tuple[str, ...], Ref("run")] = Field(
        description="runs with games: play, imported-games, imported-sweep"
    )
    estimator: str = Field(
        "anchored-ml",
        description="anchored-ml (each player against opponents of known rating), bradley-terry or davidson "
        "(all players together), junkin-batched, sequential; or all: all of these, for three "
        "weights of draws, and the performance against each opponent of known rating",
    )
    anchors: Literal["levels", "levels-truncated", "headers", "none"] = Field(
        "levels",
        description="known ratings: Stockfish's level table, the same without decimals (Junkin), Elo tags, or none",
    )
    anchor: tuple[str, ...] = Field(
        (), description="NAME=ELO: additional known ratings. Left out: only the ratings of --anchors"
    )
    rate: tuple[str, ...] = Field(
        (), description="players to rate although their rating is known. Left out: only players of unknown rating"
    )
    scoring: Literal["paper", "author-2024"] = Field("paper", description="points of draws and stopped games")
    color: Literal["both", "white", "black"] = Field(
        "both", description="only games in which the player has this color"
    )
    forfeits: bool = Field(True, description="count games that were forfeited by illegal tries")
    draw_weight: float = Field(
        0.5, ge=0, le=1, description="points of a draw; Junkin's code uses 0.9 and 0 (not for the joint estimators)"
    )
    k_factor: float = Field(16.0, gt=0, description="step of junkin-batched and sequential")
    start: float = Field(1300.0, description="initial rating of junkin-batched and sequential")
    resamples: Annotated[int, AtMost(1_000_000, "more samples do not fit in memory")] = Field(
        2000, ge=20, description="bootstrap samples of openings for the intervals"
    )

    @field_validator("runs")
    @classmethod
    def _check_runs(cls, runs: tuple[str, ...]) -> tuple[str, ...]:
        if not runs or len(set(runs)) < len(runs):
            raise BadInputError("--runs must name at least one run, and none of them twice", "chessreg runs list")
        return runs

    @field_validator("estimator")
    @classmethod
    def _check_estimator(cls, estimator: str) -> str:
        if estimator != ALL_ESTIMATORS:
            ESTIMATORS[estimator]  # raises NotFoundError
        return estimator

    @field_validator("anchor")
    @classmethod
    def _check_anchors(cls, anchor: tuple[str, ...]) -> tuple[str, ...]:
        for text in anchor:
            parse_anchor(text)
        return anchor


def parse_anchor(text: str) -> tuple[str, float]:
    """Return name and rating of `NAME=ELO`. Raises BadInputError for other texts."""
    name, _, rating = text.rpartition("=")
    try:
        return name.strip(), float(rating)
    except ValueError:
        raise BadInputError(f"--anchor {text!r} is not NAME=ELO", "for example --anchor random=600") from None
