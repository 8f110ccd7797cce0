"""What is in a registry beside runs, noun by noun, as `chessreg.entities` declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.entities import entities, entity
from chessreg.entities.display import FACTS, Thing, written
from tui import show
from tui.data.pages import Row
from tui.widgets.columns import Column

if TYPE_CHECKING:
    from chessreg.entities import display
    from chessreg.session import Session


def listed(session: Session) -> dict[str, list[Row]]:
    """The rows of every noun, newest last, without what is in the archive. A row is opened by its id, `thing`."""
    with session.database.read() as sql:
        return {
            noun: [
                {**row, "noun": noun, "thing": row["run_id" if known.of_run else "id"]}
                for row in known.overview(sql)
                if not row.get("archived")
            ]
            for noun, known in entities().items()
        }


def thing(session: Session, noun: str, id: UUID) -> Thing:
    """One thing in parts. Raises NotFoundError when it is not here."""
    return entity(noun).thing(session, id)


def columns(told: Sequence[display.Column], rows: Sequence[Row]) -> list[Column]:
    """Columns as a table draws them: numbers on the right."""
    return [column(each, rows, told is FACTS) for each in told]


def column(told: display.Column, rows: Sequence[Row], whole: bool) -> Column:
    def text(row: Row) -> str:
        as_people_read = written(told, row)
        if as_people_read is not None:
            return as_people_read
        return show.full(row[told.field]) if whole else show.value(row.get(told.field))

    return Column(told.field, told.heading, told.number or numeric(told.field, rows), text, told.widest)


def numeric(field: str, rows: Sequence[Row]) -> bool:
    """Whether a field holds numbers and nothing else."""
    values: list[Any] = [row[field] for row in rows if row.get(field) is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
