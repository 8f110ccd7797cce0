"""`rating`: ratings of the players in a pool of games, ours and others', against engines of known rating."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, field_validator

from chessreg.errors import BadInputError
from chessreg.experiments.rating.pool import Loaded, Player, load, pair
from chessreg.games.engines import ANCHOR_ERROR
from chessreg.games.estimators import ESTIMATORS, Options, Rated, rate
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import AtMost, Ref, Spec

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


class RatingSpec(Spec):
    runs: Annotated[tuple[str, ...], Ref("run")] = Field(description="runs with games: play, imported-games")
    estimator: str = Field(
        "anchored-ml",
        description="anchored-ml (each player against opponents of known rating), bradley-terry or davidson (all "
        "players at once), junkin-batched, sequential",
    )
    anchors: Literal["levels", "levels-truncated", "headers", "none"] = Field(
        "levels",
        description="known ratings: Stockfish's level table, the same without decimals (Junkin), Elo tags, or none",
    )
    anchor: tuple[str, ...] = Field((), description="NAME=ELO: further known ratings")
    rate: tuple[str, ...] = Field((), description="players to rate although their rating is known")
    scoring: Literal["paper", "author-2024"] = Field("paper", description="what draws and stopped games count")
    colors: Literal["both", "white", "black"] = Field(
        "both", description="only games in which the player has this colour"
    )
    forfeits: bool = Field(True, description="count games that were forfeited by illegal tries")
    draw_weight: float = Field(
        0.5, ge=0, le=1, description="points of a draw; Junkin's code has 0.9 and 0 (not for the joint estimators)"
    )
    k_factor: float = Field(16.0, gt=0, description="step of junkin-batched and sequential")
    start: float = Field(1300.0, description="their first rating")
    resamples: Annotated[int, AtMost(1_000_000, "memory holds them all")] = Field(
        2000, ge=20, description="bootstrap samples of openings behind the intervals"
    )

    @field_validator("runs")
    @classmethod
    def _each_once(cls, runs: tuple[str, ...]) -> tuple[str, ...]:
        if not runs or len(set(runs)) < len(runs):
            raise BadInputError("--runs names each run once, at least one", "chessreg runs list")
        return runs

    @field_validator("estimator")
    @classmethod
    def _known(cls, estimator: str) -> str:
        ESTIMATORS[estimator]  # raises NotFoundError
        return estimator

    @field_validator("anchor")
    @classmethod
    def _pairs(cls, anchor: tuple[str, ...]) -> tuple[str, ...]:
        for text in anchor:
            pair(text)
        return anchor


class RatingDetail(BaseModel):
    """Columns of a rating: the player, its games, and what the rating rests on."""

    checkpoint_id: str | None = Field(None, description="of a model")
    intervention_id: str | None = None
    engine_version: str | None = Field(None, description="of an engine")
    policy: str | None = None
    opening: str | None = None
    anchor: str | None = Field(None, description="where a known rating comes from; none: it is estimated")
    wins: int
    draws: int
    losses: int
    score: float | None = Field(None, description="points per game, a draw a half")
    unscored: int = Field(description="games that count nothing under this scoring")
    opponents: int
    anchored_games: int = Field(description="games against opponents of known rating")
    systematic: float | None = Field(None, description="Elo by which the anchors' whole table may be off")
    scoring: str
    sides: list[tuple[str, int]] = Field(description="(run, match) of its games")


class Rating(Kind):
    """Elo ratings of models, edits and engines from the games of any runs, with intervals.

    Junkin 2025, Appendix I, and the rating tables that Karvonen 2024 stands in. A player is a checkpoint with its
    intervention, policy and openings, an engine with its limit and version, or a name. Openings are resampled; a player
    that won or lost every game has a bound and no rating. The level table was measured at 120 s + 1 s: under another
    limit all ratings may be off together, which no interval shows.
    """

    name = "rating"
    tables = ("rating",)
    spec = RatingSpec
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"rating": RatingDetail}
    queries = ("ratings",)
    example = "--runs plain --estimator bradley-terry --anchors none --resamples 200"

    def units(self, spec: RatingSpec, inputs: Inputs) -> int:
        for recipe in spec.runs:
            inputs.run(recipe)
        return 1

    def check(self, spec: RatingSpec, inputs: Inputs) -> None:
        load(spec, inputs)

    def estimate(self, spec: RatingSpec, inputs: Inputs) -> Estimate:
        loaded = load(spec, inputs)
        remarks = (f"{len(loaded.pool.first):,} games, {len(loaded.sources)} of the players have a known rating",)
        return Estimate({"rating": len(loaded.players)}, 0, remarks)

    def run(self, task: Task[RatingSpec, Any]) -> None:
        spec = task.spec
        loaded = load(spec, task.inputs)
        options = Options(spec.draw_weight, spec.k_factor, spec.start, spec.seed)
        found = rate(loaded.pool, spec.estimator, options, spec.resamples, (spec.seed, spec.replicate))
        for number, (player, rated) in enumerate(zip(loaded.players, found, strict=True)):
            task.emit(
                "rating",
                0,
                detail_of(loaded, number, player, spec),
                player=player.label,
                estimator=spec.estimator,
                games=sum(player.results),
                **bounds(rated),
            )
        task.done(0)


def bounds(rated: Rated) -> dict[str, float | None]:
    """A rating and its interval, to a hundredth of an Elo."""
    return {name: None if value is None else round(value, 2) for name, value in rated._asdict().items()}


def detail_of(loaded: Loaded, number: int, player: Player, spec: RatingSpec) -> RatingDetail:
    pool, key = loaded.pool, player.key
    wins, draws, losses = player.results
    games = wins + draws + losses
    known = np.array(sorted(pool.anchors), np.int64)
    mine, theirs = pool.first == number, pool.second == number
    anchored = (mine & np.isin(pool.second, known)) | (theirs & np.isin(pool.first, known))
    from_levels = any(source in ("levels", "levels-truncated") for source in loaded.sources.values())
    return RatingDetail(
        checkpoint_id=key.checkpoint_id.hex if key.checkpoint_id else None,
        intervention_id=key.intervention_id.hex if key.intervention_id else None,
        engine_version=key.version or None,
        policy=key.policy or None,
        opening=key.opening or None,
        anchor=loaded.sources.get(number),
        wins=wins,
        draws=draws,
        losses=losses,
        score=round((wins + 0.5 * draws) / games, 6) if games else None,
        unscored=player.unscored,
        opponents=len(player.opponents),
        anchored_games=int(anchored.sum()),
        systematic=ANCHOR_ERROR if from_levels else None,
        scoring=spec.scoring,
        sides=sorted(player.sides),
    )
