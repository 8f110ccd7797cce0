"""A figure of a query, drawn in the terminal and, when one likes it, as a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from chessreg.entities.display import Chart
from tui import show
from tui.actions import Action, bindings
from tui.data.chart import chart_of
from tui.data.queries import Question, plots_of, plotted
from tui.screens.result import ResultRoom
from tui.screens.room import Scoped
from tui.widgets.bars import PaneStrip, ScopeBar
from tui.widgets.chart import ChartView

if TYPE_CHECKING:
    from chessreg.queries.result import QueryResult
    from chessreg.session import Session


class PlotScreen(Scoped, ResultRoom):
    """The plots of one query, one at a time, in the scope of all queries."""

    place = "plot"
    also = ("scoped", "result")
    follows = False
    AUTO_FOCUS = "#drawing"
    BINDINGS = bindings("plot")
    DEFAULT_CSS = """
    PlotScreen > #drawing { height: 1fr; scrollbar-size-vertical: 1; }
    PlotScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = replace(question, published=False)
        self.plots = plots_of(question.title)
        self.at = 0
        self.crumb = self.plots[0].title

    def body(self) -> ComposeResult:
        yield ScopeBar()
        strip = PaneStrip()
        strip.names = tuple(plot.title for plot in self.plots)
        strip.display = len(self.plots) > 1
        yield strip
        with VerticalScroll(id="drawing"):
            yield ChartView()
        yield Static("", classes="below", markup=False)

    @property
    def asked(self) -> Question:
        return replace(self.question, scope=self.scope)

    @property
    def file_name(self) -> str:
        return self.plots[self.at].title.replace(" ", "-") + ".svg"

    async def fill(self) -> None:
        await self.offer_words()
        asked, plot = self.asked, self.plots[self.at]

        def read(session: Session) -> tuple[QueryResult, Chart, str]:
            from chessreg.queries.render import footer

            result = plotted(session, asked, plot)
            return result, chart_of(result, plot), footer(result)

        found = await self.ask(f"asking {asked.title}", read)
        if found is not None:
            self.result, chart, footer = found
            self.query_one(ChartView).show(chart)
            self.query_one(".below", Static).update("\n".join([*self.result.notes, show.provenance(footer)]))

    def offers(self, action: Action) -> bool:
        return super().offers(action) and (action.method != "turn" or len(self.plots) > 1)

    def command(self) -> str:
        return f'chessreg plot "{self.plots[self.at].title}"{self.asked.options}'

    def action_turn(self, way: str) -> None:
        self.choose((self.at + int(way)) % len(self.plots))

    def choose(self, place: int) -> None:
        self.at = self.query_one(PaneStrip).place = place
        self.crumb = self.plots[place].title
        self.relabel()
        self.load()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def action_scroll_text(self, way: str) -> None:
        scroll = self.query_one("#drawing", VerticalScroll)
        scroll.scroll_relative(y=int(way) * max(1, scroll.size.height // 2), animate=False)

    def suffixes(self) -> str:
        from chessreg.queries.plot import SUFFIXES

        return " ".join([*SUFFIXES, "(the figure)", super().suffixes(), "(its numbers)"])

    def written(self, result: QueryResult, path: Path) -> str:
        from chessreg.queries import plot as plots

        if path.suffix.lower() not in plots.SUFFIXES:
            return super().written(result, path)
        plots.write(plots.draw(result, self.plots[self.at]), path)
        return f"{path.suffix[1:].upper()} figure"
