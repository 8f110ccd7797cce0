"""A state of an edit run as its rows tell it, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.registry import tables
from tui.data.results import run_names

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.session import Session


class EditedState(NamedTuple):
    """The two boards of a condition; a state that was skipped has one, and no condition."""

    run: str
    run_id: UUID
    unit: int
    boards: list[BoardFrame]
    condition: str
    conditions: list[str]
    row: dict[str, Any]  # the greedy row of the condition


def edited_state(session: Session, row: Mapping[str, Any], condition: str = "") -> EditedState:
    """The state that a trial belongs to, under a condition, or under the trial's own.

    Raises NotFoundError when the run has no such state.
    """
    from chessreg.experiments.edit.kind import boards_of_state
    from tui.data.results import flat

    run_id, unit, trial = UUID(str(row["run_id"])), int(row["unit"]), tables.Trial
    with session.database.read() as sql:
        rows = sql.scalars(
            select(trial)
            .where(trial.run_id == run_id, trial.unit == unit, trial.sample == -1)
            .order_by(trial.condition)
        ).all()
        called = run_names(sql, {run_id})[run_id]
        sql.expunge_all()
    if not rows:
        raise NotFoundError(f"run {called} has no state {unit}")
    asked = {"run_id": run_id, "unit": unit, "condition": condition or row.get("condition") or "clean"}
    boards, shown = boards_of_state(asked, session.inputs)
    conditions = sorted((r.condition for r in rows if r.condition not in ("clean", "skipped")), key=edits_first)
    chosen = next((r for r in rows if r.condition == shown), rows[0])
    return EditedState(called, run_id, unit, boards, shown, conditions, flat(chosen))


def edits_first(condition: str) -> tuple[bool, str, int]:
    """`edit`, `edit-0`, `edit-1`, …, then the controls."""
    name, _, number = condition.partition("-")
    return name != "edit", name, int(number or 0)
