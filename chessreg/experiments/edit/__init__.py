"""Take a piece off the board inside the model, and see what it would play then."""

from chessreg.experiments.edit.kind import Edit, EditHow, EditSpec

__all__ = ["Edit", "EditHow", "EditSpec"]
