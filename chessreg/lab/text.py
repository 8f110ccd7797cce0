"""An answer of the lab as boards to look at, and as text."""

from __future__ import annotations

import chess

from chessreg.errors import NotFoundError
from chessreg.games.boardframe import Arrow, BoardFrame, Mark, squares_of
from chessreg.games.labels import PIECE_CLASSES
from chessreg.games.svg import render_text
from chessreg.lab.answer import Answer, Ranked, Side

ARROWS = 3  # the moves that are drawn
LEAST = 0.02  # less probable moves have no arrow


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
