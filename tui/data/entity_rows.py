"""What is in a registry beside runs, noun by noun, as `chessreg.entities` declares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.entities import entities, entity
from chessreg.entities.display import FACTS, Thing, written
from tui import show
from tui.columns import Column, numeric
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.entities import display
    from chessreg.entities.base import Entity
    from chessreg.session import Session


def nouns() -> dict[str, Entity]:
    """The nouns of the data screen, in their order there."""
    return {noun: known for noun, known in entities().items() if known.in_data_room}


def listed(session: Session) -> dict[str, list[Row]]:
    """The rows of every noun, newest last, without what is in the archive. A row is opened by its id, `thing`."""
    with session.database.read() as sql:
        return {
            noun: [
                {**row, "noun": noun, "thing": row["run_id" if known.of_run else "id"]}
                for row in known.overview(sql)
                if not row.get("archived")
            ]
            for noun, known in nouns().items()
        }


def thing(session: Session, noun: str, id: UUID) -> Thing:
    """One thing in parts. Raises NotFoundError when it is not here."""
    return entity(noun).thing(session, id)


def columns(declared: Sequence[display.Column], rows: Sequence[Row]) -> list[Column]:
    """Columns as a table draws them: numbers on the right, facts with every digit."""
    return [column(each, rows, show.full if declared is FACTS else show.value) for each in declared]


def column(declared: display.Column, rows: Sequence[Row], write: Callable[[Any], str]) -> Column:
    def text(row: Row) -> str:
        as_people_read = written(declared, row)
        return write(row.get(declared.field)) if as_people_read is None else as_people_read

    return Column(declared.field, declared.heading, declared.number or numeric(declared.field, rows), text,
                  declared.widest)  # fmt: skip
