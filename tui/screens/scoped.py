"""What the catalogue, an answer and a plot share: one scope, in a bar, kept from one query to the next."""

from __future__ import annotations

from tui.actions import bindings
from tui.data import scopes
from tui.screens.room import Room
from tui.widgets.filterbar import FilterBar
from tui.widgets.scopebar import ScopeBar
from tui.widgets.table import PageTable

SCOPE = "queries.scope"  # under which it is remembered


class Scoped(Room):
    """A screen with a ScopeBar. What it says narrows every query of the registry until it is changed."""

    BINDINGS = bindings("scoped")

    @property
    def scope(self) -> str:
        words: str = self.desk_app.remembered.get(SCOPE, "")
        return words

    _scope_shown = ""

    def on_screen_resume(self) -> None:
        """Another screen may have changed the scope meanwhile."""
        if self.is_mounted and self._scope_shown != self.scope:
            self.load()

    async def offer_words(self) -> None:
        """Show the scope that is set, and have the names ready that it may be completed with."""
        bar, self._scope_shown = self.query_one(ScopeBar), self.scope
        if not bar.has_focus:
            bar.set_words(self.scope)
        if not bar.words_offered.known:
            bar.words_offered.known = await self.ask("reading the names", scopes.offered) or []

    def action_scope(self) -> None:
        self.query_one(ScopeBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        from chessreg.errors import BadInputError

        try:
            scopes.options(event.words)
        except BadInputError as error:
            self.desk_app.trouble(self, error)
            return
        self.desk_app.remembered.set(SCOPE, event.words or None)
        self.load()

    def on_filter_bar_left(self) -> None:
        tables = self.query(PageTable)
        self.set_focus(tables.first() if tables else None)
