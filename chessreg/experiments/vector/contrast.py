"""The arithmetic of directions: contrasts of means, controls of the same norm, and what a coefficient means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from chessreg.errors import BadInputError
from chessreg.noise import generator

Aggregate = Literal["averaged", "summed"]
AUTHORS_POSITIONS = 8  # dots 25 to 32: what Karvonen's stored averages are sums over (specification 5.1)


@dataclass(frozen=True)
class Direction:
    """A direction in the residual stream after one block, and what it was made of."""

    vector: np.ndarray  # float32 [d_model]
    high: np.ndarray | None = None  # float32 [d_model], of the strong games; vector = high - low
    low: np.ndarray | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    sums: np.ndarray | None = None  # float32 [games, d_model], of a contrast from one forward pass

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.vector))

    def norms(self) -> dict[str, float]:
        """Norms of the two sides, where there are two."""
        sides = {"norm_high": self.high, "norm_low": self.low}
        return {name: float(np.linalg.norm(side)) for name, side in sides.items() if side is not None}

    def tensors(self) -> dict[str, np.ndarray]:
        """What is stored of it, float32 [d_model] each."""
        found = {"vector": self.vector, "high": self.high, "low": self.low}
        return {name: np.ascontiguousarray(value, np.float32) for name, value in found.items() if value is not None}


def contrast(sums: np.ndarray, positions: np.ndarray, classes: np.ndarray, aggregate: Aggregate) -> Direction:
    """Highest class minus lowest, from sums over positions float [games, d_model] (Karvonen 2024, section 4.1).

    positions int [games] were summed per game; classes int [games], 0 the lowest. `averaged`: means over positions.
    `summed`: means over games of the games' sums, as the author's code stores them; it needs games of equally many
    positions, and is then exactly that many times the average. BadInputError when they differ.
    """
    if aggregate == "summed":
        check_equal(positions)
    sides = []
    for which in (0, int(classes.max())):
        mine = classes == which
        total = sums[mine].sum(0, dtype=np.float64)
        sides.append(total / (mine.sum() if aggregate == "summed" else positions[mine].sum()))
    low, high = sides
    return Direction(as_float32(high - low), as_float32(high), as_float32(low))


def check_equal(positions: np.ndarray) -> None:
    """Raise BadInputError when games differ in their number of positions: their sums would measure length."""
    if len(np.unique(positions)) > 1:
        raise BadInputError(
            f"sums over positions compare games of {positions.min()} and of {positions.max()} positions",
            "--whole-games with --last-ply leaves out the short ones; --positions averaged needs neither",
        )


def permuted(classes: np.ndarray, stratum: np.ndarray, seed: int) -> np.ndarray:
    """The classes dealt anew among the games of each stratum: every count stays, what they say of skill goes."""
    dealt = classes.copy()
    for name in sorted(set(map(str, stratum))):
        mine = np.flatnonzero(stratum == name)
        dealt[mine] = classes[generator(seed, "shuffled classes", name).permutation(mine)]
    return dealt


def random_like(direction: np.ndarray, layer: int, seed: int) -> np.ndarray:
    """A direction float32 [d_model] drawn uniformly from the sphere, for this layer and seed, with the same norm."""
    drawn = generator(seed, "random direction", layer).standard_normal(direction.shape)
    return with_norm(drawn, float(np.linalg.norm(direction)))


def with_norm(direction: np.ndarray, norm: float) -> np.ndarray:
    """The direction float32 [d_model], scaled to a norm. BadInputError for the zero vector, which has no direction."""
    own = np.linalg.norm(direction.astype(np.float64))
    if not own > 0:
        raise BadInputError("a direction of norm 0 cannot be scaled", "the two classes do not differ")
    return as_float32(direction.astype(np.float64) * (norm / own))


def class_difference(weight: np.ndarray, side: str = "both") -> Direction:
    """Highest class minus lowest of a skill probe's weights [d_model, 1, classes] (Karvonen 2024, section 4.1).

    `side` high takes the highest alone, low the lowest alone with its sign turned: added, either should raise skill
    (Appendix C there). Of a probe that reads the rating itself [d_model, 1, 1]: where the rating rises. Not normalised.
    BadInputError for a probe that reads more than one thing (64 squares), or for one side of a rating.
    """
    if weight.ndim != 3 or weight.shape[1] != 1:
        raise BadInputError(
            f"a probe of shape {list(weight.shape)} has no one class difference",
            "give a probe of skill, which reads one of a few classes off each game",
        )
    if weight.shape[2] == 1:
        if side != "both":
            raise BadInputError(f"a probe that reads a rating has no {side} class", "leave out --side")
        return Direction(as_float32(weight[:, 0, 0]))
    low, high = weight[:, 0, 0], weight[:, 0, -1]
    vector = {"both": high - low, "high": high, "low": -low}[side]
    return Direction(as_float32(vector), as_float32(high), as_float32(low))


def scale_of(coefficient: float, positions_summed: int, authors_positions: int = AUTHORS_POSITIONS) -> float:
    """The scale at which a stored vector acts as the paper's coefficient does on the author's.

    positions_summed is how many positions the stored vector's sides sum (1: averages). The author's are sums over 8.

    >>> scale_of(0.1, positions_summed=1), scale_of(0.1, positions_summed=8)
    (0.8, 0.1)
    """
    return coefficient * authors_positions / positions_summed


def cosine(one: np.ndarray, other: np.ndarray, centre: bool = False) -> float:
    """Cosine of two directions [d_model]; `centre`: of both minus their means, as between raw and centred residuals
    (specification 2.3). 0 when one of them is 0."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    if centre:
        a, b = a - a.mean(), b - b.mean()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def as_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)
