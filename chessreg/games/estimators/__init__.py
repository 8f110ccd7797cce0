"""Rating estimators: from games between players to ratings, with intervals by resampling games.

An estimator is a function over batches of counts, registered by name: the observed games are one row of the batch, the
bootstrap's resamples are the others, so that every estimator has intervals. Ratings are Elo: a difference of 400 is an
expected score of 10/11.
"""

from chessreg.games.estimators import methods  # registers them
from chessreg.games.estimators.base import (
    DRAW,
    ESTIMATORS,
    JOINT,
    LOSS,
    WIN,
    Counts,
    Options,
    Pool,
    Rated,
    rate,
)

__all__ = [
    "DRAW",
    "ESTIMATORS",
    "JOINT",
    "LOSS",
    "WIN",
    "Counts",
    "Options",
    "Pool",
    "Rated",
    "methods",
    "rate",
]
