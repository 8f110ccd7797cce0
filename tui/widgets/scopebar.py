"""The line that says what queries are narrowed to: checkpoint, run, tag, machine, time, a condition."""

from __future__ import annotations

from textual.suggester import Suggester
from textual.widgets import Input

from tui.data.scopes import GRAMMAR, completed
from tui.widgets.filterbar import FilterBar


class ScopeSuggester(Suggester):
    """Offers the names that there are, for the last word."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.known: list[str] = []

    async def get_suggestion(self, value: str) -> str | None:
        return completed(value, self.known)


class ScopeBar(FilterBar):
    """A FilterBar that acts on Enter, not while one types: a query may take a while. → takes what is offered."""

    def __init__(self, id: str | None = "scope") -> None:
        super().__init__(GRAMMAR, id=id)
        self.words_offered = ScopeSuggester()
        self.suggester = self.words_offered

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.set_class(not self.fits(event.value), "-wrong")

    @staticmethod
    def fits(words: str) -> bool:
        from chessreg.errors import BadInputError
        from tui.data.scopes import options

        try:
            options(words)
        except BadInputError:
            return False
        return True

    DEFAULT_CSS = """
    ScopeBar.-wrong { color: $text-error; }
    """
