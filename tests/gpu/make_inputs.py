"""Write the inputs of the GPU checks: `python tests/gpu/make_inputs.py`, where all of chessreg is installed.

A few games of the bundled sample in each encoding, so that the checks need neither python-chess nor a file of games.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from chessreg.encodings import get_encoding
from chessreg.entities.adding import add_sample
from chessreg.models.token_file import TokenFile, make_token_file
from chessreg.session import open_session

FOLDER = Path(__file__).parent / "inputs"
SIZES = {"pgn-char-32": (64, 16, 96), "uci-square-72": (1, 16, 32), "fen-77": (1, 4, 64)}
"""Encoding → training games, held-out games, held-out positions."""


def make_inputs() -> dict[str, TokenFile]:
    """The input of each encoding."""
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        add_sample(session.database, session.store, name="sample")
        games = session.dataset("sample")
        inputs = {}
        for name, (training_games, heldout_games, positions) in SIZES.items():
            rows = np.arange(training_games + heldout_games)
            source = {"dataset": "the sample that comes with chessreg"}
            inputs[name] = make_token_file(
                get_encoding(name), games, rows[heldout_games:], games, rows[:heldout_games], positions, source
            )
        return inputs


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in make_inputs().items():
        with (FOLDER / f"{name}.npz").open("wb") as file:
            content.write(file)
