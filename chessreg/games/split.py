"""Parts of a dataset as a pure function of the move hash, so that equal move lists always share a part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chessreg.errors import BadInputError

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: a bijection of uint64 in which every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash01(seed: int, hashes: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each hash, float64, the same on every machine: `hashes` uint64 [n], seed any integer."""
    key = _mixed(np.array([(seed * _GOLDEN + _GOLDEN) & _MASK], np.uint64))
    return (_mixed(hashes.astype(np.uint64, copy=False) ^ key) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class Part:
    """The games whose `hash01(seed, move_hash)` is in [low, high)."""

    seed: int
    low: float
    high: float

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """bool [n] for move hashes uint64 [n]."""
        numbers = hash01(self.seed, hashes)
        return (self.low <= numbers) & (numbers < self.high)


def parse_parts(text: str, seed: int) -> dict[str, Part]:
    """The parts of `train=0.5,test=0.5` in the order given. Shares may add up to less than 1; the rest is in no part.

    Raises BadInputError for a share that is no number in (0, 1], a name given twice, or shares above 1 in sum.

    >>> parse_parts("train=0.5,test=0.5", 7)["test"]
    Part(seed=7, low=0.5, high=1.0)
    """
    hint = "write parts as train=0.5,validation=0.1,test=0.4"
    parts: dict[str, Part] = {}
    low = 0.0
    for piece in text.split(","):
        name, equals, number = (word.strip() for word in piece.partition("="))
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not (name and equals and 0 < share <= 1):
            raise BadInputError(f"{piece.strip()!r} is not a part with a share between 0 and 1", hint)
        if name in parts:
            raise BadInputError(f"part {name!r} is given twice", hint)
        high = low + share
        if high > 1 + 1e-9:
            raise BadInputError(f"the shares of {text!r} add up to more than 1", hint)
        high = 1.0 if high > 1 - 1e-9 else high  # 0.7 + 0.2 + 0.1 is not 1 in binary
        parts[name] = Part(seed, low, high)
        low = high
    return parts
