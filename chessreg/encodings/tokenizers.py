"""Names of before, for callers that are not converted yet: use `chessreg.encodings.encoding`."""

from __future__ import annotations

from collections.abc import Sequence

import chess
import numpy as np

from chessreg.encodings import encoding
from chessreg.encodings.pgn_char import PgnChar
from chessreg.errors import BadInputError
from chessreg.games.movetext import numbered


class PgnCharacters(PgnChar):
    """`PgnChar` whose prompt is text."""

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        tokens = self.texts(texts)
        return tokens.ids, tokens.offsets

    def render(self, sans: Sequence[str]) -> str:
        return numbered(sans)

    def prompt(self, sans: Sequence[str]) -> str:  # type: ignore[override]
        return self.decode(super().prompt(sans))

    def spell(self, board: chess.Board, move: chess.Move) -> str:
        return board.san(move) + " "


Tokenizer = PgnCharacters


def tokenizer(name: str) -> PgnCharacters:
    if not isinstance(encoding(name), PgnChar):
        raise BadInputError(f"{name} cannot be used here yet", "use a checkpoint that reads pgn-char-32")
    return PgnCharacters()
