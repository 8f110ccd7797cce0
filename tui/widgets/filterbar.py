"""A line to type words into; what it narrows follows while one types."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

PAUSE = 0.12  # seconds without a key before it is acted on


class FilterBar(Input):
    """Enter and ↓ go back to the list, Esc clears and goes back."""

    DEFAULT_CSS = """
    FilterBar { height: 1; border: none; padding: 0 1; background: $surface; color: $foreground; display: none; }
    FilterBar:focus { border: none; background: $surface-lighten-1; }
    FilterBar.-open { display: block; }
    """

    class Typed(Message):
        """The words are these now."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """Back to the list."""

    def __init__(self, placeholder: str, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, select_on_focus=False)
        self._timer: Timer | None = None
        self._said = ""

    def open(self) -> None:
        self.add_class("-open")
        self.focus()

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
            self.post_message(self.Typed(self.value))

    def clear_words(self) -> bool:
        """Forget the words and close; whether there were any."""
        had = bool(self.value)
        self.value = ""
        self.remove_class("-open")
        self._tell()
        return had

    def on_key(self, event: events.Key) -> None:
        if event.key in ("enter", "down"):
            event.prevent_default().stop()
            self._tell()
            self.set_class(bool(self.value), "-open")
            self.post_message(self.Left())
        elif event.key == "escape":
            event.prevent_default().stop()
            self.clear_words()
            self.post_message(self.Left())
