"""Boards: rows with boards, the board of one row, and two games from one opening side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from chessreg.errors import ChessregError, NotFoundError
from chessreg.games.boards.boardframe import Arrow, BoardFrame, format_plies, list_plies
from tui import show
from tui.actions import Action, make_bindings
from tui.columns import TableColumn
from tui.data.pages import PAGE_ROWS, Pages, Row, count_rows_to
from tui.data.result_rows import (
    DATASET_GAME,
    TABLE_LEGENDS,
    TABLE_TITLES,
    find_tables_with_boards,
    has_datasets,
    list_results,
    make_result_columns,
)
from tui.screens.base import FieldsScreen
from tui.screens.board_base import DrawingScreen
from tui.screens.preview import BoardPreviewingScreen
from tui.widgets.bars import PaneStrip
from tui.widgets.board import (
    BoardPane,
    align_titles,
    compute_board_extent,
    describe_square,
    list_captions,
    list_legend,
)
from tui.widgets.evaluation import EvaluationBar, PlyStrip, compute_white_share
from tui.widgets.moves import MoveList, find_wrong_views
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from uuid import UUID

    from chessreg.lab.answer import LabAnswer
    from chessreg.session import Session
    from tui.data.board_views import Boards, Sides


DATASET_GAME_COLUMNS = (
    TableColumn("run", "dataset", widest=20),
    TableColumn("unit", "game", right=True),
    TableColumn("result", "result"),
    TableColumn("plies", "plies", right=True),
    TableColumn("white_elo", "white elo", right=True),
    TableColumn("black_elo", "black elo", right=True),
    TableColumn("white", "white", widest=18, least=6),
    TableColumn("black", "black", widest=18, least=6),
    TableColumn("eco", "opening"),
    TableColumn("text", "moves", widest=80, least=20),
)


DATASET_POSITION_COLUMNS = (
    TableColumn("unit", "position", right=True),
    TableColumn("result", "best move"),
    TableColumn("plies", "ply", right=True),
    TableColumn("white_elo", "white elo", right=True),
    TableColumn("black_elo", "black elo", right=True),
    TableColumn("text", "FEN", widest=80, least=20),
)


class BoardRows(NamedTuple):
    """A page of the rows of one result table, and the tables of the run."""

    result_tables: list[str]
    result_table: str
    pages: Pages | None
    number: int
    rows: Sequence[Row]


class BoardsScreen(BoardPreviewingScreen):
    """Rows with boards, ordered by run or dataset. Enter shows the board."""

    place = "boards"
    crumb = "boards"
    BINDINGS = make_bindings("boards")

    result_table = ""

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield PageTable(
            id="rows", empty="no boards yet: they come from `chessreg run play`, `run edit` and `run probe`"
        )

    async def fill(self) -> None:
        table, result_table = self.query_one(PageTable), self.result_table
        keep_cursor = table.loaded and result_table == self._shown_table
        number = table.cursor // PAGE_ROWS if keep_cursor else 0
        board_rows = await self.ask("reading the rows", lambda session: self.read(session, result_table, number))
        if board_rows is None:
            return
        self.result_table = self._shown_table = board_rows.result_table
        strip = self.query_one(PaneStrip)
        strip.names = tuple(TABLE_TITLES[name] for name in board_rows.result_tables)
        if board_rows.pages is not None:
            strip.place = board_rows.result_tables.index(board_rows.result_table)
            columns = self.make_columns(board_rows)
            table.set_title(TABLE_TITLES[board_rows.result_table], TABLE_LEGENDS.get(board_rows.result_table, ""))
            table.show(board_rows.pages, board_rows.rows, columns=columns, keep=keep_cursor, number=board_rows.number)
        else:
            table.loaded = True
            table.refresh()

    _shown_table = ""

    def read(self, session: Session, result_table: str, number: int) -> BoardRows:
        """Return page `number` of a result table with boards, or of the first such table."""
        from tui.data.dataset_rows import open_dataset_games

        table_names = find_tables_with_boards(session) + ([DATASET_GAME] if has_datasets(session) else [])
        if not table_names:
            return BoardRows([], "", None, 0, [])
        table_name = result_table if result_table in table_names else table_names[0]
        return read_board_page(
            table_names,
            table_name,
            open_dataset_games(session) if table_name == DATASET_GAME else list_results(session, table_name),
            number,
        )

    def make_columns(self, board_rows: BoardRows) -> Sequence[TableColumn]:
        """Return the table columns of the listed boards."""
        is_dataset_game = board_rows.result_table == DATASET_GAME
        return (
            DATASET_GAME_COLUMNS
            if is_dataset_game
            else make_result_columns(board_rows.result_table, board_rows.rows, with_run=True)
        )

    def action_result_table(self, way: str) -> None:
        if (place := self.query_one(PaneStrip).step(int(way))) is not None:
            self.choose(place)

    def choose(self, place: int) -> None:
        titles = {title: name for name, title in TABLE_TITLES.items()}
        self.result_table = titles[self.query_one(PaneStrip).names[place]]
        self.load()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def command(self) -> str:
        if self.result_table == DATASET_GAME:
            return "chessreg dataset list"
        return (
            "chessreg game list"
            if self.result_table == "game"
            else f'chessreg query --sql "SELECT * FROM {self.result_table}"'
        )

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if event.table.source is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


class DatasetRowsScreen(BoardsScreen):
    """The games or positions of one dataset."""

    crumb = "rows"

    def __init__(self, dataset_id: UUID) -> None:
        super().__init__()
        self.dataset_id = dataset_id

    def read(self, session: Session, result_table: str, number: int) -> BoardRows:
        from tui.data.dataset_rows import open_dataset_games

        pages = open_dataset_games(session, self.dataset_id)
        if not pages.parts:
            raise NotFoundError("the files of this dataset are not in the store", "chessreg pull")
        return read_board_page([DATASET_GAME], DATASET_GAME, pages, number)

    def make_columns(self, board_rows: BoardRows) -> Sequence[TableColumn]:
        from tui.data.dataset_rows import DatasetPages

        assert isinstance(board_rows.pages, DatasetPages)
        return (
            DATASET_POSITION_COLUMNS
            if board_rows.pages.parts[0][2].content == "positions"
            else DATASET_GAME_COLUMNS[1:]
        )

    def can_offer(self, action: Action) -> bool:
        return action.method != "result_table" and super().can_offer(action)

    def command(self) -> str:
        return f"chessreg dataset show {show.abbreviate_id(self.dataset_id)}"


def read_board_page(there: list[str], chosen: str, pages: Pages, number: int) -> BoardRows:
    """Return page `number` of `pages`, or the first page if the list has become shorter."""
    count_rows_to(pages, number * PAGE_ROWS)
    number = number if number * PAGE_ROWS < pages.count else 0
    return BoardRows(there, chosen, pages, number, pages.read_page(number))


TEXT_LINES = 5  # text below paired boards
MODEL_ARROWS = 4  # the model's moves drawn as arrows
MAX_PANE_CELLS = 64
STRIP_LINES, MAX_STRIP_LINES = 3, 8  # strip by ply: reserved, and at most
BOARD_CHROME_LINES = 4  # bars, breadcrumbs and legend
MIN_SIDE_CELLS = 24  # for the list of moves


def format_board_crumb(row: Mapping[str, Any]) -> str:
    """Return the run and unit of a row; of a probe's score, its layer and game."""
    if row.get("result_table") == "score" and None not in (row.get("layer"), row.get("item")):
        return f"{row.get('run', 'board')} layer {row['layer']} game {row['item']}"
    return f"{row.get('run', 'board')} {row.get('unit', '')}".strip()


class BoardScreen(DrawingScreen):
    """The boards of one row.

    Two related boards (an edit: original and edited) are shown side by side. A game is stepped through. `pages` and
    `place` are the list and the position of the row, for moving to the next row.
    """

    place = "board"
    also: ClassVar[tuple[str, ...]] = ("position",)
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = make_bindings("board")
    DEFAULT_CSS = """
    BoardScreen #message { padding: 1 2; height: auto; color: $text-muted; }
    BoardScreen #boards { height: 1fr; width: auto; scrollbar-size-vertical: 1; }
    BoardScreen #pair { height: auto; width: auto; }
    BoardScreen #stage { height: 1fr; }
    BoardScreen #side { width: 1fr; max-width: 72; height: 1fr; padding: 0 1 0 1; }
    BoardScreen #title { height: auto; text-style: bold; color: $text-accent; }
    BoardScreen #facts { height: auto; padding: 0 0 1 0; color: $foreground; }
    BoardScreen #side MoveList { height: 1fr; min-height: 3; }
    BoardScreen #told { height: auto; max-height: 60%; padding: 1 0 0 0; }
    BoardScreen.-pair #side { display: none; }
    BoardScreen.-pair #boards { width: 1fr; }
    BoardScreen.-single #right { display: none; }
    BoardScreen.-loading #stage { display: none; }
    BoardScreen.-ready #message { display: none; }
    """

    def __init__(self, pages: Pages, place: int, row: Mapping[str, Any]) -> None:
        super().__init__(classes="-loading")
        self.pages, self.at, self.row = pages, place, row
        self.heading_for = place  # the row that is being read
        self.crumb = format_board_crumb(row)
        self.boards: Boards | None = None
        self.drawn_row: Mapping[str, Any] | None = None  # the row of `boards`
        self.frame = 0
        self.evaluations: list[float | None] = []  # of each view; None: unknown
        self.asks_model = self.asking = False  # whether the model's moves are shown, and whether they are awaited
        self.answers: dict[int, LabAnswer] = {}  # the model's answer for a view
        self.requested_views: set[int] = set()  # views whose evaluation was requested here, and is not of a dataset
        self.evaluating = 0  # number of the current evaluation; results of earlier ones are dropped

    def body(self) -> ComposeResult:
        yield Static("drawing the boards…", id="message", markup=False)
        with Horizontal(id="stage"):
            with VerticalScroll(id="boards", can_focus=False):
                with Horizontal(id="pair"):
                    yield EvaluationBar()
                    yield BoardPane(id="left")
                    yield BoardPane(id="right")
                yield PlyStrip()
            with Vertical(id="side"):
                yield Static("", id="title", markup=False)
                yield Static("", id="facts", markup=False)
                yield MoveList()
                yield Static("", id="told", markup=False)

    # -- reading --------------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        from tui.data.board_views import KINDS_WITH_OWN_SCREEN, load_boards

        row = self.row
        boards = await self.ask("drawing the boards", lambda session: load_boards(session, row))
        if boards is None:
            if row is not self.drawn_row:
                self.show_no_board()
            return
        if boards.kind in KINDS_WITH_OWN_SCREEN:
            from tui.screens.edit import EditScreen

            self.replace_with(EditScreen(self.pages, self.at, boards.row))
            return
        self.drawn_row = row
        self.boards, self.answers, self.clicked_square, self.requested_views = boards, {}, None, set()
        self.evaluations, self.evaluating = [view.evaluation for view in boards.views], self.evaluating + 1
        self.frame = min(self.frame, len(boards.views) - 1)
        self.crumb = format_board_crumb({**boards.row, "run": boards.run})
        self.set_class(self.is_pair, "-pair")
        self.set_class(not self.is_pair, "-single")
        self.query_one(MoveList).views = tuple(boards.views)
        self.remove_class("-loading")
        self.add_class("-ready")
        self.relabel()
        self.draw()
        self.ask_model()

    def show_no_board(self) -> None:
        """Show that the row has no board."""
        self.boards, self.drawn_row, self.evaluations, self.answers = None, None, [], {}
        self.evaluating += 1
        self.crumb = format_board_crumb(self.row)
        self.query_one("#message", Static).update("No board: see the reason below. i shows all fields, Esc goes back.")
        self.remove_class("-ready")
        self.add_class("-loading")
        self.relabel()

    @property
    def is_pair(self) -> bool:
        """Whether two boards belong together.

        True for a position and a probe's reading of it, and for two move orders to one position. False for games.
        """
        if self.boards is None or len(self.boards.views) != 2:
            return False
        one, other = self.boards.views
        return not (one.position and other.position) or one.fen == other.fen

    @property
    def views(self) -> list[BoardFrame]:
        """The board views to draw."""
        if self.boards is None:
            return []
        return self.boards.views if self.is_pair else [self.build_view(self.frame)]

    def build_view(self, place: int) -> BoardFrame:
        """Return the view at `place` with its evaluation and the model's moves, if known."""
        assert self.boards
        views = self.boards.views
        frame = replace(views[place], evaluation=self.evaluations[place])
        if not self.asks_model or (answer := self.answers.get(place)) is None:
            return frame
        from chessreg.lab.answer import build_arrows

        moves: list[Arrow] = build_arrows(answer.clean.moves, MODEL_ARROWS)
        next_view = views[place + 1] if place + 1 < len(views) else None
        if next_view is not None and next_view.moves[:-1] == frame.moves and next_view.last_move is not None:
            start, end = next_view.last_move
            same_move = next((m for m in answer.clean.moves if m.uci == next_view.moves[-1]), None)
            share, name = (0.0, "") if same_move is None else (min(1.0, same_move.probability), f"{same_move.san} ")
            moves = [arrow for arrow in moves if same_move is None or arrow.label != same_move.san]
            moves.append(Arrow(start, end, share, f"{name}(played)", "played"))
        best_arrows = [arrow for arrow in frame.arrows if arrow.role == "best"]
        return replace(frame, arrows=(*moves, *best_arrows))

    @property
    def position(self) -> BoardFrame | None:
        return self.boards.views[0 if self.is_pair else self.frame] if self.boards is not None else None

    @property
    def pgn(self) -> str:
        return self.boards.pgn if self.boards is not None and self.boards.pgn else super().pgn

    @property
    def text_below(self) -> int:
        return TEXT_LINES if self.is_pair else STRIP_LINES if self.shares else 0

    @property
    def shares(self) -> tuple[float | None, ...]:
        """The values of the strip, 0..1: squares that a probe reads correctly, or White's chances."""
        if self.boards is None or self.is_pair:
            return ()
        if any(view.doubts for view in self.boards.views):
            return tuple(view.squares_right / 64 for view in self.boards.views)
        if not self.has_evaluations:
            return ()
        return tuple(None if value is None else compute_white_share(value) for value in self.evaluations)

    # -- drawing --------------------------------------------------------------------------------------------------

    def can_draw(self, size: int, text: int = 0) -> bool:
        board_wide, board_high = compute_board_extent(size)
        needed_cells = 2 * (board_wide + 3) if self.is_pair else board_wide + 3
        needed_cells += 2 if self.has_evaluations else 0
        needed_cells += 0 if self.is_pair else MIN_SIDE_CELLS
        return needed_cells <= self.app.size.width and board_high + text + BOARD_CHROME_LINES <= self.app.size.height

    @property
    def has_evaluations(self) -> bool:
        return any(value is not None for value in self.evaluations)

    def draw(self) -> None:
        if self.boards is None:
            return
        size, glyphs = self.board_size, self.app.glyphs
        panes = [self.query_one("#left", BoardPane), self.query_one("#right", BoardPane)]
        for pane, frame in zip(panes, self.views, strict=False):
            pane.show(self.turn_board(frame), size, glyphs)
            pane.set_class(not self.is_pair, "-bare")
            pane.squares.cursor = self.clicked_square
            half = (self.app.size.width - 6) // 2 if self.is_pair else 0
            pane.styles.width = pane_cells = max(compute_board_extent(size)[0], min(half, MAX_PANE_CELLS))
        if self.is_pair:
            align_titles(panes, pane_cells)
        if not self.is_pair and self.views:
            moves = self.query_one(MoveList)
            moves.place = self.frame
            moves.display = len(moves.views) > 1
            moves.styles.max_height = len(moves.lines)  # the text below takes the lines that the list does not need
            for name, text in (("#title", self.views[0].title), ("#facts", "\n".join(self.facts))):
                if (part := self.query_one(name, Static)).content != text:  # an update triggers a layout
                    part.update(text)
            view = self.views[0]
            legend = list_legend(view)
            if self.frame in self.requested_views:
                from tui.data.board_views import EVALUATION_LIMIT, format_limit

                legend[-1] += f" (Stockfish, {format_limit(EVALUATION_LIMIT)})"
            lines = [*self.list_square_lines(), *view.caption, *self.list_model_lines(), *legend]
            self.query_one("#told", Static).update("\n".join(lines))
        elif self.is_pair and self.clicked_square is not None:
            for pane, frame in zip(panes, self.views, strict=False):
                pane.caption.update("\n".join([describe_square(frame, self.clicked_square), *list_captions(frame)]))
        bar, strip = self.query_one(EvaluationBar), self.query_one(PlyStrip)
        now, shares = self.views[0].evaluation, self.shares
        bar.display, strip.display = self.has_evaluations, bool(shares)
        bar.value, bar.flipped, bar.styles.height = (
            now,
            self.turn_board(self.views[0]).flipped,
            compute_board_extent(size)[1] - 1,
        )
        strip.styles.width = compute_board_extent(size)[0] - 2
        strip.styles.height = max(
            1, min(MAX_STRIP_LINES, self.app.size.height - compute_board_extent(size)[1] - BOARD_CHROME_LINES)
        )
        strip.shares, strip.place, strip.heated = shares, self.frame, self.views[0].doubts
        strip.heading = self.strip_heading
        bar.letters = strip.letters = glyphs == "letters"

    @property
    def strip_heading(self) -> str:
        """The meaning of the strip and its value at the current ply."""
        view = self.views[0]
        if view.doubts:
            return f"correctly read squares, 0 to 64 · {view.squares_right} here"
        value = view.evaluation
        return "White's chances, 0 to 1" + ("" if value is None else f" · {compute_white_share(value):.2f} here")

    def list_square_lines(self) -> list[str]:
        """Return lines about the clicked square: its content, and the plies that touch it."""
        if self.clicked_square is None or self.boards is None:
            return []
        views = self.boards.views
        plies = list_plies(views)
        touching_plies = [
            str(ply)
            for ply, view in zip(plies, views, strict=True)
            if view.last_move and self.clicked_square in view.last_move
        ]
        plies_text = (
            f"moves from or to it: plies {', '.join(touching_plies[:12])}{' …' if len(touching_plies) > 12 else ''}"
        )
        return [describe_square(self.views[0], self.clicked_square), *([plies_text] if touching_plies else []), ""]

    def list_model_lines(self) -> list[str]:
        """Return lines about the model that is asked: that it is being loaded, or its legal move mass and why moves
        have no arrow."""
        if not self.asks_model or self.boards is None:
            return []
        if (answer := self.answers.get(self.frame)) is None:
            activity = "running" if self.app.model.has_answered else "loading"
            return [f"{self.boards.model}: {activity} the model…"] if self.asking else []
        from chessreg.lab.answer import MIN_ARROW_PROBABILITY

        lines = [f"{self.boards.model}: legal move mass {show.format_probability(answer.clean.original)}"]
        if all(arrow.role for arrow in self.views[0].arrows):
            played_arrow = next((arrow for arrow in self.views[0].arrows if arrow.role == "played"), None)
            other = "other " if played_arrow is not None and played_arrow.weight >= MIN_ARROW_PROBABILITY else ""
            lines.append(f"no {other}legal move has {MIN_ARROW_PROBABILITY:.0%} or more")
            if played_arrow is not None:
                lines.append(f"the move played has {show.format_probability(played_arrow.weight)}")
        return lines

    def turn_board(self, frame: BoardFrame) -> BoardFrame:
        return replace(frame, flipped=not frame.flipped) if self.flipped else frame

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def can_offer(self, action: Action) -> bool:
        if action.method in ("beside", "limit"):
            return self.is_game and super().can_offer(action)
        if action.method == "illegal" and self.boards is not None and not find_wrong_views(self.boards.views):
            return False
        if action.method in ("step", "edge", "illegal", "go_to") and self.boards is not None:
            return not self.is_pair and len(self.boards.views) > 1 and super().can_offer(action)
        if action.method == "layer":
            return self.boards is not None and len(self.boards.layers) > 1 and super().can_offer(action)
        if action.method in ("evaluate", "model") and self.boards is not None:
            have_positions = all(view.position for view in self.boards.views)
            return (
                have_positions
                and (action.method == "evaluate" or bool(self.boards.checkpoint))
                and super().can_offer(action)
            )
        return super().can_offer(action)

    @property
    def facts(self) -> list[str]:
        """The lines under the title: result and edit of a game, layers of a probe's readings."""
        assert self.boards
        layers = [f"[{layer}]" if layer == self.boards.row["layer"] else str(layer) for layer in self.boards.layers]
        return [*self.boards.facts, *([f"layers {' '.join(layers)}"] if len(layers) > 1 else [])]

    def action_layer(self, way: str) -> None:
        """Show the reading of the same position by the probe of the next layer."""
        if self.boards is None or self.boards.row.get("layer") not in self.boards.layers:
            return
        layers, layer = list(self.boards.layers), self.row.get("layer")  # the layer shown, or being read
        place = layers.index(layer if layer in layers else self.boards.row["layer"]) + int(way)
        if 0 <= place < len(layers):
            row = self.boards.row
            self.row = {name: row[name] for name in ("run_id", "split", "item", "result_table")}
            self.row |= {"unit": self.boards.layers[layers[place]], "layer": layers[place], "run": self.boards.run}
            self.load()

    def show_frame(self, frame: int) -> None:
        """Show a frame, the first or last one if there is no such frame, and ask the model for its moves."""
        if self.boards is not None and not self.is_pair:
            self.frame = min(max(0, frame), len(self.boards.views) - 1)
            self.draw()
            self.ask_model()

    def action_step(self, way: str) -> None:
        if self.is_pair:  # nothing to step through: show the next edit
            self.action_row(way)
        else:
            self.show_frame(self.frame + int(way))

    def action_edge(self, end: str) -> None:
        self.show_frame(0 if end == "first" else 1 << 30)

    def action_illegal(self) -> None:
        if self.boards is None:
            return
        wrong_views = find_wrong_views(self.boards.views)
        later_views = [n for n in wrong_views if n > self.frame] or wrong_views
        if later_views and not self.is_pair:
            self.show_frame(later_views[0])
        elif not wrong_views:
            reading = any(view.doubts for view in self.boards.views)
            self.notify("no square is misread in this game" if reading else "no illegal attempt in this game")

    def action_go_to(self) -> None:
        if self.boards is not None and not self.is_pair:
            ask_ply(self, list_plies(self.boards.views), self.show_frame)

    def action_evaluate(self) -> None:
        if self.boards is not None and all(view.position for view in self.boards.views):
            self.evaluating += 1  # stops the thread of an earlier evaluation
            self.evaluate(self.boards, self.evaluating)

    @work(group="evaluate", exclusive=True)
    async def evaluate(self, boards: Boards, number: int) -> None:
        """Evaluate the views in a thread and draw each value. Stops when the row changes or the screen closes."""
        from tui.data.board_views import iter_evaluations

        def keep_evaluation(place: int, value: int) -> None:
            if self.evaluating == number and self.is_attached:
                self.evaluations[place] = value
                self.requested_views.add(place)
                self.draw()

        def evaluate_frames() -> None:
            with closing(iter_evaluations(boards.views)) as values:
                for place, value in enumerate(values):
                    if self.evaluating != number or not self.is_attached:
                        return
                    loop.call_soon_threadsafe(keep_evaluation, place, value)

        loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(evaluate_frames)
        except ChessregError as error:
            self.require_shown()
            self.app.show_failure(self, error)

    def action_model(self) -> None:
        """Show the model's moves, or hide them. While the model is loaded, a second press changes nothing."""
        if self.boards is None or not self.boards.checkpoint or self.asking:
            return
        self.asks_model = not self.asks_model
        if not self.asks_model:
            self.app.clear_banner(self)  # an error of the model is no longer of interest
        self.draw()
        self.ask_model()

    def ask_model(self) -> None:
        """Ask the model for its moves in the current position, if requested and not known yet."""
        if self.boards is None or not self.asks_model or self.frame in self.answers:
            return
        self.asking = True
        self.draw()
        self.read_model_moves(self.boards, self.frame)

    @work(group="model", exclusive=True)
    async def read_model_moves(self, boards: Boards, place: int) -> None:
        """Ask the model for its moves in the frame at `place`, and show them if its boards are still shown."""
        from chess import STARTING_FEN

        from chessreg.lab.question import LabPosition

        frame = boards.views[place]
        from_start = frame.moves or frame.position == STARTING_FEN
        position = {"moves": " ".join(frame.moves)} if from_start else {"fen": frame.position}
        try:
            answer = await self.app.model.ask(LabPosition.from_settings(checkpoint=boards.checkpoint, **position))
        except ChessregError as error:
            self.require_shown()
            self.asking = False
            self.draw()
            self.app.show_failure(self, error)
            return
        self.require_shown()
        self.asking = False
        if answer is not None and self.boards is boards:
            self.app.clear_banner(self)
            self.answers[place] = answer
        self.draw()

    def on_ply_strip_chosen(self, event: PlyStrip.Chosen) -> None:
        self.show_frame(event.place)

    @property
    def has_item(self) -> bool:
        """Whether the row's unit may have several rows with boards: a probe's layer one for each game."""
        item = self.row.get("item", self.row.get("game"))
        return (
            self.boards is not None
            and self.boards.row.get("result_table") in ("score", "prediction")
            and item is not None
        )

    def list_actions(self) -> list[Action]:
        if not self.has_item:
            return super().list_actions()
        return [
            replace(action, command=action.command.replace("board RUN:UNIT", "board RUN:UNIT --item N"))
            for action in super().list_actions()
        ]

    @property
    def is_game(self) -> bool:
        return self.boards is not None and self.boards.row.get("result_table") == "game"

    def action_limit(self) -> None:
        if self.boards is None or not self.is_game:
            return
        limit = self.boards.limit
        if limit is None:
            self.notify("no move limit was recorded")
            return
        self.show_frame(limit)
        if limit > len(self.boards.views) - 1:
            self.notify(f"the game ended before the limit, which is after ply {limit}")

    def action_beside(self) -> None:
        if self.boards is not None and self.is_game:
            self.app.push_screen(PairScreen(self.boards.row, self.frame))

    def action_scroll_text(self, way: str) -> None:
        boards = self.query_one("#boards", VerticalScroll)
        boards.scroll_relative(y=int(way) * max(1, boards.size.height - 2), animate=False)

    def action_row(self, way: str) -> None:
        """Show another row of the list. Steps add up while a row is read."""
        self.heading_for = min(max(self.heading_for + int(way), 0), self.pages.count - 1)
        if self.heading_for != self.at:
            self.run_exclusive(self.show_row, "row")

    async def show_row(self) -> None:
        """Read the row number `heading_for` and show it. If it does not exist, stay at the current row."""
        place = self.heading_for
        rows = await self.ask("reading rows", lambda session: self.pages.read_page(place // PAGE_ROWS))
        if rows and place % PAGE_ROWS < len(rows):
            self.at, self.row, self.frame = place, rows[place % PAGE_ROWS], 0
            self.load()
        else:
            self.heading_for = self.at

    def action_inspect(self) -> None:
        self.app.push_screen(FieldsScreen(dict(self.boards.row if self.boards else self.row)))

    def on_move_list_chosen(self, event: MoveList.Chosen) -> None:
        self.show_frame(event.place)

    def command(self) -> str:
        run = self.row.get("run_id", self.row.get("dataset_id"))
        words = f"chessreg board {show.abbreviate_id(run)}:{self.row.get('unit')}"
        if self.has_item:
            words += f" --item {self.row.get('item', self.row.get('game'))}"
        if self.asks_model and self.boards is not None:
            frame = self.boards.views[self.frame]
            at = f'--moves "{" ".join(frame.moves)}"' if frame.moves else f'--fen "{frame.position}"'
            return f"chessreg lab --checkpoint {show.abbreviate_id(self.boards.checkpoint)} {at}"
        if self.is_pair or self.boards is None:
            return words
        return f"{words} --ply {list_plies(self.boards.views)[self.frame]}"


def ask_ply(screen: DrawingScreen, plies: Sequence[int], go: Callable[[int], None]) -> None:
    """Ask for one of these plies and call `go` with the place of its board."""
    from tui.screens.dialogs import Prompt

    def check_ply(text: str | None) -> None:
        if text is None:
            return
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) in plies:
            go(plies.index(int(text)))
        else:
            screen.notify(f"{text[:40]!r} has no board: there are {plies_text}", severity="error")

    plies_text = format_plies(plies)
    screen.app.push_screen(Prompt("Go to ply", hint=f"{plies_text}. Enter goes there, Esc cancels"), check_ply)


PAIR_CHROME_LINES = 9  # bars, head, titles, legend, text under a board
MIN_LIST_LINES = 5  # fewer lines do not show a list of moves


class PairScreen(DrawingScreen):
    """Two games at the same ply. A game that has ended shows its last position."""

    place = "pair"
    also: ClassVar[tuple[str, ...]] = ("position",)
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = make_bindings("pair")
    DEFAULT_CSS = """
    PairScreen #head {
        height: 2; padding: 0 1; text-style: bold; color: $text-accent; text-wrap: nowrap; text-overflow: ellipsis;
    }
    PairScreen #games { height: 1fr; }
    PairScreen #games > Vertical { width: 1fr; height: 1fr; }
    PairScreen BoardPane { margin: 0 0 0 1; }
    PairScreen BoardPane > .board-legend { height: 1; }
    PairScreen MoveList { margin: 1 1 0 1; max-height: 100%; height: 1fr; }
    PairScreen.-empty #games { display: none; }
    """

    def __init__(self, row: Mapping[str, Any], ply: int = 0) -> None:
        super().__init__(classes="-empty")
        self.row, self.ply, self.partner_place = row, ply, 0
        self.crumb = "compared"
        self.pair: Sides | None = None

    def body(self) -> ComposeResult:
        yield Static("reading both games…", id="head", markup=False)
        with Horizontal(id="games"):
            for side in ("one", "other"):
                with Vertical():
                    yield BoardPane(id=side)
                    yield MoveList(id=f"moves-{side}")

    async def fill(self) -> None:
        from tui.data.board_views import load_sides

        row, chosen_partner = self.row, self.partner_place
        pair = await self.ask("reading both games", lambda session: [load_sides(session, row, chosen_partner)])
        if pair is None:
            return
        self.pair = pair[0]
        if self.pair is None:
            self.query_one("#head", Static).update(
                "No other arm has a game from this opening. Run `chessreg run play` with the same --opening and"
                " --opening-seed to make one."
            )
            return
        self.crumb = f"compared with {self.pair.sides[1].run} {self.pair.sides[1].unit}"
        self.remove_class("-empty")
        for name, side in zip(("one", "other"), self.pair.sides, strict=True):
            self.query_one(f"#moves-{name}", MoveList).views = tuple(side.views)
        self.relabel()
        self.draw()

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The last ply of the longer game."""
        return max(len(side.views) for side in self.pair.sides) - 1 if self.pair else 0

    @property
    def text_below(self) -> int:
        return MIN_LIST_LINES

    def can_draw(self, size: int, text: int = 0) -> bool:
        board_cells, high = compute_board_extent(size)
        return 2 * (board_cells + 2) <= self.app.size.width and high + text + PAIR_CHROME_LINES <= self.app.size.height

    def draw(self) -> None:
        if self.pair is None:
            return
        size = self.board_size
        lines = self.app.size.height - compute_board_extent(size)[1] - PAIR_CHROME_LINES
        for name, side in zip(("one", "other"), self.pair.sides, strict=True):
            frame = side.views[min(self.ply, len(side.views) - 1)]
            frame = replace(frame, title=f"{side.run} {side.unit}", flipped=frame.flipped != self.flipped)
            pane = self.query_one(f"#{name}", BoardPane)
            pane.styles.width = max(compute_board_extent(size)[0], self.app.size.width // 2 - 2)
            pane.show(frame, size, self.app.glyphs)
            pane.squares.cursor = self.clicked_square
            if self.clicked_square is not None:
                pane.caption.update("\n".join([describe_square(frame, self.clicked_square), *list_captions(frame)]))
            moves = self.query_one(f"#moves-{name}", MoveList)
            moves.display, moves.place = lines >= MIN_LIST_LINES, min(self.ply, len(side.views) - 1)
        self.query_one("#head", Static).update(self.make_head())

    def make_head(self) -> str:
        """Return the two lines above the boards: the ply, and where the games diverge."""
        assert self.pair
        pair = self.pair
        alike = f"identical for {show.format_count(pair.parts or 0, 'ply', 'plies')}, then {pair.moves}"
        parts = "the games are identical" if pair.parts is None else alike
        is_same = pair.parts is None or self.ply <= pair.parts
        ends = " and ".join(str(len(side.views) - 1) for side in pair.sides)
        more = f" · arm {pair.partner_place + 1} of {len(pair.partners)}" if len(pair.partners) > 1 else ""
        state_text = "the same position" if is_same else "diverged"
        return f"after ply {self.ply} of {ends}, {state_text} · {pair.partners[pair.partner_place].arm}{more}\n{parts}"

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def can_offer(self, action: Action) -> bool:
        if action.method == "partner":
            return self.pair is not None and len(self.pair.partners) > 1
        return super().can_offer(action)

    def show_ply(self, ply: int) -> None:
        if self.pair is not None:
            self.ply = min(max(0, ply), self.last)
            self.draw()

    @property
    def position(self) -> BoardFrame | None:
        if self.pair is None:
            return None
        views = self.pair.sides[0].views
        return views[min(self.ply, len(views) - 1)]

    def action_go_to(self) -> None:
        if self.pair is not None:
            ask_ply(self, range(self.last + 1), self.show_ply)

    def action_step(self, way: str) -> None:
        self.show_ply(self.ply + int(way))

    def action_edge(self, end: str) -> None:
        self.show_ply(0 if end == "first" else self.last)

    def action_parts(self) -> None:
        """Go to the first ply after which the games differ."""
        if self.pair is not None and self.pair.parts is not None:
            self.show_ply(self.pair.parts + 1)
        elif self.pair is not None:
            self.notify("the games are identical")

    def action_illegal(self) -> None:
        if self.pair is None:
            return
        wrong_views = sorted({n for side in self.pair.sides for n in find_wrong_views(side.views)})
        if wrong_views:
            self.show_ply(next((n for n in wrong_views if n > self.ply), wrong_views[0]))
        else:
            self.notify("no illegal attempt in either game")

    def action_limit(self) -> None:
        if self.pair is not None:
            limit = next((side.limit for side in self.pair.sides if side.limit is not None), None)
            if limit is None:
                self.notify("no move limit was recorded")
            else:
                self.show_ply(limit)
                if limit > self.last:
                    self.notify(f"both ended before the limit, which is after ply {limit}")

    def action_partner(self, way: str) -> None:
        self.partner_place += int(way)
        self.load()

    def on_move_list_chosen(self, event: MoveList.Chosen) -> None:
        self.show_ply(event.place)

    def command(self) -> str:
        words = f"chessreg game part {show.abbreviate_id(self.row['run_id'])}:{self.row['unit']}"
        if self.pair is None:
            return words
        other = self.pair.sides[1]
        return f"{words} {show.abbreviate_id(other.run_id)}:{other.unit}"
