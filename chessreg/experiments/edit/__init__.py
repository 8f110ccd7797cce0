"""Take a piece off the board inside the model, and see what it would play then."""

from chessreg.experiments.edit.kind import BoardEdit
from chessreg.experiments.edit.spec import EditHow, EditSpec

__all__ = ["BoardEdit", "EditHow", "EditSpec"]
