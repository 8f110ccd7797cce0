"""Boards behind an edited state: what each condition wanted to play, and what the probe reads before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.games.boardframe import Arrow, BoardFrame
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs


def frames_of_state(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """The original board with the clean model's texts and the modified one with the edited model's; as heat what the
    probe reads of the removed piece in each, while model and probe are here."""
    boards, condition = boards_of_state(row, inputs)
    return with_heat(boards, inputs, row, condition) if condition else boards


def boards_of_state(row: Mapping[str, Any], inputs: Inputs) -> tuple[list[BoardFrame], str]:
    """The two boards as the rows tell them, without a model, and the condition of the second; of a state that was
    skipped the one board, and no condition."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            select(trial)
            .where(trial.run_id == UUID(str(row["run_id"])), trial.unit == int(row["unit"]))
            .order_by(trial.condition, trial.sample)
        ).all()
        session.expunge_all()
    first = next(r for r in rows if r.fen)
    where = f"game {first.item}, ply {first.ply}" if first.item >= 0 else f"after {first.ply} plies"
    original = chess.Board(first.fen)
    detail = first.detail or {}
    if first.condition == "skipped":
        caption = (f"skipped: the greedy text {first.text!r} is {detail['skipped']}",)
        return [BoardFrame.from_board(original, title=where, caption=caption)], ""
    square = chess.parse_square(detail["square"])
    modified = original.copy(stack=False)
    modified.remove_piece_at(square)
    wanted = row.get("condition") or "clean"
    shown = wanted if wanted != "clean" else next(r.condition for r in rows if r.condition.startswith("edit"))
    boards = [
        BoardFrame.from_board(
            original,
            title=f"clean, {where}",
            marks={square: "from"},
            arrows=arrows([r for r in rows if r.condition == "clean"], original),
            caption=caption_of([r for r in rows if r.condition == "clean"]),
        ),
        BoardFrame.from_board(
            modified,
            title=f"{shown}: without the piece on {detail['square']}",
            marks={square: "removed"},
            arrows=arrows([r for r in rows if r.condition == shown], modified),
            caption=caption_of([r for r in rows if r.condition == shown]),
        ),
    ]
    return boards, shown


def with_heat(boards: list[BoardFrame], inputs: Inputs, row: Mapping[str, Any], condition: str) -> list[BoardFrame]:
    """The two boards with the probability of the removed piece as heat; as they are without the bytes of the model."""
    from chessreg.experiments.edit.heat import PIECE_CLASSES, WHICH, readings

    try:
        found = readings(inputs, UUID(str(row["run_id"])), int(row["unit"]), condition)
    except NotFoundError:
        return boards
    label = f"probability of {PIECE_CLASSES[found.label]} to the probe of layer {found.layer}"
    warm = []
    for frame, which in zip(boards, WHICH, strict=True):
        values = np.clip(found.values(which, found.label, "probability"), 0.0, 1.0).tolist()
        warm.append(replace(frame, heat=dict(enumerate(values)), heat_label=label))
    return warm


def arrows(rows: list[tables.Trial], board: chess.Board) -> list[Arrow]:
    """The texts that are moves on this board, each as heavy as it is frequent."""
    found: dict[chess.Move, int] = {}
    for row in rows:
        try:
            move = board.parse_san(row.text)
        except ValueError:
            continue
        found[move] = found.get(move, 0) + 1
    return [Arrow(m.from_square, m.to_square, n / len(rows), board.san(m)) for m, n in found.items() if m]


def caption_of(rows: list[tables.Trial]) -> tuple[str, ...]:
    greedy = next(r for r in rows if r.sample == -1)
    texts = ", ".join(f"{r.text}{'' if r.legal_original or r.legal_modified else '?'}" for r in rows if r.sample >= 0)
    lines = [f"greedy {greedy.text}; sampled {texts}"]
    if greedy.mass_original is not None and greedy.mass_modified is not None:
        lines.append(f"legal mass {greedy.mass_original:.3f} on the original board, {greedy.mass_modified:.3f} without")
    return tuple(lines)


def frames_of_turns(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """One frame per looked-at turn of a game: the position, and the greedy text as an arrow or as an illegal try."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            select(trial)
            .where(trial.run_id == UUID(str(row["run_id"])), trial.unit == int(row["unit"]))
            .order_by(trial.ply)
        ).all()
        session.expunge_all()
    frames = []
    for turn in rows:
        board = chess.Board(turn.fen)
        legal = "legal" if turn.legal_original else "illegal"
        caption = [f"the model writes {turn.text!r}: {legal}"]
        if turn.mass_original is not None:
            caption.append(f"legal move mass {turn.mass_original:.3f}")
        frames.append(
            BoardFrame.from_board(
                board, title=f"game {turn.item}, ply {turn.ply}", arrows=arrows([turn], board), caption=caption
            )
        )
    return frames
