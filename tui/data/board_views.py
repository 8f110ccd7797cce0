"""The boards behind a row: those that its kind draws, a state of an edit, two games of one opening."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.registry import tables
from tui.data.result_rows import DATASET_GAME, RESULT_TABLES, find_row, flat, run_names

if TYPE_CHECKING:
    from chessreg.entities.game import Partner
    from chessreg.games.boardframe import BoardFrame
    from chessreg.session import Session


OWN_SCREEN = ("edit",)  # kinds whose boards need a model: their screen asks the process that holds it


class Boards(NamedTuple):
    """The board views of one row, the row in full, and what the run is called."""

    row: dict[str, Any]
    views: list[BoardFrame]
    run: str
    kind: str
    limit: int | None = None  # of a game: the frame at its move limit


def boards(session: Session, row: Mapping[str, Any]) -> Boards:
    """The boards behind a row that names its run and unit, or behind a game of a dataset; none for kinds with a screen
    of their own.

    Raises NotFoundError when the row, its run or its kind is not here, or when its kind draws no boards.
    """
    from chessreg.runs.kind import recorded

    if row.get("result_table") == DATASET_GAME:
        from chessreg.entities.dataset import board_views

        views = board_views(session.inputs, row["dataset_id"].hex, row["unit"])
        return Boards(dict(row), views, row["run"], "dataset")
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    with session.database.read() as sql:
        run = sql.get(tables.Run, run_id)
        if run is None:
            raise NotFoundError(f"run {run_id.hex[-6:]} is not in this registry", "chessreg runs list")
        record = sql.scalars(
            select(tables.KindRecord).where(
                tables.KindRecord.name == run.kind, tables.KindRecord.version == run.version
            )
        ).first()
        called = run_names(sql, {run_id})[run_id]
    if record is None:
        raise NotFoundError(f"kind {run.kind} of run {called} is not recorded here")
    result_tables = (
        [row["result_table"]] if row.get("result_table") else [f for f in record.families if f in RESULT_TABLES]
    )
    whole = find_row(session, row, result_tables)
    if whole is None:
        raise NotFoundError(f"unit {row.get('unit')} of run {called} has no stored row")
    if run.kind in OWN_SCREEN:
        return Boards(whole, [], called, run.kind)
    kind = recorded(record.source, session.store.read_only)
    views = kind.board_views({k: v for k, v in whole.items() if k != "result_table"}, session.inputs)
    if not views:
        raise NotFoundError(f"{run.kind} runs draw no boards", "i shows all fields of the row")
    return Boards(whole, views, called, run.kind, limit_of(session, whole))


def limit_of(session: Session, row: Mapping[str, Any]) -> int | None:
    """The ply of a game at which its move limit stops it, where the row is a game and a limit was recorded."""
    if row["result_table"] != "game":
        return None
    from chessreg.entities.game import stored_games

    return next(stored_games(session.database, [(row["run_id"], row["unit"])])).limit_ply


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
    key = {"run_id": run_id, "unit": unit, "condition": condition or row.get("condition") or "clean"}
    boards, drawn_condition = boards_of_state(key, session.inputs)
    conditions = sorted((r.condition for r in rows if r.condition not in ("clean", "skipped")), key=edits_first)
    chosen = next((r for r in rows if r.condition == drawn_condition), rows[0])
    return EditedState(called, run_id, unit, boards, drawn_condition, conditions, flat(chosen))


def edits_first(condition: str) -> tuple[bool, str, int]:
    """`edit`, `edit-0`, `edit-1`, …, then the controls."""
    name, _, number = condition.partition("-")
    return name != "edit", name, int(number or 0)


class Side(NamedTuple):
    """One game: the run's name, its board views, and the one at its move limit where that was recorded."""

    run: str
    run_id: UUID
    unit: int
    views: list[BoardFrame]
    limit: int | None


class Sides(NamedTuple):
    """A game, the chosen one of its partners, and the ply where they part."""

    sides: tuple[Side, Side]
    partners: list[Partner]
    chosen: int
    parts: int | None
    moves: str  # what both played there


def sides(session: Session, row: Mapping[str, Any], chosen: int) -> Sides | None:
    """A game beside number `chosen` of its partners; None when no other arm began with its opening."""
    from chessreg.entities.game import paired, partners

    run_id, unit = UUID(str(row["run_id"])), int(row["unit"])
    with session.database.read() as sql:
        others = partners(sql, run_id, unit)
        called = run_names(sql, {run_id, *(partner.run_id for partner in others)})
    if not others:
        return None
    chosen %= len(others)
    partner = others[chosen]
    pair = paired(session.database, (run_id, unit), (partner.run_id, partner.unit))
    both = [
        Side(called[game.game.run_id], game.game.run_id, game.game.unit, game.frames(), game.limit_ply)
        for game in (pair.one, pair.other)
    ]
    return Sides((both[0], both[1]), others, chosen, pair.parts, pair.told()["moves"])
