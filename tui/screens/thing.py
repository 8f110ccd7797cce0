"""One thing of any noun in parts: tables and charts."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from chessreg.entities import entity
from chessreg.entities.display import Part, Thing, Verified
from chessreg.errors import ChessregError
from tui import show
from tui.actions import Action, bindings
from tui.data import things
from tui.data.pages import Listed
from tui.screens.room import Room
from tui.widgets.bars import PaneStrip
from tui.widgets.chart import ChartView
from tui.widgets.table import PageTable


class ThingScreen(Room):
    """Tab goes from part to part; Enter shows all fields of a line, or opens the run that it names."""

    place = "thing"
    BINDINGS = bindings("thing")
    DEFAULT_CSS = """
    ThingScreen > #summary { height: auto; max-height: 4; padding: 0 1; }
    ThingScreen > #chart { display: none; height: 1fr; min-height: 12; }
    ThingScreen.-chart > #chart { display: block; }
    ThingScreen.-chart > PageTable { height: auto; max-height: 40%; }
    """

    def __init__(self, noun: str, id: UUID, called: str) -> None:
        super().__init__()
        self.noun, self.thing_id, self.crumb = noun, id, f"{noun} {called}"
        self.entity = entity(noun)
        self.called = called
        self.found: Thing | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="summary", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="none")
        with VerticalScroll(id="chart", can_focus=False):
            yield ChartView()

    async def fill(self) -> None:
        noun, id = self.noun, self.thing_id
        found = await self.ask(f"reading the {noun}", lambda session: things.thing(session, noun, id))
        if found is None:
            return
        keep, self.found = self.found is not None, found
        self.query_one("#summary", Static).update("\n".join(filter(None, [found.summary, found.annotations])))
        strip = self.query_one(PaneStrip)
        strip.names = tuple(part.name for part in found.parts)
        strip.place = min(strip.place, len(strip.names) - 1)
        self.show_part(keep)

    @property
    def part(self) -> Part | None:
        return self.found.parts[self.query_one(PaneStrip).place] if self.found else None

    def show_part(self, keep: bool = False) -> None:
        if (part := self.part) is None:
            return
        columns = [replace(column, widest=90) for column in things.columns(part.columns, part.rows)]
        self.query_one(PageTable).show(Listed(part.rows), part.rows[:200], columns=columns, keep=keep)
        self.set_class(part.chart is not None, "-chart")
        if part.chart is not None:
            self.query_one(ChartView).show(part.chart)

    def command(self) -> str:
        if self.entity.several:
            return f"chessreg {self.noun} list --run {show.short(self.thing_id)}"
        return f"chessreg {self.noun} show {show.short(self.thing_id)}"

    def offers(self, action: Action) -> bool:
        return super().offers(action) and (action.method != "verify" or self.entity.verify is not None)

    # -- actions --------------------------------------------------------------------------------------------------

    def action_pane(self, way: str) -> None:
        strip = self.query_one(PaneStrip)
        if strip.names:
            strip.place = (strip.place + int(way)) % len(strip.names)
            self.show_part()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.query_one(PaneStrip).place = event.place
        self.show_part()

    def action_lineage(self) -> None:
        noun = "run" if self.entity.of_run else self.noun
        self.desk_app.open_lineage(noun, self.thing_id.hex, self.called)

    def action_verify(self) -> None:
        if not self.entity.of_run and self.desk_app.read_only:  # it is noted when the bytes were verified last
            self.notify("nothing is changed with --read-only", severity="warning")
        elif self.entity.verify is not None:
            self.verify()

    @work(group="verify", exclusive=True)
    async def verify(self) -> None:
        """Read its bytes again. Takes as long as the disk needs; every key works meanwhile."""
        id, verify = self.thing_id, self.entity.verify
        assert verify is not None
        found = await self.ask(f"verifying {self.called}", lambda session: outcome(verify(session, id.hex), self.noun))
        if found is not None:
            self.notify(found, title=self.called)

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        made_by = event.row.get("run_id")
        if made_by is not None and UUID(str(made_by)) != self.thing_id:
            self.app.push_screen(ThingScreen(self.noun, UUID(str(made_by)), str(event.row["name"])))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))


def outcome(found: Verified, noun: str) -> str:
    """What came of it in words. Raises ChessregError where something is wrong."""
    if found.problems:
        raise ChessregError(f"the {noun} is not what its report says: {found.problems[0]}", f"chessreg {noun} verify")
    return found.outcome
