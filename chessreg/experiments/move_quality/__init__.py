"""What the moves of a model cost it in centipawns."""

from chessreg.experiments.move_quality.kind import MoveQuality, MoveQualityHow, MoveQualitySpec

__all__ = ["MoveQuality", "MoveQualityHow", "MoveQualitySpec"]
