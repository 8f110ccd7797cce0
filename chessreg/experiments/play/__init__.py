"""Games of a model against an opponent of the ladder."""

from chessreg.experiments.play.kind import Play, PlayHow, PlaySpec

__all__ = ["Play", "PlayHow", "PlaySpec"]
