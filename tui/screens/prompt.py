"""One line to type, asked for in a box."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.actions import bindings


class Prompt(ModalScreen[str | None]):
    """Ends with what was typed, or with None when it was left."""

    BINDINGS = bindings("prompt")
    DEFAULT_CSS = """
    Prompt { align: center middle; }
    Prompt > Vertical {
        width: 72; max-width: 95%; height: auto; padding: 1 2; background: $panel; border: round $accent;
    }
    Prompt Input { height: 1; border: none; padding: 0 1; background: $surface; color: $foreground; }
    Prompt Input:focus { border: none; }
    Prompt Static { height: auto; }
    Prompt #hint { margin-top: 1; color: $text-muted; }
    """

    def __init__(self, question: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self.question, self.value, self.hint = question, value, hint

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self.question, markup=False)
            yield Input(self.value, select_on_focus=False)
            yield Static(self.hint or "Enter does it, Esc leaves it", id="hint", markup=False)

    def action_accept(self) -> None:
        self.dismiss(self.query_one(Input).value.strip() or None)

    def action_cancel(self) -> None:
        self.dismiss(None)
