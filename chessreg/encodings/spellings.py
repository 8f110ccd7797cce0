"""Names of before, for callers that are not converted yet: use `Encoding.accepted`."""

from __future__ import annotations

from chessreg.encodings.pgn_char import spellings

__all__ = ["spellings"]
