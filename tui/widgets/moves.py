"""Lists of moves: a game's moves next to its board, and a model's most probable moves as bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from chessreg.games.boards.boardframe import BoardFrame
from tui import show
from tui.columns import fit_text

if TYPE_CHECKING:
    from chessreg.lab.answer import LabAnswer, ModelSide, MoveComparison


PLY_PATTERN = re.compile(r"(\d+)(\.+) ?(\S+)")
GAME_PLY_PATTERN = re.compile(r"^(game|position) \d+, (ply \d+: )?")
NUMBER_CELLS, SIDE_CELLS = 7, 16
READING_BAR_CELLS = 32


class MoveLine(NamedTuple):
    """A line of the list: its number and the frames after White's and after Black's move, or one frame in words."""

    label: str
    places: tuple[int | None, ...]


def make_move_lines(views: Sequence[BoardFrame]) -> list[MoveLine]:
    """Return two moves per line if the frames are of a game, else one frame per line."""
    plies = [PLY_PATTERN.match(frame.caption[0]) if frame.caption else None for frame in views]
    if len(views) < 2 or not all(plies[1:]) or plies[0] is not None:
        return [MoveLine("", (place,)) for place in range(len(views))]
    lines = [MoveLine("", (0,))]
    for place, ply in enumerate(plies[1:], 1):
        assert ply is not None
        if ply[2] == ".":
            lines.append(MoveLine(f"{ply[1]}.", (place, None)))
        elif len(lines[-1].places) == 2 and lines[-1].places[1] is None:
            lines[-1] = MoveLine(lines[-1].label, (lines[-1].places[0], place))
        else:  # Black moves first in this game
            lines.append(MoveLine(f"{ply[1]}.", (None, place)))
    return lines


class MoveList(Widget):
    """The moves of a game, White's and Black's in two columns. Other frames have one line each. A click selects a
    frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"move-list--line", "move-list--here", "move-list--wrong"}
    DEFAULT_CSS = """
    MoveList { width: 1fr; height: auto; max-height: 75%; }
    MoveList > .move-list--line { color: $text-muted; }
    MoveList > .move-list--here { color: $block-cursor-foreground; background: $primary; text-style: bold; }
    MoveList > .move-list--wrong { color: $text-error; }
    """

    views: reactive[tuple[BoardFrame, ...]] = reactive((), layout=True)
    place: reactive[int] = reactive(0)
    lines: Sequence[MoveLine] = ()

    class Chosen(Message):
        """The user chose the frame number `place`."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def watch_views(self) -> None:
        self.lines = make_move_lines(self.views)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)

    @property
    def move_cells(self) -> int:
        """The width of a move in cells."""
        return max(8, min(SIDE_CELLS, (self.size.width - NUMBER_CELLS) // 2))

    @property
    def first_line(self) -> int:
        """The index of the top line."""
        high = self.size.height
        cursor_line = next((n for n, line in enumerate(self.lines) if self.place in line.places), 0)
        return max(0, min(cursor_line - high // 2, len(self.lines) - high))

    def render_line(self, y: int) -> Strip:
        number, width = self.first_line + y, self.size.width
        if number >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[number]
        if len(line.places) == 1:
            (place,) = line.places
            assert place is not None
            frame = self.views[place]
            number = place if frame.ply is None else frame.ply
            sign, number_text = "›" if place == self.place else " ", fit_text(str(number), 3, right=True)
            text = f"{sign} {number_text}  {format_frame_line(frame)}"
            return Strip([Segment(fit_text(text, width), self.choose_style(place))])
        segments = [Segment(f"{fit_text(line.label, NUMBER_CELLS - 2, right=True)} ", self.choose_style(None))]
        for place in line.places:
            segments.append(
                Segment(fit_text("" if place is None else self.move(place), self.move_cells), self.choose_style(place))
            )
        return Strip(segments).crop_extend(0, width, self.rich_style)

    def move(self, place: int) -> str:
        """Return a move with its sign, if any, and a mark if illegal moves were tried first."""
        frame = self.views[place]
        ply = PLY_PATTERN.match(frame.caption[0])
        assert ply is not None
        return f"{'›' if place == self.place else ' '}{ply[3]}{' !' if find_illegal_tries(frame) else ''}"

    def choose_style(self, place: int | None) -> Style:
        name = "line" if place is None else "here" if place == self.place else "line"
        name = "wrong" if name == "line" and place is not None and find_illegal_tries(self.views[place]) else name
        return self.get_component_rich_style(f"move-list--{name}")

    def on_click(self, event: events.Click) -> None:
        if (number := self.first_line + event.y) >= len(self.lines):
            return
        places = self.lines[number].places
        column = min(len(places) - 1, max(0, (event.x - NUMBER_CELLS + 1) // self.move_cells)) if len(places) > 1 else 0
        if (place := places[column]) is not None:
            self.post_message(self.Chosen(place))


def format_frame_line(frame: BoardFrame) -> str:
    """Return a frame as one line: its first caption line or its title without game and ply, and its illegal tries. A
    probe's reading is the number of squares that are right, also as a bar."""
    if frame.doubts:
        right = f"{frame.squares_right} of 64"
        return f"{right}  {show.draw_bar(frame.squares_right / 64, READING_BAR_CELLS)}"
    line = frame.caption[0] if frame.caption else GAME_PLY_PATTERN.sub("", frame.title)
    return f"{line}   ! {find_illegal_tries(frame)}" if find_illegal_tries(frame) else line


def find_illegal_tries(frame: BoardFrame) -> str:
    """Return the illegal tries reported in a frame's captions."""
    texts = [line.partition(":")[2].strip() for line in frame.caption if "illegal" in line.partition(":")[0]]
    return ", ".join(texts)


def find_wrong_views(views: Sequence[BoardFrame]) -> list[int]:
    """Return the views that show an error: an illegal try in the caption, or a square marked as wrong."""
    return [
        n
        for n, frame in enumerate(views)
        if find_illegal_tries(frame) or {"illegal", "wrong"} & set(frame.marks.values())
    ]


HEAD_LINES = 2
MOVE_CELLS, PROBABILITY_CELLS, CHANGE_CELLS = 9, 7, 8
MIN_MARKED_CHANGE = 0.005  # changes in probability below this are muted


class Rankings(Horizontal):
    """Legal move mass, greedy text and the most probable moves of both models, in the same order. The edited model's
    moves include the change in probability."""

    DEFAULT_CSS = """
    Rankings { height: 1fr; width: 1fr; }
    Rankings > Static { width: 1fr; height: 1fr; padding: 0 1; }
    """

    def on_mount(self) -> None:
        self.watch(self.app, "theme", self.on_resize)

    drawn_ranking: tuple[LabAnswer, str | None] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="of-clean")
        yield Static("", id="of-edited")

    def on_resize(self) -> None:
        if self.drawn_ranking is not None:
            self.show(*self.drawn_ranking)

    def show(self, answer: LabAnswer, chosen_move: str | None = None) -> None:
        """Draw these numbers. `chosen_move` is the selected move (UCI)."""
        from chessreg.lab.answer import compare_moves

        self.drawn_ranking = answer, chosen_move
        line_cells = max(20, self.size.width // 2 - 2)
        lines = max(1, self.size.height - HEAD_LINES)
        moves = compare_moves(answer)
        at = next((n for n, move in enumerate(moves) if move.uci == chosen_move), None)
        first_move = 0 if at is None else max(0, min(at - lines // 2, len(moves) - lines))
        visible_moves = [(place == at, move) for place, move in enumerate(moves)][first_move : first_move + lines]
        for name, side in (("clean", answer.clean), ("edited", answer.edited)):
            pane = self.query_one(f"#of-{name}", Static)
            if side is None:
                pane.update(Text(f"no edit: {answer.why_not}"))
            else:
                pane.update(format_ranking(name, side, visible_moves, line_cells, self.app.theme_variables))

    def clear(self) -> None:
        self.drawn_ranking = None
        for pane in self.query(Static):
            pane.update("")


def format_ranking(
    name: str, side: ModelSide, moves: Sequence[tuple[bool, MoveComparison]], wide: int, colors: Mapping[str, str]
) -> Text:
    """Return one model's numbers: legal move mass on the board and on the target board, greedy text, and moves with
    bars. The edited model's moves include the change. `moves`: whether a move is selected, and the move. `colors`: the
    theme's variables."""
    target_note = "" if side.modified is None else f", target {side.modified:.3f}"
    mass, writes = f"{name} legal mass {side.original:.3f}{target_note}", "writes"
    if len(mass) > wide:  # the name moves to the next line
        mass, writes = f"mass {side.original:.3f}{target_note.replace(',', '')}", f"{name} writes"
    text = Text(fit_text(mass, wide) + "\n", style="bold")
    text.append(
        fit_text(f"{writes} {side.text.strip() or 'nothing'}{'' if side.legal else ', illegal'}", wide) + "\n", ""
    )
    for is_current, move in moves:
        line = Text(
            format_move_line(move, name == "edited", is_current, wide) + "\n", "bold" if is_current else "not bold"
        )
        line.highlight_regex("━+", colors["text-primary"])
        change = move.change or 0.0
        change_style = (
            "text-muted" if abs(change) < MIN_MARKED_CHANGE else "text-success" if change > 0 else "text-error"
        )
        line.highlight_regex(r"Δ[+-][\d.]+", colors[change_style])
        text.append_text(line)
    text.right_crop(1)  # the end of the last line, which would be drawn as one more
    return text


def format_move_line(move: MoveComparison, is_edited: bool, here: bool, wide: int) -> str:
    """Return `= Nf3     0.412 ━━━━━`, or for the edited model, with the change, `= Nf3     0.812 Δ+0.400 ━━━`. The
    first sign marks a move that is also legal on the target board."""
    sign = "›" if here else "=" if move.legal_modified else " "
    value = move.edited if is_edited else move.clean
    text = f"{sign} {move.san:<7} {'  –  ' if value is None else f'{value:.3f}'} "
    if is_edited:
        text += f"{'' if move.change is None else f'Δ{move.change:+z.3f}':<{CHANGE_CELLS - 1}} "
    columns_width = MOVE_CELLS + PROBABILITY_CELLS + (CHANGE_CELLS if is_edited else 0)
    return fit_text((text + "━" * round((value or 0.0) * max(0, wide - columns_width))).rstrip(), wide)
