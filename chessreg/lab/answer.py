"""What the lab answers: the clean and the edited model in one position. JSON both ways, arrays as bytes in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from chessreg.games.labels import PIECE_CLASSES


class Ranked(NamedTuple):
    """A legal move and the exact probability that the model writes its canonical text."""

    uci: str
    san: str
    probability: float


@dataclass(frozen=True, eq=False)
class Side:
    """One model in the position. `original` and `modified` are legal move masses; moves are the most probable first.

    beliefs float32 [layer, square, class]: the probe's softmax, classes as in `PIECE_CLASSES`; no layers, no probe.
    """

    text: str  # the greedy one
    legal: bool  # whether that is a move of the original board
    original: float
    modified: float | None
    moves: tuple[Ranked, ...]  # of the original board
    moves_modified: tuple[Ranked, ...]
    beliefs: np.ndarray

    def board(self, place: int) -> str:
        """The most probable board of the probe's layer at this place, 64 letters, a1 first."""
        return "".join(PIECE_CLASSES[label] for label in self.beliefs[place].argmax(1))


@dataclass(frozen=True, eq=False)
class Answer:
    """Clean and edited, side by side. Without an edit (`why_not` tells) `edited` is None."""

    fen: str
    sans: tuple[str, ...]
    layers: tuple[int, ...]  # of the probe
    clean: Side
    edited: Side | None
    edit: str = ""  # in words
    edited_layers: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()  # one for each edited layer
    square: int | None = None  # that a piece is taken off, where that is the edit
    piece: str = ""
    modified_fen: str = ""
    why_not: str = ""
    seconds: float = 0.0

    def as_json(self) -> str:
        """Everything on one line."""
        values = asdict(self)
        for side in ("clean", "edited"):
            if values[side] is not None:
                beliefs = np.ascontiguousarray(values[side]["beliefs"], "<f4")
                values[side]["beliefs"] = {
                    "shape": list(beliefs.shape),
                    "bytes": base64.b64encode(beliefs.tobytes()).decode(),
                }
        return json.dumps(values)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Answer:
        """From what `as_json` wrote."""
        changed = {
            "clean": _side(values["clean"]),
            "edited": None if values["edited"] is None else _side(values["edited"]),
        }
        tuples = {name: tuple(values[name]) for name in ("sans", "layers", "edited_layers", "scales")}
        return cls(**{**values, **changed, **tuples})

    def summary(self) -> dict[str, Any]:
        """The numbers without the beliefs, for --json."""
        return {
            "fen": self.fen,
            "moves": list(self.sans),
            "edit": self.edit,
            "layers": list(self.edited_layers),
            "scales": list(self.scales),
            "removed": self.piece and {"piece": self.piece, "square": self.square},
            "modified_fen": self.modified_fen,
            "why_not": self.why_not,
            **{
                name: side
                and {
                    "text": side.text,
                    "legal": side.legal,
                    "mass_original": side.original,
                    "mass_modified": side.modified,
                    "moves": [move._asdict() for move in side.moves],
                    "moves_modified": [move._asdict() for move in side.moves_modified],
                }
                for name, side in (("clean", self.clean), ("edited", self.edited))
            },
        }


def _side(values: Mapping[str, Any]) -> Side:
    stored = values["beliefs"]
    beliefs = np.frombuffer(base64.b64decode(stored["bytes"]), "<f4").reshape(stored["shape"])
    moves = {name: tuple(Ranked(*move) for move in values[name]) for name in ("moves", "moves_modified")}
    return Side(**{**values, **moves, "beliefs": beliefs})
