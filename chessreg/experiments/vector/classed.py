"""The games that a contrast compares: which, of what class, with how many looked-at positions, from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.cache.kind import CachedActivations, load_cache
from chessreg.experiments.settings.games import GameSelection, select
from chessreg.experiments.settings.skill import classes_of
from chessreg.experiments.vector import sums
from chessreg.experiments.vector.contrast import check_equal

if TYPE_CHECKING:
    from chessreg.experiments.vector.kind import VectorSpec
    from chessreg.games.dataset import Games
    from chessreg.games.skill import SkillReport
    from chessreg.registry import tables
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class ClassedGames:
    """The games of a contrast, in file order. All arrays are [games]."""

    games: Games
    places: np.ndarray  # int64, row positions in the dataset
    classes: np.ndarray  # int8, 0 the lowest
    stratum: np.ndarray  # object
    positions: np.ndarray  # int64, looked-at positions of each
    report: SkillReport  # of all games that were put into classes, before the first ones were taken
    at: str
    checkpoint: tables.Checkpoint
    cache: CachedActivations | None  # None: the model is run
    incomplete: int  # games left out for want of positions

    def counts(self) -> dict[str, int]:
        """Games of the lowest and of the highest class."""
        return {
            "games_low": int((self.classes == 0).sum()),
            "games_high": int((self.classes == self.classes.max()).sum()),
        }

    def describe(self) -> dict[str, Any]:
        """What a vector's detail keeps of its games."""
        most, mean = int(self.positions.max()), float(self.positions.mean())
        return {
            "games": len(self.places),
            **self.counts(),
            "positions_per_game": most if mean == most else mean,
            "games_without_positions": self.incomplete,
            "skill": self.report.as_json(),
        }


def selection_of(spec: VectorSpec) -> GameSelection:
    """The settings that name the games of a spec without a cache."""
    names = GameSelection.model_fields
    return GameSelection(**{name: getattr(spec, name) for name in names})


def gather(spec: VectorSpec, inputs: Inputs) -> ClassedGames:
    """The games that a contrastive, cascade or shuffled spec compares.

    Quantiles are of the games that have positions in the range (with whole_games: all of them), as in the author's data
    (specification 1.4). Raises BadInputError when no game has a position, or a class has no game.
    """
    cache = load_cache(inputs, spec.cache) if spec.cache else None
    if cache is not None:
        dataset, at = cache.spec.dataset, cache.spec.positions
        games, _ = inputs.dataset(dataset)
        checkpoint, _ = inputs.checkpoint(cache.spec.checkpoint)
        rows = sums.cached_rows(cache, spec.first_ply, spec.last_ply)
        places, index = np.unique(cache.array.game, return_inverse=True)
        positions = np.bincount(index[rows], minlength=len(places))
    else:
        assert spec.dataset
        assert spec.checkpoint
        dataset, at = spec.dataset, spec.at
        games, places = select(selection_of(spec), inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        positions = np.concatenate([
            sums.positions_in(
                games.texts(places[low : low + 5000]), at, checkpoint.block_size, spec.first_ply, spec.last_ply
            )[1]
            for low in range(0, len(places), 5000)
        ])  # fmt: skip
    least = int(positions.max()) if spec.whole_games else 1
    there = np.flatnonzero(positions >= max(least, 1))
    if not len(there):
        until = "" if spec.last_ply is None else f" and before ply {spec.last_ply + 1}"
        raise BadInputError(f"no game has a position from ply {spec.first_ply} on{until}", "lower --first-ply")
    found = classes_of(inputs, dataset, places[there], spec.skill, spec.seed)
    chosen = found.first(spec.total, spec.per_class)
    classes = found.classes[chosen]
    if not ((classes == 0).any() and (classes == found.classes.max()).any()):
        raise BadInputError(f"the first {len(chosen)} games are all of one class", "raise --total or --per-class")
    if spec.positions == "summed":
        check_equal(positions[there][chosen])
    return ClassedGames(
        games=games,
        places=places[there][chosen],
        classes=classes,
        stratum=found.stratum[chosen],
        positions=positions[there][chosen],
        report=found.report,
        at=at,
        checkpoint=checkpoint,
        cache=cache,
        incomplete=len(places) - len(there),
    )
