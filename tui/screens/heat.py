"""A query's plot as boards: a value for each square, one board per layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Grid
from textual.content import Content

from chessreg.games.boards.boardframe import BoardFrame
from tui.actions import Action, make_bindings
from tui.data.query_answers import BoardSeries, ScreenQuestion, make_plot_boards, run_plot_query
from tui.screens.answers import FigureScreen
from tui.screens.board_base import DrawingScreen
from tui.widgets.bars import PaneStrip, ScopeBar
from tui.widgets.board import BoardPane, align_titles, compute_board_extent, describe_square, list_sizes
from tui.widgets.notes import NotesPane

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Plot
    from chessreg.queries.result import QueryResult
    from chessreg.session import Session

MAX_HEAT_BOARDS = 12
GAP_CELLS = 3
FRAME_CELLS = 2
HEAT_CHROME_LINES = 7 + FRAME_CELLS  # bars, series, titles, legend and notes
BOARD_TEXT_LINES = 2  # title and legend


class HeatScreen(FigureScreen, DrawingScreen):
    """A grid of boards, with one of them marked.

    By default the board with the highest mean in the first series is marked. Tab shows another series at the same
    board, so that the layer selected on validation is read on the test split.
    """

    place = "heat-board"
    also: ClassVar[tuple[str, ...]] = ("scoped", "result")
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = make_bindings("heat-board")
    DEFAULT_CSS = """
    HeatScreen #heat-boards {
        height: 1fr; grid-rows: auto; background: $surface; border: round $edge; border-title-color: $foreground;
        border-title-style: bold; border-subtitle-color: $text-accent; border-subtitle-align: left;
    }
    HeatScreen BoardPane > .board-caption { display: none; }
    """

    def __init__(self, question: ScreenQuestion) -> None:
        super().__init__()
        self.question, self.plot = replace(question, published=False), question.entry.plots[0]
        self.crumb = self.plot.title
        self.series: list[BoardSeries] = []
        self.at = 0
        self.chosen_panel: int | None = None

    def body(self) -> ComposeResult:
        yield ScopeBar()
        yield PaneStrip()
        with Grid(id="heat-boards"):
            for number in range(MAX_HEAT_BOARDS):
                yield BoardPane(id=f"board-{number}")
        yield NotesPane()

    @property
    def shown_plot(self) -> Plot:
        return self.plot

    async def fill(self) -> None:
        await self.offer_words()
        question, plot = self.scoped_question, self.plot

        def read_plot(session: Session) -> tuple[QueryResult, list[BoardSeries], str]:
            from chessreg.queries.render import format_provenance

            result = run_plot_query(session, question, plot)
            return result, make_plot_boards(result, plot), format_provenance(result)

        read_boards = await self.ask(f"running {question.title}", read_plot)
        if read_boards is None:
            return
        self.result, self.series, footer = read_boards
        self.result_question, self.result_plot = question, plot
        self.at = min(self.at, max(0, len(self.series) - 1))
        strip = self.query_one(PaneStrip)
        strip.names = tuple(series.name or question.title for series in self.series)
        notes = [*self.result.notes, *([] if self.series else ["nothing to draw yet"])]
        self.show_notes(notes, footer)
        self.relabel()
        self.draw()

    # -- drawing --------------------------------------------------------------------------------------------------

    def can_draw(self, size: int, text: int = 0) -> bool:
        board_cells, high = compute_board_extent(size)
        return (
            board_cells + GAP_CELLS + FRAME_CELLS <= self.app.size.width
            and high + text + HEAT_CHROME_LINES <= self.app.size.height
        )

    def compute_grid(self, size: int) -> tuple[int, int]:
        """Return how many boards of this size fit horizontally and vertically."""
        board_cells, high = compute_board_extent(size)
        lines = self.app.size.height - HEAT_CHROME_LINES + BOARD_TEXT_LINES
        return max(1, (self.app.size.width - FRAME_CELLS) // (board_cells + GAP_CELLS)), max(
            1, lines // (high + BOARD_TEXT_LINES)
        )

    @property
    def frames(self) -> list[BoardFrame]:
        """The boards of the current series."""
        return self.series[self.at].boards if self.series else []

    @property
    def panel(self) -> int:
        """The index of the marked board."""
        first_panel = next((series.highest for series in self.series if len(series.boards) > 1), 0)
        return min(first_panel if self.chosen_panel is None else self.chosen_panel, max(0, len(self.frames) - 1))

    @property
    def position(self) -> BoardFrame | None:
        return None

    @property
    def heading(self) -> str:
        """The title of the frame: the question and the layer with the highest value."""
        if not self.series:
            return self.question.title
        board_series = self.series[self.at]
        highest_title = (
            f" · highest: {board_series.boards[board_series.highest].title}" if len(board_series.boards) > 1 else ""
        )
        return f"{self.question.title[:1].upper()}{self.question.title[1:]}{highest_title}"

    def draw(self) -> None:
        frames = self.frames
        count, size = min(MAX_HEAT_BOARDS, len(frames)), self.board_size
        if self.chosen_size is None and count > 1:  # the largest size at which all boards fit, or else two
            fitting_sizes = [size for size in list_sizes(self.app.glyphs)[1:] if self.can_draw(size)]
            least = count if any(count <= math.prod(self.compute_grid(size)) for size in fitting_sizes) else 2
            size = next(
                (size for size in reversed(fitting_sizes) if least <= math.prod(self.compute_grid(size))), min(size, 2)
            )
        columns, rows = self.compute_grid(size)
        grid, room = self.query_one("#heat-boards", Grid), columns * rows
        grid.styles.grid_size_columns, grid.styles.grid_columns = (
            columns,
            str(compute_board_extent(size)[0] + GAP_CELLS),
        )
        first_frame = max(0, min(self.panel, len(frames) - room))
        highest = self.series[self.at].highest if len(frames) > 1 else -1
        for number in range(MAX_HEAT_BOARDS):
            pane, place = self.query_one(f"#board-{number}", BoardPane), first_frame + number
            pane.display = number < room and place < len(frames)
            if pane.display:
                frame = frames[place]
                title = f"{'› ' if place == self.panel and len(frames) > 1 else ''}{frame.title}"
                title += ", highest" if place == highest else ""
                pane.styles.width = compute_board_extent(size)[0]
                pane.show(replace(frame, title=title, flipped=self.flipped), size, self.app.glyphs)
                pane.squares.cursor = self.clicked_square
        align_titles([pane for pane in self.query(BoardPane) if pane.display], compute_board_extent(size)[0])
        self.query_one(PaneStrip).place = self.at
        words = (
            describe_square(frames[self.panel], self.clicked_square)
            if frames and self.clicked_square is not None
            else ""
        )
        part = f" · {room} of {len(frames)} boards" if room < len(frames) else ""
        grid.border_title = cast(str, Content(self.heading + part))
        grid.border_subtitle = cast(str, Content(words))

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def can_offer(self, action: Action) -> bool:
        if action.method == "series":
            return len(self.series) > 1 and super().can_offer(action)
        if action.method == "panel":
            return len(self.frames) > 1 and super().can_offer(action)
        return super().can_offer(action)

    def action_panel(self, way: str) -> None:
        self.chosen_panel = min(max(0, self.panel + int(way)), max(0, len(self.frames) - 1))
        self.draw()

    def action_series(self, way: str) -> None:
        if self.series:
            self.choose((self.at + int(way)) % len(self.series))

    def choose(self, place: int) -> None:
        self.at = place
        self.draw()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)
