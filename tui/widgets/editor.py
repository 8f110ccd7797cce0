"""The SQL editor: highlighted, and completed with the names of this registry."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message
from textual.widgets import TextArea

from tui.actions import bindings
from tui.data.queries import WORD, Names, completions

OFFERED = 60  # at most


class SqlEditor(TextArea):
    """Tab completes; Esc and what asks are the screen's."""

    BINDINGS = bindings("editor")
    DEFAULT_CSS = """
    SqlEditor { border: none; padding: 0; background: $surface; }
    SqlEditor:focus { border: none; }
    """

    class Offered(Message):
        """These words may stand here, when they are more than one, or none."""

        def __init__(self, words: Sequence[str]) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """On to the rows."""

    def __init__(self, text: str) -> None:
        super().__init__(text, show_line_numbers=True, tab_behavior="focus")
        if "sql" in self.available_languages:
            self.language = "sql"
        self.names: Names = {}
        self.cursor_blink = False

    @property
    def before(self) -> str:
        """What stands before the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def action_complete(self) -> None:
        found = completions(self.before, self.text, self.names)[:OFFERED]
        if len(found) == 1:
            self.complete_with(found[0])
        else:
            self.post_message(self.Offered(found))

    def complete_with(self, word: str) -> None:
        """Put a word in the place of what of it is there."""
        row, column = self.cursor_location
        begun = WORD.search(self.before)
        start = column - (len(begun[0]) if begun else 0)
        self.replace(word, (row, start), (row, column), maintain_selection_offset=False)
        self.move_cursor((row, start + len(word)))

    def action_leave(self) -> None:
        self.post_message(self.Left())
