"""The boards' room: every game, trial or score that a board can be drawn of, and the games of datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult

from tui.actions import bindings
from tui.columns import Column
from tui.data.boards import FAMILY
from tui.data.pages import PAGE, Pages, Row
from tui.screens import families
from tui.screens.room import Room
from tui.widgets.bars import PaneStrip
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


TITLES = {**families.TITLES, FAMILY: "dataset games"}
DATASET_GAMES = (
    Column("run", "dataset", widest=20),
    Column("unit", "game", right=True),
    Column("result", "result"),
    Column("plies", "plies", right=True),
    Column("white_elo", "white", right=True),
    Column("black_elo", "black", right=True),
    Column("text", "moves", widest=80, least=20),
)


class Found(NamedTuple):
    families: list[str]
    family: str
    pages: Pages | None
    number: int
    rows: Sequence[Row]


class BoardsScreen(Room):
    """Rows with boards, in the order of their runs or datasets. Enter shows the board."""

    place = "boards"
    crumb = "boards"
    BINDINGS = bindings("boards")

    family = ""

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield PageTable(id="rows", empty="no boards yet: chessreg run play, run edit or run probe makes some")

    async def fill(self) -> None:
        table, wanted = self.query_one(PageTable), self.family
        keep = table.loaded and wanted == self._shown_family
        number = table.cursor // PAGE if keep else 0
        found = await self.ask("reading the rows", lambda session: read(session, wanted, number))
        if found is None:
            return
        self.family = self._shown_family = found.family
        strip = self.query_one(PaneStrip)
        strip.names = tuple(TITLES[family] for family in found.families)
        if found.pages is not None:
            strip.place = found.families.index(found.family)
            known = found.family == FAMILY
            columns = DATASET_GAMES if known else families.columns_of(found.family, found.rows, with_run=True)
            table.show(found.pages, found.rows, columns=columns, keep=keep, number=found.number)
        else:
            table.loaded = True
            table.refresh()

    _shown_family = ""

    def action_family(self) -> None:
        strip = self.query_one(PaneStrip)
        if len(strip.names) > 1:
            self.choose((strip.place + 1) % len(strip.names))

    def choose(self, place: int) -> None:
        titles = {title: family for family, title in TITLES.items()}
        self.family = titles[self.query_one(PaneStrip).names[place]]
        self.load()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def command(self) -> str:
        if self.family == FAMILY:
            return "chessreg dataset list"
        return "chessreg game list" if self.family == "game" else f'chessreg query --sql "SELECT * FROM {self.family}"'

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.board import BoardScreen

        if event.table.source is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


def read(session: Session, family: str, number: int) -> Found:
    from tui.data.boards import any_dataset, dataset_games
    from tui.data.results import families_with_boards, results

    there = families_with_boards(session) + ([FAMILY] if any_dataset(session) else [])
    if not there:
        return Found([], "", None, 0, [])
    chosen = family if family in there else there[0]
    pages = dataset_games(session) if chosen == FAMILY else results(session, chosen)
    number = number if number * PAGE < pages.count else 0
    return Found(there, chosen, pages, number, pages.page(number))
