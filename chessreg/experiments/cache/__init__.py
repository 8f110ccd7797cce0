"""The residual stream at chosen sites of many games, stored."""

from chessreg.experiments.cache.kind import Cache, CacheHow, CacheSpec

__all__ = ["Cache", "CacheHow", "CacheSpec"]
