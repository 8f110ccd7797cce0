"""Names of before, for callers that are not converted yet: use `Encoding.sites`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessreg.encodings.pgn_char import PgnChar


def find(name: str, text: str) -> tuple[np.ndarray, np.ndarray]:
    return find_many(name, [text])[1:]


def find_many(name: str, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pgn = PgnChar()
    sites = pgn.sites(name, pgn.texts(texts))
    return sites.item, sites.token, sites.ply
