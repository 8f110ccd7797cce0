"""Linear probes of the board, of skill and of ratings, fitted on cached activations."""

from chessreg.experiments.probe.kind import Probe
from chessreg.experiments.probe.spec import ProbeHow, ProbeScore, ProbeSpec

__all__ = ["Probe", "ProbeHow", "ProbeScore", "ProbeSpec"]
