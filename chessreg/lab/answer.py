"""What the lab answers: the clean and the edited model in one position, as JSON both ways (arrays as bytes in base64),
as boards to look at, and as text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import chess
import numpy as np

from chessreg.errors import NotFoundError
from chessreg.games.boardframe import Arrow, BoardFrame, Mark, squares_of
from chessreg.games.labels import PIECE_CLASSES
from chessreg.games.picture import render_text

ARROWS = 3  # the moves that are drawn
LEAST = 0.02  # less probable moves have no arrow


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


# -- boards and text -------------------------------------------------------------------------------------


def layer_place(answer: Answer, layer: int | None) -> int:
    """Where a layer is in the answer's beliefs: that one, or the last that is edited, or the last there is.

    Raises NotFoundError when the probe has no such layer.
    """
    wanted = layer if layer is not None else max(answer.edited_layers, default=answer.layers[-1])
    if wanted in answer.layers:
        return answer.layers.index(wanted)
    if layer is None:
        return len(answer.layers) - 1
    raise NotFoundError(f"the probe has no layer {layer}", f"it has {', '.join(map(str, answer.layers))}")


def arrows(moves: tuple[Ranked, ...], count: int = ARROWS) -> list[Arrow]:
    """The most probable moves, each as heavy as it is probable."""
    found = []
    for ranked in moves[:count]:
        if ranked.probability >= LEAST:
            move = chess.Move.from_uci(ranked.uci)
            found.append(Arrow(move.from_square, move.to_square, min(1.0, ranked.probability), ranked.san))
    return found


def position_frames(answer: Answer, count: int = ARROWS) -> list[BoardFrame]:
    """The board as it is with the clean model's moves; with an edit, the board it aims at with the edited model's."""
    board = chess.Board(answer.fen)
    marks: dict[int, Mark] = {} if answer.square is None else {answer.square: "from"}
    frames = [
        BoardFrame.from_board(
            board, "original, clean model", marks=marks, arrows=arrows(answer.clean.moves, count),
            caption=(f"writes {answer.clean.text.strip()}",),
        )
    ]  # fmt: skip
    if answer.edited is not None:
        aim, moves = board, answer.edited.moves
        if answer.modified_fen:
            aim, moves = chess.Board(answer.modified_fen), answer.edited.moves_modified
        frames.append(
            BoardFrame.from_board(
                aim, "target, edited model" if answer.modified_fen else "edited model",
                marks=dict.fromkeys(marks, "removed"), arrows=arrows(moves, count),
                caption=(f"writes {answer.edited.text.strip()}",),
            )
        )  # fmt: skip
    return frames


def belief_frame(answer: Answer, which: str, place: int, label: int | None = None) -> BoardFrame:
    """What the probe reads in the `clean` or the `edited` model: the most probable piece of every square.

    Squares that it reads otherwise than they are on the board aimed at (the original, or without the piece) are marked.
    `label` lays the probability of that class over the board as heat.
    """
    side = answer.clean if which == "clean" or answer.edited is None else answer.edited
    read = side.board(place)
    edited = which != "clean" and bool(answer.modified_fen)
    truth = squares_of(chess.Board(answer.modified_fen if edited else answer.fen))
    wrong = [square for square in range(64) if read[square] != truth[square]]
    heat = None if label is None else {n: min(1.0, float(p)) for n, p in enumerate(side.beliefs[place, :, label])}
    return BoardFrame(
        title=f"layer {answer.layers[place]} reads, {'edited' if side is answer.edited else 'clean'}",
        squares=read,
        marks=dict.fromkeys(wrong, "wrong"),
        heat=heat,
        heat_label="" if label is None else f"probability of {PIECE_CLASSES[label]}",
        caption=(f"{64 - len(wrong)} of 64 squares as {'aimed at' if edited else 'on the board'}",),
    )


def as_text(answer: Answer, layer: int | None = None, top: int = 5) -> str:
    """Boards, masses and moves, the clean model's first."""
    parts = [render_text(frame) for frame in position_frames(answer, 0)]
    if answer.layers:
        place = layer_place(answer, layer)
        sides = ("clean", "edited") if answer.edited is not None else ("clean",)
        parts += [render_text(belief_frame(answer, which, place)) for which in sides]
    lines = [f"edit: {answer.edit}, layers {', '.join(map(str, answer.edited_layers))}, "
             f"scale {', '.join(f'{scale:g}' for scale in answer.scales)}"
             if answer.edited is not None else f"no edit: {answer.why_not}"]  # fmt: skip
    for name, side in sides_of(answer):
        lines.append(f"{name:<6}  {mass(side)}")
        lines += [f"  {m.probability:.3f}  {m.san}" for m in side.moves[:top]]
        if side.moves_modified:
            lines += ["  on the board without the piece:"] if top else []
            lines += [f"  {m.probability:.3f}  {m.san}" for m in side.moves_modified[:top]]
    return "".join(parts) + "\n".join(lines) + "\n"


def sides_of(answer: Answer) -> list[tuple[str, Side]]:
    """The models there are, by name."""
    return [("clean", answer.clean), *([("edited", answer.edited)] if answer.edited is not None else [])]


def mass(side: Side) -> str:
    """Legal move mass of a side in words."""
    without = "" if side.modified is None else f", {side.modified:.4f} without the piece"
    return f"legal mass {side.original:.4f} on the board{without}"
