"""A line to type words into; what it narrows follows while one types."""

from __future__ import annotations

from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from tui.actions import FILTER, bindings

PAUSE = 0.12  # seconds without a key before it is acted on


class FilterBar(Input):
    """Enter and ↓ go back to the list, Esc clears and goes back."""

    BINDINGS = bindings(FILTER)

    DEFAULT_CSS = """
    FilterBar { height: 1; border: none; padding: 0 1; background: $surface; color: $foreground; }
    FilterBar:focus { border: none; background: $surface-lighten-1; }
    """

    class Typed(Message):
        """The words are these now."""

        def __init__(self, words: str, bar: FilterBar) -> None:
            super().__init__()
            self.words, self.bar = words, bar

    class Left(Message):
        """Back to the list."""

    def __init__(self, placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, select_on_focus=False)
        self.display = False
        self._timer: Timer | None = None
        self._said = ""

    def open(self) -> None:
        self.display = True
        self.screen.set_focus(self)  # at once: what is typed next is for this line

    def set_words(self, words: str) -> None:
        """Have these words, as if they had been typed and acted on."""
        self.value = self._said = words
        self.display = bool(words) or self.has_focus

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PAUSE, self._tell)

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self.value != self._said:
            self._said = self.value
            self.post_message(self.Typed(self.value, self))

    def action_leave(self) -> None:
        self._tell()
        self.display = bool(self.value)
        self.post_message(self.Left())

    def action_clear_words(self) -> None:
        self.value = ""
        self._tell()
        self.display = False
        self.post_message(self.Left())
