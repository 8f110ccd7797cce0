"""Contrasts: the arithmetic of directions and of controls of the same norm, and the games that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import select_games
from chessreg.experiments.settings.skill import load_skill_classes
from chessreg.experiments.vector import sums
from chessreg.experiments.vector.spec import Contrast, OfCache, OfModel
from chessreg.runs.activations import CachedActivations, load_cache
from chessreg.runs.fitted import Direction
from chessreg.steering.directions import cast_float32

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.skill import SkillReport
    from chessreg.registry import tables
    from chessreg.runs.inputs import Inputs

Reduction = Literal["averaged", "summed"]
GAMES_AT_ONCE = 5000


def compute_contrast(sums: np.ndarray, positions: np.ndarray, classes: np.ndarray, reduction: Reduction) -> Direction:
    """Highest class minus lowest, from sums over positions float [games, d_model] (Karvonen 2024, section 4.1).

    positions int [games] were summed per game; classes int [games], 0 the lowest. `averaged`: means over positions.
    `summed`: means over games of the games' sums, as the author's code stores them; it needs games of equally many
    positions, and is then exactly that many times the average. BadInputError when they differ.
    """
    if reduction == "summed":
        check_equal_positions(positions)
    sides = []
    for which in (0, int(classes.max())):
        mine = classes == which
        total = sums[mine].sum(0, dtype=np.float64)
        sides.append(total / (mine.sum() if reduction == "summed" else positions[mine].sum()))
    low, high = sides
    return Direction(cast_float32(high - low), cast_float32(high), cast_float32(low))


def check_equal_positions(positions: np.ndarray) -> None:
    """Raise BadInputError when games differ in their number of positions: their sums would measure length."""
    if len(np.unique(positions)) > 1:
        raise BadInputError(
            f"sums over positions compare games of {positions.min()} and of {positions.max()} positions",
            "--whole-games with --last-ply leaves out the short ones; --reduction averaged needs neither",
        )


# -- the games that are contrasted ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassedGames:
    """The games of a contrast, in file order. All arrays are [games]."""

    games: Games
    places: np.ndarray  # int64, row positions in the dataset
    classes: np.ndarray  # int8, 0 the lowest
    stratum: np.ndarray  # object
    positions: np.ndarray  # int64, sites of each
    report: SkillReport  # of all games that were put into classes, before the first ones were taken
    sites: str
    checkpoint: tables.Checkpoint
    cache: CachedActivations | None  # None: the model is run
    incomplete: int  # games left out for want of sites

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


def gather_games(spec: Contrast, inputs: Inputs) -> ClassedGames:
    """The games that a contrast or cascade compares.

    Quantiles are of the games that have positions in the range (with whole_games: all of them), as in the author's data
    (specification 1.4). Raises BadInputError when no game has a position, or a class has no game.
    """
    cache: CachedActivations | None = None
    if isinstance(spec, OfCache):
        cache = load_cache(inputs, spec.cache, pattern=spec.pattern)
        dataset, sites = cache.dataset, cache.sites
        games, _ = inputs.dataset(dataset)
        checkpoint, _ = inputs.checkpoint(cache.checkpoint)
        rows = sums.mask_cached_rows(cache, spec.first_ply, spec.last_ply)
        places, index = np.unique(cache.array.game, return_inverse=True)
        positions = np.bincount(index[rows], minlength=len(places))
    else:
        assert isinstance(spec, OfModel)
        dataset, sites = spec.dataset, spec.sites
        games, places = select_games(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        written, block_size = inputs.encoding(spec.checkpoint), checkpoint.block_size
        positions = np.concatenate([
            sums.encode_ply_sites(
                written, block_size, games, places[low : low + GAMES_AT_ONCE], sites, spec.first_ply, spec.last_ply
            ).counts
            for low in range(0, len(places), GAMES_AT_ONCE)
        ])  # fmt: skip
    least = int(positions.max()) if spec.whole_games else 1
    there = np.flatnonzero(positions >= max(least, 1))
    if not len(there):
        until = "" if spec.last_ply is None else f" and before ply {spec.last_ply + 1}"
        raise BadInputError(f"no game has a position from ply {spec.first_ply} on{until}", "lower --first-ply")
    game_classes = load_skill_classes(inputs, dataset, places[there], spec.skill, spec.seed)
    chosen = game_classes.first(spec.total, spec.per_class)
    classes = game_classes.classes[chosen]
    if not ((classes == 0).any() and (classes == game_classes.classes.max()).any()):
        raise BadInputError(f"the first {len(chosen)} games are all of one class", "raise --total or --per-class")
    if spec.reduction == "summed":
        check_equal_positions(positions[there][chosen])
    return ClassedGames(
        games=games,
        places=places[there][chosen],
        classes=classes,
        stratum=game_classes.stratum[chosen],
        positions=positions[there][chosen],
        report=game_classes.report,
        sites=sites,
        checkpoint=checkpoint,
        cache=cache,
        incomplete=len(places) - len(there),
    )
