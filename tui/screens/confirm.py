"""A question before something is done that costs work."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.actions import bindings


class Confirm(ModalScreen[bool]):
    """Yes or no, by a key or a click; anything but yes is no."""

    BINDINGS = bindings("confirm")
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical {
        width: auto; max-width: 70; height: auto; padding: 1 3; background: $panel; border: round $accent;
    }
    Confirm Static { width: auto; height: auto; }
    Confirm #answers { margin-top: 1; color: $text-muted; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.question, markup=False)
            yield Static("y  yes      n  no", id="answers", markup=False)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer == "yes")
