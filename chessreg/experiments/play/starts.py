"""Where the games of a match start: its openings as a setting, as a function of the game's number, and as records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chessreg.games.openings import Opening, OpeningSpec, openings, parse_opening

if TYPE_CHECKING:
    from chessreg.runs.task import Task


class Starts(Protocol):
    """The settings of a spec that say where its games start."""

    @property
    def book(self) -> str | None: ...
    @property
    def opening_seed(self) -> int: ...
    @property
    def opening_source(self) -> str: ...


def opening_maker(task: Task[Any, Any]) -> Callable[[int], Opening]:
    """Opening n of this match, the same in every arm with this opening and opening seed."""
    spec: Starts = task.spec
    source = OpeningSpec("book", str(book_file(task)[1])) if spec.book else parse_opening(spec.opening_source)
    return lambda number: openings(source, spec.opening_seed, [number])[0]


def record_opening(task: Task[Any, Any]) -> str:
    """What the match calls its openings; a book is recorded first."""
    spec: Starts = task.spec
    return record_book(task) if spec.book else spec.opening_source


def record_book(task: Task[Any, Any]) -> str:
    """The book of this match as a row, and the name that the match has for it."""
    from chessreg.games.book import Book
    from chessreg.registry.tables.types import utc_now

    digest, path = book_file(task)
    task.record(
        "artefact", digest=digest, kind="book", bytes=path.stat().st_size, state="complete", created_at=utc_now()
    )
    task.record(
        "opening_book",
        digest=digest,
        source=path.name,
        format=path.suffix.removeprefix("."),
        openings=len(Book.read(path).lines),
        created_at=utc_now(),
    )
    return f"book:{digest[:32]}"


def book_file(task: Task[Any, Any]) -> tuple[str, Path]:
    """Digest and file of the book."""
    assert task.spec.book
    found = task.inputs.artefact("book", task.spec.book)
    return found.digest, task.store.artefact(found.digest).file
