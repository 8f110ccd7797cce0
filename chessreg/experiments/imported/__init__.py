"""Kinds that import published results as runs: games, means and counts, training curves, probes, vectors and SAEs."""

from chessreg.experiments.imported.aggregates import ImportedAggregates
from chessreg.experiments.imported.curves import ImportedCurves
from chessreg.experiments.imported.directions import ImportedProbe, ImportedVector
from chessreg.experiments.imported.games import ImportedGames
from chessreg.experiments.imported.saes import ImportedSae
from chessreg.experiments.imported.sweep import ImportedSweep

__all__ = [
    "ImportedAggregates",
    "ImportedCurves",
    "ImportedGames",
    "ImportedProbe",
    "ImportedSae",
    "ImportedSweep",
    "ImportedVector",
]
