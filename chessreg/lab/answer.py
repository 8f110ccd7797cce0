"""Answers of the lab: the clean and the edited model in one position, as JSON, as boards and as text.

JSON is written and read back; arrays are bytes in base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import chess
import numpy as np

from chessreg.errors import NotFoundError
from chessreg.experiments.edit.three_boards import HEAT_LABEL
from chessreg.games.boards.boardframe import EMPTY, Arrow, BoardFrame, Mark, ProbeReading, get_board_letters
from chessreg.games.boards.picture import render_text
from chessreg.games.boards.typed import play_words
from chessreg.games.datasets.labels import PIECE_CLASSES

MAX_ARROWS = 3  # moves with an arrow
MIN_ARROW_PROBABILITY = 0.02  # less probable moves have no arrow


class RankedMove(NamedTuple):
    """A legal move and the exact probability that the model writes its canonical text."""

    uci: str
    san: str
    probability: float


@dataclass(frozen=True, eq=False)
class ModelSide:
    """One model in the position. `original` and `modified` are legal move masses; moves are sorted by falling
    probability.

    `beliefs` float32 [layer, square, class] is the probe's softmax, with the classes of `PIECE_CLASSES`. Without a
    probe it has no layers.
    """

    text: str  # greedy text
    legal: bool  # whether `text` is a legal move of the original board
    original: float
    modified: float | None
    moves: tuple[RankedMove, ...]  # of the original board
    moves_modified: tuple[RankedMove, ...]
    beliefs: np.ndarray
    # probability that the next move begins on each square; empty if one token does not name a square
    squares: tuple[float, ...] = ()

    def board(self, place: int) -> str:
        """Return the most probable board of layer number `place` in `beliefs`, as 64 letters, a1 first."""
        return "".join(PIECE_CLASSES[label] for label in self.beliefs[place].argmax(1))


@dataclass(frozen=True, eq=False)
class LabAnswer:
    """The clean and the edited model. `edited` is `None` without an edit; `why_not` gives the reason."""

    fen: str
    sans: tuple[str, ...]
    layers: tuple[int, ...]  # of the probe
    clean: ModelSide
    edited: ModelSide | None
    edit: str = ""  # description of the edit
    edited_layers: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()  # one for each edited layer
    square: int | None = None  # of the removed piece, if the edit removes one
    piece: str = ""
    modified_fen: str = ""
    why_not: str = ""
    next_token: bool = False  # whether masses are of the tokens that begin a legal move
    seconds: float = 0.0

    def as_json(self) -> str:
        """Return all values as JSON on one line."""
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
    def from_json(cls, values: Mapping[str, Any]) -> LabAnswer:
        """Return the answer that `as_json` wrote."""
        changed_fields = {
            "clean": _parse_side(values["clean"]),
            "edited": None if values["edited"] is None else _parse_side(values["edited"]),
        }
        tuples = {name: tuple(values[name]) for name in ("sans", "layers", "edited_layers", "scales")}
        return cls(**{**values, **changed_fields, **tuples})

    def summary(self) -> dict[str, Any]:
        """Return the values without the beliefs, for --json."""
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
                    **({"squares": list(side.squares)} if side.squares else {}),
                }
                for name, side in (("clean", self.clean), ("edited", self.edited))
            },
        }


def _parse_side(values: Mapping[str, Any]) -> ModelSide:
    """Return one side of an answer from its JSON values."""
    stored_beliefs = values["beliefs"]
    beliefs = np.frombuffer(base64.b64decode(stored_beliefs["bytes"]), "<f4").reshape(stored_beliefs["shape"])
    moves = {name: tuple(RankedMove(*move) for move in values[name]) for name in ("moves", "moves_modified")}
    return ModelSide(**{**values, **moves, "beliefs": beliefs, "squares": tuple(values["squares"])})


class MoveComparison(NamedTuple):
    """A move with its probability in each model; None if that model did not score it."""

    uci: str
    san: str
    clean: float | None
    edited: float | None
    legal_modified: bool  # on the target board of the edit

    @property
    def change(self) -> float | None:
        """Return the edited minus the clean probability, or None if one of them is unknown."""
        return None if self.clean is None or self.edited is None else self.edited - self.clean


def compare_moves(answer: LabAnswer) -> list[MoveComparison]:
    """Return every legal move of the board and of the edit's target board, once.

    Moves are sorted by the higher of their two probabilities.
    """
    clean = {move.uci: move for move in answer.clean.moves}
    edited_moves = {move.uci: move for move in answer.edited.moves} if answer.edited is not None else {}
    side = answer.edited if answer.edited is not None else answer.clean
    target_moves = {move.uci: move for move in side.moves_modified}
    all_moves = (
        clean | edited_moves | {uci: move for uci, move in target_moves.items() if uci not in clean | edited_moves}
    )

    def probability(moves: dict[str, RankedMove], uci: str) -> float | None:
        return moves[uci].probability if uci in moves else None

    before = {move.uci: move for move in answer.clean.moves_modified}
    moves = [
        MoveComparison(
            uci,
            move.san,
            probability(before | clean, uci),
            probability(target_moves | edited_moves, uci),
            uci in target_moves,
        )
        for uci, move in all_moves.items()
    ]
    return sorted(moves, key=lambda move: (-float(f"{max(move.clean or 0.0, move.edited or 0.0):.6g}"), move.uci))


# -- boards and text -------------------------------------------------------------------------------------


def find_layer_place(answer: LabAnswer, layer: int | None) -> int:
    """Return the index of a layer in the answer's beliefs: of `layer`, or by default of the last edited layer, or else
    of the last one.

    Raises NotFoundError if the probe does not have `layer`.
    """
    layer_number = layer if layer is not None else max(answer.edited_layers, default=answer.layers[-1])
    if layer_number in answer.layers:
        return answer.layers.index(layer_number)
    if layer is None:
        return len(answer.layers) - 1
    raise NotFoundError(f"the probe has no layer {layer}", f"its layers are {', '.join(map(str, answer.layers))}")


def build_arrows(moves: tuple[RankedMove, ...], count: int = MAX_ARROWS) -> list[Arrow]:
    """Return arrows for the `count` most probable moves. The weight of an arrow is the probability."""
    arrows = []
    for ranked_move in moves[:count]:
        if ranked_move.probability >= MIN_ARROW_PROBABILITY:
            move = chess.Move.from_uci(ranked_move.uci)
            arrows.append(Arrow(move.from_square, move.to_square, min(1.0, ranked_move.probability), ranked_move.san))
    return arrows


def mark_changes(answer: LabAnswer) -> tuple[dict[int, Mark], dict[int, Mark]]:
    """Return the marks of the squares in which the board and the edit's target board differ, for each of the
    two."""
    if not answer.modified_fen:
        return {}, {}
    before, after = (get_board_letters(chess.Board(fen)) for fen in (answer.fen, answer.modified_fen))
    changed_squares = [square for square in range(64) if before[square] != after[square]]
    return (
        {square: "from" for square in changed_squares if before[square] != EMPTY},
        {square: "removed" if after[square] == EMPTY else "target" for square in changed_squares},
    )


def build_position_frames(answer: LabAnswer, count: int = MAX_ARROWS) -> list[BoardFrame]:
    """Return the board with the clean model's moves and, with an edit, its target board with the edited model's
    moves.

    If the next token is read, the frames show the probabilities of squares as heat instead of moves.
    """
    board = chess.Board(answer.fen)
    before, after = mark_changes(answer)

    def frame(
        of: chess.Board, title: str, side: ModelSide, moves: tuple[RankedMove, ...], marks: dict[int, Mark]
    ) -> BoardFrame:
        drawing: dict[str, Any] = {"arrows": build_arrows(moves, count)}
        if answer.next_token and side.squares:
            drawing = {"heat": side.squares, "heat_label": HEAT_LABEL}
        return BoardFrame.from_board(of, title, marks=marks, caption=(f"writes {side.text.strip()}",), **drawing)

    original = frame(board, "original, clean model", answer.clean, answer.clean.moves, before)
    frames = [replace(original, moves=tuple(move.uci() for move in play_words(answer.sans)))]
    if answer.edited is not None:
        aim, moves = board, answer.edited.moves
        if answer.modified_fen:
            aim, moves = chess.Board(answer.modified_fen), answer.edited.moves_modified
        title = "target, edited model" if answer.modified_fen else "edited model"
        frames.append(frame(aim, title, answer.edited, moves, after))
    return frames


def build_belief_frame(answer: LabAnswer, side_name: str, place: int, label: int | None = None) -> BoardFrame:
    """Return the board that the probe reads in the `clean` or the `edited` model: the most probable piece of every
    square.

    Squares that differ from the true board are marked. For the edited model the true board is the target of the edit.
    `label` shows the probability of that class as heat.
    """
    side = answer.clean if side_name == "clean" or answer.edited is None else answer.edited
    letters = side.board(place)
    is_edited = side_name != "clean" and bool(answer.modified_fen)
    truth = get_board_letters(chess.Board(answer.modified_fen if is_edited else answer.fen))
    wrong = [square for square in range(64) if letters[square] != truth[square]]
    heat = None if label is None else {n: min(1.0, float(p)) for n, p in enumerate(side.beliefs[place, :, label])}
    confidence = side.beliefs[place].max(1)
    return BoardFrame(
        title=f"layer {answer.layers[place]} reads, {'edited' if side is answer.edited else 'clean'}",
        squares=letters,
        marks=dict.fromkeys(wrong, "wrong"),
        read={square: ProbeReading(letters[square], min(1.0, float(confidence[square]))) for square in wrong},
        heat=heat,
        heat_label="" if label is None else f"probability of {PIECE_CLASSES[label]}",
        caption=(f"{64 - len(wrong)} of 64 squares as {'on the target board' if is_edited else 'on the board'}",),
    )


def format_answer(answer: LabAnswer, layer: int | None = None, top: int = 5) -> str:
    """Return the boards, masses and the `top` most probable moves as text, the clean model first."""
    parts = [render_text(frame) for frame in build_position_frames(answer, 0)]
    if answer.layers:
        place = find_layer_place(answer, layer)
        sides = ("clean", "edited") if answer.edited is not None else ("clean",)
        parts += [render_text(build_belief_frame(answer, side_name, place)) for side_name in sides]
    lines = [f"edit: {answer.edit}, layers {', '.join(map(str, answer.edited_layers))}, "
             f"scale {', '.join(f'{scale:g}' for scale in answer.scales)}"
             if answer.edited is not None else f"no edit: {answer.why_not}"]  # fmt: skip
    for name, side in list_sides(answer):
        lines.append(f"{name:<6}  {describe_mass(side, answer.next_token)}")
        if answer.next_token and side.squares:
            lines.append(
                f"  begins {', '.join(f'{chess.square_name(n)} {p:.1%}' for n, p in find_likeliest_squares(side))}"
            )
        lines += [f"  {m.probability:.3f}  {m.san}" for m in side.moves[:top]]
        if side.moves_modified:
            lines += (
                ["  on the target board:" if answer.next_token else "  on the board without the piece:"] if top else []
            )
            lines += [f"  {m.probability:.3f}  {m.san}" for m in side.moves_modified[:top]]
    return "".join(parts) + "\n".join(lines) + "\n"


def list_sides(answer: LabAnswer) -> list[tuple[str, ModelSide]]:
    """Return the models of the answer by name, the clean one first."""
    return [("clean", answer.clean), *([("edited", answer.edited)] if answer.edited is not None else [])]


def find_likeliest_squares(side: ModelSide, count: int = 5) -> list[tuple[int, float]]:
    """Return the squares on which the next move most probably begins, with their probabilities."""
    order = sorted(range(len(side.squares)), key=lambda square: -side.squares[square])
    return [(square, side.squares[square]) for square in order[:count]]


def describe_mass(side: ModelSide, next_token: bool = False) -> str:
    """Return the legal move mass of a model as text."""
    location = "on the target board" if next_token else "without the piece"
    edited_text = "" if side.modified is None else f", {side.modified:.4f} {location}"
    return f"legal mass {side.original:.4f} on the board{edited_text}"
