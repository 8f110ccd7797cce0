"""Gated sparse autoencoders of the residual stream: trained, measured, and what their latents fire at."""

from chessreg.experiments.sae.kind import Sae
from chessreg.experiments.sae.spec import LatentRow, SaeHow, SaeSpec

__all__ = ["LatentRow", "Sae", "SaeHow", "SaeSpec"]
