"""An older import path: use `chessreg.kinds`."""

from chessreg.runs.kind import Estimate, Kind

__all__ = ["Estimate", "Kind"]
