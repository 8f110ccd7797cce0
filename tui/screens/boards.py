"""The boards' room: every game, trial or score of the registry that a board can be drawn of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult

from tui.actions import bindings
from tui.data.pages import PAGE, Pages, Row
from tui.screens.families import TITLES, columns_of
from tui.screens.room import Room
from tui.widgets.strip import PaneStrip
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


class Found(NamedTuple):
    families: list[str]
    family: str
    pages: Pages | None
    number: int
    rows: Sequence[Row]


class BoardsScreen(Room):
    """Rows with boards, in the order of their runs. Enter shows the board."""

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
            columns = columns_of(found.family, found.rows, with_run=True)
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
        return "chessreg game list" if self.family == "game" else f'chessreg query --sql "SELECT * FROM {self.family}"'

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.board import BoardScreen

        if event.table.source is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


def read(session: Session, family: str, number: int) -> Found:
    from tui.data.results import families_with_boards, results

    families = families_with_boards(session)
    if not families:
        return Found([], "", None, 0, [])
    chosen = family if family in families else families[0]
    pages = results(session, chosen)
    number = number if number * PAGE < pages.count else 0
    return Found(families, chosen, pages, number, pages.page(number))
