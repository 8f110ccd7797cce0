"""The notes of a query result: filters on its rows, values shared by all of them, and provenance."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.actions import make_bindings


class NotesPane(VerticalScroll, can_focus=True):
    """A pane as high as its text, at most a third of the screen. It can be focused with Tab, and it scrolls."""

    BINDINGS = make_bindings("notes")
    DEFAULT_CSS = """
    NotesPane {
        height: auto; max-height: 33%; padding: 0 1; border: round $edge; background: $surface; color: $text-muted;
        border-title-color: $foreground; border-title-style: bold; scrollbar-size-vertical: 1;
    }
    NotesPane:focus { border: round $accent; border-title-color: $text-accent; }
    NotesPane > Static { height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    drawn_notes: tuple[Sequence[str], str, Sequence[str]] = ((), "", ())

    def on_mount(self) -> None:
        self.watch(self.app, "theme", lambda: self.show(*self.drawn_notes))

    def show(self, notes: Sequence[str], provenance: str, facts: Sequence[str] = ()) -> None:
        """Show notes, each with a mark, then facts and the provenance without marks."""
        self.drawn_notes = notes, provenance, facts
        color = self.app.theme_variables["text-warning"]
        table = Table.grid(padding=(0, 1))
        for note in notes:
            table.add_row(Text("!", style=f"bold {color}"), Text(note))
        rest = [Text(line) for line in (*facts, provenance) if line]
        self.query_one(Static).update(Group(*([table] if notes else []), *rest))
        self.border_title = f"Notes {len(notes)}" if notes else "Source"
        self.display = bool(notes or rest)

    def action_scroll_notes(self, way: str) -> None:
        self.scroll_relative(y=int(way), animate=False)
