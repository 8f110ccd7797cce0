"""Directions in the residual stream: contrasts, differences of probes, and their controls."""

from chessreg.experiments.vector.kind import Vector
from chessreg.experiments.vector.spec import VectorHow, VectorSpec
from chessreg.runs.fitted import load_direction, load_vector, vector_rows

__all__ = ["Vector", "VectorHow", "VectorSpec", "load_direction", "load_vector", "vector_rows"]
