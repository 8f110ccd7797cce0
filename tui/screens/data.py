"""The data room: every noun that is declared, such as datasets, checkpoints, caches and probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from textual.app import ComposeResult

from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data import things
from tui.data.pages import Listed, Row
from tui.screens.saying import SaysWords
from tui.widgets.bars import PaneStrip
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.entities.base import Entity

NOUN = "data.noun"  # under which it is remembered what was looked at


def name(row: Mapping[str, Any]) -> str:
    """Its name; of a thing without one, in brackets, the run that made it."""
    called = row["name"] or (f"({row['made_by']})" if row.get("made_by") else "")
    return ("★ " if row["starred"] else "") + called + (" (invalid)" if row["invalid"] else "")


ID = Column("thing", "id", text=lambda row: show.short(row["thing"]))
NAME = Column("name", "name", text=name, widest=28, least=12)


class DataScreen(SaysWords):
    """Tab goes from noun to noun. Enter opens a thing."""

    place = "data"
    crumb = "data"
    BINDINGS = bindings("data")

    noun = "dataset"
    rows: Mapping[str, list[Row]] | None = None
    _drawn = ""

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield PageTable(id="things")

    def on_mount(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.noun = self.desk_app.remembered.get(NOUN, self.noun)

    async def fill(self) -> None:
        found = await self.ask("reading what there is", lambda session: (things.nouns(), things.listed(session)))
        if found is not None:
            self.entities, self.rows = found
            if self.noun not in self.entities:  # of a package that is gone
                self.noun = next(iter(self.entities))
            self.draw()

    def draw(self) -> None:
        if self.rows is None:
            return
        strip, table = self.query_one(PaneStrip), self.query_one(PageTable)
        strip.names = tuple(f"{self.entities[noun].plural} {len(rows):,}" for noun, rows in self.rows.items())
        strip.place = list(self.entities).index(self.noun)
        rows, table.empty = self.rows[self.noun], self.entities[self.noun].none_yet
        declared = self.entities[self.noun]
        columns = [ID, NAME, *things.columns(declared.overview_columns or declared.columns, rows)]
        table.show(Listed(rows), rows[:200], columns=columns, keep=self._drawn == self.noun)
        self._drawn = self.noun

    def command(self) -> str:
        return f"chessreg {self.noun} list"

    # -- actions --------------------------------------------------------------------------------------------------

    def choose(self, place: int) -> None:
        self.noun = list(self.entities)[place % len(self.entities)]
        self.desk_app.remembered.set(NOUN, self.noun)
        self.draw()

    def action_noun(self, way: str) -> None:
        if self.entities:  # not while they are read
            self.choose(list(self.entities).index(self.noun) + int(way))

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def chosen(self) -> tuple[str, dict[UUID, str]]:
        if (row := self.query_one(PageTable).current) is None:
            return self.noun, {}
        return "run" if self.entities[self.noun].of_run else self.noun, {row["thing"]: label(row)}

    def action_lineage(self) -> None:
        from tui.screens.lineage import LineageScreen

        if (row := self.query_one(PageTable).current) is not None:
            noun, _ = self.chosen()
            maker = row.get("run_id")  # what a run made goes by the run
            root = ("run", maker) if maker else (noun, row["thing"])
            self.app.push_screen(LineageScreen(root[0], root[1].hex, label(row)))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.thing import ThingScreen

        self.app.push_screen(ThingScreen(self.noun, event.row["thing"], label(event.row)))


def label(row: Row) -> str:
    return row["name"] or f"{row['noun']} {show.short(row['thing'])}"
