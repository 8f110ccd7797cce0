"""Fixtures for the tests of games."""

from __future__ import annotations

from pathlib import Path

import pytest

from chessreg.errors import NotFoundError
from chessreg.games.engines.opponents import find_stockfish


@pytest.fixture(scope="session")
def stockfish() -> Path:
    """The Stockfish binary; tests that need it are skipped if it is missing."""
    try:
        return find_stockfish()
    except NotFoundError as error:
        pytest.skip(str(error))
