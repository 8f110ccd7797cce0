"""The query catalogue and its scope, answers as tables and charts, rows behind a line, and the user's SELECT
statements."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from chessreg.entities.display import Chart, Panel, Point, Series
from chessreg.errors import BadInputError, ChessregError
from tui.columns import Role
from tui.data.pages import PAGE_ROWS, ListPages, Pages, Row
from tui.data.table_filter import View, make_mask, sort_indices
from tui.interval_bars import IntervalBars, ShownEstimate, make_interval_bars

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.queries.catalogue import Entry, Plot
    from chessreg.queries.result import QueryResult
    from chessreg.queries.scope import Scope
    from chessreg.session import Session


REPEATABLE_FIELDS = ("checkpoint", "run", "tag", "machine")  # each may be given several times
SCOPE_FIELDS = (*REPEATABLE_FIELDS, "since", "partial", "where")
WHERE_PATTERN = re.compile(r"(?:^|\s)where:")  # not within a word: a tag may be called somewhere:
SCOPE_GRAMMAR = "checkpoint:NAME  run:NAME  tag:TAG  machine:HOST  since:7d  partial  where:CONDITION"


def parse_scope(scope_text: str) -> dict[str, Any]:
    """Return the options of `Scope` that a scope text sets. `where:` consumes the rest of the text.

    Raises BadInputError for an unknown word and for a field without a value.

    >>> parse_scope("tag:best since:7d where: layer > 3 and color = 'white'")
    {'tag': ['best'], 'since': '7d', 'where': "layer > 3 and color = 'white'"}
    """
    names_text, *conditions = WHERE_PATTERN.split(scope_text, maxsplit=1)
    values: dict[str, Any] = {}
    for word in names_text.split():
        name, colon, value = word.partition(":")
        if word == "partial":
            values["partial"] = True
        elif name not in SCOPE_FIELDS or not colon:
            raise BadInputError(f"a scope has no {word!r}", f"it is {' '.join(SCOPE_GRAMMAR.split())}")
        elif not value:
            raise BadInputError(f"{word} needs a value", f"it is {' '.join(SCOPE_GRAMMAR.split())}")
        elif name in REPEATABLE_FIELDS:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    if conditions and not conditions[0].strip():
        raise BadInputError("where: needs a condition", "for example where: color = 'white'")
    return values | ({"where": conditions[0].strip()} if conditions else {})


def make_scope_of_text(scope_text: str, is_partial: bool = False) -> Scope:
    """Return the scope that the text of the scope bar describes. `is_partial` includes incomplete runs. Raises
    BadInputError."""
    from chessreg.queries.scope import Scope

    return Scope.from_options(parse_scope(scope_text) | ({"partial": True} if is_partial else {}))


def format_scope_options(scope_text: str) -> str:
    """Return the scope as command-line options, each preceded by a space; empty for an empty scope.

    >>> format_scope_options("tag:best where: layer > 3")
    " --tag best --where 'layer > 3'"
    """
    words = []
    for name, value in parse_scope(scope_text).items():
        for each in value if isinstance(value, list) else [value]:
            words.append(f"--{name}" if each is True else f"--{name} {shlex.quote(each)}")
    return "".join(f" {option}" for option in words)


MAX_OFFERED_RUNS = 2000  # runs whose names are offered


def list_scope_words(session: Session) -> list[str]:
    """Return the complete words that a scope may contain, for completion; run names of the newest runs only."""
    from sqlalchemy import select

    from chessreg.registry import names
    from chessreg.registry.tables import Annotation, AnnotationWord, Machine, Run

    with session.database.read() as sql:
        newest_runs = sql.scalars(select(Run.id).order_by(Run.created_at.desc()).limit(MAX_OFFERED_RUNS)).all()
        names_by_noun = {
            "checkpoint": names.read_noun_names(sql, "checkpoint"),
            "run": names.read_names_of(sql, "run", newest_runs),
        }
        words = [f"{noun}:{name}" for noun, names_by_id in names_by_noun.items() for name in names_by_id.values()]
        is_tag = Annotation.noun.in_(names_by_noun), Annotation.word == AnnotationWord.TAG
        tags = sql.scalars(select(Annotation.value).where(*is_tag, *names.is_current()).distinct())
        words += [f"tag:{tag}" for tag in tags]
        words += [f"machine:{host}" for host in sql.scalars(select(Machine.host).distinct())]
    return [*sorted(words), "partial", "since:7d", "where:"]


def complete_scope(scope_text: str, known_words: list[str]) -> str | None:
    """Return the text with its last word completed, or None if nothing matches or a condition is being typed.

    >>> complete_scope("partial check", ["checkpoint:a", "checkpoint:b"])
    'partial checkpoint:a'
    """
    before, _, last_word = scope_text.rpartition(" ")
    if not last_word or WHERE_PATTERN.search(scope_text):
        return None
    match = next((word for word in known_words if word.startswith(last_word) and word != last_word), None)
    return f"{before} {match}".lstrip() if match else None


@dataclass(frozen=True)
class AnswerTable:
    """A query's answer for display, with headings and cells as `chessreg query` prints them.

    Rows store the cells as `c0`, `c1`, … and the line number (from 1) as `#`. Rows behind a line also store the values
    by name, including run_id and unit.
    """

    title: str
    headings: list[str]
    numeric: list[bool]
    pages: Pages
    same: str = ""
    notes: list[str] = field(default_factory=list)
    footer: str = ""
    result: QueryResult | None = None  # for copies and exports, with all digits
    roles: tuple[Role, ...] = ()  # of the columns; empty: texts
    aligned: frozenset[int] = frozenset()  # columns of values with intervals, which end and begin below each other
    signs: tuple[dict[str, int], ...] = ()  # of the differences in each row
    bars: IntervalBars | None = None  # of the first value with an interval


@dataclass(frozen=True)
class ScreenQuestion:
    """A catalogue query with its options. `scope` is the text of the scope bar."""

    entry: Entry
    scope: str = ""
    partial: bool = False
    published: bool = False
    scoring: str = "paper"
    wide: bool = False  # show every column

    @property
    def title(self) -> str:
        return self.entry.title

    @property
    def options(self) -> str:
        """The options on the command line, each preceded by a space."""
        partial_option = " --partial" if self.partial and "--partial" not in format_scope_options(self.scope) else ""
        scoring = f" --scoring {self.scoring}" if self.scoring != "paper" else ""
        return format_scope_options(self.scope) + partial_option + scoring

    @property
    def command(self) -> str:
        """The command that prints the answer."""
        table_options = (" --published" if self.published else "") + (" --wide" if self.wide else "")
        return f"chessreg query {shlex.quote(self.title)}{self.options}{table_options}"


def search_catalogue(session: Session, text: str = "") -> tuple[list[Row], str]:
    """Return the queries that contain all words in their title, question, aliases, paper or plots, and an error
    message.

    The catalogue includes queries of trusted user kinds that this registry has used. Queries that a complete run can
    answer (`answered`) come first. If the users' queries are invalid, the message is not empty and they are left out.
    """
    from chessreg.queries.ask import list_answerable_titles, list_trusted_kind_files
    from chessreg.queries.catalogue import list_entries

    search_words, error_text = text.lower().split(), ""
    try:
        catalogue = list_entries(list_trusted_kind_files(session.database))
    except ChessregError as error:
        catalogue, error_text = list_entries(), error.message
    answerable_titles = list_answerable_titles(session.database, catalogue)
    rows: list[Row] = [
        {
            "entry": e,
            "title": e.title,
            "question": e.question,
            "answered": e.title in answerable_titles,
            "paper": e.paper,
            "aliases": ", ".join(e.aliases),
            "made_by": e.made_by,
            "plots": ", ".join(plot.title for plot in e.plots),
        }
        for e in catalogue
        if all(word in get_search_text(e) for word in search_words)
    ]
    return sorted(rows, key=lambda row: not row["answered"]), error_text


def get_search_text(entry: Entry) -> str:
    plots = (plot.title for plot in entry.plots)
    return " ".join((entry.title, entry.question, *entry.aliases, entry.paper, *plots)).lower()


PUBLISHED_ROLES: dict[str, Role] = {"row": "key", "our row": "detail", "note": "detail"}  # next to a paper's numbers


def answer_question(session: Session, question: ScreenQuestion) -> AnswerTable:
    """Answer a catalogue query; with `published`, next to the papers' numbers."""
    from chessreg.queries import run_query

    scope = make_scope_of_text(question.scope, question.partial)
    result = run_query(session.database, question.entry, scope, scoring=question.scoring)
    if question.published:
        from chessreg.queries.published import compare_with_published, drop_unmatched

        result = drop_unmatched(compare_with_published(session.database, result))
    answer = make_answer_table(question.title, result, question.wide)
    if question.published:
        roles = (PUBLISHED_ROLES.get(name, role) for name, role in zip(answer.headings, answer.roles, strict=True))
        answer = replace(answer, roles=tuple(roles))
    return answer


def list_rows_behind(session: Session, question: ScreenQuestion, number: int) -> AnswerTable:
    """Return the rows behind line `number` (from 1) of a query's answer."""
    from chessreg.queries.ask import query_rows_behind

    scope = make_scope_of_text(question.scope, question.partial)
    result = query_rows_behind(session.database, question.entry, number, scope, scoring=question.scoring)
    return make_paged_answer(f"row {number}", result)


def run_plot_query(session: Session, question: ScreenQuestion, plot: Plot) -> QueryResult:
    """Return the rows that a query's plot shows."""
    from chessreg.queries import ask

    scope = make_scope_of_text(question.scope, question.partial)
    return ask.query_plot_rows(session.database, question.entry, plot, scope, scoring=question.scoring)


def make_answer_table(title: str, result: QueryResult, wide: bool = False) -> AnswerTable:
    """Return a short answer as text: the columns that answer the query or, with `wide`, all columns."""
    from chessreg.queries import render

    headings, cells, constants, numeric = render.format_cells(result, wide)
    names = render.choose_columns(result, wide)[0]
    rows: list[Row] = [
        {**{name: value for name, value in row.items() if name not in names}, **number_cells(place, line)}
        for place, (line, row) in enumerate(zip(align_intervals(cells), result.rows, strict=True), 1)
    ]
    return AnswerTable(
        title,
        headings,
        numeric,
        ListPages(rows),
        render.format_caption(constants),
        result.notes,
        render.format_provenance(result),
        result,
        tuple(choose_column_role(result, name) for name in names),
        frozenset(n for n, name in enumerate(names) if name in result.intervals),
        tuple(compute_signs(row, names) for row in result.rows),
        find_interval_bars(result, names),
    )


def find_interval_bars(result: QueryResult, names: Sequence[str]) -> IntervalBars | None:
    """Return the bars of the first column that has intervals, or None if no column has several."""
    for place, name in enumerate(names):
        if name in result.intervals:
            estimates = [make_estimate(row, name) for row in result.rows]
            bars = make_interval_bars(f"c{place}", partial(get_line_estimate, estimates), number_lines(len(estimates)))
            if bars is not None:
                return bars
    return None


def make_estimate(row: Row, name: str) -> ShownEstimate | None:
    """Return a value of a row with its interval, or None if the row has none."""
    return None if row.get(name) is None else ShownEstimate(row[name], row.get(f"{name}_low"), row.get(f"{name}_high"))


def get_line_estimate(estimates: Sequence[ShownEstimate | None], row: Row) -> ShownEstimate | None:
    """Return the estimate of the line that a row of an answer shows."""
    return estimates[row["#"] - 1]


def number_lines(count: int) -> list[Row]:
    return [{"#": number} for number in range(1, count + 1)]


def choose_column_role(result: QueryResult, name: str) -> Role:
    """Return the role of an answer's column: key, value, detail or text."""
    defaults = result.entry.default if result.entry is not None else None
    if name in result.intervals or (defaults is not None and name in defaults.answers):
        return "value"
    if defaults is not None and name in defaults.keys:
        return "key"
    return "detail" if defaults is not None and name in defaults.counts else "text"


DIFFERENCES = ("delta", "minus_", "less_than_")  # how their names begin
LESS_IS_BETTER = ("loss", "error", "nll", "kl")  # how their names end


def compute_signs(row: Row, names: Sequence[str]) -> dict[str, int]:
    """Return the sign of each difference in a row, by the field of its cell.

    1 if the whole interval is better, -1 if it is worse, 0 if the interval includes 0 or is missing.
    """
    signs = {}
    for n, name in enumerate(names):
        if name.startswith(DIFFERENCES):
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            sign = 0 if low is None or high is None else (low > 0) - (high < 0)
            signs[f"c{n}"] = -sign if name.endswith(LESS_IS_BETTER) else sign
    return signs


def align_intervals(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad cells so that values end, and intervals start, in the same column.

    >>> align_intervals([["1 [-2, 3]"], ["10"], [""]])
    [[' 1 [-2, 3]'], ['10        '], ['']]
    """
    columns = []
    for cells in zip(*lines, strict=True):
        parts = [cell.partition(" [") for cell in cells]
        if any(bracket for _, bracket, _ in parts):
            value_width = max(len(value) for value, _, _ in parts)
            bracket_cells = max(len(bracket + interval) for _, bracket, interval in parts)
            cells = tuple(
                f"{value:>{value_width}}{bracket + interval:<{bracket_cells}}" if value else ""
                for value, bracket, interval in parts
            )
        columns.append(cells)
    return [list(line) for line in zip(*columns, strict=True)] if columns else [list(line) for line in lines]


def make_paged_answer(title: str, result: QueryResult, hidden: Collection[str] = ("run_id",)) -> AnswerTable:
    """Return an answer of any length without the `hidden` columns."""
    from chessreg.queries import render

    pages = RowsBehind(result, hidden)
    headings = [render.format_heading(result, name) for name in pages.names]
    return AnswerTable(
        title, headings, pages.numeric, pages, "", result.notes, render.format_provenance(result), result
    )


def number_cells(place: int, line: Sequence[str]) -> dict[str, Any]:
    return {"#": place, **{f"c{n}": text for n, text in enumerate(line)}}


class RowsBehind:
    """The rows of an answer of any length, stored in Arrow until they are displayed."""

    def __init__(self, result: QueryResult, hidden: Collection[str] = (), lines: Sequence[int] | None = None) -> None:
        """`lines`: the number of each row (from 1) where it is another than its place."""
        from chessreg.queries import render

        self.result, self.count, self.lines, self.hidden = result, len(result), lines, hidden
        part = self._slice_result(0)
        self.names = [name for name in render.choose_columns(part, wide=True)[0] if name not in hidden]
        self.numeric = [
            any(isinstance(row[n], (int, float)) and not isinstance(row[n], bool) for row in part.rows)
            for n in self.names
        ]

    def _slice_result(self, number: int) -> QueryResult:
        return replace(self.result, table=self.result.table.slice(number * PAGE_ROWS, PAGE_ROWS))

    def read_page(self, number: int) -> Sequence[Row]:
        from chessreg.queries import render

        part, first_row = self._slice_result(number), number * PAGE_ROWS
        return [
            {
                **row,
                **number_cells(
                    first_row + place + 1 if self.lines is None else int(self.lines[first_row + place]),
                    [render.format_result_cell(part, row, name) for name in self.names],
                ),
            }
            for place, row in enumerate(part.rows)
        ]

    def narrow(self, view: View) -> RowsBehind:
        """Filter by the stored values with all digits, not by their text."""
        import numpy as np
        import pyarrow as pa

        from chessreg.games.datasets.dataset import make_arrow_indices

        table = self.result.table
        numbers = np.arange(1, self.count + 1) if self.lines is None else np.asarray(self.lines)

        def read_column(field: str) -> Any:
            if field == "#":
                return pa.array(numbers)
            name = self.names[int(field[1:])]
            return table.column(name).combine_chunks() if name in table.column_names else None

        places = np.flatnonzero(make_mask(view, read_column, self.count))
        if view.sort and (values := read_column(view.sort)) is not None:
            if isinstance(values, pa.ChunkedArray):
                values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            places = places[sort_indices(values.take(make_arrow_indices(places)), view.descending)]
        sorted_result = replace(self.result, table=table.take(make_arrow_indices(places)))
        pages = RowsBehind(sorted_result, self.hidden, numbers[places].tolist())
        pages.names, pages.numeric = self.names, self.numeric  # a column that is empty now is shown still
        return pages


KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS",
    "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "DISTINCT", "CASE", "WHEN", "THEN", "ELSE",
    "END", "DESC", "ASC", "UNION ALL", "WITH", "FILTER", "OVER", "PARTITION BY", "QUALIFY", "count(*)", "sum(", "avg(",
    "min(", "max(", "round(", "coalesce(", "json_extract(", "DESCRIBE", "SUMMARIZE", "SHOW TABLES",
)  # fmt: skip
WORD_PATTERN = re.compile(r"[\w.]*$")
TABLE_PATTERN = re.compile(r"\b(?:from|join)\s+\"?(\w+)\"?(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)
Names = dict[str, list[str]]  # table or view → columns


def answer_select(session: Session, text: str) -> AnswerTable:
    """Run one SELECT statement. Raises the errors of run_sql."""
    from chessreg.queries import run_sql

    answer = make_paged_answer("sql", run_sql(session.database, text), hidden=())
    assert isinstance(answer.pages, RowsBehind)
    return replace(
        answer,
        headings=[
            format_sql_heading(name, rows_read)
            for name, rows_read in zip(answer.pages.names, answer.headings, strict=True)
        ],
    )


def format_sql_heading(name: str, heading: str) -> str:
    """Return a column's name in SQL, with its unit if the heading has one."""
    unit = heading.removeprefix(name.replace("_", " ")).strip()
    return f"{name} [{unit}]" if unit else name


def list_sql_names(session: Session) -> Names:
    """Return every table and view that a SELECT can use, with its columns."""
    from chessreg.queries.engine import open_shared_engine

    return open_shared_engine(session.database).list_columns()


def format_row_counts(session: Session) -> dict[str, str]:
    """Return the number of rows of every table, as far as counted."""
    from chessreg.queries import ask

    counts = ask.count_table_rows(session.database, list_sql_names(session))
    return {table: ask.format_row_count(*number) for table, number in counts.items()}


def explain_select(session: Session, text: str) -> dict[str, str]:
    """Return the number of rows that a SELECT reads, by table. Raises the errors of run_sql."""
    from chessreg.queries import ask

    row_counts = ask.count_rows_read(session.database, text)
    return {table: f"{ask.format_row_count(*number)} rows" for table, number in row_counts.items()}


def complete_sql(before: str, whole: str, known_names: Names) -> list[str]:
    """Return completions of the word before the cursor.

    After a dot, these are the columns of the table or alias. Otherwise: columns of the tables in the statement, tables,
    and SQL keywords. If no name starts with the word, return the names that contain it.

    >>> complete_sql("SELECT pl", "SELECT pl FROM game AS g", {"game": ["plies", "unit"]})
    ['plies']
    """
    match = WORD_PATTERN.search(before)
    word = match[0] if match else ""
    owner, dot, start = word.rpartition(".")
    tables = {alias.lower(): table for table, alias in TABLE_PATTERN.findall(whole) if alias} | {
        t.lower(): t for t in known_names
    }
    if dot:
        completions = [f"{owner}.{name}" for name in known_names.get(tables.get(owner.lower(), ""), ())]
    else:
        named_tables = [table for table, _ in TABLE_PATTERN.findall(whole) if table in known_names]
        columns = [name for table in named_tables for name in known_names[table]]
        is_table_position = bool(re.search(r"\b(?:from|join)\s+\w*$", before, re.IGNORECASE))
        completions = list(known_names) if is_table_position else [*columns, *known_names, *KEYWORDS]
    prefix = word.lower()
    unique = [name for name in dict.fromkeys(completions) if name != word]
    starts = [name for name in unique if name.lower().startswith(prefix)]
    return starts or [name for name in unique if start and start.lower() in name.lower()]


class BoardSeries(NamedTuple):
    """The boards of one series of a plot, in the order of its panels."""

    name: str
    boards: list[BoardFrame]
    highest: int  # the board of the highest mean; the first of equal ones


def make_plot_boards(result: QueryResult, plot: Plot) -> list[BoardSeries]:
    """Return the boards of a plot of the form `board` on a common scale, as `chessreg plot` draws them.

    Values above 1 that are not percentages are shown as shares of the maximum.
    """
    from chessreg.games.boards.boardframe import EMPTY, BoardFrame
    from chessreg.queries.plot import build_heat_boards, compute_heat_range
    from chessreg.queries.render import DECIMALS, format_amount, format_heading, format_number

    boards = build_heat_boards(result, plot)
    if not boards:
        return []
    low, high = compute_heat_range(boards)
    unit = result.column(plot.y).unit
    full_scale = 100.0 if unit == "%" else max(1.0, abs(low), abs(high))
    label = (
        format_heading(result, plot.y)
        if full_scale in (1.0, 100.0)
        else f"{format_heading(result, plot.y)}, share of {full_scale:.4g}"
    )
    series: dict[str, list[BoardFrame]] = {}
    values_by_square: dict[str, list[float]] = {}
    for board in boards:
        heat = {square: min(1.0, max(0.0, value / full_scale)) for square, value in board.values.items()}
        mean = sum(board.values.values()) / len(board.values)
        average = format_number(mean, DECIMALS[unit]) if unit in DECIMALS else format_amount(mean)
        frame = BoardFrame(
            f"{board.panel}: mean {average}", EMPTY * 64, heat=heat, heat_label=label,
            heat_range=(max(0.0, low / full_scale), min(1.0, high / full_scale)),
        )  # fmt: skip
        series.setdefault(board.series, []).append(frame)
        values_by_square.setdefault(board.series, []).append(mean)
    return [
        BoardSeries(one, frames, values_by_square[one].index(max(values_by_square[one])))
        for one, frames in series.items()
    ]


def make_plot_chart(result: QueryResult, plot: Plot) -> Chart:
    """Return the chart of a query's plot, as `chessreg plot` draws it, without marks for the values behind means."""
    from chessreg.queries.plot import LINE_KEY, group_rows, list_differing_columns, list_line_rows, pool_rows
    from chessreg.queries.render import format_heading, format_result_cell

    rows = list_line_rows(result, plot)
    ends = plot.y in result.intervals
    panels = []
    for title, panel_rows in group_rows(rows, plot.panels, name_all=True).items():
        series = []
        for label, part in group_rows(panel_rows, list_differing_columns(rows, (*plot.series, LINE_KEY))).items():
            points = [
                Point(
                    row[plot.x] if isinstance(row[plot.x], (int, float)) else str(row[plot.x]),
                    float(row[plot.y]),
                    row[f"{plot.y}_low"] if ends else None,
                    row[f"{plot.y}_high"] if ends else None,
                    format_result_cell(result, dict(row), plot.y),
                )
                for row in pool_rows(plot, part)
            ]
            series.append(Series(label, tuple(points)))
        panels.append(Panel(title, tuple(series)))
    form: Literal["lines", "bars"] = "bars" if plot.form in ("bars", "dots") else "lines"
    return Chart(plot.title, plot.x.replace("_", " "), format_heading(result, plot.y), tuple(panels), form)
