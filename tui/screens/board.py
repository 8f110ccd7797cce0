"""A board one steps through, or two side by side: what a kind of experiment draws of one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from chessreg.games.boardframe import BoardFrame
from tui import show
from tui.actions import Action, bindings
from tui.data.pages import PAGE, Pages
from tui.screens.boardroom import BoardRoom
from tui.widgets import squares
from tui.widgets.board import BoardPane, words
from tui.widgets.moves import MoveList, with_tries
from tui.widgets.squares import Size

if TYPE_CHECKING:
    from tui.data.boards import Boards

TEXT_LINES = 5  # below boards that stand side by side
PANE_WIDEST = 64


class BoardScreen(BoardRoom):
    """Two frames stand side by side (an edit: original and edited), more are stepped through (a game).

    `pages` and `place` are the list that the row came from: up and down go on in it.
    """

    place = "board"
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = bindings("board")
    DEFAULT_CSS = """
    BoardScreen #message { padding: 1 2; height: auto; color: $text-muted; }
    BoardScreen #boards { height: 1fr; width: auto; scrollbar-size-vertical: 1; }
    BoardScreen #pair { height: auto; width: auto; }
    BoardScreen #stage { height: 1fr; }
    BoardScreen #side { width: 1fr; max-width: 72; height: 1fr; padding: 0 1 0 1; }
    BoardScreen #title { height: auto; padding: 0 0 1 0; text-style: bold; color: $text-accent; }
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
        self.crumb = f"{row.get('run', 'board')} {row.get('unit', '')}".strip()
        self.boards: Boards | None = None
        self.frame = 0

    def body(self) -> ComposeResult:
        yield Static("drawing the boards…", id="message", markup=False)
        with Horizontal(id="stage"):
            with VerticalScroll(id="boards", can_focus=False), Horizontal(id="pair"):
                yield BoardPane(id="left")
                yield BoardPane(id="right")
            with Vertical(id="side"):
                yield Static("", id="title", markup=False)
                yield MoveList()
                yield Static("", id="told", markup=False)

    # -- reading --------------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        from tui.data.boards import boards

        row = self.row
        found = await self.ask("drawing the boards", lambda session: boards(session, row))
        if found is None:
            if self.boards is None:
                self.query_one("#message", Static).update(
                    "No board: the line below says why. i shows all fields, Esc goes back."
                )
            return
        if found.kind == "edit":
            from tui.screens.edit import EditScreen

            self.app.call_later(self.app.switch_screen, EditScreen(self.pages, self.at, found.row))
            return
        self.boards = found
        self.frame = min(self.frame, len(found.frames) - 1)
        self.crumb = f"{found.run} {found.row['unit']}"
        self.set_class(self.paired, "-pair")
        self.set_class(not self.paired, "-single")
        self.query_one(MoveList).frames = tuple(found.frames)
        self.remove_class("-loading")
        self.add_class("-ready")
        self.relabel()
        self.draw()

    @property
    def paired(self) -> bool:
        """Whether two boards belong together: what is there and what a probe reads, not a game of one ply."""
        whole_game = self.is_game or (self.boards is not None and self.boards.kind == "dataset")
        return self.boards is not None and len(self.boards.frames) == 2 and not whole_game

    @property
    def frames(self) -> list[BoardFrame]:
        """The frames that are drawn now."""
        if self.boards is None:
            return []
        return self.boards.frames if self.paired else [self.boards.frames[self.frame]]

    @property
    def text_below(self) -> int:
        return TEXT_LINES if self.paired else 0

    # -- drawing --------------------------------------------------------------------------------------------------

    def fits(self, size: Size, text: int = 0) -> bool:
        board_wide, board_high = squares.extent(size)
        wide = 2 * (board_wide + 3) if self.paired else board_wide + 3
        return wide <= self.app.size.width and board_high + text + 3 <= self.app.size.height  # two bars and the title

    def draw(self) -> None:
        size, glyphs = self.board_size, self.desk_app.glyphs
        panes = [self.query_one("#left", BoardPane), self.query_one("#right", BoardPane)]
        for pane, frame in zip(panes, self.frames, strict=False):
            pane.show(self.turned(frame), size, glyphs)
            pane.set_class(not self.paired, "-bare")
            half = (self.app.size.width - 6) // 2 if self.paired else 0
            pane.styles.width = max(squares.extent(size)[0], min(half, PANE_WIDEST))
        if not self.paired and self.frames:
            moves = self.query_one(MoveList)
            moves.place = self.frame
            moves.display = len(moves.frames) > 1
            self.query_one("#title", Static).update(self.frames[0].title)
            self.query_one("#told", Static).update("\n".join(words(self.frames[0])))

    def turned(self, frame: BoardFrame) -> BoardFrame:
        from dataclasses import replace

        return replace(frame, flipped=not frame.flipped) if self.flipped else frame

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def offers(self, action: Action) -> bool:
        if action.method in ("beside", "limit"):
            return self.is_game and super().offers(action)
        if action.method in ("step", "edge", "illegal") and self.boards is not None:
            return len(self.boards.frames) > 2 and super().offers(action)
        return super().offers(action)

    def go(self, frame: int) -> None:
        if self.boards is not None and not self.paired:
            self.frame = min(max(0, frame), len(self.boards.frames) - 1)
            self.draw()

    def action_step(self, way: str) -> None:
        if self.paired:  # nothing to step through: on to the next edit
            self.action_row(way)
        else:
            self.go(self.frame + int(way))

    def action_edge(self, which: str) -> None:
        self.go(0 if which == "first" else 1 << 30)

    def action_illegal(self) -> None:
        if self.boards is None:
            return
        wrong = with_tries(self.boards.frames)
        further = [n for n in wrong if n > self.frame] or wrong
        if further and not self.paired:
            self.go(further[0])
        elif not wrong:
            self.notify("no illegal try here")

    @property
    def is_game(self) -> bool:
        return self.boards is not None and self.boards.row.get("family") == "game"

    def action_limit(self) -> None:
        if self.boards is None or not self.is_game:
            return
        limit = self.boards.limit
        if limit is None:
            self.notify("no move limit was recorded")
            return
        self.go(limit)
        if limit > len(self.boards.frames) - 1:
            self.notify(f"the game ended before the limit, which is after ply {limit}")

    def action_beside(self) -> None:
        from tui.screens.pair import PairScreen

        if self.boards is not None and self.is_game:
            self.app.push_screen(PairScreen(self.boards.row, self.frame))

    def action_scroll_text(self, way: str) -> None:
        boards = self.query_one("#boards", VerticalScroll)
        boards.scroll_relative(y=int(way) * max(1, boards.size.height - 2), animate=False)

    @work(exclusive=True, group="row")
    async def action_row(self, way: str) -> None:
        place = self.at + int(way)
        if not 0 <= place < self.pages.count:
            return
        rows = await self.ask("reading rows", lambda session: self.pages.page(place // PAGE))
        if rows and place % PAGE < len(rows):
            self.at, self.row, self.frame = place, rows[place % PAGE], 0
            self.load()

    def action_inspect(self) -> None:
        from tui.screens.room import Details

        self.app.push_screen(Details(dict(self.boards.row if self.boards else self.row)))

    def on_move_list_chosen(self, event: MoveList.Chosen) -> None:
        self.go(event.place)

    def command(self) -> str:
        run, item = self.row.get("run_id", self.row.get("dataset_id")), self.row.get("item", self.row.get("game"))
        words = f"chessreg board {show.short(run)}:{self.row.get('unit')}"
        if self.boards is not None and self.boards.row.get("family") == "score" and item is not None:
            words += f" --item {item}"
        return words if self.paired else f"{words} --ply {self.frame}"
