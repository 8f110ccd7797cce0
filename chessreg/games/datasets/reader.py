"""Readers, which play SAN words from the initial position: one interface, a fast reader in Rust and one in
python-chess.

Both return the same moves, texts, boards and errors (checked by a conformance suite). The Rust package has one author
and no license file, so it is used only in `reader_rust`, and python-chess can replace it completely.

Boards are int8 [positions, 64], squares a1, b1 … h8, P=1 N=2 B=3 R=4 Q=5 K=6, negative for Black.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from chessreg.errors import NotFoundError
from chessreg.games.datasets.reader_python import LegalMoves, PlayedGames, PythonReader

READER_VERSION = 2
"""Incremented whenever the rows made from the same bytes may change; part of a dataset's identity."""


class GameReader(Protocol):
    """Plays movetexts: SAN words separated by white space, with optional move numbers (`1.` or `1.e4`) and nothing
    else."""

    name: str

    def play(self, movetexts: Sequence[str]) -> PlayedGames:
        """Return moves and canonical texts.

        A game stops before its first word that is not a legal, unambiguous move. Check marks, unnecessary
        disambiguation and a missing or extra `x` are accepted.
        """
        ...

    def boards(self, movetexts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Return (boards int8 [positions, 64] after 0, 1, … plies of each game, offsets int64 [games + 1], errors as in
        `play`).

        Captures must be written with `x`, as in every dataset.
        """
        ...

    def targets(self, movetexts: Sequence[str]) -> np.ndarray:
        """Return bit boards uint64 [positions] of the target squares of legal moves, in the order of `boards`.

        The target of castling is the king's.
        """
        ...

    def legal(self, fens: Sequence[str]) -> LegalMoves:
        """Return the legal moves of positions, given as FENs of six fields."""
        ...


def get_reader(name: str = "auto") -> GameReader:
    """Return the reader `rust`, `python`, or `auto` (rust if its package is installed).

    Raises NotFoundError for any other name, and for `rust` without its package.
    """
    is_installed = importlib.util.find_spec("rust_pgn_reader_python_binding") is not None
    if name == "auto":
        name = "rust" if is_installed else "python"
    if name == "rust":
        if not is_installed:
            raise NotFoundError(
                "the rust reader is not installed",
                "pip install rust-pgn-reader-python-binding, or use the reader python",
            )
        from chessreg.games.datasets.reader_rust import RustReader

        return RustReader()
    if name == "python":
        return PythonReader()
    raise NotFoundError(f"reader {name!r} does not exist", "known: auto, rust, python")


def find_move_targets(texts: Sequence[str]) -> np.ndarray:
    """Return bit boards uint64 [positions] of the target squares of legal moves after 0, 1, … plies of each game text
    (`;1.e4 e5 2.Nf3`)."""
    return get_reader().targets([text.removeprefix(";") for text in texts])


def find_legal_moves(fens: Sequence[str]) -> LegalMoves:
    """Return the legal moves of positions, given as FENs of six fields: half a million positions per second."""
    return get_reader().legal(fens)
