"""The catalogue of queries, answers as tables of text, the rows behind a line, plots, and SELECTs of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tui.data.pages import PAGE, Listed, Pages, Row
from tui.data.scopes import as_options, scope_of

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Plot
    from chessreg.queries.result import QueryResult
    from chessreg.session import Session


@dataclass(frozen=True)
class Answer:
    """A query's answer as it is shown: headings and cells as `chessreg query` prints them.

    Rows hold the cells under `c0`, `c1`, … and the number of the line (from 1) under `#`; rows behind a line hold
    the values under their names too, among them run_id and unit.
    """

    title: str
    headings: list[str]
    numeric: list[bool]
    pages: Pages
    same: str = ""
    notes: list[str] = field(default_factory=list)
    footer: str = ""
    result: QueryResult | None = None  # what is copied and written to files: every digit


@dataclass(frozen=True)
class Question:
    """A query of the catalogue and how it is asked. `scope` has the words of the scope bar."""

    title: str
    scope: str = ""
    partial: bool = False
    published: bool = False
    scoring: str = "paper"

    @property
    def options(self) -> str:
        """How it is asked on the command line, with a blank before each option."""
        partial = " --partial" if self.partial and "--partial" not in as_options(self.scope) else ""
        scoring = f" --scoring {self.scoring}" if self.scoring != "paper" else ""
        return as_options(self.scope) + partial + scoring

    @property
    def command(self) -> str:
        """The command that prints the answer."""
        return f'chessreg query "{self.title}"{self.options}' + (" --published" if self.published else "")


def catalogue(text: str = "") -> list[Row]:
    """The queries whose title, aliases, paper or plots have all these words. Needs no registry."""
    from chessreg.queries.catalogue import entries

    words = text.lower().split()
    return [
        {
            "title": e.title,
            "paper": e.paper,
            "aliases": ", ".join(e.aliases),
            "made_by": e.made_by,
            "plots": ", ".join(plot.title for plot in e.plots),
        }
        for e in entries()
        if all(word in " ".join((e.title, *e.aliases, e.paper, *(p.title for p in e.plots))).lower() for word in words)
    ]


def columns(title: str) -> list[Row]:
    """What the columns of a query mean. Needs no registry."""
    from chessreg.queries.catalogue import find

    return [{"name": c.name, "unit": c.unit, "text": c.text} for c in find(title).columns]


def plots_of(title: str) -> tuple[Plot, ...]:
    """The plots of a query. Needs no registry."""
    from chessreg.queries.catalogue import find

    return find(title).plots


def answer(session: Session, asked: Question) -> Answer:
    """Ask a catalogue query; with `published`, the papers' numbers with ours beside them."""
    from chessreg.queries import run_query

    scope = scope_of(asked.scope, asked.partial)
    result = run_query(session.database, asked.title, scope, scoring=asked.scoring)
    if asked.published:
        from chessreg.queries.published import beside, with_ours

        result = with_ours(beside(session.database, result))
    return shown(asked.title, result)


def behind(session: Session, asked: Question, number: int) -> Answer:
    """The rows behind line `number` (from 1) of a query's answer."""
    from chessreg.queries.ask import rows_behind

    scope = scope_of(asked.scope, asked.partial)
    result = rows_behind(session.database, asked.title, number, scope, scoring=asked.scoring)
    return paged(f"row {number}", result)


def plotted(session: Session, asked: Question, plot: Plot) -> QueryResult:
    """The rows that a plot of a query shows."""
    from chessreg.queries import ask
    from chessreg.queries.catalogue import find

    scope = scope_of(asked.scope, asked.partial)
    return ask.plotted(session.database, find(asked.title), plot, scope, scoring=asked.scoring)


def shown(title: str, result: QueryResult) -> Answer:
    """A table of few rows as text."""
    from chessreg.queries import render

    headings, cells, same, numeric = render.grid(result)
    rows: list[Row] = [numbered(place, line) for place, line in enumerate(cells, 1)]
    return Answer(
        title, headings, numeric, Listed(rows), render.caption(same), result.notes, render.footer(result), result
    )


def paged(title: str, result: QueryResult) -> Answer:
    """An answer of any length."""
    from chessreg.queries import render

    pages = RowsBehind(result)
    headings = [render.heading(result, name) for name in pages.names]
    return Answer(title, headings, pages.numeric, pages, "", result.notes, render.footer(result), result)


def numbered(place: int, line: Sequence[str]) -> dict[str, Any]:
    return {"#": place, **{f"c{n}": text for n, text in enumerate(line)}}


class RowsBehind:
    """The rows of an answer of any length: they stay in Arrow until they are looked at."""

    def __init__(self, result: QueryResult) -> None:
        from chessreg.queries import render

        self.result, self.count = result, len(result)
        part = self._part(0)
        self.names = [name for name in render.layout(part)[0] if name != "run_id"]  # an id to follow, not to read
        self.numeric = [
            any(isinstance(row[n], (int, float)) and not isinstance(row[n], bool) for row in part.rows)
            for n in self.names
        ]

    def _part(self, number: int) -> QueryResult:
        return replace(self.result, table=self.result.table.slice(number * PAGE, PAGE))

    def page(self, number: int) -> Sequence[Row]:
        from chessreg.queries import render

        part = self._part(number)
        return [
            {**row, **numbered(number * PAGE + place, [render.cell(part, row, name) for name in self.names])}
            for place, row in enumerate(part.rows, 1)
        ]


KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS",
    "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "DISTINCT", "CASE", "WHEN", "THEN", "ELSE",
    "END", "DESC", "ASC", "UNION ALL", "WITH", "FILTER", "OVER", "PARTITION BY", "QUALIFY", "count(*)", "sum(", "avg(",
    "min(", "max(", "round(", "coalesce(", "json_extract(", "DESCRIBE", "SUMMARIZE", "SHOW TABLES",
)  # fmt: skip
WORD = re.compile(r"[\w.]*$")
NAMED = re.compile(r"\b(?:from|join)\s+\"?(\w+)\"?(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)

Names = dict[str, list[str]]  # table or view → columns


def ask(session: Session, text: str) -> Answer:
    """The answer to one SELECT. Raises what run_sql raises."""
    from chessreg.queries import run_sql

    return paged("sql", run_sql(session.database, text))


def names(session: Session) -> Names:
    """Every table and view that a SELECT may name, with its columns."""
    from chessreg.queries.engine import engine_of

    return engine_of(session.database).described()


def completions(before: str, whole: str, known: Names) -> list[str]:
    """What the word before the cursor may become: after a dot, columns of that table (or of the table of that alias);
    else columns of the tables that the statement names, then tables, then words of SQL. Where none begins so, those
    that have it somewhere.

    >>> completions("SELECT pl", "SELECT pl FROM game AS g", {"game": ["plies", "unit"]})
    ['plies']
    """
    found = WORD.search(before)
    word = found[0] if found else ""
    owner, dot, start = word.rpartition(".")
    tables = {alias.lower(): table for table, alias in NAMED.findall(whole) if alias} | {t.lower(): t for t in known}
    if dot:
        fitting = [f"{owner}.{name}" for name in known.get(tables.get(owner.lower(), ""), ())]
    else:
        named = [table for table, _ in NAMED.findall(whole) if table in known]
        columns = [name for table in named for name in known[table]]
        after_from = bool(re.search(r"\b(?:from|join)\s+\w*$", before, re.IGNORECASE))
        fitting = list(known) if after_from else [*columns, *known, *KEYWORDS]
    wanted = word.lower()
    unique = [name for name in dict.fromkeys(fitting) if name != word]
    starts = [name for name in unique if name.lower().startswith(wanted)]
    return starts or [name for name in unique if start and start.lower() in name.lower()]
