"""Counter-based noise: a draw is a pure function of its key, so batch 1, batch 32 and a resumed run agree."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(*key: int | str) -> np.random.Generator:
    """A generator of its own for this key, for example (seed, unit, attempt, step).

    >>> float(generator(1, "game", 7).random()) == float(generator(1, "game", 7).random())
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniform(*key: int | str) -> float:
    """One number in [0, 1) for this key; about a microsecond, where `generator` takes ten."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
