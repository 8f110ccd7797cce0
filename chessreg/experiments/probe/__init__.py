"""Linear probes of the board, of skill and of ratings, on cached activations."""

from chessreg.experiments.probe.kind import FittedProbe, Probe, ProbeHow, ProbeSpec, best_layer, load_probe

__all__ = ["FittedProbe", "Probe", "ProbeHow", "ProbeSpec", "best_layer", "load_probe"]
