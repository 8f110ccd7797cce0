"""Ratings of the players in a pool of games."""

from chessreg.experiments.rating.kind import Rating, RatingSpec

__all__ = ["Rating", "RatingSpec"]
