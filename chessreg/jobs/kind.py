"""An earlier import path of `chessreg.kinds`."""

import warnings

from chessreg.runs.kind import Estimate, Kind

__all__ = ["Estimate", "Kind"]

warnings.warn("chessreg.jobs.kind is chessreg.kinds now", FutureWarning, stacklevel=2)
