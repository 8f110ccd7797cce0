"""Elo and a sequential test from the bare results of a match: wins, draws and losses, or pairs of games.

A pair is two games from one opening with both colors. Its five outcomes (pentanomial counts) have a smaller variance
than independent games with the same score, because a drawn or lost opening affects both games.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chessreg.errors import BadInputError
from chessreg.games.engines.sprt import COLOR_PAIR_VALUES, Sprt, compute_log_likelihood_ratio
from chessreg.queries.stats import Estimate, Z, compute_one_sided_bound, estimate_elo

GAME_VALUES = (-0.5, 0.0, 0.5)  # points less ½ of a loss, a draw and a win
NORMALIZED_ELO = 800 / math.log(10)  # per standard deviation of one game's result
MAX_COUNT = 10**12
MAX_SPRT_ELO = 400


@dataclass(frozen=True)
class MatchCounts:
    """The results of a match from one player's view: `counts` of losses, draws and wins, or of the pairs that gave 0,
    ½, 1, 1½ and 2 points. Raises BadInputError for another number of counts, a negative one, or no game."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.counts) not in (len(GAME_VALUES), len(COLOR_PAIR_VALUES)):
            raise BadInputError(
                f"{len(self.counts)} counts are neither games nor pairs",
                "give WINS DRAWS LOSSES, or the numbers of pairs with 0, ½, 1, 1½ and 2 points",
            )
        if not all(0 <= count <= MAX_COUNT for count in self.counts) or not sum(self.counts):
            raise BadInputError("the counts must be whole numbers, at least 0 and not all 0")

    @property
    def is_paired(self) -> bool:
        """Whether the counts are of pairs."""
        return len(self.counts) == len(COLOR_PAIR_VALUES)

    @property
    def values(self) -> Sequence[float]:
        """The points per game less ½ of each outcome."""
        return COLOR_PAIR_VALUES if self.is_paired else GAME_VALUES

    @property
    def number(self) -> int:
        """The number of independent results: games, or pairs."""
        return sum(self.counts)

    @property
    def games(self) -> int:
        """The number of games."""
        return self.number * (2 if self.is_paired else 1)

    @property
    def mean(self) -> float:
        """The mean points per game less ½."""
        return math.fsum(n * value for n, value in zip(self.counts, self.values, strict=True)) / self.number

    @property
    def deviation(self) -> float:
        """The standard deviation of one result, in points per game."""
        squares = (n * (value - self.mean) ** 2 for n, value in zip(self.counts, self.values, strict=True))
        return math.sqrt(math.fsum(squares) / self.number)

    def score(self) -> Estimate:
        """Return the points per game, 0 to 1, with the 95 % interval of a normal mean; a one-sided bound if all games
        were lost or won."""
        value = 0.5 + self.mean
        if value in (0.0, 1.0):
            bound = compute_one_sided_bound(self.number)
            return Estimate(value, None, bound) if value == 0 else Estimate(value, 1 - bound, None)
        half = Z * self.deviation / math.sqrt(self.number)
        return Estimate(value, max(0.0, value - half), min(1.0, value + half))

    def elo(self) -> Estimate:
        """Return the Elo difference to the opponent; only a bound if all games were lost or won."""
        return estimate_elo(self.score())

    def compute_normalized_elo(self) -> float | None:
        """Return the mean in standard deviations of one game, in Elo; None if the results do not vary.

        Unlike Elo, it does not depend on the share of draws. Source: M. Van den Bergh, "Normalized Elo".
        """
        deviation = self.deviation * (math.sqrt(2) if self.is_paired else 1)
        return None if not deviation else NORMALIZED_ELO * self.mean / deviation

    def superiority(self) -> float | None:
        """Return the likelihood of superiority, P(mean > 0) for a normal mean; None if the results do not vary."""
        if not self.deviation:
            return None
        return 0.5 * math.erfc(-self.mean * math.sqrt(self.number) / self.deviation / math.sqrt(2))

    def log_likelihood_ratio(self, low_elo: float, high_elo: float) -> float:
        """Return the log-likelihood ratio of the Elo difference `high_elo` to `low_elo` (logistic Elo)."""
        low, high = (score_of_elo(elo) - 0.5 for elo in (low_elo, high_elo))
        return compute_log_likelihood_ratio(self.counts, self.values, low, high)


def score_of_elo(elo: float) -> float:
    """Return the expected score of a rating difference: the inverse of `chessreg.queries.stats.convert_score_to_elo`.

    >>> round(score_of_elo(190.85), 4)
    0.75
    """
    return 1 / (1 + 10 ** (-elo / 400))


def make_elo_test(low_elo: float, high_elo: float, alpha: float = 0.05, beta: float = 0.05) -> Sprt:
    """Return the sequential test between two Elo differences. Raises BadInputError unless -400 <= low < high <= 400 and
    the error rates are from 0.0001 to below 0.5."""
    if not -MAX_SPRT_ELO <= low_elo < high_elo <= MAX_SPRT_ELO:
        raise BadInputError(
            f"--sprt {low_elo:g},{high_elo:g}: the first is less than the second, both from -{MAX_SPRT_ELO} to "
            f"{MAX_SPRT_ELO} Elo",
            "--sprt 0,10",
        )
    if not (0.0001 <= alpha < 0.5 and 0.0001 <= beta < 0.5):
        raise BadInputError("--alpha and --beta must be at least 0.0001 and below 0.5", "--alpha 0.05 --beta 0.05")
    return Sprt(score_of_elo(low_elo) - 0.5, score_of_elo(high_elo) - 0.5, alpha, beta)
