"""The lab: any position, and the effect of an edit on a model's board there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, cast

from textual import work
from textual.app import ComposeResult
from textual.widgets import Static

from chessreg.errors import BadInputError, ChessregError
from tui.actions import SQUARES, Action, list_place_actions, make_bindings
from tui.screens.board_base import FourBoardsScreen
from tui.widgets.bars import FilterBar
from tui.widgets.board import BoardPane

if TYPE_CHECKING:
    import chess
    from textual.widget import Widget

    from chessreg.games.boards.boardframe import BoardFrame, Mark
    from chessreg.lab.answer import MoveComparison
    from chessreg.lab.question import CheckpointChoice, LabPosition, StoredEdit, Tool
    from chessreg.session import Session
    from tui.host import Host


SCALES = (0.1, 0.2, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 80.0, 120.0, 200.0)
SCALE_LADDER = (*(-scale for scale in reversed(SCALES)), 0.0, *SCALES)
START_MOVES = "e4 e5"
FIRST_SQUARE = 28  # e4
EDIT = "edit"  # the condition without a control
PATCH = "patch"  # patches in the residual of the later board


def find_next_scale(scale: float, way: int) -> float:
    """Return the next larger (`way` > 0) or smaller scale of the ladder."""
    scales = [value for value in SCALE_LADDER if (value - scale) * way > 1e-9]
    return (min if way > 0 else max)(scales, default=scale)


class SquareBar(Static, can_focus=True):
    """The bar shown while squares of the target are edited with arrows, piece letters and a dot."""

    BINDINGS = make_bindings(SQUARES)
    DEFAULT_CSS = """
    SquareBar { height: 1; padding: 0 1; display: none; background: $panel; }
    """

    @property
    def lab(self) -> LabScreen:
        return cast("LabScreen", self.screen)

    def show_square(self, square: int, changes: str) -> None:
        """Show the selected square and the changes so far."""
        import chess

        self.update(
            f"target, {chess.square_name(square)}: {changes or 'PNBRQK and pnbrqk place pieces, a dot removes one'}"
        )

    def action_move(self, way: str) -> None:
        files, ranks = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}[way]
        self.lab.move_cursor(files, ranks)

    def action_put(self, piece: str) -> None:
        self.lab.put(piece)

    def action_take_back(self) -> None:
        self.lab.undo_change()

    def action_leave(self) -> None:
        self.lab.close_square_bar()


class LabScreen(FourBoardsScreen):
    """A position and an edit. Every change asks the model process; the last answer stays until the next arrives."""

    place = "lab"
    finds = False
    crumb = "lab"
    follows = True
    BINDINGS = make_bindings("lab")

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[CheckpointChoice] = []
        self.model = self.tool = 0
        self.sans: tuple[str, ...] = tuple(START_MOVES.split())
        self.ahead: tuple[str, ...] = ()  # moves taken back, which can be replayed
        self.edited_layers: tuple[int, ...] = ()  # empty: use the layers of the answer
        self.scales = {False: 1.5, True: 0.5}  # by whether the next token is read
        self.token_mask = "last"
        self.condition = EDIT
        self.settings: tuple[tuple[str, str], ...] = ()  # of the stored edit
        self.changes: dict[int, str] = {}  # square → piece on the target, `.` for empty
        self.pending: StoredEdit | None = None  # shown as soon as the models are read
        self.taken_up: StoredEdit | None = None  # stored edit of the current position
        self.came_from = ""  # the mode to return to
        self.strongest: StoredEdit | None = None  # the strongest edit in the registry
        self.opened = False
        self.cursor: int | None = None  # selected square of the target
        self.row = 0  # selected move of the model
        self.asking = False
        self.answered_position: LabPosition | None = None  # question of `answer`
        self.answered_sans: tuple[str, ...] = ()  # moves of that question

    def body(self) -> ComposeResult:
        yield SquareBar()
        yield from super().body()
        yield FilterBar(
            "moves (e4 e5 Nf3) or a FEN, then Enter", id="moves", hides=False, leads="go there", title="moves"
        )

    # -- asking the model -----------------------------------------------------------------------------------------

    async def fill(self) -> None:
        from chessreg.lab.question import find_strongest_edit, list_checkpoint_choices

        is_first_opening = not self.opened and self.pending is None

        def read_choices(session: Session) -> tuple[list[CheckpointChoice], StoredEdit | None]:
            with session.database.read() as sql:
                choices = list_checkpoint_choices(sql)
            return choices, find_strongest_edit(session.inputs) if is_first_opening else None

        answer = await self.ask("reading models and probes", read_choices)
        if answer is None:
            return
        choices, strongest_edit = answer
        if not choices:
            self.show_message("No model yet: `chessreg import checkpoint --reference` imports the bundled one, as does "
                      "M at home (1) while nothing was run.")  # fmt: skip
            return
        self.update_choices(choices)
        self.opened = True
        if (
            is_first_opening
            and self.pending is None
            and strongest_edit is not None
            and self.find_choice_indices(strongest_edit) is not None
        ):
            self.pending = self.strongest = strongest_edit
        if self.pending is not None:
            self.show_pending()
        elif self.answer is None or self.question() != self.answered_position:
            await self.ask_now()

    def update_choices(self, known_checkpoints: list[CheckpointChoice]) -> None:
        """Replace the choices and keep the selected model and probe if they still exist."""
        model, tool = (self.choice.checkpoint_id, self.selected_tool) if self.choices else (None, None)
        self.choices = known_checkpoints
        self.model = next((n for n, one in enumerate(known_checkpoints) if one.checkpoint_id == model), 0)
        tools = self.choice.tools
        self.tool = next((n for n, one in enumerate(tools) if tool is not None and one.run_id == tool.run_id), 0)

    def show_message(self, words: str) -> None:
        self.query_one("#message", Static).update(words)

    @property
    def choice(self) -> CheckpointChoice:
        return self.choices[self.model]

    @property
    def selected_tool(self) -> Tool | None:
        """The selected probe or vector, or None."""
        tools = self.choice.tools
        return tools[self.tool % len(tools)] if tools else None

    def question(self, is_named: bool = False) -> LabPosition:
        """Return the current question, with names in place of ids if `is_named`."""
        from chessreg.lab.question import LabPosition

        tool = self.selected_tool
        probe = next((one for one in self.choice.tools if one.kind == "probe"), None)
        if tool is not None and tool.kind == "probe":
            probe = tool
        vector = tool if tool is not None and tool.kind == "vector" else None

        def make_reference(of: Tool | None) -> str | None:
            return None if of is None else of.name if is_named else of.run_id.hex

        edits = probe is not None and vector is None
        later = self.ahead if edits and self.condition == PATCH else ()
        settings = tuple(pair for pair in self.settings if pair[0] != PATCH or later)
        return LabPosition.from_settings(
            checkpoint=self.choice.name if is_named else self.choice.checkpoint_id.hex,
            moves=" ".join(self.sans),
            probe=make_reference(probe),
            vector=make_reference(vector),
            layers=self.edited_layers if tool else (),
            scale=self.scale,
            token_mask=self.token_mask,
            measure="next-token" if self.next_token else "moves",
            board=self.board_changes if edits else "",
            later=" ".join(later),
            condition=self.condition if edits else EDIT,
            unit=self.taken_up.unit if edits and self.taken_up is not None else 0,
            settings=settings if edits else (),
        )

    @property
    def next_token(self) -> bool:
        """Whether the next token names a square and is read. False with a vector, which edits no board."""
        tool = self.selected_tool
        return bool(self.choices) and self.choice.next_token and (tool is None or tool.kind == "probe")

    @property
    def scale(self) -> float:
        return self.scales[self.next_token]

    @scale.setter
    def scale(self, value: float) -> None:
        self.scales[self.next_token] = value

    @property
    def board_changes(self) -> str:
        """The changed squares in the form of `--board`."""
        import chess

        return " ".join(f"{chess.square_name(square)}={piece}" for square, piece in sorted(self.changes.items()))

    def start_asking(self) -> None:
        """Ask the model about the current settings. An earlier question that still waits is dropped."""
        if self.choices:
            self.run_exclusive(self.ask_now, "look")

    async def ask_now(self) -> None:
        """Ask the model about the current position, and show the answer or the error."""
        self.asking = True
        if self.answer is None:
            self.stored_boards = [make_position_frame(self.sans)]  # shown while the model loads
        self.draw()
        sans = self.sans
        try:
            question = self.question()
            answer = await self.app.model.ask(question)
        except ChessregError as error:
            self.require_shown()
            self.app.show_failure(self, error)
            self.asking = False
            self.answer = self.answered_position = None  # the old answer no longer applies
            self.stored_boards = [make_position_frame(self.sans)]
            self.relabel()
            self.draw()
            return
        self.require_shown()
        if answer is not None:
            self.asking = False
            self.app.clear_banner(self)
            self.answer, self.answered_position, self.answered_sans = answer, question, sans
            self.row = min(self.row, max(0, len(answer.clean.moves) - 1))
            self.relabel()
            self.draw()

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def moves(self) -> list[MoveComparison]:
        """The legal moves, in the order of the rankings."""
        from chessreg.lab.answer import compare_moves

        if self.answer is None:
            return []
        legal = {move.uci for move in self.answer.clean.moves}
        return [move for move in compare_moves(self.answer) if move.uci in legal]

    @property
    def has_current_answer(self) -> bool:
        """Whether the answer is about the current position, so that its moves can be played."""
        return self.answer is not None and not self.asking and self.answered_sans == self.sans

    @property
    def selected_move(self) -> str | None:
        moves = self.moves
        return moves[min(self.row, len(moves) - 1)].uci if moves else None

    def make_head(self) -> str:
        if not self.choices:
            return "lab"
        if self.cursor is not None:  # the square bar takes the second line
            return self.format_moves()
        tool, answer = self.selected_tool, self.answer
        layers = self.edited_layers or (answer.edited_layers if answer else ())
        layers_text = "layers " + ", ".join(map(str, layers)) if layers else "layer chosen by validation"
        condition_text = self.condition if self.next_token or self.condition != EDIT else ""
        if self.taken_up is not None and self.condition == self.taken_up.condition != EDIT:
            condition_text = f"{self.taken_up.stored_condition} of the run"
        if self.shows_strongest:
            condition_text = "the registry's strongest edit"
        parts = filter(None, [condition_text, layers_text, f"scale {self.scale:g}, {self.token_mask}"])
        edit = f"{tool.kind} {tool.name} · {' · '.join(parts)}" if tool else "no probe"
        busy_note = (" · running the model…" if self.answer else " · loading the model…") if self.asking else ""
        return f"{self.choice.name} · {edit}{busy_note}\n{self.format_moves()}"

    def format_moves(self) -> str:
        """Return the newest moves that fit on a line."""
        words = [f"{n // 2 + 1}.{san}" if n % 2 == 0 else san for n, san in enumerate(self.sans)]
        number = f"{len(self.sans) // 2 + 1}." if len(self.sans) % 2 == 0 else "…"
        text = " ".join([*words, number]) + (f"   ({len(self.ahead)} ahead)" if self.ahead else "")
        cells = max(20, self.app.size.width - 4)
        return text if len(text) <= cells else "…" + text[1 - cells :]

    # -- moves ----------------------------------------------------------------------------------------------------

    def show_moves(self, sans: tuple[str, ...], ahead: tuple[str, ...] = ()) -> None:
        """Show the position after `sans`; `ahead` are the moves taken back, which can be replayed."""
        if sans != self.sans:
            self.taken_up = None
            self.changes = {}  # they belong to the previous board
        self.sans, self.ahead, self.row = sans, ahead, 0
        if self.condition == PATCH and not ahead:
            self.condition = EDIT
        self.start_asking()

    def show_stored_edit(self, edit: StoredEdit, room: str) -> None:
        """Show a stored edit with its position, model, probe, layers, scale and condition.

        Esc returns to the mode `room`.
        """
        self.pending, self.came_from = edit, room
        self.relabel()
        if self.is_mounted:  # its model or probe may have been added since the last read
            self.load()

    def find_choice_indices(self, edit: StoredEdit) -> tuple[int, int] | None:
        """Return the indices of the model and the probe of `edit`, or None if one is missing."""
        for model, choice in enumerate(self.choices):
            if choice.checkpoint_id == edit.checkpoint_id:
                tools = (tool for tool, tool_value in enumerate(choice.tools) if tool_value.run_id == edit.probe_run)
                return next(((model, tool) for tool in tools), None)
        return None

    @property
    def shows_strongest(self) -> bool:
        """Whether the shown edit is the strongest of the registry, with its own settings."""
        from chessreg.games.datasets.labels import parse_board_changes

        edit = self.strongest
        if edit is None or self.taken_up is not edit or self.changes != dict(parse_board_changes(edit.board)):
            return False
        shown_settings = (self.edited_layers, self.token_mask, self.condition, self.scale)
        return shown_settings == (edit.layers, edit.token_mask, edit.condition, edit.scale)

    def show_pending(self) -> None:
        """Show the stored edit that was passed to the lab, if its model and probe are in this registry."""
        edit, self.pending = self.pending, None
        if edit is None:
            return
        if (places := self.find_choice_indices(edit)) is None:
            self.notify("the model or the probe of that edit is not in this registry", severity="warning")
            return
        (self.model, self.tool), self.shown_layer = places, None
        self.sans, self.ahead, self.row = edit.sans, edit.later, 0
        self.edited_layers, self.token_mask, self.condition = edit.layers, edit.token_mask, edit.condition
        self.scale, self.settings, self.taken_up = edit.scale, edit.settings, edit
        from chessreg.games.datasets.labels import parse_board_changes

        self.changes = dict(parse_board_changes(edit.board))
        if edit.next_token != self.next_token:
            self.notify("the lab measures this model differently from that run", severity="warning")
        self.start_asking()

    # -- the target board -----------------------------------------------------------------------------------------

    def make_target_board(self) -> chess.Board:
        """Return the current board with the changed squares."""
        import chess

        from chessreg.games.boards.typed import play_sans

        board = play_sans(self.sans)
        for square, piece in self.changes.items():
            board.set_piece_at(square, None if piece == "." else chess.Piece.from_symbol(piece))
        return board

    def views(self) -> dict[str, BoardFrame]:
        views = super().views()
        if self.cursor is not None:  # show the changes before the model answers
            from chessreg.games.boards.boardframe import BoardFrame

            before, target_board = make_position_frame(self.sans), self.make_target_board()
            marks: dict[int, Mark] = {
                square: "removed" if piece == "." else "target" for square, piece in self.changes.items()
            }
            heat = views["target"].heat if "target" in views else None
            frame = BoardFrame.from_board(target_board.copy(stack=False), "target", marks=marks, heat=heat)
            views = {"original": views.get("original", before), "target": frame} | {
                pane: views[pane] for pane in ("before", "after") if pane in views
            }
        return views

    def draw(self) -> None:
        super().draw()
        for pane in self.query(BoardPane):
            pane.squares.cursor = self.cursor if pane.id == "target" else None
            if self.cursor is None and pane.id == "original":
                pane.squares.cursor = self.clicked_square

    def action_squares(self) -> None:
        """Edit squares of the target with keys."""
        if not (self.choices and self.next_token and self.chosen_probe):
            self.notify(
                "the target board is only editable with a probe of a model whose tokens name squares or moves",
                severity="warning",
            )
            return
        if self.cursor is None:
            taken_square = self.answer.square if self.answer is not None else None
            self.pick(next(reversed(self.changes), FIRST_SQUARE if taken_square is None else taken_square))

    def pick(self, square: int) -> None:
        """Select a square of the target."""
        self.cursor = square
        if self.part == "probe readings":
            self.part = "the position"
        bar = self.query_one(SquareBar)
        bar.display = True
        self.set_focus(bar)
        self.draw()
        bar.show_square(square, self.board_changes)

    def move_cursor(self, files: int, ranks: int) -> None:
        """Move the square cursor by files and ranks as the board is shown, within its edges."""
        if self.cursor is None:
            return
        if self.flipped:
            files, ranks = -files, -ranks
        file, rank = self.cursor % 8 + files, self.cursor // 8 + ranks
        if 0 <= file < 8 and 0 <= rank < 8:
            self.pick(8 * rank + file)

    def put(self, piece: str) -> None:
        """Put a piece, or `.` for empty, on the selected square. The original piece clears the change."""
        if self.cursor is None:
            return
        before = make_position_frame(self.sans).squares[self.cursor]
        self.changes.pop(self.cursor, None)
        if piece != before:
            self.changes[self.cursor] = piece
        self.pick(self.cursor)
        self.start_asking()

    def undo_change(self) -> None:
        """Take back the last change of a square."""
        if self.changes:
            square, _ = self.changes.popitem()
            self.pick(square)
            self.start_asking()

    def close_square_bar(self) -> None:
        """Close the bar of pieces and remove the square cursor."""
        self.cursor = None
        self.query_one(SquareBar).display = False
        self.set_focus(None)
        self.relabel()
        self.draw()

    def list_actions(self) -> list[Action]:
        return list_place_actions(SQUARES) if isinstance(self.focused, SquareBar) else super().list_actions()

    def find_node(self, action: Action) -> Widget | Host:
        return self.query_one(SquareBar) if action.place == SQUARES else super().find_node(action)

    def action_clear_board(self) -> None:
        self.changes = {}
        self.start_asking()

    def handle_click(self, pane: str, square: int) -> None:
        """Select a square of the target, or play a move on the original by clicking its two squares.

        Clicks elsewhere show details of the square.
        """
        if self.choices and self.next_token and (pane == "target" or (pane == "original" and self.cursor is not None)):
            self.pick(square)
        elif pane == "original" and (san := self.move_between(self.clicked_square, square)):
            self.clicked_square = None
            self.show_moves((*self.sans, san))
        else:
            super().handle_click(pane, square)

    def move_between(self, start: int | None, end: int) -> str:
        """Return the legal move between two squares in SAN, promoting to a queen. Empty if no move is legal."""
        import chess

        from chessreg.games.boards.typed import play_sans

        if start is None or self.asking:
            return ""
        board = play_sans(self.sans)
        for promotion in (None, chess.QUEEN):
            if (move := chess.Move(start, end, promotion)) in board.legal_moves:
                return board.san(move)
        return ""

    def action_back_move(self) -> None:
        if self.sans:
            self.show_moves(self.sans[:-1], (self.sans[-1], *self.ahead))

    def action_forward_move(self) -> None:
        """Replay the move that was taken back, or play the model's own move."""
        if self.ahead:
            self.show_moves((*self.sans, self.ahead[0]), self.ahead[1:])
        elif self.has_current_answer and self.answer is not None and self.answer.clean.moves:
            self.show_moves((*self.sans, self.answer.clean.moves[0].san))

    def action_point(self, way: str) -> None:
        if self.answer is not None:
            self.row = min(max(0, self.row + int(way)), max(0, len(self.answer.clean.moves) - 1))
            self.draw_numbers()

    def action_play(self) -> None:
        if self.has_current_answer and self.moves:
            self.show_moves((*self.sans, self.moves[self.row].san))

    def action_type(self) -> None:
        bar = self.query_one(FilterBar)
        bar.set_text("".join(f"{san} " for san in self.sans))
        bar.open()

    def leave_filter(self) -> None:
        bar = self.query_one(FilterBar)
        text, bar.display = bar.value, False
        remaining_text = text.removeprefix("".join(f"{san} " for san in self.sans))
        if "/" in remaining_text or remaining_text.startswith("1."):  # a FEN or a whole game typed after the moves
            text = remaining_text
        self.set_focus(None)
        self.relabel()
        if text.strip():
            self.take(text)

    @work(exclusive=True, group="typed")
    async def take(self, text: str) -> None:
        """Go to the typed position. A FEN is searched for in a thread, which can take seconds."""
        from chessreg.games.boards.typed import parse_typed_sans

        try:
            sans = await self.app.database.ask(
                "searching for a game to the position", lambda session: parse_typed_sans(text)
            )
        except BadInputError as error:
            self.notify(str(error), severity="error")
            if self.is_current:  # keep the text for correction
                bar = self.query_one(FilterBar)
                bar.set_text(text)
                bar.open()
            return
        self.require_shown()
        if sans != self.sans:
            self.show_moves(sans)

    # -- the edit -------------------------------------------------------------------------------------------------

    def step_back(self) -> bool:
        room, self.came_from = self.came_from, ""
        if room:
            self.app.action_go(room)
        return bool(room)

    def can_offer(self, action: Action) -> bool:
        if action.place in ("lab", *self.also) and not self.choices:
            return False
        if action.method == "back" and self.came_from:
            return True
        if action.method in ("squares", "condition", "clear_board") and not (self.choices and self.chosen_probe):
            return False
        if action.method == "squares" and not self.next_token:
            return False
        if action.method == "clear_board" and not self.changes:
            return False
        if action.method == "tool" and len(self.choice.tools if self.choices else ()) < 2:
            return False
        return super().can_offer(action)

    def action_scale(self, way: str) -> None:
        self.scale = find_next_scale(self.scale, int(way))
        self.start_asking()

    def action_edited_layer(self, way: str) -> None:
        """Edit the next layer of the probe or vector."""
        tool = self.selected_tool
        if tool is None:
            return
        now = self.edited_layers or (self.answer.edited_layers if self.answer else ())
        place = tool.layers.index(now[-1]) if now and now[-1] in tool.layers else 0
        if len(now) == 1:
            place = min(max(0, place + int(way)), len(tool.layers) - 1)
        self.edited_layers = (tool.layers[place],)
        self.shown_layer = None  # show the edited layer
        self.start_asking()

    def action_all_layers(self) -> None:
        """Edit all layers of the probe or vector at once."""
        if self.selected_tool is not None:
            self.edited_layers = () if self.edited_layers == self.selected_tool.layers else self.selected_tool.layers
            self.start_asking()

    @property
    def chosen_probe(self) -> bool:
        return self.selected_tool is not None and self.selected_tool.kind == "probe"

    def action_condition(self, way: str) -> None:
        """Select the edit or one of its controls."""
        if not self.chosen_probe:
            return
        conditions = self.conditions
        place = conditions.index(self.condition) if self.condition in conditions else 0
        self.condition = conditions[(place + int(way)) % len(conditions)]
        self.start_asking()

    @property
    def conditions(self) -> list[str]:
        """The edit, the other probes of a stored edit, the patch from the moves ahead, and the controls."""
        settings = dict(self.settings)
        other_conditions = [
            f"other{n + 1}"
            for n in range(len(settings["other_probes"].split(",")) if "other_probes" in settings else 0)
        ]
        draws = [
            (name, int(settings.get(setting, 1)))
            for name, setting in (("random", "random_controls"), ("shuffled", "shuffled_label_controls"))
        ]
        controls = [f"{name}-{draw}" for name, count in draws for draw in range(count)]
        switch_texts = [
            f"{name}-0"
            for name in ("wrong-layer", "sham")
            if settings.get(f"{name.replace('-', '_')}_control") == "true"
        ]
        switch_texts += ["encode-decode-0"] if "sae" in settings else []
        patch = [PATCH] if self.next_token and self.ahead else []
        return [EDIT, *other_conditions, *patch, *controls, *switch_texts]

    def action_tool(self) -> None:
        self.tool += 1
        self.edited_layers, self.shown_layer, self.settings, self.condition = (), None, (), EDIT
        self.taken_up = None
        self.start_asking()

    def action_model(self) -> None:
        if self.choices:
            self.model = (self.model + 1) % len(self.choices)
            self.tool, self.edited_layers, self.shown_layer = 0, (), None
            self.settings, self.condition, self.changes, self.taken_up = (), EDIT, {}, None
            self.start_asking()

    def action_tokens(self) -> None:
        self.token_mask = "all" if self.token_mask == "last" else "last"
        self.start_asking()

    # -- storing --------------------------------------------------------------------------------------------------

    def action_store(self) -> None:
        """Store the edit as a run, in a separate process."""
        try:
            words = self.question(is_named=True).storing_arguments
            exact = self.question().storing_arguments
        except ChessregError as error:
            self.notify(str(error), severity="warning")
            return
        self.app.run_command(words, exact, "storing", "stored")

    def command(self) -> str:
        """Return the `lab` command, or the command that stores the run if the board is changed."""
        if not self.choices:
            return "chessreg import checkpoint --reference"
        question = self.question(is_named=True)
        return shlex.join(["chessreg", *(question.storing_arguments if question.board else question.command)])


def make_position_frame(sans: tuple[str, ...]) -> BoardFrame:
    """Return the board after these moves."""
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.games.boards.typed import play_sans

    return BoardFrame.from_board(play_sans(sans))
