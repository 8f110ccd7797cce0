"""Two games of the same opening in two arms, scrubbed together: baseline and edited, say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from tui import show
from tui.actions import Action, bindings
from tui.screens.boardroom import BoardRoom
from tui.widgets import squares
from tui.widgets.board import BoardPane
from tui.widgets.moves import MoveList, with_tries
from tui.widgets.squares import Size

if TYPE_CHECKING:
    from tui.data.pairs import Sides

AROUND = 8  # bars, head, titles, and lines of text under a board
LIST_LINES = 5  # below them a list of moves is worth its place


class PairScreen(BoardRoom):
    """Both boards show the same ply. A game that has ended stays at its end."""

    place = "pair"
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = bindings("pair")
    DEFAULT_CSS = """
    PairScreen #head { height: 2; padding: 0 1; text-style: bold; color: $text-accent; }
    PairScreen #games { height: 1fr; }
    PairScreen #games > Vertical { width: 1fr; height: 1fr; }
    PairScreen BoardPane { margin: 0 0 0 1; }
    PairScreen MoveList { margin: 1 1 0 1; max-height: 100%; height: 1fr; }
    PairScreen.-empty #games { display: none; }
    """

    def __init__(self, row: Mapping[str, Any], ply: int = 0) -> None:
        super().__init__(classes="-empty")
        self.row, self.ply, self.chosen = row, ply, 0
        self.crumb = "beside"
        self.found: Sides | None = None

    def body(self) -> ComposeResult:
        yield Static("reading both games…", id="head", markup=False)
        with Horizontal(id="games"):
            for side in ("one", "other"):
                with Vertical():
                    yield BoardPane(id=side)
                    yield MoveList(id=f"moves-{side}")

    async def fill(self) -> None:
        from tui.data.pairs import sides

        row, chosen = self.row, self.chosen
        found = await self.ask("reading both games", lambda session: [sides(session, row, chosen)])
        if found is None:
            return
        self.found = found[0]
        if self.found is None:
            self.query_one("#head", Static).update(
                "No other arm has a game from this opening: chessreg run play with the same --opening and"
                " --opening-seed makes one."
            )
            return
        self.crumb = f"beside {self.found.sides[1].run} {self.found.sides[1].unit}"
        self.remove_class("-empty")
        for name, side in zip(("one", "other"), self.found.sides, strict=True):
            self.query_one(f"#moves-{name}", MoveList).frames = tuple(side.frames)
        self.relabel()
        self.draw()

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The last frame of the longer game."""
        return max(len(side.frames) for side in self.found.sides) - 1 if self.found else 0

    def fits(self, size: Size, text: int = 0) -> bool:
        wide, high = squares.extent(size)
        return 2 * (wide + 2) <= self.app.size.width and high + text + AROUND <= self.app.size.height

    def draw(self) -> None:
        if self.found is None:
            return
        size = self.board_size
        lines = self.app.size.height - squares.extent(size)[1] - AROUND
        for name, side in zip(("one", "other"), self.found.sides, strict=True):
            frame = side.frames[min(self.ply, len(side.frames) - 1)]
            frame = replace(frame, title=f"{side.run} {side.unit}", flipped=frame.flipped != self.flipped)
            pane = self.query_one(f"#{name}", BoardPane)
            pane.styles.width = max(squares.extent(size)[0], self.app.size.width // 2 - 2)
            pane.show(frame, size, self.desk_app.glyphs)
            moves = self.query_one(f"#moves-{name}", MoveList)
            moves.display, moves.place = lines >= LIST_LINES, min(self.ply, len(side.frames) - 1)
        self.query_one("#head", Static).update(self.head())

    def head(self) -> str:
        assert self.found
        found = self.found
        parts = "the games are equal" if found.parts is None else f"they part at ply {found.parts}: {found.moves}"
        together = found.parts is None or self.ply <= found.parts
        ends = " and ".join(str(len(side.frames) - 1) for side in found.sides)
        more = f" · arm {found.chosen + 1} of {len(found.partners)}" if len(found.partners) > 1 else ""
        here = "together" if together else "apart"
        return f"{found.partners[found.chosen].arm}{more}\nafter ply {self.ply} of {ends}, {here} · {parts}"

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def offers(self, action: Action) -> bool:
        if action.method == "partner":
            return self.found is not None and len(self.found.partners) > 1
        return super().offers(action)

    def go(self, ply: int) -> None:
        if self.found is not None:
            self.ply = min(max(0, ply), self.last)
            self.draw()

    def action_step(self, way: str) -> None:
        self.go(self.ply + int(way))

    def action_edge(self, which: str) -> None:
        self.go(0 if which == "first" else self.last)

    def action_parts(self) -> None:
        """The first boards that differ: those after the ply at which the games part."""
        if self.found is not None and self.found.parts is not None:
            self.go(self.found.parts + 1)
        elif self.found is not None:
            self.notify("the games are equal to the end")

    def action_illegal(self) -> None:
        if self.found is None:
            return
        wrong = sorted({n for side in self.found.sides for n in with_tries(side.frames)})
        if wrong:
            self.go(next((n for n in wrong if n > self.ply), wrong[0]))
        else:
            self.notify("no illegal try in either game")

    def action_limit(self) -> None:
        if self.found is not None:
            limit = next((side.limit for side in self.found.sides if side.limit is not None), None)
            if limit is None:
                self.notify("no move limit was recorded")
            else:
                self.go(limit)
                if limit > self.last:
                    self.notify(f"both ended before the limit, which is after ply {limit}")

    def action_partner(self) -> None:
        self.chosen += 1
        self.load()

    def on_move_list_chosen(self, event: MoveList.Chosen) -> None:
        self.go(event.place)

    def command(self) -> str:
        words = f"chessreg game part {show.short(self.row['run_id'])}:{self.row['unit']}"
        if self.found is None:
            return words
        other = self.found.sides[1]
        return f"{words} {show.short(other.run_id)}:{other.unit}"
