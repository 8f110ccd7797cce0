"""Counter-based noise: a draw is a pure function of its key, so batch 1, batch 32 and a resumed run agree."""

from __future__ import annotations

import hashlib
from enum import StrEnum, unique

import numpy as np


@unique
class Stream(StrEnum):
    """Names of the random streams.

    Data, not prose: a name is part of the key of its draws, so changing a value changes every number drawn from it.
    `tests/test_stored_texts.py` holds the values. A kind outside this package uses other names.
    """

    # models that write moves
    PLAY = "play"
    PUZZLES = "puzzles"
    BEST_MOVE = "best move"
    DECODING = "decoding"
    LEGALITY_TRIES = "tries"
    IMPORT_CHECK = "import"
    UCI = "uci"
    UCI_LEGAL_FALLBACK = "fallback"
    UNIFORM = "uniform"  # lab/player.py: a uniform move; steering/controls.py: a matrix of uniform numbers

    # games and engines
    OPENING = "opening"
    OPENING_BOOK = "opening book"
    SELFPLAY = "selfplay"
    SELFPLAY_RESIGN = "resign"
    ENGINE_MOVE = "engine"
    ENGINE_DILUTION = "dilute"

    # datasets and samples of them
    VERIFY = "verify"
    SKILL_BALANCE = "skill balance"
    HELDOUT = "heldout"
    TOKEN_FILE = "token file"
    POSITIONS = "positions"
    EPOCH_GAMES = "games of an epoch"
    VALIDATION_GAMES = "validation games"
    VALIDATION_ROWS = "validation rows"
    SAE_HELDOUT_GAMES = "held-out games"
    SAE_MIXED_TOKENS = "mixed tokens"
    EDIT_STATES = "edit states"
    EDIT_HALF = "edit half"
    MARKOV_REFERENCE = "markov reference population"

    # controls
    SHUFFLED_LABELS = "shuffled labels"
    SHUFFLED_CLASSES = "shuffled classes"
    RANDOM_DIRECTION = "random direction"
    RANDOM = "random"
    SHUFFLED = "shuffled"

    # statistics
    MARKOV_NULL = "markov null"
    RATING_BOOTSTRAP = "rating bootstrap"
    RATING_ORDER = "rating order"
    SAE_BOOTSTRAP = "resampled held-out games"
    STATISTICS_BOOTSTRAP = "bootstrap"
    STATISTICS_DRAWS = "draws"
    STATISTICS_BASE = "base"


def generator(*key: int | str) -> np.random.Generator:
    """Return a separate generator for this key, for example (seed, unit, attempt, step).

    >>> float(generator(1, "game", 7).random()) == float(generator(1, "game", 7).random())
    True
    """
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniform(*key: int | str) -> float:
    """Return a number in [0, 1) for this key. It takes about a microsecond; `generator` takes ten."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
