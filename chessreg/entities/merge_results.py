"""The results of a run in another registry, part by part, as `merge` takes them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import select

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.runs.ingest import TABLES
from chessreg.runs.kind import FAMILIES

AT_ONCE = 500  # units in one transaction


def fragments_of(database: Database, run_id: UUID) -> set[str]:
    """The names under which results of this run were taken in before."""
    with database.read() as session:
        record = tables.FragmentRecord
        return set(session.scalars(select(record.name).where(record.run_id == run_id)))


def result_rows(
    there: Database, run_id: UUID, seen: set[str], origin: UUID
) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Complete units of a run with their rows by table, in parts; each part has a name, and one that was seen is not
    read again. A part holds whole unit ranges, so a unit is never in two."""
    ranges = tables.UnitRange.__table__
    with there.read() as session:
        taken = session.execute(
            select(tables.FragmentRecord.name).where(tables.FragmentRecord.run_id == run_id)
        ).scalars()
        if seen and seen >= set(taken):
            return  # everything that came in there came in here too
        of_run = select(ranges).where(ranges.c.run_id == run_id).order_by(ranges.c.start, ranges.c.stop)
        found = [dict(row) for row in session.execute(of_run).mappings()]
    for part in parts(found):
        name = f"merge.{origin.hex}.{run_id.hex}.{part[0]['start']}.{part[-1]['stop']}.{len(part)}"
        if name in seen:
            continue
        units = {unit for row in part for unit in range(row["start"], row["stop"])}
        rows: dict[str, list[dict[str, Any]]] = {"unit_range": part}
        with there.read() as session:
            for family in FAMILIES:
                table = TABLES[family]
                of_part = table.c.run_id == run_id, table.c.unit.between(min(units), max(units))
                rows[family] = [
                    dict(row)
                    for row in session.execute(select(table).where(*of_part)).mappings()
                    if row["unit"] in units
                ]
        yield name, {family: group for family, group in rows.items() if group}


def parts(ranges: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Unit ranges in groups of about AT_ONCE units."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in ranges:
        part.append(row)
        size += row["stop"] - row["start"]
        if size >= AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
