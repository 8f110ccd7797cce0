"""Rows of the registry's objects other than runs, by noun, as `chessreg.entities` declares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.entities import load_entities, load_entity
from chessreg.entities.display import FACTS, Thing, format_display_cell
from tui import show
from tui.columns import TableColumn, is_numeric_field
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.entities import display
    from chessreg.entities.base import Entity
    from chessreg.session import Session


def list_data_nouns() -> dict[str, Entity]:
    """Return the nouns of the data screen in display order."""
    return {noun: entity for noun, entity in load_entities().items() if entity.in_data_room}


def list_entities(session: Session) -> dict[str, list[Row]]:
    """Return the rows of every noun, newest last, without archived objects. `thing` is the id that opens a row."""
    with session.database.read() as sql:
        return {
            noun: [
                {**row, "noun": noun, "thing": row["run_id" if entity.is_made_by_runs else "id"]}
                for row in entity.overview(sql)
                if not row.get("archived")
            ]
            for noun, entity in list_data_nouns().items()
        }


def load_details(session: Session, noun: str, id: UUID) -> Thing:
    """Return the details of one object. Raises NotFoundError if it does not exist."""
    return load_entity(noun).read_details(session, id)


def make_entity_columns(columns: Sequence[display.Column], rows: Sequence[Row]) -> list[TableColumn]:
    """Return table columns for the declared ones: numbers right-aligned, facts with all digits."""
    return [
        make_entity_column(each, rows, show.format_full_value if columns is FACTS else show.format_cell_value)
        for each in columns
    ]


def make_entity_column(column: display.Column, rows: Sequence[Row], write: Callable[[Any], str]) -> TableColumn:
    """Return the table column of a declared column; `write` formats a value without a declared format."""

    def format_text(row: Row) -> str:
        display_text = format_display_cell(column, row)
        return write(row.get(column.field)) if display_text is None else display_text

    right = column.number or is_numeric_field(column.field, rows)
    return TableColumn(column.field, column.heading, right, format_text, column.widest)
