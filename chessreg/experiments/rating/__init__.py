"""`rating`: ratings of the players in a pool of games, played by chessreg or imported, against engines of known
rating."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from chessreg.experiments.rating.pool import LoadedPool, RatedPlayer, load_rating_pool
from chessreg.experiments.rating.spec import ALL_ESTIMATORS, RatingSpec
from chessreg.games.engines.estimators import (
    DRAW,
    DRAW_WEIGHTS,
    JOINT,
    LOSS,
    SIDE_BY_SIDE,
    WIN,
    Options,
    PlayerRating,
    Variant,
    estimate_ratings,
    select_pair,
)
from chessreg.games.engines.opponents import ANCHOR_ERROR
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


__all__ = ["Rating", "RatingSpec"]


PERFORMANCE = "performance"
FITTED_PAIRS_PER_SECOND = 1e5  # pairs of players; one estimator on one resample


class RatingDetail(BaseModel):
    """Columns of a rating: the player, its games, and the basis of the rating."""

    checkpoint_id: str | None = Field(None, description="of a model")
    intervention_id: str | None = None
    engine_version: str | None = Field(None, description="of an engine")
    policy: str | None = None
    opening: str | None = None
    assist: str | None = Field(
        None, description="of a model assisted by Stockfish: when Stockfish played the model's move"
    )
    origin: str | None = Field(None, description="origin of a model's games: ours, imported, or both")
    draw_weight: float | None = Field(None, description="points of a draw")
    against: str | None = Field(None, description="of a performance: the opponent of known rating")
    anchor: str | None = Field(None, description="origin of a known rating; none: the rating is estimated")
    wins: int
    draws: int
    losses: int
    score: float | None = Field(None, description="points per game, with half a point for a draw")
    unscored: int = Field(description="games without points under this scoring")
    opponents: int
    anchored_games: int = Field(description="games against opponents of known rating")
    systematic: float | None = Field(None, description="possible common error of the anchors' table, in Elo")
    scoring: str
    sides: list[tuple[str, int]] = Field(description="(run, match) of its games")


class Rating(Kind):
    """Elo ratings of models, edits and engines from the games of any runs, with intervals.

    Junkin 2025, Appendix I, and the rating tables that Karvonen 2024 is part of. A player is a checkpoint with its
    intervention, policy and openings, an engine with its limit and version, or a name. Openings are resampled. A player
    that won or lost every game has a bound and no rating. The level table was measured at 120 s + 1 s: under another
    limit all ratings may be shifted alike, which the intervals do not show.
    """

    name = "rating"
    main_settings = ("anchors", "anchor", "estimator", "scoring", "color", "forfeits", "resamples")
    tables = ("rating",)
    spec = RatingSpec
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"rating": RatingDetail}
    queries = ("ratings", "elo by estimator")
    example = "--runs plain --estimator bradley-terry --anchors none --resamples 200"

    def units(self, spec: RatingSpec, inputs: Inputs) -> int:
        for reference in spec.runs:
            inputs.run(reference)
        if spec.estimator != ALL_ESTIMATORS:
            return 1
        return len(SIDE_BY_SIDE) + len(DRAW_WEIGHTS) * len(load_rating_pool(spec, inputs).pool.anchors)

    def check(self, spec: RatingSpec, inputs: Inputs) -> None:
        load_rating_pool(spec, inputs)

    def estimate(self, spec: RatingSpec, inputs: Inputs) -> RunEstimate:
        loaded_pool = load_rating_pool(spec, inputs)
        remarks = (
            f"{len(loaded_pool.pool.first):,} games; the rating of {len(loaded_pool.sources)} of the players is known",
        )
        units = self.units(spec, inputs)
        seconds = units * (1 + spec.resamples) * len(loaded_pool.players) ** 2 / FITTED_PAIRS_PER_SECOND
        return RunEstimate({"rating": len(loaded_pool.players) * units}, 0, remarks, cpu_seconds=seconds)

    def run(self, task: Task[RatingSpec, Any]) -> None:
        spec = task.spec
        loaded_pool = load_rating_pool(spec, task.inputs)
        for unit in task.units:
            if spec.estimator != ALL_ESTIMATORS:
                emit_player_ratings(task, unit, loaded_pool, Variant(spec.estimator, spec.draw_weight))
            elif unit < len(SIDE_BY_SIDE):
                emit_player_ratings(task, unit, loaded_pool, SIDE_BY_SIDE[unit])
            else:
                emit_performance(task, unit, loaded_pool)
            task.progress(unit / len(task.units), "")
            task.done(unit)


def emit_player_ratings(task: Task[RatingSpec, Any], unit: int, loaded_pool: LoadedPool, variant: Variant) -> None:
    """Emit one estimator's rating of every player. Known ratings are emitted with the first estimator."""
    spec = task.spec
    options = Options(variant.draw_weight, spec.k_factor, spec.start, spec.seed)
    ratings = estimate_ratings(
        loaded_pool.pool, variant.estimator, options, spec.resamples, (spec.seed, spec.replicate)
    )
    for number, (player, player_rating) in enumerate(zip(loaded_pool.players, ratings, strict=True)):
        if unit and number in loaded_pool.pool.anchors:
            continue
        detail = build_rating_detail(loaded_pool, number, player, spec)
        weight = 0.5 if variant.estimator in JOINT else variant.draw_weight
        task.emit(
            "rating",
            unit,
            detail.model_copy(update={"draw_weight": weight}),
            player=player.label,
            estimator=variant.estimator,
            games=sum(player.results),
            **round_bounds(player_rating),
        )


def emit_performance(task: Task[RatingSpec, Any], unit: int, loaded_pool: LoadedPool) -> None:
    """Emit the performance of every player against one opponent of known rating: its rating from these games alone."""
    spec, place = task.spec, unit - len(SIDE_BY_SIDE)
    opponent = sorted(loaded_pool.pool.anchors)[place // len(DRAW_WEIGHTS)]
    weight = DRAW_WEIGHTS[place % len(DRAW_WEIGHTS)]
    for number, player in enumerate(loaded_pool.players):
        if number in loaded_pool.pool.anchors or opponent not in player.opponents:
            continue
        games = select_pair(loaded_pool.pool, number, opponent)
        options = Options(weight, spec.k_factor, spec.start, spec.seed)
        player_rating = estimate_ratings(games, "anchored-ml", options, spec.resamples, (spec.seed, spec.replicate))[
            number
        ]
        outcomes = np.where(games.first == number, games.outcome, LOSS - games.outcome)
        results = [int((outcomes == outcome).sum()) for outcome in (WIN, DRAW, LOSS)]
        detail = build_rating_detail(loaded_pool, number, player, spec, results).model_copy(
            update={
                "draw_weight": weight,
                "against": loaded_pool.players[opponent].label,
                "opponents": 1,
                "unscored": 0,
                "sides": sorted(player.sides & loaded_pool.players[opponent].sides),
            }
        )
        task.emit(
            "rating",
            unit,
            detail,
            player=player.label,
            estimator=PERFORMANCE,
            games=len(games.first),
            **round_bounds(player_rating),
        )


def round_bounds(player_rating: PlayerRating) -> dict[str, float | None]:
    """Return a rating and its interval, rounded to a hundredth of an Elo."""
    return {name: None if value is None else round(value, 2) for name, value in player_rating._asdict().items()}


def build_rating_detail(
    loaded_pool: LoadedPool, number: int, player: RatedPlayer, spec: RatingSpec, results: list[int] | None = None
) -> RatingDetail:
    """Return the columns of a player's rating. `results` (wins, draws, losses) default to all its games."""
    pool, key = loaded_pool.pool, player.key
    wins, draws, losses = results or player.results
    games = wins + draws + losses
    anchor_numbers = np.array(sorted(pool.anchors), np.int64)
    is_first_player, is_second_player = pool.first == number, pool.second == number
    is_anchored = (is_first_player & np.isin(pool.second, anchor_numbers)) | (
        is_second_player & np.isin(pool.first, anchor_numbers)
    )
    from_levels = any(source in ("levels", "levels-truncated") for source in loaded_pool.sources.values())
    return RatingDetail(
        checkpoint_id=key.checkpoint_id.hex if key.checkpoint_id else None,
        intervention_id=key.intervention_id.hex if key.intervention_id else None,
        engine_version=key.version or None,
        policy=key.policy or None,
        opening=key.opening or None,
        assist=key.assist if player.is_rated else None,
        origin=" and ".join(sorted(player.origins, reverse=True)) if player.is_rated else None,
        anchor=loaded_pool.sources.get(number),
        wins=wins,
        draws=draws,
        losses=losses,
        score=round((wins + 0.5 * draws) / games, 6) if games else None,
        unscored=player.unscored_games,
        opponents=len(player.opponents),
        anchored_games=int(is_anchored.sum()) if results is None else games,
        systematic=ANCHOR_ERROR if from_levels else None,
        scoring=spec.scoring,
        sides=sorted(player.sides),
    )
