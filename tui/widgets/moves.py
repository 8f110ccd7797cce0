"""Lists of moves: those of a game beside its board, and those that a model would make, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
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

from chessreg.games.boardframe import BoardFrame
from tui.columns import fitted

if TYPE_CHECKING:
    from chessreg.lab.answer import Answer, Ranked, Side


class MoveList(Widget):
    """One line a frame, around the current one. A click goes to a frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"move-list--line", "move-list--here", "move-list--wrong"}
    DEFAULT_CSS = """
    MoveList { width: 1fr; height: auto; max-height: 75%; }
    MoveList > .move-list--line { color: $text-muted; }
    MoveList > .move-list--here { color: $block-cursor-foreground; background: $primary; text-style: bold; }
    MoveList > .move-list--wrong { color: $text-error; }
    """

    views: reactive[tuple[BoardFrame, ...]] = reactive((), layout=True)
    place: reactive[int] = reactive(0)

    class Chosen(Message):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.views)

    @property
    def first(self) -> int:
        """The frame on the top line."""
        high = self.size.height
        return max(0, min(self.place - high // 2, len(self.views) - high))

    def render_line(self, y: int) -> Strip:
        place, width = self.first + y, self.size.width
        if place >= len(self.views):
            return Strip.blank(width, self.rich_style)
        frame = self.views[place]
        name = "here" if place == self.place else "wrong" if tries(frame) else "line"
        text = f"{'›' if place == self.place else ' '} {fitted(str(place), 3, right=True)}  {line_of(frame)}"
        return Strip([Segment(fitted(text, width), self.get_component_rich_style(f"move-list--{name}"))])

    def on_click(self, event: events.Click) -> None:
        if (place := self.first + event.y) < len(self.views):
            self.post_message(self.Chosen(place))


def line_of(frame: BoardFrame) -> str:
    """A frame in a line: its first line of caption, or its title, and its illegal tries."""
    line = frame.caption[0] if frame.caption else frame.title
    return f"{line}   ! {tries(frame)}" if tries(frame) else line


def tries(frame: BoardFrame) -> str:
    """The illegal tries that a frame tells of."""
    texts = [line.partition(":")[2].strip() for line in frame.caption if "illegal" in line.partition(":")[0]]
    return ", ".join(texts)


def with_tries(views: Sequence[BoardFrame]) -> list[int]:
    """The views that show something that is not so: an illegal try in the caption, or a square marked as such."""
    return [n for n, frame in enumerate(views) if tries(frame) or {"illegal", "wrong"} & set(frame.marks.values())]


NUMBERS = 16  # cells before a bar
HEAD = 2  # lines above the moves


class Rankings(Horizontal):
    """Legal move mass, the greedy text and the most probable moves of both models."""

    DEFAULT_CSS = """
    Rankings { height: 1fr; width: 1fr; }
    Rankings > Static { width: 1fr; height: 1fr; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        yield Static("", id="of-clean")
        yield Static("", id="of-edited")

    def show(self, answer: Answer, chosen: int | None = None) -> None:
        """Draw these numbers; `chosen` is the place of the clean model's move that is pointed at."""
        wide = max(20, self.size.width // 2 - 2)
        lines = max(1, self.size.height - HEAD)
        for name, side in (("clean", answer.clean), ("edited", answer.edited)):
            pane = self.query_one(f"#of-{name}", Static)
            if side is None:
                pane.update(Text(f"no edit: {answer.why_not}"))
            else:
                pane.update(ranking(name, side, wide, lines, chosen if name == "clean" else None))


def ranking(name: str, side: Side, wide: int, lines: int, chosen: int | None = None) -> Text:
    """One model's numbers: mass on the board and on the one aimed at, greedy text, moves with bars."""
    both = "" if side.modified is None else f", target {side.modified:.3f}"
    text = Text(fitted(f"{name} legal mass {side.original:.3f}{both}", wide) + "\n", style="bold")
    text.append(fitted(f"writes {side.text.strip() or 'nothing'}{'' if side.legal else ', illegal'}", wide) + "\n", "")
    on_target = {move.uci for move in side.moves_modified}
    first = 0 if chosen is None else max(0, min(chosen - lines // 2, len(side.moves) - lines))
    for place, move in enumerate(side.moves[first : first + lines], first):
        sign = "›" if place == chosen else "*" if move.uci in on_target else " "
        text.append(line_of_move(move, sign, wide) + "\n", "bold" if place == chosen else "not bold")
    return text


def line_of_move(move: Ranked, sign: str, wide: int) -> str:
    """`* Nf3     0.412 ━━━━━`: the star says that the move is legal on the board aimed at too."""
    bar = "━" * round(move.probability * max(0, wide - NUMBERS))
    return fitted(f"{sign} {move.san:<7} {move.probability:.3f} {bar}", wide)
