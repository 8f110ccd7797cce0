"""A log viewer that follows the end of a growing log, scrolls anywhere in it, and highlights search matches."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.actions import make_bindings
from tui.columns import MORE_MARK

MAX_LINES = 50_000
SCROLL_SIDE_CELLS = 20


class LogView(ScrollView, can_focus=True):
    """Lines of text. Follows the end until the user scrolls up, and again once the user scrolls back to it."""

    BINDINGS = make_bindings("log")
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-view--line", "log-view--hit", "log-view--here", "log-view--faint"}
    DEFAULT_CSS = """
    LogView {
        height: 1fr;
        background: $surface;
        color: $foreground;
        border: round $edge;
        border-title-color: $foreground;
        border-title-style: bold;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    LogView:focus { border: round $accent; border-title-color: $text-accent; }
    LogView > .log-view--hit { background: $warning-muted; color: $text-warning; text-style: bold; }
    LogView > .log-view--here { background: $warning; color: $background; text-style: bold; }
    LogView > .log-view--faint { color: $text-muted; }
    """

    follows: reactive[bool] = reactive(True)

    class Changed(Message):
        """The position, the current match or the follow mode changed."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[str] = []
        self.partial_line = ""
        self.search_text = ""
        self.hits: list[int] = []
        self.hit = -1
        self.empty = "reading…"

    # -- lines ----------------------------------------------------------------------------------------------------

    def clear(self, empty: str = "reading…") -> None:
        self.lines, self.partial_line, self.hits, self.hit, self.empty = [], "", [], -1, empty
        self.follows = True
        self._resize_virtual()

    def add(self, lines: list[str], partial_line: str) -> None:
        """Append the lines read since the last call: complete lines and the unfinished last one."""
        if not lines and partial_line == self.partial_line:
            return
        at = len(self.lines)
        self.lines += lines
        self.partial_line = partial_line
        self.hits += [at + n for n, line in enumerate(lines) if self._has_every_term(line)]
        if (over := len(self.lines) - MAX_LINES) > 0:
            del self.lines[:over]
            self.hits = [line - over for line in self.hits if line >= over]
            self.hit = min(self.hit, len(self.hits) - 1)
        self._resize_virtual()

    @property
    def height(self) -> int:
        return len(self.lines) + bool(self.partial_line)

    def _resize_virtual(self) -> None:
        line_cells = max(map(cell_len, [*self.lines[-2000:], self.partial_line]), default=0)
        self.virtual_size = Size(max(line_cells, self.virtual_size.width if self.lines else 0), self.height)
        self._scroll_to_end()
        self.call_after_refresh(self._scroll_to_end)  # after the layout has measured the new lines
        self.refresh()

    def _scroll_to_end(self) -> None:
        """Scroll to the end if following. Forced, because the first lines arrive before the scrollbar exists."""
        if self.follows:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)

    def on_resize(self, event: events.Resize) -> None:
        self._scroll_to_end()

    def render_line(self, y: int) -> Strip:
        place, width = y + self.scroll_offset.y, self.size.width
        if not self.height:
            style = self.get_component_rich_style("log-view--faint")
            return Strip([Segment(f"  {self.empty}" if y == 1 else "", style)]).adjust_cell_length(width, style)
        style = self.get_component_rich_style("log-view--line")
        if place >= self.height:
            return Strip([Segment("", style)]).adjust_cell_length(width, style)
        line = self.lines[place] if place < len(self.lines) else self.partial_line
        x = self.scroll_offset.x
        strip = Strip(self._highlight_terms(line, place))
        if strip.cell_length <= x + width:
            return strip.crop_extend(x, x + width, style)
        more = Segment(MORE_MARK[-1], self.get_component_rich_style("log-view--faint"))
        return Strip.join([strip.crop_extend(x, x + width - 1, style), Strip([more])])

    def _highlight_terms(self, line: str, place: int) -> list[Segment]:
        """Return the line with the search terms highlighted."""
        line_style = self.get_component_rich_style("log-view--line")
        if not self._has_every_term(line):
            return [Segment(line, line_style)]
        is_current_hit = 0 <= self.hit < len(self.hits) and self.hits[self.hit] == place
        hit_style = self.get_component_rich_style("log-view--here" if is_current_hit else "log-view--hit")
        segments, at, low = [], 0, line.lower()
        while (next_hit := low.find(self.search_text, at)) >= 0:
            end = next_hit + len(self.search_text)
            segments += [Segment(line[at:next_hit], line_style), Segment(line[next_hit:end], hit_style)]
            at = end
        return [*segments, Segment(line[at:], line_style)]

    # -- searching ------------------------------------------------------------------------------------------------

    def search(self, search_text: str) -> None:
        """Highlight these words, ignoring case, and scroll to the last matching line."""
        self.search_text = search_text.lower()
        self.hits = [n for n, line in enumerate(self.lines) if self._has_every_term(line)]
        self.hit = len(self.hits) - 1
        self._show_hit()

    def _has_every_term(self, line: str) -> bool:
        return bool(self.search_text) and self.search_text in line.lower()

    def step_hit(self, way: int) -> None:
        if self.hits:
            self.hit = (self.hit + way) % len(self.hits)
        self._show_hit()

    def _show_hit(self) -> None:
        """Scroll to the current search hit if it is out of sight."""
        if 0 <= self.hit < len(self.hits):
            line = self.hits[self.hit]
            top, tall = self.scroll_offset.y, self.size.height
            if not top <= line < top + tall:
                self._scroll_to_line(line - tall // 2)
        self.refresh()
        self.post_message(self.Changed())

    # -- moving ---------------------------------------------------------------------------------------------------

    def _scroll_to_line(self, y: int) -> None:
        y = min(max(0, y), self.max_scroll_y)
        self.follows = y >= self.max_scroll_y
        self.scroll_to(y=y, animate=False, immediate=True)
        self.post_message(self.Changed())

    def action_scroll_log(self, way: str) -> None:
        tall, top = max(1, self.size.height - 1), round(self.scroll_offset.y)
        steps = {"1": 1, "-1": -1, "page": tall, "-page": -tall, "first": -self.height, "last": self.height}
        self._scroll_to_line(top + steps[way])

    def action_scroll_side(self, way: str) -> None:
        self.scroll_to(x=self.scroll_offset.x + SCROLL_SIDE_CELLS * int(way), animate=False)

    def on_mouse_scroll_up(self) -> None:
        self.follows = False
        self.post_message(self.Changed())

    def on_mouse_scroll_down(self) -> None:
        self.follows = self.scroll_offset.y + 4 >= self.max_scroll_y
        self.post_message(self.Changed())
