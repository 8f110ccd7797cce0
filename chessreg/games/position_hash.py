"""64 bits that name a position: its pieces and who is to move. Castling rights and en passant do not count.

The value is fixed within one version of chessreg only; it is compared, never stored.
"""

from __future__ import annotations

import numpy as np

_KEYS = np.array([(0x9E3779B97F4A7C15 * odd) & (2**64 - 1) for odd in range(1, 19, 2)], np.uint64)


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, in place: every input bit reaches every output bit."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def position_hashes(boards: np.ndarray, plies: np.ndarray) -> np.ndarray:
    """uint64 [n] of boards int8 [n, 64] after that many plies (int [n]; even: White to move)."""
    words = np.ascontiguousarray(boards, np.int8).view(np.uint64)
    hashes = _mixed((plies % 2).astype(np.uint64) ^ _KEYS[8])
    for rank in range(8):
        hashes = _mixed(hashes ^ words[:, rank] ^ _KEYS[rank])
    return hashes


class HashSet:
    """A set of 64-bit hashes that answers for many at once, quickly when the answer is mostly no."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted = np.unique(hashes.astype(np.uint64, copy=False))
        self._mask = np.uint64((1 << max(16, min(26, (16 * len(self.sorted)).bit_length()))) - 1)
        self._there = np.zeros(int(self._mask) + 1, bool)
        self._there[self.sorted & self._mask] = True

    def __len__(self) -> int:
        return len(self.sorted)

    def places(self, hashes: np.ndarray) -> np.ndarray:
        """Where each hash stands in `sorted`, int64 [n], -1 for one that is not there."""
        found = np.full(len(hashes), -1, np.int64)
        maybe = np.flatnonzero(self._there[hashes & self._mask])
        place = np.searchsorted(self.sorted, hashes[maybe])
        place[place == len(self.sorted)] = 0
        hit = self.sorted[place] == hashes[maybe] if len(self.sorted) else np.zeros(0, bool)
        found[maybe[hit]] = place[hit]
        return found

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """bool [n]: whether each hash is in the set."""
        return self.places(hashes) >= 0
