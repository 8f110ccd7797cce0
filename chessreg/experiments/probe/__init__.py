"""Linear probes of the board, of skill and of ratings, fitted on cached activations and applied to others."""

from chessreg.entities.probe import FittedProbe, best_layer, load_probe
from chessreg.experiments.probe.apply import ApplySpec, ProbeApply
from chessreg.experiments.probe.kind import Probe
from chessreg.experiments.probe.spec import ProbeHow, ProbeScore, ProbeSpec

__all__ = [
    "ApplySpec",
    "FittedProbe",
    "Probe",
    "ProbeApply",
    "ProbeHow",
    "ProbeScore",
    "ProbeSpec",
    "best_layer",
    "load_probe",
]
