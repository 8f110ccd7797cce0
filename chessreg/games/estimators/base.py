"""What estimators work on: pools of games, counts of their results, and the registry of estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chessreg.named import Registry

WIN, DRAW, LOSS = 0, 1, 2
SCALE = math.log(10) / 400
FAR = 6000.0  # Elo beyond the anchors: no search goes further
STEPS = 60


@dataclass(frozen=True)
class Pool:
    """Games between numbered players. `first`, `second` int64 [game]; `outcome` int64 [game], WIN, DRAW or LOSS of
    `first`; `cluster` int64 [game]: games of one opening are drawn together. `anchors`: player → its known rating."""

    players: tuple[str, ...]
    first: np.ndarray
    second: np.ndarray
    outcome: np.ndarray
    cluster: np.ndarray
    anchors: Mapping[int, float]


@dataclass(frozen=True)
class Counts:
    """Results by pair of players. `pairs` int64 [pair, 2]; `results` float64 [sample, pair, 3]: wins of the first of
    the pair, draws, losses. Sample 0 is what was played, the others are resamples."""

    players: int
    pairs: np.ndarray
    results: np.ndarray
    anchors: Mapping[int, float]

    @property
    def samples(self) -> int:
        return len(self.results)

    def against_anchors(self, player: int) -> tuple[np.ndarray, np.ndarray]:
        """Of one player: the ratings of its anchored opponents, float64 [opponent], and its results against each,
        float64 [sample, opponent, 3] with its own wins first."""
        ratings, results = [], []
        for place, (one, other) in enumerate(self.pairs.tolist()):
            if player in (one, other) and (opponent := other if player == one else one) in self.anchors:
                ratings.append(self.anchors[opponent])
                results.append(self.results[:, place, :: 1 if player == one else -1])
        found = np.stack(results, axis=1) if results else np.zeros((self.samples, 0, 3))
        return np.array(ratings), found


class Options(NamedTuple):
    """What estimators are told: points of a draw, step and start of the updating ones, and a seed for their order."""

    draw_weight: float = 0.5
    k_factor: float = 16.0
    start: float = 1300.0
    seed: int = 0


Estimator = Callable[[Counts, Options], np.ndarray]
"""Counts → ratings, float64 [sample, player]: infinite where all was won or lost, NaN where nothing is known."""

ESTIMATORS: Registry[Estimator] = Registry("rating estimator")
JOINT = frozenset({"bradley-terry", "davidson"})
"""Those that need no opponents of known rating."""


def expected(difference: np.ndarray) -> np.ndarray:
    """Expected score at this rating difference."""
    found: np.ndarray = 1 / (1 + np.exp(np.clip(-SCALE * difference, -700, 700)))
    return found


def rated(counts: Counts) -> list[int]:
    return [player for player in range(counts.players) if player not in counts.anchors]


def unknown(counts: Counts) -> np.ndarray:
    found = np.full((counts.samples, counts.players), np.nan)
    for player, rating in counts.anchors.items():
        found[:, player] = rating
    return found
