"""Messages of this session, and changes that could not be written yet."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import Action, make_bindings
from tui.columns import TableColumn
from tui.data.pages import ListPages, Row
from tui.screens.base import AppScreen
from tui.screens.dialogs import Confirm
from tui.widgets.table import PageTable
from tui.writes import Write

COLUMNS = (
    TableColumn("at", "when", least=16),
    TableColumn("state", "", widest=12, least=11),
    TableColumn("title", "about", widest=30, least=10),
    TableColumn("message", "message", widest=200, least=20),
)


class MessagesScreen(AppScreen):
    """List the unwritten changes first, then the messages, newest first.

    Enter shows a message in full. Unwritten changes are retried automatically or dropped by hand.
    """

    place = "messages"
    crumb = "messages"
    BINDINGS = make_bindings("messages")

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield PageTable(COLUMNS, id="messages", title="Messages", empty="no messages yet")

    async def fill(self) -> None:
        self.draw()

    def on_mount(self) -> None:
        self.set_interval(0.5, self.follow)

    _drawn_state: tuple[object, ...] = ()

    def follow(self) -> None:
        if self._drawn_state != self.state:
            self.draw()

    @property
    def state(self) -> tuple[object, ...]:
        return (*((write, write.error) for write in self.app.writes.waits), *self.app.notices)

    def draw(self) -> None:
        self._drawn_state = self.state
        writes = self.app.writes.waits
        rows: list[Row] = [
            {"at": write.at, "state": "not written", "title": write.what,
             "message": f"{write.change}: {write.error or 'writing …'}", "write": write}
            for write in writes
        ]  # fmt: skip
        rows += [
            {"at": notice.at, "state": "" if notice.severity == "information" else notice.severity,
             "title": notice.title, "message": notice.message}
            for notice in reversed(self.app.notices)
        ]  # fmt: skip
        waiting_text = f"{show.format_count(len(writes), 'change')} not written yet · " if writes else ""
        count = len(self.app.notices)
        newest_note = f"the newest {show.format_count(count, 'message')}" if count else "no messages yet"
        self.query_one("#overview", Static).update(f"{waiting_text}{newest_note}")
        self.query_one(PageTable).show(ListPages(rows), rows, columns=COLUMNS, keep=True)
        self.relabel()

    def command(self) -> str:
        return "chessreg runs list"

    @property
    def selected_write(self) -> Write | None:
        row = self.query_one(PageTable).current_row
        write = row.get("write") if row is not None else None
        return write if write in self.app.writes.waits else None

    def can_offer(self, action: Action) -> bool:
        if action.place == self.place and self.selected_write is None:
            return False
        return super().can_offer(action)

    def action_again(self) -> None:
        self.app.continue_writing()

    def action_drop(self) -> None:
        if (write := self.selected_write) is not None:
            question = f"Discard this change of {write.what}: {write.change}? It has not been written."
            self.app.push_screen(Confirm(question), partial(self._drop, write))

    def _drop(self, write: Write, yes: bool | None) -> None:
        """Discard a change that has not been written, if the user answered yes."""
        if yes:
            write.dropped = True
            self.app.writes.drop(write)
            self.app.show_waiting_changes()
            self.draw()

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.relabel()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))

    def on_page_table_inspected(self, event: PageTable.Inspected) -> None:
        event.prevent_default()
        from tui.screens.base import FieldsScreen

        self.app.push_screen(FieldsScreen({k: v for k, v in event.row.items() if k != "write"}, "message"))
