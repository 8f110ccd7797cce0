"""Sequential probability ratio test of a match: play until the mean of pairs is decided between two bounds.

A pair is two games from one opening, so it has five outcomes (pentanomial): with both colors, the mean score of the two
games less ½; with a baseline's game from the same opening, the difference of the two scores. The log-likelihood ratio
of "the mean is `high`" to "the mean is `low`" compares the most likely distributions over the five outcomes with these
means: the generalized test of M. Van den Bergh ("A practical introduction to the GSPRT"), as used by Fishtest. It ends
at Wald's bounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from chessreg.errors import BadInputError
from chessreg.games.engines.opponents import format_decimal

PREFIX = "sprt:"
_HINT = "write --stop sprt:-0.05,0.05 (points per game), or sprt:LOW,HIGH,ALPHA,BETA"
COLOR_PAIR_VALUES = (-0.5, -0.25, 0.0, 0.25, 0.5)  # two games with both colors: their mean score less ½
DIFFERENCE_VALUES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # a game and a baseline's game: the difference of their scores
UNSEEN_COUNT = 1e-3  # count of an outcome that did not occur, as in Fishtest
MIN_PAIRS = 10  # no decision before this number of pairs, which are too few for the approximation


@dataclass(frozen=True)
class Sprt:
    """Bounds on the mean of pairs, in points per game, and the error rates.

    `alpha` is the probability of deciding `high` when the mean is `low`, `beta` that of deciding `low` when it is
    `high`.
    """

    low: float
    high: float
    alpha: float = 0.05
    beta: float = 0.05

    @property
    def text(self) -> str:
        """The canonical text; `parse_stop(sprt.text) == sprt`."""
        rates = (
            ""
            if (self.alpha, self.beta) == (0.05, 0.05)
            else f",{format_decimal(self.alpha)},{format_decimal(self.beta)}"
        )
        return f"{PREFIX}{format_decimal(self.low)},{format_decimal(self.high)}{rates}"

    @property
    def bounds(self) -> tuple[float, float]:
        """The log-likelihood ratios at which the test decides `low` and `high` (Wald 1945)."""
        return math.log(self.beta / (1 - self.alpha)), math.log((1 - self.beta) / self.alpha)

    def decision(self, counts: Sequence[int], values: Sequence[float]) -> str:
        """Return `low` or `high`, or an empty string while the evidence is not sufficient.

        `counts` are the numbers of pairs with each outcome, and `values` the points of these outcomes, such as
        COLOR_PAIR_VALUES.
        """
        if sum(counts) < MIN_PAIRS:
            return ""
        ratio, (lower, upper) = compute_log_likelihood_ratio(counts, values, self.low, self.high), self.bounds
        return "high" if ratio >= upper else "low" if ratio <= lower else ""


def parse_stop(text: str) -> Sprt | None:
    """Return the rule `sprt:LOW,HIGH` or `sprt:LOW,HIGH,ALPHA,BETA`; None for `none`. Raises BadInputError for anything
    else."""
    cleaned_text = text.strip().lower()
    if cleaned_text in ("none", ""):
        return None
    number = r"([+-]?(?:\d+\.?\d*|\.\d+))"
    match = re.fullmatch(rf"sprt:{number},{number}(?:,{number},{number})?", cleaned_text.replace(" ", ""))
    if match is None:
        raise BadInputError(f"{text!r} is not a stopping rule", _HINT)
    low, high, alpha, beta = (0.05 if part is None else float(part) for part in match.groups())
    if not -0.5 <= low < high <= 0.5:
        raise BadInputError(f"{text!r}: LOW is less than HIGH, both from -0.5 to 0.5 points per game", _HINT)
    if not (0.0001 <= alpha < 0.5 and 0.0001 <= beta < 0.5):
        raise BadInputError(f"{text!r}: ALPHA and BETA are error rates, 0.0001 to below 0.5", _HINT)
    return Sprt(low, high, alpha, beta)


def compute_log_likelihood_ratio(counts: Sequence[int], values: Sequence[float], low: float, high: float) -> float:
    """Return log P(counts | mean is high) - log P(counts | mean is low), each under its most likely distribution.

    `low` and `high` are strictly between the least and the greatest value.

    >>> round(compute_log_likelihood_ratio([5, 10, 20, 30, 15], COLOR_PAIR_VALUES, -0.05, 0.05), 3)
    9.945
    """
    smoothed_counts = [max(float(count), UNSEEN_COUNT) for count in counts]
    total = sum(smoothed_counts)
    shares = [count / total for count in smoothed_counts]
    # The most likely distribution with mean s is shares / (1 + t (values - s)); the shares themselves drop out.
    likelihoods = [(mean, _solve_multiplier(shares, values, mean)) for mean in (low, high)]
    logs = [[math.log1p(t * (value - mean)) for value in values] for mean, t in likelihoods]
    return math.fsum(n * (one - other) for n, one, other in zip(smoothed_counts, *logs, strict=True))


def _solve_multiplier(shares: Sequence[float], values: Sequence[float], mean: float) -> float:
    """Return the t at which shares / (1 + t (values - mean)) has this mean: the root of a decreasing function, by
    bisection."""
    deviations = [value - mean for value in values]
    low, high = -1 / max(deviations), -1 / min(deviations)
    for _ in range(200):
        t = (low + high) / 2
        if t in (low, high):
            break
        if sum(share * d / (1 + t * d) for share, d in zip(shares, deviations, strict=True)) > 0:
            low = t
        else:
            high = t
    return (low + high) / 2
