"""A state of an edit run: the position, the board aimed at, what the probe reads before and after, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textual import work

from tui import show
from tui.actions import Action, bindings
from tui.data.pages import PAGE, Pages
from tui.screens.quartet import Quartet

if TYPE_CHECKING:
    from tui.data.edits import EditedState


class EditScreen(Quartet):
    """Stored numbers at once, the model's as soon as its process has them. Up and down go on in the list of trials."""

    place = "edit"
    BINDINGS = bindings("edit")

    def __init__(self, pages: Pages, place: int, row: Mapping[str, Any]) -> None:
        super().__init__()
        self.pages, self.at, self.row = pages, place, row
        self.condition = ""
        self.state: EditedState | None = None
        self.crumb = f"{row.get('run', 'edit')} {row.get('unit', '')}".strip()

    async def fill(self) -> None:
        from chessreg.errors import ChessregError
        from chessreg.lab.question import StoredState
        from tui.data.edits import edited_state

        row, condition = self.row, self.condition
        found = await self.ask("reading the state", lambda session: edited_state(session, row, condition))
        if found is None:
            return
        same = self.state is not None and (self.state.run_id, self.state.unit) == (found.run_id, found.unit)
        self.state, self.stored = found, found.boards
        if not same:
            self.answer = None
        self.crumb = f"{found.run} {found.unit}"
        self.relabel()
        self.draw()
        if not found.condition:
            self.answer = None
            self.draw()
            return
        question = StoredState(run=found.run_id.hex, unit=found.unit, condition=found.condition)
        try:
            answer = await self.desk_app.bench.look(question)
        except ChessregError as error:
            self.require_shown()
            self.desk_app.trouble(self, error)
            return
        self.require_shown()
        if answer is not None:
            self.answer = answer
            self.relabel()
            self.draw()

    def head(self) -> str:
        found = self.state
        if found is None:
            return "reading the state…"
        if not found.condition:
            return f"{found.boards[0].title}: {found.boards[0].caption[0]}"
        where = found.boards[0].title.removeprefix("clean, ")
        if self.answer is None:
            return f"{found.condition}, {where} · the model is being asked…"
        answer = self.answer
        edited = ", ".join(map(str, answer.edited_layers))
        scales = ", ".join(f"{scale:g}" for scale in dict.fromkeys(answer.scales))
        taken = f"{answer.piece} off {found.row['square']}"
        return f"{found.condition}: {taken}, layers {edited}, scale {scales} · {where}"

    # -- actions --------------------------------------------------------------------------------------------------

    def offers(self, action: Action) -> bool:
        if action.method == "lab":
            return self.answer is not None
        if action.method == "condition":
            return self.state is not None and len(self.state.conditions) > 1
        return super().offers(action)

    def action_condition(self, way: str) -> None:
        if self.state is not None and self.state.condition:
            known = self.state.conditions
            self.condition = known[(known.index(self.state.condition) + int(way)) % len(known)]
            self.load()

    @work(exclusive=True, group="row")
    async def action_row(self, way: str) -> None:
        """The next state of the list: trials of the state that is shown are passed over."""
        place, here = self.at, (self.row.get("run_id"), self.row.get("unit"))
        while 0 <= (place := place + int(way)) < self.pages.count:
            number = place // PAGE
            rows = await self.ask("reading rows", lambda session, number=number: self.pages.page(number))  # type: ignore[misc]
            if not rows:
                return
            while number * PAGE <= place < number * PAGE + len(rows):
                row = rows[place % PAGE]
                if (row.get("run_id"), row.get("unit")) != here:
                    self.at, self.row = place, row
                    self.load()
                    return
                place += int(way)
            place -= int(way)

    def action_inspect(self) -> None:
        from tui.screens.room import Details

        self.app.push_screen(Details(dict(self.state.row if self.state else self.row)))

    async def action_lab(self) -> None:
        """The same position in the lab."""
        from tui.screens.lab import LabScreen

        if self.answer is not None:
            await self.app.switch_mode("lab")
            if isinstance(lab := self.app.screen, LabScreen):
                lab.go(self.answer.sans)

    def command(self) -> str:
        if self.state is None or not self.state.condition:
            return f"chessreg board {show.short(self.row['run_id'])}:{self.row['unit']}"
        words = f"chessreg lab {show.short(self.state.run_id)}:{self.state.unit} --condition {self.state.condition}"
        return words if self.shown_layer is None else f"{words} --layer {self.shown_layer}"
