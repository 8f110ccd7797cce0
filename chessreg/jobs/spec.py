"""An earlier import path of `chessreg.kinds`."""

import warnings

from chessreg.runs.spec import Added, CheckpointRef, DatasetRef, How, Ref, Settings, Spec

__all__ = ["Added", "CheckpointRef", "DatasetRef", "How", "Ref", "Settings", "Spec"]

warnings.warn("chessreg.jobs.spec is chessreg.kinds now", FutureWarning, stacklevel=2)
