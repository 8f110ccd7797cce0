"""A query's answer: its table, the rows behind a line, its figure, and export to a file or the clipboard."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import UUID

from textual import events, work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from chessreg.entities.display import Chart
from tui import show
from tui.actions import Action, list_place_actions, make_bindings
from tui.columns import GAP_CELLS, Role, TableColumn, Tone, order_by_use
from tui.data import query_answers
from tui.data.pages import Row
from tui.data.query_answers import (
    AnswerTable,
    ScreenQuestion,
    answer_question,
    list_rows_behind,
    make_plot_chart,
    run_plot_query,
)
from tui.screens.base import AppScreen, FieldsScreen
from tui.screens.preview import BoardPreviewingScreen
from tui.widgets.bars import FilterBar, PaneStrip, ScopeBar
from tui.widgets.chart import ChartView
from tui.widgets.notes import NotesPane
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Entry, Plot
    from chessreg.queries.result import QueryResult
    from chessreg.session import Session


SCOPE_KEY = "queries.scope"


class ScopedScreen(AppScreen):
    """A screen with a ScopeBar. The scope narrows every query until it is changed."""

    BINDINGS = make_bindings("scoped")

    @property
    def scope(self) -> str:
        scope_text: str = self.app.saved_state.get(SCOPE_KEY, "")
        return scope_text

    _scope_shown = ""

    def on_screen_resume(self) -> None:
        """Reload if another screen changed the scope."""
        if self.is_mounted and self._scope_shown != self.scope:
            self.load()

    async def offer_words(self) -> None:
        """Show the current scope and load the names for its completion."""
        bar, self._scope_shown = self.query_one(ScopeBar), self.scope
        if not bar.has_focus:
            bar.set_text(self.scope)
        if not bar.suggestions.known_names:
            bar.suggestions.known_names = await self.ask("reading the names", query_answers.list_scope_words) or []

    def action_scope(self) -> None:
        self.query_one(ScopeBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        from chessreg.errors import BadInputError

        if not isinstance(event.bar, ScopeBar):
            return
        try:
            query_answers.parse_scope(event.text)
        except BadInputError as error:
            self.app.show_failure(self, error)
            return
        self.app.saved_state.set(SCOPE_KEY, event.text or None)
        self.load()


def build_answer_columns(answer: AnswerTable) -> list[TableColumn]:
    """Return the columns of an answer, preceded by the line number."""
    text: Role = "text"
    roles = answer.roles or (text,) * len(answer.headings)
    cells = [
        TableColumn(
            f"c{n}",
            heading,
            right and n not in answer.aligned,
            whole=n in answer.aligned,
            role=role,
            ends=role == "key",  # as on the command line: `user:calm L3 x4` and `user:calm L3 x2`
            tone=partial(choose_sign_tone, answer.signs, f"c{n}") if role == "value" and answer.signs else None,
        )
        for n, (heading, right, role) in enumerate(zip(answer.headings, answer.numeric, roles, strict=True))
    ]
    return [TableColumn("#", "#", right=True, role="detail"), *cells]


def choose_sign_tone(signs: Sequence[Mapping[str, int]], field: str, row: Row) -> Tone:
    """Return the tone of a difference: good or bad if its interval excludes 0, otherwise detail."""
    sign = signs[row["#"] - 1].get(field)
    return "value" if sign is None else "good" if sign > 0 else "bad" if sign < 0 else "detail"


class ResultScreen(AppScreen):
    """A screen that shows a query result."""

    also: ClassVar[tuple[str, ...]] = ("result",)
    BINDINGS = make_bindings("result")

    result: QueryResult | None = None
    result_plot: Plot | None = None  # the plot drawn from it
    arranges: ClassVar[bool] = False  # whether the most useful columns come first
    drawn_answer: tuple[AnswerTable, Sequence[Row]] | None = None

    def show_notes(self, notes: Sequence[str], footer: str, facts: Sequence[str] = ()) -> None:
        """Show the notes of a result, with the key that does what an option of the command line does."""
        (partial_action,) = self.app.apply_keys_to(a for a in list_place_actions("answer") if a.method == "partial")
        key_notes = [note.replace("(--partial", f"({partial_action.shown_key}") for note in notes]
        self.query_one(NotesPane).show(key_notes, show.trim_provenance(footer), facts)

    def show_answer(self, answer: AnswerTable, rows: Sequence[Row], keep: bool = False) -> None:
        """Show the first page of an answer and its notes."""
        self.result = answer.result
        facts = [f"same in all rows: {answer.same}"] if answer.same else []
        self.show_notes(answer.notes, answer.footer, facts)
        self.drawn_answer = answer, rows
        columns = self.make_columns(answer, rows)
        self.table.show(answer.pages, rows, columns=columns, keep=keep, bars=answer.bars)

    def make_columns(self, answer: AnswerTable, rows: Sequence[Row]) -> list[TableColumn]:
        """Return the table columns of an answer, the most useful first if the screen arranges them."""
        columns = build_answer_columns(answer)
        if not self.arranges:
            return columns
        number, *cells = columns
        space = self.table.column_space - len(str(answer.pages.count)) - GAP_CELLS
        differences = answer.signs[0] if answer.signs else ()
        return [number, *order_by_use(cells, rows, space, differences)]

    def on_resize(self, event: events.Resize) -> None:
        if self.drawn_answer is not None and self.arranges:
            answer, rows = self.drawn_answer
            self.table.reorder(self.make_columns(answer, rows))

    @property
    def table(self) -> PageTable:
        """The table with the answer."""
        return self.query_one(PageTable)

    @property
    def file_name(self) -> str:
        """The suggested name of an exported file."""
        return re.sub(r"[^\w.-]+", "-", self.crumb).strip("-") + ".csv"

    def list_suffixes(self) -> str:
        from chessreg.queries.render import SUFFIXES

        return " ".join(SUFFIXES)

    def action_export(self) -> None:
        self.ask_path(self.file_name)

    def ask_path(self, suggested_path: str) -> None:
        """Ask for a path, confirm that an existing file will be overwritten, and write the table."""
        from tui.screens.dialogs import Confirm, Prompt

        if self.result is None:
            self.notify("there is nothing to write yet", severity="warning")
            return

        def write_or_ask(name: str | None) -> None:
            if name is None:
                return
            path = Path(os.path.expanduser(name))
            if not path.is_file():
                self.write(path)
                return

            def write_if_confirmed(yes: bool | None) -> None:
                if yes:
                    self.write(path)

            size = show.format_size(path.stat().st_size)
            self.app.push_screen(Confirm(f"{path} already exists ({size}). Overwrite it?"), write_if_confirmed)

        hint = f"The suffix sets the format: {self.list_suffixes()}. Esc cancels."
        self.app.push_screen(Prompt("Write this table to", suggested_path, hint, replaced=True), write_or_ask)

    @work(group="export")
    async def write(self, path: Path) -> None:
        """Write the file on the database worker, because a large table takes a while."""
        if (result := self.result) is None:
            return
        plot, command = self.result_plot, self.command()
        written_text = await self.ask(
            f"writing {path.name}", lambda session: write_answer_file(result, path, plot), once=True
        )
        if written_text is None:  # let the user correct the path
            self.ask_path(str(path))
        else:
            note = f"; equivalent command: {command} --output {shlex.quote(str(path))}"
            self.notify(f"{show.format_count(len(result), 'row')} as {written_text}{note}", title=str(path))

    @work(group="copy")
    async def action_copy_as(self, format: str) -> None:
        """Copy the table to the clipboard in `format`."""
        if self.result is None:
            self.notify("there is nothing to copy yet", severity="warning")
            return
        result = self.result

        def render_text() -> str:
            from chessreg.queries import render

            text = render.render_result(result, format)
            assert isinstance(text, str)
            return text

        text = await self.ask("writing the table", lambda session: render_text(), once=True)
        if text is not None:
            self.app.copy(text, f"{show.format_count(len(result), 'row')} as {format}")


def write_answer_file(result: QueryResult, path: Path, plot: Plot | None) -> str:
    """Write a table, or its plot if the suffix is that of a figure. Return the format in words.

    Raises: BadInputError for an unknown suffix.
    """
    from chessreg.queries import render

    if plot is not None:
        from chessreg.queries import plot as plots

        if path.suffix.lower() in plots.SUFFIXES:
            plots.write_figure(plots.draw_figure(result, plot), path)
            return f"{path.suffix[1:].upper()} figure"
    return render.write_result(result, path)


MIN_PLOT_LINES = 16  # of a plot below a short answer, with its frame
NOTES_LINES = 9  # of usual notes below both, bars and breadcrumbs


class AnswerScreen(ResultScreen, ScopedScreen):
    """The table of one query. Enter opens the rows behind a line. Below a short answer is its first plot of curves, if
    there is room."""

    DEFAULT_CSS = """
    AnswerScreen > #plot {
        height: 1fr; display: none; scrollbar-size-vertical: 1; background: $surface; border: round $edge;
        border-title-color: $foreground; border-title-style: bold;
    }
    AnswerScreen.-plot > #plot { display: block; }
    """
    place = "answer"
    arranges = True
    also = ("scoped", "result")
    follows = False
    BINDINGS = make_bindings("answer")

    def __init__(self, entry: Entry, with_published: bool = False) -> None:
        super().__init__()
        self.question = ScreenQuestion(entry, published=with_published)
        self.crumb = entry.title

    def body(self) -> ComposeResult:
        yield ScopeBar()
        yield PageTable(id="answer", empty="no rows")
        with VerticalScroll(id="plot", can_focus=False):
            yield ChartView()
        yield NotesPane()

    async def fill(self) -> None:
        await self.offer_words()
        question = self.scoped_question
        page = await self.ask(
            f"running {question.title}", lambda session: read_first_page(answer_question(session, question))
        )
        if page is not None:
            self.show(*page, question, keep=self._answered_question == question)
            self._answered_question = question
            self.run_exclusive(self.draw_plot, "plot")

    async def draw_plot(self) -> None:
        """Draw curves below a short answer. Bars are in the table already."""
        question, rows = self.shown_question, self.table.count
        table_lines = rows + 3  # heading and frame
        charts: list[Chart] | None = []
        if rows and not question.published and self.size.height - table_lines - NOTES_LINES >= MIN_PLOT_LINES:
            charts = await self.ask(f"drawing {question.title}", lambda session: make_curve_charts(session, question))
        if question != self.shown_question:
            return
        self.set_class(bool(charts), "-plot")
        self.table.styles.height = table_lines if charts else None
        if charts:
            title = charts[0].title
            self.query_one("#plot").border_title = cast(str, Content(title[:1].upper() + title[1:]))
            self.call_after_refresh(self.query_one(ChartView).show, charts[0])

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        if self._answered_question is not None:
            self.run_exclusive(self.draw_plot, "plot")

    _answered_question: ScreenQuestion | None = None

    @property
    def scoped_question(self) -> ScreenQuestion:
        """The question in the current scope."""
        return replace(self.question, scope=self.scope)

    @property
    def shown_question(self) -> ScreenQuestion:
        """The question of the table shown, which may be older than the current one."""
        return self._answered_question or self.scoped_question

    def show(self, answer: AnswerTable, rows: list[Row], question: ScreenQuestion, keep: bool = False) -> None:
        """Show the rows of an answer under a title that states the question. `keep` keeps the cursor."""
        note = ", with unfinished runs" if question.partial else ""
        scoring = f", scoring {question.scoring}" if question.scoring != "paper" else ""
        title = question.title[:1].upper() + question.title[1:]
        self.table.set_title(f"{'Published numbers: ' if question.published else ''}{title}{note}{scoring}")
        self.show_answer(answer, rows, keep)

    def can_offer(self, action: Action) -> bool:
        return super().can_offer(action) and (action.method != "plot" or bool(self.question.entry.plots))

    def command(self) -> str:
        return self.shown_question.command

    def action_all_columns(self) -> None:
        self.question = replace(self.question, wide=not self.question.wide)
        self.load()

    def action_published(self) -> None:
        self.question = replace(self.question, published=not self.question.published)
        self.load()

    def action_partial(self) -> None:
        self.question = replace(self.question, partial=not self.question.partial)
        self.load()

    def action_scoring(self) -> None:
        other = "author-2024" if self.question.scoring == "paper" else "paper"
        self.question = replace(self.question, scoring=other)
        self.load()

    def action_meaning(self) -> None:
        columns = self.question.entry.columns
        fields = {f"{column.name} [{column.unit}]" if column.unit else column.name: column.text for column in columns}
        self.app.push_screen(FieldsScreen(fields, "columns"))

    @work(group="lineage")
    async def action_lineage(self) -> None:
        """Open the lineage of the run of the first row behind the selected line."""
        row, question = self.table.current_row, self.shown_question
        if row is None or question.published:
            self.notify(
                "these rows are the paper's numbers; p returns to ours" if row is not None else "no row is selected"
            )
            return
        number = row["#"]
        page = await self.ask(
            "reading the rows behind", lambda session: read_first_page(list_rows_behind(session, question, number))
        )
        if page is not None:
            open_run_lineage(self, next(iter(page[1]), None))

    def action_plot(self) -> None:
        if self.question.entry.plots:
            self.app.open_plot(self.question)
        else:
            self.notify(f"{self.question.title} has no plot; to list the plots: chessreg plot --list")

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if self.shown_question.published:
            self.notify("these rows are the paper's numbers; p returns to ours")
        else:
            self.app.push_screen(RowsScreen(self.shown_question, event.row["#"]))


def make_curve_charts(session: Session, question: ScreenQuestion) -> list[Chart]:
    """Return the chart of the query's first plot with curves of several points, or an empty list."""
    for plot in question.entry.plots:
        if plot.form == "lines":
            chart = make_plot_chart(run_plot_query(session, question, plot), plot)
            if chart.form == "lines" and any(len(s.points) > 1 for panel in chart.panels for s in panel.series):
                return [chart]
    return []


class RowsScreen(ResultScreen, BoardPreviewingScreen):
    """The games, trials or scores behind a line. Enter shows the board."""

    place = "rows"
    follows = False
    BINDINGS = make_bindings("rows")

    def __init__(self, question: ScreenQuestion, number: int) -> None:
        super().__init__()
        self.question, self.number = question, number
        self.crumb = f"row {number}"

    @property
    def file_name(self) -> str:
        return f"{self.question.title.replace(' ', '-')}-{self.crumb.replace(' ', '-')}.csv"

    def body(self) -> ComposeResult:
        yield PageTable(id="behind", title=f"Rows behind row {self.number}", empty="no rows")
        yield NotesPane()

    async def fill(self) -> None:
        question, number = self.question, self.number
        page = await self.ask(
            f"running {question.title}", lambda session: read_first_page(list_rows_behind(session, question, number))
        )
        if page is not None:
            answer, rows = page
            table = self.query_one(PageTable)
            self.show_answer(answer, rows, keep=table.loaded and table.cursor < len(rows))
            self.schedule_preview()

    @property
    def has_previews(self) -> bool:
        row = self.previewed_table.current_row
        return row is not None and bool(row.get("run_id")) and row.get("unit") is not None

    def command(self) -> str:
        return f"chessreg query {shlex.quote(self.question.title)} --rows {self.number}{self.question.options}"

    def action_lineage(self) -> None:
        open_run_lineage(self, self.table.current_row)

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.boards import BoardScreen

        if event.table.source is not None and event.row.get("run_id"):
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


def open_run_lineage(screen: AppScreen, row: Mapping[str, Any] | None) -> None:
    """Open the lineage of the run of `row`, or warn if it has no run."""
    if row is not None and row.get("run_id"):
        run_id = UUID(str(row["run_id"]))
        screen.app.open_lineage("run", run_id.hex, str(row.get("run") or f"run {show.abbreviate_id(run_id)}"))
    else:
        screen.notify("this line has no run", severity="warning")


def read_first_page(answer: AnswerTable) -> tuple[AnswerTable, list[Row]]:
    return answer, list(answer.pages.read_page(0))


class FigureScreen(ResultScreen, ScopedScreen):
    """A screen with a query's figure, which can be exported as a picture or as numbers."""

    question: ScreenQuestion
    result_question: ScreenQuestion | None = None  # question of `result`

    @property
    def shown_plot(self) -> Plot:
        raise NotImplementedError

    @property
    def scoped_question(self) -> ScreenQuestion:
        return replace(self.question, scope=self.scope)

    @property
    def file_name(self) -> str:
        return (self.result_plot or self.shown_plot).title.replace(" ", "-") + ".svg"

    def command(self) -> str:
        plot, question = self.result_plot or self.shown_plot, self.result_question or self.scoped_question
        return f"chessreg plot {shlex.quote(plot.title)}{question.options}"

    def list_suffixes(self) -> str:
        from chessreg.queries.plot import SUFFIXES

        return " ".join([*SUFFIXES, "(the figure)", super().list_suffixes(), "(its numbers)"])


class PlotScreen(FigureScreen):
    """The plots of one query, one at a time."""

    place = "plot"
    finds = False
    also = ("scoped", "result")
    follows = False
    AUTO_FOCUS = "#drawing"
    BINDINGS = make_bindings("plot")
    DEFAULT_CSS = """
    PlotScreen > #drawing {
        height: 1fr; scrollbar-size-vertical: 1; background: $surface; border: round $edge;
        border-title-color: $foreground; border-title-style: bold;
    }
    PlotScreen > #drawing:focus { border: round $accent; border-title-color: $text-accent; }
    """

    def __init__(self, question: ScreenQuestion) -> None:
        super().__init__()
        self.question = replace(question, published=False)
        self.plots = question.entry.plots
        self.at = 0
        self.crumb = self.plots[0].title

    @property
    def shown_plot(self) -> Plot:
        return self.plots[self.at]

    def body(self) -> ComposeResult:
        yield ScopeBar()
        strip = PaneStrip()
        strip.names = tuple(plot.title for plot in self.plots)
        strip.display = len(self.plots) > 1
        yield strip
        with VerticalScroll(id="drawing"):
            yield ChartView()
            if self.app.images is not None:
                yield self.app.images(id="figure")
        yield NotesPane()

    async def fill(self) -> None:
        await self.offer_words()
        question, plot = self.scoped_question, self.plots[self.at]

        def read_plot(session: Session) -> tuple[QueryResult, Chart, str]:
            from chessreg.queries.render import format_provenance

            result = run_plot_query(session, question, plot)
            return result, make_plot_chart(result, plot), format_provenance(result)

        figure = await self.ask(f"running {question.title}", read_plot)
        if figure is not None:
            self.result, chart, footer = figure
            self.result_question, self.result_plot = question, plot
            title = f"{plot.title[:1].upper()}{plot.title[1:]} · {show.format_count(len(self.result), 'row')}"
            self.query_one("#drawing").border_title = cast(str, Content(title))
            self.query_one(ChartView).show(chart)
            self.show_notes(self.result.notes, footer)
            if self.app.images is not None:
                await self.show_figure(self.result, plot)

    async def show_figure(self, result: QueryResult, plot: Plot) -> None:
        """Draw the figure as an image, if the terminal shows images."""
        from chessreg.queries import plot as plots
        from tui.widgets.images import render_figure

        figure, has_picture = self.query_one("#figure"), self.app.pictures and bool(result.rows)
        self.query_one(ChartView).display, figure.display = not has_picture, has_picture
        if has_picture:
            picture = await self.ask(
                "drawing the figure", lambda session: render_figure(plots.draw_figure(result, plot))
            )
            if picture is not None:
                figure.image = picture  # type: ignore[attr-defined]
                figure.styles.width = "auto"

    def can_offer(self, action: Action) -> bool:
        return super().can_offer(action) and (action.method != "turn" or len(self.plots) > 1)

    def action_turn(self, way: str) -> None:
        self.choose((self.at + int(way)) % len(self.plots))

    def choose(self, place: int) -> None:
        """Show the plot at `place` in the strip."""
        self.at = self.query_one(PaneStrip).place = place
        self.crumb = self.plots[place].title
        self.relabel()
        self.load()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def action_scroll_text(self, way: str) -> None:
        scroll = self.query_one("#drawing", VerticalScroll)
        scroll.scroll_relative(y=int(way) * max(1, scroll.size.height // 2), animate=False)
