"""Activations with what is to be read off them: rows of a cache, their games, their labels, and baselines.

A baseline knows no activations: what a game's length, or its source and time control, says of its skill.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.settings.overlap import Evaluated
from chessreg.experiments.settings.skill import SkillSettings, classes_of
from chessreg.games import labels
from chessreg.games.dataset import holds_positions
from chessreg.games.labels import Label
from chessreg.models.hook_points import RESID_POST
from chessreg.noise import generator
from chessreg.runs.activations import CachedActivations, load_cache
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.games.dataset import Games
    from chessreg.games.positions import Positions
    from chessreg.games.skill import SkillClasses, SkillReport

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
MIB = 1 << 20


@dataclass(frozen=True)
class ProbeData:
    """A cache and its labels.

    items: the dataset. item: int32 [rows], each row's game, or position of a dataset of positions.
    labels: int8 [rows, squares] classes, -1 for a game without one; float32
    [rows, 1] Elo for regression, NaN without one. positions: uint64 [rows], hashes equal for equal positions.
    usable: bool [rows], rows of the position range that have a label.
    """

    cache: CachedActivations
    items: Games | Positions
    item: np.ndarray
    labels: np.ndarray
    classes: int
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    usable: np.ndarray | None = None
    skill: SkillClasses | None = None  # of the games in `places`
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def load(
        cls,
        inputs: Inputs,
        reference: str,
        label_name: str,
        field: str,
        *,
        first: int = 0,
        last: int | None = None,
        skill: SkillSettings | None = None,
        seed: int = 0,
        fitted: SkillReport | None = None,
        allocate: Allocate = np.empty,
        game: int | None = None,
        truth: bool = True,
        pattern: str = RESID_POST,
    ) -> ProbeData:
        """Labels are derived from the dataset that the cache was made from, never stored with the activations.

        first, last: only the positions numbered first ≤ number < last of each game. fitted: the skill report of the
        games that the probe was fitted on, whose edges hold. allocate makes the arrays that grow with the cache.
        game: only the rows of this one are usable and have a label, as one board view needs. truth: False for games
        whose skill or rating is of no matter; `labels` is then 0 there. pattern: the hook point of each layer.
        """
        cache = load_cache(inputs, reference, field, pattern)
        wanted = labels.label(label_name)
        items, _ = inputs.items(cache.dataset)
        if wanted.source != "position" and holds_positions(items):
            raise BadInputError(f"{label_name} is of games, and the cache is of positions", "for example --label piece")
        item, ply = cache.array.game, cache.array.ply
        places = np.unique(item).astype(np.int64)
        found, classes = None, len(wanted.classes)
        if wanted.source != "position" and truth:
            found = classes_of(inputs, cache.dataset, places, skill or SkillSettings(), seed, fitted)
            classes = len(found.report.games) if wanted.source == "skill" else 0
        shape = (len(item), wanted.squares)
        values = allocate(shape, np.float32 if wanted.source == "rating" else np.int8)
        if wanted.of is None:
            values[:] = 0
        hashes = allocate((len(item),), np.uint64)
        mine = np.arange(len(item)) if game is None else np.flatnonzero(item == game)
        for rows, asked in labels.asked(items, item[mine], ply[mine]):
            hashes[mine[rows]] = asked.hashes
            if wanted.of is not None:
                values[mine[rows]] = wanted.of(asked)
        if found is not None:
            of_game = found.classes if wanted.source == "skill" else found.rating
            values[:, 0] = of_game[np.searchsorted(places, item)]
        usable = in_range(cache, first, last) & (item == game if game is not None else True)
        if found is not None:
            usable &= np.isfinite(values[:, 0]) if wanted.source == "rating" else values[:, 0] >= 0
        if not usable.any():
            raise BadInputError(f"no cached position of {field} is numbered {first} or more", "lower --first")
        return cls(cache, items, item, values, classes, hashes, usable, found, places)

    @property
    def rows(self) -> np.ndarray:
        """bool [rows]: the rows that count."""
        return np.ones(len(self.item), bool) if self.usable is None else self.usable

    def held_out(self, share: float, seed: int) -> np.ndarray:
        """bool [rows]: usable rows of the games held out of fitting. Whole games, a seeded draw."""
        games = np.unique(self.item[self.rows])
        order = generator(seed, "validation games").permutation(len(games))
        chosen = games[order[: max(1, round(share * len(games)))]]
        return np.isin(self.item, chosen) & self.rows

    def majority(self, rows: np.ndarray) -> np.ndarray:
        """int8 [squares]: the most frequent class of each square over these rows, the baseline that knows no
        position."""
        counts = np.zeros((self.classes, self.labels.shape[1]), np.int64)
        chosen = np.flatnonzero(rows)
        for start in range(0, len(chosen), 1 << 16):
            part = self.labels[chosen[start : start + (1 << 16)]]
            counts += np.stack([(part == k).sum(0) for k in range(self.classes)])
        return counts.argmax(0).astype(np.int8)

    def evaluated(self, rows: np.ndarray) -> Evaluated:
        """What is looked at in these rows, to be compared with what was trained on."""
        return Evaluated.at(self.items, np.unique(self.item[rows]).astype(np.int64), self.positions[rows])

    def whole_games(self, rows: np.ndarray, games: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Row numbers int64 [n] of so many games at a time, those where `rows` is True: every game once in an epoch.

        The order is drawn from seed and epoch over the games' numbers, however the cache is laid out.
        """
        chosen = np.flatnonzero(rows)
        chosen = chosen[np.argsort(self.item[chosen], kind="stable")]
        pieces = np.split(chosen, np.flatnonzero(np.diff(self.item[chosen])) + 1)
        order = generator(seed, "games of an epoch", epoch).permutation(len(pieces))
        for start in range(0, len(order), games):
            yield np.concatenate([pieces[place] for place in order[start : start + games]])

    def activations(self, layers: Sequence[int], rows: np.ndarray) -> np.ndarray:
        """Activations float32 [layers, n, d_model] of these rows: one read for each run of rows that follow each other,
        as a game's do."""
        out = np.empty((len(layers), len(rows), self.cache.array.d_model), np.float32)
        edges = np.flatnonzero(np.diff(rows, prepend=-2, append=-2) != 1)
        for start, stop in pairwise(edges.tolist()):
            stored = slice(int(rows[start]), int(rows[start]) + stop - start)
            for place, layer in enumerate(layers):
                out[place, start:stop] = self.cache.values(layer, stored)
        return out

    def only(self, rows: np.ndarray) -> ProbeData:
        """The same data with only these rows usable."""
        return replace(self, usable=self.rows & rows)


def in_range(cache: CachedActivations, first: int, last: int | None) -> np.ndarray:
    """bool [rows]: whether the number of a row among its game's positions is in [first, last).

    Numbers count from the game's first position, also where the cache left some out (Karvonen's pos_start, pos_end).
    """
    game = cache.array.game
    if first <= cache.first and last is None:
        return np.ones(len(game), bool)
    order = np.lexsort((cache.array.token, cache.array.ply, game))
    starts = np.flatnonzero(np.diff(game[order], prepend=-1))
    number = np.empty(len(game), np.int64)
    number[order] = np.arange(len(game)) - np.repeat(starts, np.diff(starts, append=len(game))) + cache.first
    return (number >= first) & (number < (np.iinfo(np.int64).max if last is None else last))


def allocator(folder: Path, memory_mib: int) -> Allocate:
    """Arrays in memory as long as they fit in the limit together, then in scratch files of the folder."""
    left = memory_mib * MIB

    def allocate(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        nonlocal left
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size <= left:
            left -= size
            return np.empty(shape, dtype)
        return scratch(folder, shape, dtype)

    return allocate


def scratch(folder: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in a file that has no name any more: its space is free again when the array is gone."""
    if not int(np.prod(shape)):
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def label_of(name: str, classes: int) -> Label:
    """The label with its classes: how many skill has depends on the games."""
    wanted = labels.label(name)
    if wanted.source == "skill":
        return replace(wanted, classes=("low", "high") if classes == 2 else tuple(map(str, range(classes))))
    return wanted


# -- baselines --------------------------------------------------------------------------------------------------------

LENGTH_BINS = 10
LEAST_GAMES = 5  # a key that fewer fitted games have says as much as no key


def keys(inputs: Inputs, data: ProbeData, edges: np.ndarray | None = None) -> dict[str, list[Hashable]]:
    """name → the key of each game in `data.places`. edges: of the length bins, from `length_edges`."""
    assert data.skill is not None
    games, _ = inputs.dataset(data.cache.dataset)
    table = games.take(data.places, ["plies", "time_control"])
    plies = table.column("plies").to_numpy()
    control = table.column("time_control").to_pylist()
    bins = np.searchsorted(length_edges(plies) if edges is None else edges, plies)
    source = [(str(s), c) for s, c in zip(data.skill.stratum, control, strict=True)]
    return {"majority": [0] * len(plies), "length": bins.tolist(), "source": list(source)}


def length_edges(plies: np.ndarray) -> np.ndarray:
    """Inner edges of ten bins with as many games each, float64 [<= 9]."""
    return np.unique(np.quantile(plies, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))


def guesses(fit_keys: Sequence[Hashable], fit_values: np.ndarray, keys: Sequence[Hashable], classes: int) -> np.ndarray:
    """What a key says of each game, float64 [games]: the class most frequent, or with classes 0 the mean, of the
    fitted games with that key; of all of them for a key too rare among them. fit_values: -1 or NaN counts for none.

    That is the best that a logistic regression on the key's indicator can do on the games it was fitted on.
    """
    known = np.isfinite(fit_values) & ((fit_values >= 0) | (classes == 0))
    table: dict[Hashable, list[float]] = {}
    for key, value, keep in zip(fit_keys, fit_values.tolist(), known.tolist(), strict=True):
        if keep:
            table.setdefault(key, []).append(value)

    def say(values: Sequence[float]) -> float:
        if classes == 0:
            return float(np.mean(values))
        return float(np.bincount(np.asarray(values, np.int64), minlength=classes).argmax())

    overall = say(fit_values[known].tolist())
    said = {key: say(values) for key, values in table.items() if len(values) >= LEAST_GAMES}
    return np.array([said.get(key, overall) for key in keys], np.float64)
