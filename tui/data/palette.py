"""Search the registry for the command palette: queries, experiment kinds, and runs by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.registry import run_filter, tables

if TYPE_CHECKING:
    from chessreg.session import Session

MAX_RUN_NAMES = 50  # names that are ranked


def list_palette_entries(session: Session) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """Return the entries of the query catalogue, and (name, reference, summary) of every kind."""
    from tui.data.launch_form import list_kind_rows
    from tui.data.query_answers import search_catalogue

    rows, _ = search_catalogue(session)
    return [row["entry"] for row in rows], [
        (row["name"], row["reference"], row["summary"]) for row in list_kind_rows(session)
    ]


def find_runs_by_name(session: Session, words: str) -> list[tuple[UUID, str]]:
    """Return runs whose names contain the letters of `words` in this order; names that contain the words come first."""
    words = words.lower().strip()
    words = words.removeprefix("run ").strip()
    letters = words.replace(" ", "")
    if not letters:
        return []
    annotation = tables.Annotation
    name = func.lower(annotation.value)
    pattern = "%" + "%".join(map(run_filter.escape_like, letters)) + "%"
    query = (
        select(annotation.target, annotation.value)
        .where(annotation.noun == "run", annotation.word == tables.AnnotationWord("name"), *run_filter.is_current())
        .where(annotation.value.ilike(pattern, escape="\\"))
        .order_by(~name.contains(words, autoescape=True), func.length(name), name)
        .limit(MAX_RUN_NAMES)
    )
    with session.database.read() as sql:
        run_names = [(UUID(hex=target), name) for target, name in sql.execute(query)]
    return sorted(run_names, key=lambda pair: (words not in pair[1].lower(), len(pair[1]), pair[1]))
