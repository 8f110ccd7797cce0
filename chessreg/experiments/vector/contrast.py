"""The difference of class means that defines a contrast, and the games that it compares."""

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
    """Return the highest class minus the lowest, from sums over positions float [games, d_model].

    Karvonen 2024, section 4.1. positions int [games]: positions summed in each game. classes int [games]: 0 is the
    lowest. `averaged` takes means over positions. `summed` takes means over games of the games' sums, as the author's
    code stores them; it equals the average times the number of positions. Raises BadInputError for `summed` if games
    differ in their number of positions.
    """
    if reduction == "summed":
        check_equal_positions(positions)
    sides = []
    for class_number in (0, int(classes.max())):
        is_in_class = classes == class_number
        total = sums[is_in_class].sum(0, dtype=np.float64)
        sides.append(total / (is_in_class.sum() if reduction == "summed" else positions[is_in_class].sum()))
    low, high = sides
    return Direction(cast_float32(high - low), cast_float32(high), cast_float32(low))


def check_equal_positions(positions: np.ndarray) -> None:
    """Raise BadInputError if games differ in their number of positions, because their sums would depend on their
    length."""
    if len(np.unique(positions)) > 1:
        raise BadInputError(
            f"sums need games of equal length, but games have from {positions.min()} to {positions.max()} positions",
            "--whole-games with --last-ply leaves out the short ones; or give --reduction averaged",
        )


# -- contrasted games --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassedGames:
    """The games of a contrast, in file order. All arrays are [games]."""

    games: Games
    places: np.ndarray  # int64, rows of the dataset
    classes: np.ndarray  # int8, 0 is the lowest
    stratum: np.ndarray  # object: the stratum within which labels are permuted
    positions: np.ndarray  # int64, number of sites
    report: SkillReport  # of all classed games, before `total` and `per_class`
    sites: str
    checkpoint: tables.Checkpoint
    cache: CachedActivations | None  # None: the activations come from a forward pass
    incomplete: int  # games left out because they have too few sites

    def count_games(self) -> dict[str, int]:
        """Return the numbers of games in the lowest and in the highest class."""
        return {
            "games_low": int((self.classes == 0).sum()),
            "games_high": int((self.classes == self.classes.max()).sum()),
        }

    def describe(self) -> dict[str, Any]:
        """Return the facts about the games that the `detail` of a vector records."""
        most, mean = int(self.positions.max()), float(self.positions.mean())
        return {
            "games": len(self.places),
            **self.count_games(),
            "positions_per_game": most if mean == most else mean,
            "games_without_positions": self.incomplete,
            "skill": self.report.as_json(),
        }


def gather_games(spec: Contrast, inputs: Inputs) -> ClassedGames:
    """Return the games that a contrast or cascade compares.

    Quantiles are of the games that have positions in the range (with whole_games: all of them), as in the author's
    lichess_data_filtering.ipynb. Raises BadInputError if no game has a position, or if a class has no game.
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
        encoding, block_size = inputs.encoding(spec.checkpoint), checkpoint.block_size
        positions = np.concatenate([
            sums.encode_ply_sites(
                encoding, block_size, games, places[low : low + GAMES_AT_ONCE], sites, spec.first_ply, spec.last_ply
            ).counts
            for low in range(0, len(places), GAMES_AT_ONCE)
        ])  # fmt: skip
    min_positions = int(positions.max()) if spec.whole_games else 1
    fitting_games = np.flatnonzero(positions >= max(min_positions, 1))
    if not len(fitting_games):
        until = "" if spec.last_ply is None else f" and before ply {spec.last_ply + 1}"
        raise BadInputError(f"no game has a position from ply {spec.first_ply} on{until}", "lower --first-ply")
    game_classes = load_skill_classes(inputs, dataset, places[fitting_games], spec.skill, spec.seed)
    class_rows = game_classes.select_first(spec.total, spec.per_class)
    classes = game_classes.classes[class_rows]
    if not ((classes == 0).any() and (classes == game_classes.classes.max()).any()):
        raise BadInputError(
            f"the first {len(class_rows)} games all have the same class", "raise --total or --per-class"
        )
    if spec.reduction == "summed":
        check_equal_positions(positions[fitting_games][class_rows])
    return ClassedGames(
        games=games,
        places=places[fitting_games][class_rows],
        classes=classes,
        stratum=game_classes.stratum[class_rows],
        positions=positions[fitting_games][class_rows],
        report=game_classes.report,
        sites=sites,
        checkpoint=checkpoint,
        cache=cache,
        incomplete=len(places) - len(fitting_games),
    )
