"""An older import path: use `chessreg.kinds`."""

from chessreg.runs.spec import Added, CheckpointRef, DatasetRef, How, Ref, Settings, Spec

__all__ = ["Added", "CheckpointRef", "DatasetRef", "How", "Ref", "Settings", "Spec"]
