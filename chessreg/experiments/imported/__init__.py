"""Others' results as runs: games, published means, probes and vectors."""

from chessreg.experiments.imported.aggregates import ImportedAggregates
from chessreg.experiments.imported.directions import ImportedProbe, ImportedVector
from chessreg.experiments.imported.games import ImportedGames

__all__ = ["ImportedAggregates", "ImportedGames", "ImportedProbe", "ImportedVector"]
