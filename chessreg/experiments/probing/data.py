"""Activations with what is to be read off them: rows of a cache, their games and their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chessreg.experiments.cache import CachedActivations, CacheSpec, load_cache
from chessreg.jobs.inputs import Inputs
from chessreg.noise import generator


@dataclass(frozen=True)
class ProbeData:
    """A cache and its labels. `item` int32 [rows] is each row's game; `labels` int8 [rows, 64] its classes."""

    cache: CachedActivations
    item: np.ndarray
    labels: np.ndarray
    classes: int

    @classmethod
    def load(cls, inputs: Inputs, recipe: str, label_name: str, field: str) -> ProbeData:
        """Labels are derived from the dataset that the cache was made from, never stored with the activations."""
        from chessreg.games.labels import label
        from chessreg.games.reader import boards_of

        cache = load_cache(inputs, recipe, field)
        spec: CacheSpec = cache.spec
        games, _ = inputs.dataset(spec.dataset)
        item, ply = cache.array.game, cache.array.ply
        places, which = np.unique(item, return_inverse=True)
        wanted = label(label_name)
        labels = np.empty((len(item), 64), np.int8)
        for start in range(0, len(places), 2000):
            boards, offsets = boards_of(games.texts(places[start : start + 2000]))
            rows = np.flatnonzero((which >= start) & (which < start + 2000))
            labels[rows] = wanted.of(boards[offsets[which[rows] - start] + ply[rows]])
        return cls(cache, item, labels, len(wanted.classes))

    def held_out(self, share: float, seed: int) -> np.ndarray:
        """bool [rows]: rows of the games held out of fitting. Whole games, a seeded draw."""
        games = np.unique(self.item)
        order = generator(seed, "validation games").permutation(len(games))
        chosen = games[order[: max(1, round(share * len(games)))]]
        return np.isin(self.item, chosen)

    def majority(self, rows: np.ndarray) -> np.ndarray:
        """int8 [64]: the most frequent class of each square over these rows, the baseline that knows no position."""
        counts = np.stack([(self.labels[rows] == k).sum(0) for k in range(self.classes)])
        return counts.argmax(0).astype(np.int8)
