"""The lab: a position, a model, and what an edit does to it there, as one plays with moves, layer and scale."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult

from chessreg.errors import BadInputError, ChessregError
from tui.actions import Action, bindings
from tui.screens.quartet import Quartet
from tui.widgets.bars import FilterBar

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.lab.question import Choice, Position, Tool

SCALES = (0.1, 0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 80.0, 120.0, 200.0)
LADDER = (*(-scale for scale in reversed(SCALES)), 0.0, *SCALES)
START = "e4 e5"


def next_scale(scale: float, way: int) -> float:
    """The next scale up or down: steps grow with it."""
    fitting = [value for value in LADDER if (value - scale) * way > 1e-9]
    return (min if way > 0 else max)(fitting, default=scale)


class LabScreen(Quartet):
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

        def read(session: object) -> list[Choice]:
            with session.database.read() as sql:  # type: ignore[attr-defined]
                return choices(sql)

        found = await self.ask("reading models and probes", read)
        if found is None:
            return
        if not found:
            self.tell("No model yet: chessreg import checkpoint reference brings in the bundled one.")
            return
        self.choices = found
        self.model = min(self.model, len(found) - 1)
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
            answer = await self.desk_app.bench.look(self.question())
        except ChessregError as error:
            self.require_shown()
            self.desk_app.trouble(self, error)
            self.asking = False
            self.draw()
            return
        self.require_shown()
        if answer is not None:
            self.asking = False
            self.desk_app.all_well(self)
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
        room = max(20, self.app.size.width - 4)
        return text if len(text) <= room else "…" + text[1 - room :]

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

    def on_filter_bar_left(self, event: FilterBar.Left) -> None:
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
            sans = await self.desk_app.desk.ask("searching a game to the position", lambda session: typed_moves(text))
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
            sys.executable, "-m", "chessreg.cli", *exact, env=await self.desk_app.bench.place(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        out, err = await process.communicate()
        if process.returncode:
            self.notify(err.decode(errors="replace").strip().splitlines()[-1], title="not stored", severity="error")
        else:
            said = (out or err).decode(errors="replace").strip().splitlines()
            self.notify(said[-1] if said else "", title="stored")

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
