"""A state of an edit run: the effect of the edit on the model's board, stored or computed by the model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from chessreg.errors import ChessregError
from chessreg.games.boards.boardframe import BoardFrame
from tui import show
from tui.actions import Action, make_bindings
from tui.columns import fit_text
from tui.data.pages import PAGE_ROWS, Pages
from tui.screens.board_base import DrawingScreen, FourBoardsScreen
from tui.widgets.bars import TopBar
from tui.widgets.board import BoardPane, compute_board_extent, describe_square, list_legend

if TYPE_CHECKING:
    from chessreg.experiments.edit.three_boards import StoredCase
    from tui.data.board_views import EditedState


class StateScreen(DrawingScreen):
    """One state of a list of trials.

    Up and down select another state. Tab selects the next condition.
    """

    place = "edit"
    follows = False
    BINDINGS = make_bindings("edit")

    def start_at_row(self, pages: Pages, place: int, row: Mapping[str, Any]) -> None:
        """Start with `row`, which is at `place` in `pages`."""
        self.pages, self.at, self.row = pages, place, row
        self.condition = ""
        self.state: EditedState | None = None
        self.crumb = f"{row.get('run', 'edit')} {row.get('unit', '')}".strip()

    async def read(self) -> EditedState | None:
        """Return the state of the row under the current condition.

        Returns None after an error, or if the screen for this type of state takes the place of this one.
        """
        from tui.data.board_views import load_state_boards

        row, condition = self.row, self.condition
        state = await self.ask("reading the state", lambda session: load_state_boards(session, row, condition))
        if state is not None and (state.case is None) == isinstance(self, CaseScreen):
            self.replace_with(make_state_screen(state, self.pages, self.at, row))
            return None
        return state

    def can_offer(self, action: Action) -> bool:
        if action.method == "condition":
            return self.state is not None and len(self.state.conditions) > 1
        return super().can_offer(action)

    def action_condition(self, way: str) -> None:
        if self.state is not None and self.state.condition:
            conditions = self.state.conditions
            self.condition = conditions[(conditions.index(self.state.condition) + int(way)) % len(conditions)]
            self.load()

    @work(exclusive=True, group="row")
    async def action_row(self, way: str) -> None:
        """Show the next state of the list. Skip further trials of the current state."""
        place, row_key = self.at, (self.row.get("run_id"), self.row.get("unit"))
        while 0 <= (place := place + int(way)) < self.pages.count:
            number = place // PAGE_ROWS
            rows = await self.ask("reading rows", lambda session, number=number: self.pages.read_page(number))  # type: ignore[misc]
            if not rows:
                return
            while number * PAGE_ROWS <= place < number * PAGE_ROWS + len(rows):
                row = rows[place % PAGE_ROWS]
                if (row.get("run_id"), row.get("unit")) != row_key:
                    self.at, self.row = place, row
                    self.load()
                    return
                place += int(way)
            place -= int(way)

    def action_inspect(self) -> None:
        from tui.screens.base import FieldsScreen

        self.app.push_screen(FieldsScreen(dict(self.state.row if self.state else self.row)))

    async def action_lab(self) -> None:
        """Open the same edit and position in the lab."""
        from tui.screens.lab import LabScreen

        if self.state is not None and self.state.edit is None:
            self.notify("the state was skipped, so it has no edit to open", severity="warning")
        elif self.state is not None and self.state.edit is not None:
            room = self.app.current_mode
            await self.app.switch_mode("lab")
            if isinstance(lab := self.app.screen, LabScreen):
                lab.show_stored_edit(self.state.edit, room)

    @property
    def reference(self) -> str:
        """The reference of the state in commands, `RUN:UNIT`."""
        state = self.state
        return f"{show.abbreviate_id(state.run_id if state else self.row['run_id'])}:{self.row['unit']}"


def make_state_screen(state: EditedState, pages: Pages, place: int, row: Mapping[str, Any]) -> StateScreen:
    """Return the screen for a state: CaseScreen if the run reads the next token, else EditScreen.

    It starts with `row`, which is at `place` in `pages`.
    """
    return EditScreen(pages, place, row) if state.case is None else CaseScreen(pages, place, row)


class EditScreen(FourBoardsScreen, StateScreen):
    """An edit measured on whole moves.

    Stored numbers are shown until the model process answers.
    """

    def __init__(self, pages: Pages, place: int, row: Mapping[str, Any]) -> None:
        super().__init__()
        self.answered_condition = ""  # condition of `answer`
        self.start_at_row(pages, place, row)

    async def fill(self) -> None:
        from chessreg.lab.question import StoredState

        state = await self.read()
        if state is None:
            return
        is_same_state = self.state is not None and (self.state.run_id, self.state.unit) == (state.run_id, state.unit)
        self.state, self.stored_boards = state, state.boards
        if not is_same_state:
            self.answer = None
        self.answered_condition = self.answered_condition if is_same_state else ""
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
            self.app.show_failure(self, error)
            return
        self.require_shown()
        if answer is not None:
            self.answer, self.answered_condition = answer, state.condition
            self.relabel()
            self.draw()

    def make_head(self) -> str:
        state = self.state
        if state is None:
            return "reading the state…"
        if not state.condition:
            return f"{state.boards[0].title}: {state.boards[0].caption[0]}"
        place_text = state.boards[0].title.removeprefix("clean, ")
        if self.answer is None or self.answered_condition != state.condition:
            shown_text = f"; shown: {self.answered_condition}" if self.answer is not None else ""
            return f"{state.condition}, {place_text} · running the model…{shown_text}"
        answer = self.answer
        edited_layers = ", ".join(map(str, answer.edited_layers))
        scales = ", ".join(f"{scale:g}" for scale in dict.fromkeys(answer.scales))
        removal_text = f"{answer.piece} off {state.row['square']}"
        return f"{state.condition}: {removal_text}, layers {edited_layers}, scale {scales} · {place_text}"

    def can_offer(self, action: Action) -> bool:
        if action.method == "lab":
            return self.answer is not None
        return super().can_offer(action)

    def command(self) -> str:
        if self.state is None or not self.state.condition:
            return f"chessreg board {show.abbreviate_id(self.row['run_id'])}:{self.row['unit']}"
        state = f"{show.abbreviate_id(self.state.run_id)}:{self.state.unit}"
        words = f"chessreg lab {state} --condition {shlex.quote(self.state.condition)}"
        return words if self.shown_layer is None else f"{words} --layer {self.shown_layer}"


MIN_NUMBERS_CELLS = 14  # minimum cells next to the boards
CASE_CHROME_LINES = 5  # bars, head and legend
SHORT_SCREEN_LINES = 24  # such terminals hide the breadcrumbs
CONDITION_CELLS = 12
FULL_NUMBERS_CELLS = CONDITION_CELLS + 3 * 9 + 14  # the whole table of conditions
NAMED_NUMBERS_CELLS = CONDITION_CELLS + 9  # narrower panes list only squares
LIKELIEST_SQUARES = 6


class CaseScreen(StateScreen):
    """An edit measured on the next token: original, target and later board.

    The upper row shows the clean model's probability of every square as heat, the lower row the edited model's. Titles
    give the legal move mass.
    """

    also: ClassVar[tuple[str, ...]] = ("case-boards", "position")
    AUTO_FOCUS = ""
    BINDINGS = make_bindings("case-boards")
    DEFAULT_CSS = """
    CaseScreen #head { height: 1; padding: 0 1; text-style: bold; color: $text-accent; }
    CaseScreen #grid { height: 1fr; }
    CaseScreen #rows, CaseScreen #rows Horizontal { height: auto; width: auto; }
    CaseScreen #numbers { width: 1fr; height: 1fr; padding: 0 0 0 1; }
    CaseScreen #legend { height: 1; padding: 0 1; color: $text-muted; }
    CaseScreen BoardPane { margin: 0 0 0 1; }
    CaseScreen BoardPane > .board-caption, CaseScreen BoardPane > .board-legend { display: none; }
    """

    heated = True

    def __init__(self, pages: Pages, place: int, row: Mapping[str, Any]) -> None:
        super().__init__()
        self.start_at_row(pages, place, row)

    def body(self) -> ComposeResult:
        yield Static("reading the state…", id="head", markup=False)
        with Horizontal(id="grid"):
            with Vertical(id="rows"):
                for row in ("before", "after"):
                    with Horizontal():
                        for board in ("original", "target", "later"):
                            yield BoardPane(id=f"{row}-{board}")
            yield Static("", id="numbers", markup=False)
        yield Static("", id="legend", markup=False)

    async def fill(self) -> None:
        if (state := await self.read()) is not None:
            self.state = state
            self.crumb = f"{state.run} {state.unit}"
            self.relabel()
            self.draw()

    @property
    def case(self) -> StoredCase | None:
        return None if self.state is None else self.state.case

    @property
    def position(self) -> BoardFrame | None:
        return None if self.case is None else BoardFrame.from_board(self.case.boards["original"])

    # -- drawing --------------------------------------------------------------------------------------------------

    def can_draw(self, size: int, text: int = 0) -> bool:
        board_cells, high = compute_board_extent(size)
        boards = 3 if self.case is None else max(2, len(self.case.boards))
        room = self.app.size
        return (
            boards * (board_cells + 1) + MIN_NUMBERS_CELLS <= room.width
            and 2 * (high + 1) + CASE_CHROME_LINES <= room.height
        )

    def draw(self) -> None:
        case, state = self.case, self.state
        if case is None or state is None:
            return
        size = self.board_size
        for row in ("before", "after"):
            condition = "clean" if row == "before" else state.condition
            for board in ("original", "target", "later"):
                pane = self.query_one(f"#{row}-{board}", BoardPane)
                pane.display = board in case.boards and (bool(condition) or row == "before")
                if not pane.display:
                    continue
                pane.styles.width = compute_board_extent(size)[0]
                if case.skip_reason:
                    frame = BoardFrame.from_board(case.boards[board], board)
                else:
                    arrow = "" if row == "before" else "→ "
                    frame = case.draw_frame(
                        board, condition, f"{board} {arrow}{case.compute_legal_mass(condition, board):.3f}"
                    )
                if not self.heated:
                    frame = replace(frame, heat=None, heat_label="")
                if self.flipped:
                    frame = replace(frame, flipped=not frame.flipped)
                pane.show(frame, size, self.app.glyphs)
        self.query_one("#head", Static).update(self.make_head(case, state))
        self.query_one("#legend", Static).update(self.make_legend(case, state, size))
        self.query_one(TopBar).styles.height = 1 if self.app.size.height <= SHORT_SCREEN_LINES else None
        boards_width = len(case.boards) * (compute_board_extent(size)[0] + 1)
        numbers_cells = max(MIN_NUMBERS_CELLS, self.app.size.width - boards_width) - 2
        lines = format_case_numbers(case, state.condition, numbers_cells, self.app.size.height - CASE_CHROME_LINES)
        self.query_one("#numbers", Static).update(Text("\n".join(lines)))

    def make_head(self, case: StoredCase, state: EditedState) -> str:
        """Return the line above the boards: condition, edited layers, scale and case."""
        if case.skip_reason:
            return f"{case.location} · {case.skip_reason}"
        edit = state.edit
        edit_text = (
            "" if edit is None else f"layers {', '.join(map(str, edit.layers))}, scale {edit.scale:g} {edit.rule} · "
        )
        return f"{state.condition}: {edit_text}{case.location} · legal mass before → after"

    def make_legend(self, case: StoredCase, state: EditedState, size: int) -> str:
        """Return the meaning of signs and colors.

        For a clicked square, return the probability that the next move begins there.
        """
        if self.clicked_square is not None:
            words = describe_square(BoardFrame.from_board(case.boards["original"]), self.clicked_square)
            shares = [
                case.squares[name][self.clicked_square] for name in ("clean", state.condition) if name in case.squares
            ]
            begins = f" · the next move begins there: {' → '.join(f'{share:.1%}' for share in shares)}"
            return words + (begins if shares else "")
        if case.skip_reason:
            return ""
        lines = [
            *list_legend(case.draw_frame("original", "clean", "")),
            *list_legend(case.draw_frame("target", state.condition, "")),
        ]
        marks = [line for line in dict.fromkeys(lines) if not line.startswith("numbers")]
        heat = "shade" if size == 1 else "shade, number in %"
        if not case.squares:
            return " · ".join(["the probabilities of squares are not in the store: chessreg pull", *marks])
        return " · ".join([*([f"{heat}: next move begins there"] if self.heated else []), *marks])

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def can_offer(self, action: Action) -> bool:
        if action.method == "lab":
            return self.state is not None and self.state.edit is not None
        return super().can_offer(action)

    def action_heat(self) -> None:
        self.heated = not self.heated
        self.draw()

    def command(self) -> str:
        command = f"chessreg board {shlex.quote(self.reference)}"
        if not (self.state and self.state.condition):
            return command
        return f"{command} --condition {shlex.quote(self.state.condition)}"


def format_case_numbers(case: StoredCase, condition: str, wide: int, high: int) -> list[str]:
    """Return the legal move mass by condition and the likeliest squares before and after the edit.

    At most `high` lines of at most `wide` cells. Narrow panes show only the mass of the target.
    """
    if case.skip_reason:
        return []
    lines, is_full = list[str](), wide >= FULL_NUMBERS_CELLS
    if wide >= NAMED_NUMBERS_CELLS:
        boards = list(case.boards) if wide >= CONDITION_CELLS + 9 * len(case.boards) else ["target"]
        heading = fit_text("", CONDITION_CELLS) + "".join(f"{board:>9}" for board in boards)
        lines.append(heading + (f"{'first':>7}{'KL':>7}" if is_full else ""))
        conditions, room = case.conditions, max(1, high - LIKELIEST_SQUARES - 4)
        first_condition = max(0, min(conditions.index(condition) - room // 2, len(conditions) - room))
        for name in ("clean", *conditions[first_condition : first_condition + room]):
            row = case.rows[name]
            line = ("›" if name == condition else " ") + fit_text(name, CONDITION_CELLS - 1)
            line += "".join(f"{case.compute_legal_mass(name, board):>9.3f}" for board in boards)
            lines.append(line + (f"{row.text:>7}{(row.detail or {}).get('kl') or 0.0:>7.3f}" if is_full else ""))
        lines.append("")
    if condition not in case.squares or "clean" not in case.squares:
        return lines
    import chess

    before, edited_values = case.squares["clean"], case.squares[condition]
    likeliest_squares = sorted(range(64), key=lambda square: -max(before[square], edited_values[square]))[
        :LIKELIEST_SQUARES
    ]
    if wide < NAMED_NUMBERS_CELLS:
        return [
            *lines,
            *(
                f"{chess.square_name(s)}{100 * before[s]:>5.0f}{100 * edited_values[s]:>5.0f}"
                for s in likeliest_squares
            ),
        ]
    lines.append("begins  before  after")
    return [*lines, *(f"{chess.square_name(s):<6}{before[s]:>8.1%}{edited_values[s]:>7.1%}" for s in likeliest_squares)]
