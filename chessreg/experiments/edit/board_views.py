"""Board views of a state of an edit run: the original board, and the board without the piece about to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import chess
import numpy as np

from chessreg.errors import NotFoundError
from chessreg.experiments.edit.spec import EditSpec
from chessreg.experiments.edit.states import describe_skip
from chessreg.games.boards.boardframe import BoardFrame, move_arrows
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs


def build_state_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return the original board with the clean model's texts, and the modified board with the edited model's texts.

    If model and probe are in the store, heat shows the probability that the probe gives to the removed piece.
    """
    boards, condition = build_state_boards(row, inputs)
    return add_heat(boards, inputs, row, condition) if condition else boards


def build_state_boards(row: Mapping[str, Any], inputs: Inputs) -> tuple[list[BoardFrame], str]:
    """Return the two boards of a state from its rows alone, and the condition of the second board.

    A skipped state has one board and an empty condition.
    """
    rows = inputs.read_unit_rows(tables.Trial, row, tables.Trial.condition, tables.Trial.sample)
    encoding = inputs.encoding(EditSpec(**inputs.read_spec(row)).checkpoint)
    first_row = next(r for r in rows if r.fen)
    location = f"game {first_row.item}, ply {first_row.ply}" if first_row.item >= 0 else f"after {first_row.ply} plies"
    original = chess.Board(first_row.fen)
    detail = first_row.detail or {}
    if first_row.condition == "skipped":
        return [BoardFrame.from_board(original, title=location, caption=(describe_skip(first_row),))], ""
    square = chess.parse_square(detail["square"])
    modified_board = original.copy(stack=False)
    modified_board.remove_piece_at(square)
    condition_name = row.get("condition") or "clean"
    condition = (
        condition_name
        if condition_name != "clean"
        else next(r.condition for r in rows if r.condition.startswith("edit"))
    )
    clean, edited_rows = ([r for r in rows if r.condition == name] for name in ("clean", condition))
    boards = [
        BoardFrame.from_board(
            original,
            title=f"clean, {location}",
            marks={square: "from"},
            arrows=move_arrows(original, [encoding.parse(r.text, original) for r in clean]),
            caption=build_caption(clean),
        ),
        BoardFrame.from_board(
            modified_board,
            title=f"{condition}: without the piece on {detail['square']}",
            marks={square: "removed"},
            arrows=move_arrows(modified_board, [encoding.parse(r.text, modified_board) for r in edited_rows]),
            caption=build_caption(edited_rows),
        ),
    ]
    return boards, condition


def add_heat(boards: list[BoardFrame], inputs: Inputs, row: Mapping[str, Any], condition: str) -> list[BoardFrame]:
    """Return the two boards with the probability of the removed piece as heat; unchanged if the model is not in the
    store."""
    from chessreg.experiments.edit.heat import MODEL_SIDES, PIECE_CLASSES, load_readings

    try:
        heat_readings = load_readings(inputs, UUID(str(row["run_id"])), int(row["unit"]), condition)
    except NotFoundError:
        return boards
    label = f"probability of {PIECE_CLASSES[heat_readings.label]} in the probe of layer {heat_readings.layer}"
    heat_values = []
    for frame, side_name in zip(boards, MODEL_SIDES, strict=True):
        values = np.clip(heat_readings.values(side_name, heat_readings.label, "probability"), 0.0, 1.0).tolist()
        heat_values.append(replace(frame, heat=dict(enumerate(values)), heat_label=label))
    return heat_values


def build_caption(rows: list[tables.Trial]) -> tuple[str, ...]:
    """Return the greedy and sampled texts of a state under one condition, and the legal mass if it is known."""
    greedy = next(r for r in rows if r.sample == -1)
    texts = ", ".join(f"{r.text}{'' if r.legal_original or r.legal_modified else '?'}" for r in rows if r.sample >= 0)
    lines = [f"greedy {greedy.text}; sampled {texts}"]
    if greedy.mass_original is not None and greedy.mass_modified is not None:
        lines.append(f"legal mass {greedy.mass_original:.3f} on the original board, {greedy.mass_modified:.3f} without")
    return tuple(lines)
