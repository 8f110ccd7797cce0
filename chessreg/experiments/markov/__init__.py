"""`markov`: whether a model's state after a game depends on the board alone, or also on the moves that led there."""

from chessreg.experiments.markov.kind import Markov
from chessreg.experiments.markov.spec import MarkovOptions, MarkovSpec

__all__ = ["Markov", "MarkovOptions", "MarkovSpec"]
