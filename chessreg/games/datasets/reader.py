"""Readers play SAN words from the initial position: one protocol, a fast reader in Rust and one in python-chess.

Both give the same moves, texts, boards and errors; one conformance suite holds them to it. The Rust package has one
author and no licence file, so it stays behind `reader_rust` and python-chess can do everything it does.

Boards are handed out as int8 [positions, 64], squares a1, b1 … h8, P=1 N=2 B=3 R=4 Q=5 K=6, negative for Black.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets.reader_python import LegalMoves, PlayedGames, PythonReader

READER_VERSION = 2
"""Raised whenever the rows made from the same bytes may change: part of a dataset's identity."""


class GameReader(Protocol):
    """Plays movetexts: SAN words separated by white space, move numbers (`1.` or `1.e4`) allowed, nothing else."""

    name: str

    def play(self, movetexts: Sequence[str]) -> PlayedGames:
        """Moves and canonical texts. A game stops before its first word that is not a legal, unambiguous move; marks of
        check, needless disambiguation and a missing or needless `x` are forgiven."""
        ...

    def boards(self, movetexts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Boards int8 [positions, 64] after 0, 1, … plies of each game, offsets int64 [games + 1], errors as above.
        Captures must be spelled with their `x`, as in every dataset."""
        ...

    def targets(self, movetexts: Sequence[str]) -> np.ndarray:
        """Bit boards uint64 [positions], in the order of `boards`: squares that a legal move goes to (of castling the
        king's)."""
        ...

    def legal(self, fens: Sequence[str]) -> LegalMoves:
        """The legal moves of positions, each given as a FEN of six fields."""
        ...


def get_reader(name: str = "auto") -> GameReader:
    """The reader of this name: `rust`, `python`, or `auto`, which is rust where its package is installed.

    Raises NotFoundError for any other name, or for `rust` without its package.
    """
    there = importlib.util.find_spec("rust_pgn_reader_python_binding") is not None
    if name == "auto":
        name = "rust" if there else "python"
    if name == "rust":
        if not there:
            raise NotFoundError(
                "the rust reader is not installed",
                "pip install rust-pgn-reader-python-binding, or use the reader python",
            )
        from chessreg.games.datasets.reader_rust import RustReader

        return RustReader()
    if name == "python":
        return PythonReader()
    raise NotFoundError(f"no reader {name!r}", "known: auto, rust, python")


def replay_texts(texts: Sequence[str], *, cut: bool = False, name: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Boards of game texts (`;1.e4 e5 2.Nf3`): int8 [positions, 64] and offsets int64 [texts + 1].

    Row `offsets[g] + p` is the position of game g after p plies. With `cut`, texts may end inside a move, as texts of a
    fixed number of characters do: a game stops silently at its first word that is no legal move (specification 3.2).
    Without it such a word raises BadInputError.
    """
    movetexts = [text.removeprefix(";") for text in texts]
    many = [i for i, text in enumerate(movetexts) if ";" in text]
    if many:
        raise BadInputError(f"text {many[0]} holds more than one game", "one game per text: cut it at the `;`")
    boards, offsets, errors = get_reader(name).boards(movetexts)
    if errors and not cut:
        game = min(errors)
        raise BadInputError(
            f"text {game} is not a legal game after ply {errors[game]}: {texts[game][:60]!r}",
            "texts cut to a fixed length are read with cut=True",
        )
    return boards, offsets


def find_move_targets(texts: Sequence[str], name: str = "auto") -> np.ndarray:
    """Squares that a legal move goes to, bit boards uint64 [positions], in the order of `replay_texts`."""
    return get_reader(name).targets([text.removeprefix(";") for text in texts])


def find_legal_moves(fens: Sequence[str]) -> LegalMoves:
    """The legal moves of positions, each given as a FEN of six fields: half a million positions a second."""
    return get_reader("auto").legal(fens)
