"""Directions in the residual stream: contrasts, differences of probes, and their controls."""

from chessreg.experiments.vector.kind import Vector, VectorHow, VectorSpec

__all__ = ["Vector", "VectorHow", "VectorSpec"]
