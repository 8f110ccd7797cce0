"""What an edit does to a model's board: a stored state of an edit run, and a position of one's own."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import ComposeResult

from chessreg.errors import BadInputError, ChessregError
from tui import show
from tui.actions import Action, bindings
from tui.data.pages import PAGE, Pages
from tui.screens.board_base import FourBoardsScreen
from tui.widgets.bars import FilterBar

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.lab.question import Choice, Position, Tool
    from chessreg.session import Session
    from tui.data.board_views import EditedState


class EditScreen(FourBoardsScreen):
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
        from chessreg.lab.question import StoredState
        from tui.data.board_views import edited_state

        row, condition = self.row, self.condition
        state = await self.ask("reading the state", lambda session: edited_state(session, row, condition))
        if state is None:
            return
        same = self.state is not None and (self.state.run_id, self.state.unit) == (state.run_id, state.unit)
        self.state, self.stored = state, state.boards
        if not same:
            self.answer = None
        self.crumb = f"{state.run} {state.unit}"
        self.relabel()
        self.draw()
        if not state.condition:
            self.answer = None
            self.draw()
            return
        question = StoredState(run=state.run_id.hex, unit=state.unit, condition=state.condition)
        try:
            answer = await self.app.model.ask(question)
        except ChessregError as error:
            self.require_shown()
            self.app.trouble(self, error)
            return
        self.require_shown()
        if answer is not None:
            self.answer = answer
            self.relabel()
            self.draw()

    def head(self) -> str:
        state = self.state
        if state is None:
            return "reading the state…"
        if not state.condition:
            return f"{state.boards[0].title}: {state.boards[0].caption[0]}"
        where = state.boards[0].title.removeprefix("clean, ")
        if self.answer is None:
            return f"{state.condition}, {where} · the model is being asked…"
        answer = self.answer
        edited = ", ".join(map(str, answer.edited_layers))
        scales = ", ".join(f"{scale:g}" for scale in dict.fromkeys(answer.scales))
        taken = f"{answer.piece} off {state.row['square']}"
        return f"{state.condition}: {taken}, layers {edited}, scale {scales} · {where}"

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
        from tui.screens.base import FieldsScreen

        self.app.push_screen(FieldsScreen(dict(self.state.row if self.state else self.row)))

    async def action_lab(self) -> None:
        """The same position in the lab."""
        if self.answer is not None:
            await self.app.switch_mode("lab")
            if isinstance(lab := self.app.screen, LabScreen):
                lab.go(self.answer.sans)

    def command(self) -> str:
        if self.state is None or not self.state.condition:
            return f"chessreg board {show.short(self.row['run_id'])}:{self.row['unit']}"
        words = f"chessreg lab {show.short(self.state.run_id)}:{self.state.unit} --condition {self.state.condition}"
        return words if self.shown_layer is None else f"{words} --layer {self.shown_layer}"


SCALES = (0.1, 0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 80.0, 120.0, 200.0)
LADDER = (*(-scale for scale in reversed(SCALES)), 0.0, *SCALES)
START = "e4 e5"


def next_scale(scale: float, way: int) -> float:
    """The next scale up or down: steps grow with it."""
    fitting = [value for value in LADDER if (value - scale) * way > 1e-9]
    return (min if way > 0 else max)(fitting, default=scale)


class LabScreen(FourBoardsScreen):
    """Every key asks the process that holds the model; the last answer stays until the next is there."""

    place = "lab"
    crumb = "lab"
    follows = False
    BINDINGS = bindings("lab")
    DEFAULT_CSS: ClassVar[str] = """
    LabScreen FilterBar { dock: bottom; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []
        self.model = self.tool = 0
        self.sans: tuple[str, ...] = tuple(START.split())
        self.ahead: tuple[str, ...] = ()  # moves that were taken back
        self.edited_layers: tuple[int, ...] = ()  # none: those that the answer names
        self.scale = 1.5
        self.positions = "last"
        self.row = 0  # which of the model's moves is pointed at
        self.asking = False

    def body(self) -> ComposeResult:
        yield from super().body()
        yield FilterBar("moves (e4 e5 Nf3) or a FEN, then Enter", id="moves")

    # -- asking ---------------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        from chessreg.lab.question import choices

        def read(session: Session) -> list[Choice]:
            with session.database.read() as sql:
                return choices(sql)

        known = await self.ask("reading models and probes", read)
        if known is None:
            return
        if not known:
            self.tell("No model yet: chessreg import checkpoint reference brings in the bundled one.")
            return
        self.choices = known
        self.model = min(self.model, len(known) - 1)
        await self.look_now()

    def tell(self, words: str) -> None:
        from textual.widgets import Static

        self.query_one("#message", Static).update(words)

    @property
    def choice(self) -> Choice:
        return self.choices[self.model]

    @property
    def chosen(self) -> Tool | None:
        """The probe or vector that edits."""
        tools = self.choice.tools
        return tools[self.tool % len(tools)] if tools else None

    def question(self, named: bool = False) -> Position:
        """What is asked now; `named` as a person would write it."""
        from chessreg.lab.question import Position

        tool = self.chosen
        probe = next((one for one in self.choice.tools if one.kind == "probe"), None)
        if tool is not None and tool.kind == "probe":
            probe = tool
        vector = tool if tool is not None and tool.kind == "vector" else None

        def reference(of: Tool | None) -> str | None:
            return None if of is None else of.name if named else of.run_id.hex

        return Position.of(
            checkpoint=self.choice.name if named else self.choice.checkpoint_id.hex,
            moves=" ".join(self.sans),
            probe=reference(probe),
            vector=reference(vector),
            layers=self.edited_layers if tool else (),
            scale=self.scale,
            positions=self.positions,
        )

    def look(self) -> None:
        """Ask for what is set now. An earlier question that still waits is dropped."""
        if self.choices:
            self.run_worker(self.look_now(), group="look", exclusive=True)

    async def look_now(self) -> None:
        self.asking = True
        if self.answer is None:
            self.stored = [position(self.sans)]  # there at once; the model takes seconds to load
        self.draw()
        try:
            answer = await self.app.model.ask(self.question())
        except ChessregError as error:
            self.require_shown()
            self.app.trouble(self, error)
            self.asking = False
            self.draw()
            return
        self.require_shown()
        if answer is not None:
            self.asking = False
            self.app.all_well(self)
            self.answer = answer
            self.row = min(self.row, max(0, len(answer.clean.moves) - 1))
            self.relabel()
            self.draw()

    # -- what is drawn --------------------------------------------------------------------------------------------

    @property
    def pointed(self) -> int | None:
        return self.row

    def head(self) -> str:
        if not self.choices:
            return "lab"
        tool, answer = self.chosen, self.answer
        layers = self.edited_layers or (answer.edited_layers if answer else ())
        where = "layers " + ", ".join(map(str, layers)) if layers else "layer chosen by validation"
        edit = f"{tool.kind} {tool.name} · {where} · scale {self.scale:g}, {self.positions}" if tool else "no probe"
        busy = (" · asking…" if self.answer else " · the model is being loaded…") if self.asking else ""
        return f"{self.choice.name} · {edit}{busy}\n{self.movetext()}"

    def movetext(self) -> str:
        """The newest moves that fit a line."""
        words = [f"{n // 2 + 1}.{san}" if n % 2 == 0 else san for n, san in enumerate(self.sans)]
        number = f"{len(self.sans) // 2 + 1}." if len(self.sans) % 2 == 0 else "…"
        text = " ".join([*words, number]) + (f"   ({len(self.ahead)} ahead)" if self.ahead else "")
        cells = max(20, self.app.size.width - 4)
        return text if len(text) <= cells else "…" + text[1 - cells :]

    # -- moves ----------------------------------------------------------------------------------------------------

    def go(self, sans: tuple[str, ...], ahead: tuple[str, ...] = ()) -> None:
        self.sans, self.ahead, self.row = sans, ahead, 0
        self.look()

    def action_back_move(self) -> None:
        if self.sans:
            self.go(self.sans[:-1], (self.sans[-1], *self.ahead))

    def action_forward_move(self) -> None:
        """The move that was taken back, or the model's own."""
        if self.ahead:
            self.go((*self.sans, self.ahead[0]), self.ahead[1:])
        elif self.answer is not None and not self.asking and self.answer.clean.moves:
            self.go((*self.sans, self.answer.clean.moves[0].san))

    def action_point(self, way: str) -> None:
        if self.answer is not None:
            self.row = min(max(0, self.row + int(way)), max(0, len(self.answer.clean.moves) - 1))
            self.draw_numbers()

    def action_play(self) -> None:
        if self.answer is not None and not self.asking and self.answer.clean.moves:
            self.go((*self.sans, self.answer.clean.moves[self.row].san))

    def action_type(self) -> None:
        bar = self.query_one(FilterBar)
        bar.set_words(" ".join(self.sans))
        bar.open()

    def leave_filter(self) -> None:
        bar = self.query_one(FilterBar)
        text, bar.display = bar.value, False
        self.set_focus(None)
        self.relabel()
        if text.strip():
            self.take(text)

    @work(exclusive=True, group="typed")
    async def take(self, text: str) -> None:
        """Go where typed moves lead. A FEN is searched for on a thread: it can take seconds."""
        from chessreg.games.typed import typed_moves

        try:
            sans = await self.app.database.ask("searching a game to the position", lambda session: typed_moves(text))
        except BadInputError as error:
            self.notify(str(error), severity="error")
            return
        self.require_shown()
        if sans != self.sans:
            self.go(sans)

    # -- the edit -------------------------------------------------------------------------------------------------

    def offers(self, action: Action) -> bool:
        if action.place == "lab" and not self.choices:
            return False
        if action.method == "tool" and len(self.choice.tools if self.choices else ()) < 2:
            return False
        return super().offers(action)

    def action_scale(self, way: str) -> None:
        self.scale = next_scale(self.scale, int(way))
        self.look()

    def action_edited_layer(self, way: str) -> None:
        """The next layer that the probe or vector has; before the first of a vector stand all of them."""
        tool = self.chosen
        if tool is None:
            return
        now = self.edited_layers or (self.answer.edited_layers if self.answer else ())
        place = tool.layers.index(now[-1]) if now and now[-1] in tool.layers else 0
        if len(now) == 1:
            place = min(max(0, place + int(way)), len(tool.layers) - 1)
        self.edited_layers = (tool.layers[place],)
        self.shown_layer = None  # that of the edit
        self.look()

    def action_all_layers(self) -> None:
        """All layers of the probe or vector at once."""
        if self.chosen is not None:
            self.edited_layers = () if self.edited_layers == self.chosen.layers else self.chosen.layers
            self.look()

    def action_tool(self) -> None:
        self.tool += 1
        self.edited_layers, self.shown_layer = (), None
        self.look()

    def action_model(self) -> None:
        if self.choices:
            self.model = (self.model + 1) % len(self.choices)
            self.tool, self.edited_layers, self.shown_layer = 0, (), None
            self.look()

    def action_tokens(self) -> None:
        self.positions = "all" if self.positions == "last" else "last"
        self.look()

    # -- keeping it -----------------------------------------------------------------------------------------------

    @work(group="store")
    async def action_store(self) -> None:
        """Store the edit as a run, by the command that does it, in a process of its own."""
        try:
            words = self.question(named=True).stored_by
            exact = self.question().stored_by
        except ChessregError as error:
            self.notify(str(error), severity="warning")
            return
        self.notify(shlex.join(["chessreg", *words]), title="storing")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "chessreg.cli", *exact, env=await self.app.model.environment(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        out, err = await process.communicate()
        if process.returncode:
            self.notify(err.decode(errors="replace").strip().splitlines()[-1], title="not stored", severity="error")
        else:
            printed = (out or err).decode(errors="replace").strip().splitlines()
            self.notify(printed[-1] if printed else "", title="stored")

    def command(self) -> str:
        return shlex.join(["chessreg", *self.question(named=True).command]) if self.choices else "chessreg lab"


def position(sans: tuple[str, ...]) -> BoardFrame:
    """The board after these moves."""
    import chess

    from chessreg.games.boardframe import BoardFrame

    board = chess.Board()
    for san in sans:
        board.push_san(san)
    return BoardFrame.from_board(board)
