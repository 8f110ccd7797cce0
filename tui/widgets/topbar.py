"""The line on top: where one is, and in which registry."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from tui.widgets.columns import fitted


class TopBar(Widget):
    """Breadcrumbs at the left, the registry at the right; where both do not fit, the registry gives way."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"top-bar--crumb", "top-bar--here", "top-bar--registry"}
    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; background: $panel; color: $foreground; }
    TopBar > .top-bar--crumb { color: $text-muted; }
    TopBar > .top-bar--here { color: $text-accent; text-style: bold; }
    TopBar > .top-bar--registry { color: $text-muted; }
    """

    crumbs: reactive[tuple[str, ...]] = reactive(())
    registry: reactive[str] = reactive("")

    def render_line(self, y: int) -> Strip:
        style = self.get_component_rich_style
        space = self.size.width
        before = "".join(f"{crumb} › " for crumb in self.crumbs[:-1])
        here = self.crumbs[-1] if self.crumbs else ""
        if cell_len(before) + cell_len(here) + 2 > space:
            before = "… › "
        left = 1 + cell_len(before) + cell_len(here)
        right = self.registry if left + cell_len(self.registry) + 3 <= space else ""
        here = fitted(here, max(0, space - 1 - cell_len(before) - cell_len(right) - 1))
        line = [
            Segment(" " + before, style("top-bar--crumb")),
            Segment(here, style("top-bar--here")),
            Segment(right + " ", style("top-bar--registry")),
        ]
        return Strip(line).adjust_cell_length(space, self.rich_style)
