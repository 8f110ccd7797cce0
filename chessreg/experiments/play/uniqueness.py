"""Whether a played game was in the training set: the check of Karvonen 2024, section 2.2 (specification 1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chessreg.experiments.settings.overlap import OPENING_PLIES, trained_on
from chessreg.games.moves import move_hash, move_hashes

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

BYTES_PER_PLY = 2


class TrainingGames:
    """The games that a model was trained on, as sorted hashes uint64 [games]: of their first 20 plies (of all, where a
    game has fewer) and of all their moves. 16 bytes a game."""

    def __init__(self, openings: np.ndarray, games: np.ndarray) -> None:
        self.openings, self.games = np.sort(openings), np.sort(games)

    @classmethod
    def of(cls, inputs: Inputs, checkpoint: str) -> TrainingGames | None:
        """The training games of a checkpoint (a recipe); None where they are unknown or not in this registry."""
        found, _ = trained_on(inputs, checkpoint)
        if found is None:
            return None
        openings, whole = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for games, places in found:
            whole.append(games.hashes[places])
            for start in range(0, len(places), 100_000):
                packed = games.moves(places[start : start + 100_000])
                openings.append(move_hashes(moves[: BYTES_PER_PLY * OPENING_PLIES] for moves in packed))
        return cls(np.concatenate(openings), np.concatenate(whole))

    def like(self, moves: bytes) -> tuple[int, int]:
        """How many training games have the same first 20 plies as these packed moves, and how many the same moves."""
        start = move_hash(moves[: BYTES_PER_PLY * OPENING_PLIES])
        return _count(self.openings, start), _count(self.games, move_hash(moves))


def _count(hashes: np.ndarray, wanted: int) -> int:
    low, high = (np.searchsorted(hashes, np.uint64(wanted), side) for side in ("left", "right"))
    return int(high - low)
