"""Find and repair runs whose array groups miss units or overlap.

A run publishes its activations in groups, one row of a table (`activation_cache`) each. Two machines may have cut them
differently, so some groups may be redundant. Readers use a chain of consecutive groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import delete, insert, or_, select

from chessreg.entities import gc
from chessreg.errors import ChessregError
from chessreg.named import format_count
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.registry.run_state import list_unit_ranges, read_complete_units
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.activations import describe_unit_gaps
from store.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from store import Store


@dataclass(frozen=True)
class TornRun:
    """A run whose groups lack units that are recorded as complete. `wrong` describes the problem."""

    run_id: UUID
    table: Any
    wrong: str


def find_torn_runs(database: Database) -> list[TornRun]:
    """Return every run whose complete units are not covered by a chain of its groups."""
    torn_groups = []
    with database.read() as session:
        for table in names.list_array_tables(session):
            run_ids = select(table.run_id).distinct()
            is_array_run = or_(tables.Run.id.in_(run_ids), tables.Run.kind == table.__noun__.name)
            for run in session.scalars(select(tables.Run).where(is_array_run).order_by(tables.Run.id)).all():
                if problem := describe_unit_gaps(session, table, run.id):
                    torn_groups.append(TornRun(run.id, table, f"{run.kind} run {run.id.hex[-6:]} {problem}"))
    return torn_groups


def repair_groups(database: Database, store: Store, of: TornRun, damaged_paths: Iterable[str] | None = None) -> str:
    """Keep a consistent subset of a run's groups and record exactly their units as complete.

    Of two overlapping groups, the first in unit order is kept and the other moves to the bin. Directly following groups
    of the same attempt move with it: they were cut at other units and so have other bytes than in an undisturbed run.
    Groups in `damaged_paths` (None: verify the bytes of every group) move as well.

    Returns the command that recreates the missing units, or "". Raises ChessregError while an attempt at the run is
    running.
    """
    with database.write() as session:
        is_running = tables.Attempt.run_id == of.run_id, tables.Attempt.state == tables.AttemptState.RUNNING
        if session.scalars(select(tables.Attempt.id).where(*is_running)).first():
            raise ChessregError(
                f"an attempt at run {of.run_id.hex[-6:]} is running", "try again when it has ended: chessreg jobs"
            )
        groups = session.scalars(select(of.table).where(of.table.run_id == of.run_id)).all()
        if damaged_paths is None:
            damaged_paths = {group.path for group in groups if not is_intact(store, group)}
        kept_groups, dropped_groups = split_groups(read_unit_attempts(session, of.run_id), groups, set(damaged_paths))
        drop_groups(session, of, kept_groups, dropped_groups)
        arrays = [group.path.removeprefix("arrays/") for group in dropped_groups]
        session.flush()
        run = session.get_one(tables.Run, of.run_id)
        missing_count = run.units - len(read_complete_units(session, of.run_id))
        run.completed_at = None if missing_count else run.completed_at or get_utc_now()
    for array in arrays:
        move_group_to_bin(store, array)
    return (
        f"to make {format_count(missing_count, 'unit')} again: chessreg run --resume {of.run_id.hex[-6:]}"
        if missing_count
        else ""
    )


def move_group_to_bin(store: Store, array: str) -> None:
    """Move the local bytes of a group to the bin, from which `chessreg gc --restore` restores them."""
    with suppress(StoreError):  # an invalid name, so no bytes exist
        path = store.get_array_path(array)
        if path.exists():
            gc.move_to_bin(
                store, [gc.UnusedBytes(str(path.relative_to(store.root)), array, "", gc.measure_size_bytes(path))]
            )


def split_groups(
    makers: dict[int, UUID], groups: Sequence[Any], damaged_paths: set[str]
) -> tuple[list[Any], list[Any]]:
    """Return (kept groups, dropped groups), each in unit order.

    A group is dropped if its path is in `damaged_paths`, if it overlaps an earlier kept group, or if it directly
    follows a dropped, undamaged group of the same attempt. `makers` maps a unit to the attempt that made it.
    """
    kept_groups: list[Any] = []
    dropped_groups: list[Any] = []
    for group in sorted(groups, key=lambda group: (group.start, -group.stop)):
        behind = [one for one in dropped_groups if one.stop == group.start and one.path not in damaged_paths]
        overlaps = bool(kept_groups) and group.start < kept_groups[-1].stop
        is_same_maker = any(makers.get(one.stop - 1) == makers.get(group.stop - 1) for one in behind)
        (dropped_groups if overlaps or is_same_maker or group.path in damaged_paths else kept_groups).append(group)
    return kept_groups, dropped_groups


def is_intact(store: Store, group: Any) -> bool:
    """Return whether a group's bytes are absent from this store or match the published digest."""
    from store.arrays import ArrayGroup

    try:
        path = store.get_array_path(group.path.removeprefix("arrays/"))
        if not path.exists():
            return True
        array_group = ArrayGroup(path)
        array_group.verify()
    except StoreError:
        return False
    return array_group.digest == group.digest


def read_unit_attempts(session: Session, run_id: UUID) -> dict[int, UUID]:
    """Return unit → the id of the attempt that completed it."""
    rows = session.execute(
        select(tables.UnitRange.start, tables.UnitRange.stop, tables.UnitRange.attempt_id)
        .where(tables.UnitRange.run_id == run_id)
        .order_by(tables.UnitRange.start.desc())
    )
    return {unit: attempt for start, stop, attempt in rows for unit in range(start, stop)}


def drop_groups(session: Session, of: TornRun, kept_groups: Sequence[Any], dropped_groups: Sequence[Any]) -> None:
    """Record the units of `kept_groups` as the complete units of the run `of`, and delete the rows of all other
    units.

    `dropped_groups` are the groups whose units become incomplete.
    """
    makers = read_unit_attempts(session, of.run_id)
    attempt_id = session.scalars(select(tables.Attempt.id).where(tables.Attempt.run_id == of.run_id).limit(1)).first()
    units = tables.UnitRange
    session.execute(delete(units).where(units.run_id == of.run_id))
    for group in kept_groups:
        maker = next((makers[unit] for unit in range(group.start, group.stop) if unit in makers), attempt_id)
        if maker is not None:
            row = {"run_id": of.run_id, "start": group.start, "stop": group.stop, "attempt_id": maker}
            session.execute(insert(units).values(**row))
    complete = {unit for group in kept_groups for unit in range(group.start, group.stop)}
    incomplete_units = (set(makers) | {group.start for group in dropped_groups}) - (
        complete - {group.start for group in dropped_groups}
    )
    incomplete_units -= {group.start for group in kept_groups}
    for result_table in RESULT_TABLES:
        table = tables.Base.metadata.tables[result_table]
        for start, stop in list_unit_ranges(incomplete_units):
            session.execute(
                delete(table).where(table.c.run_id == of.run_id, table.c.unit >= start, table.c.unit < stop)
            )
    for group in dropped_groups:
        session.delete(group)
