"""The moves of a game beside its board, with the one that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from chessreg.games.boardframe import BoardFrame
from tui.columns import fitted


class MoveList(Widget):
    """One line a frame, around the current one. A click goes to a frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"move-list--line", "move-list--here", "move-list--wrong"}
    DEFAULT_CSS = """
    MoveList { width: 1fr; height: auto; max-height: 75%; }
    MoveList > .move-list--line { color: $text-muted; }
    MoveList > .move-list--here { color: $block-cursor-foreground; background: $primary; text-style: bold; }
    MoveList > .move-list--wrong { color: $text-error; }
    """

    frames: reactive[tuple[BoardFrame, ...]] = reactive((), layout=True)
    place: reactive[int] = reactive(0)

    class Chosen(Message):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.frames)

    @property
    def first(self) -> int:
        """The frame on the top line."""
        high = self.size.height
        return max(0, min(self.place - high // 2, len(self.frames) - high))

    def render_line(self, y: int) -> Strip:
        place, width = self.first + y, self.size.width
        if place >= len(self.frames):
            return Strip.blank(width, self.rich_style)
        frame = self.frames[place]
        name = "here" if place == self.place else "wrong" if tries(frame) else "line"
        text = f"{'›' if place == self.place else ' '} {fitted(str(place), 3, right=True)}  {line_of(frame)}"
        return Strip([Segment(fitted(text, width), self.get_component_rich_style(f"move-list--{name}"))])

    def on_click(self, event: events.Click) -> None:
        if (place := self.first + event.y) < len(self.frames):
            self.post_message(self.Chosen(place))


def line_of(frame: BoardFrame) -> str:
    """A frame in a line: its first line of caption, or its title, and its illegal tries."""
    line = frame.caption[0] if frame.caption else frame.title
    return f"{line}   ! {tries(frame)}" if tries(frame) else line


def tries(frame: BoardFrame) -> str:
    """The illegal tries that a frame tells of."""
    told = [line.partition(":")[2].strip() for line in frame.caption if "illegal" in line.partition(":")[0]]
    return ", ".join(told)


def with_tries(frames: Sequence[BoardFrame]) -> list[int]:
    """The frames that show something that is not so: an illegal try in the caption, or a square marked as such."""
    return [n for n, frame in enumerate(frames) if tries(frame) or {"illegal", "wrong"} & set(frame.marks.values())]
