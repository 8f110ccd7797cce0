"""What every screen of boards does with them: turns them round, and draws them as large as they fit or one asks."""

from __future__ import annotations

from tui.screens.room import Room
from tui.widgets.squares import SIZES, Size


class BoardRoom(Room):
    """A room that draws boards. Subclasses say what `fits`, and `draw`."""

    flipped = False
    chosen_size: Size | None = None

    def fits(self, size: Size, text: int = 0) -> bool:
        """Whether the screen has room for the boards at this size, with so many lines of text below."""
        raise NotImplementedError

    def draw(self) -> None:
        raise NotImplementedError

    @property
    def text_below(self) -> int:
        """Lines of text that the boards leave room for when nobody chose their size."""
        return 0

    @property
    def board_size(self) -> Size:
        """The chosen size where it fits, or the largest that leaves room for the text."""
        if self.chosen_size is not None and self.fits(self.chosen_size):
            return self.chosen_size
        return next((size for size in reversed(SIZES) if self.fits(size, self.text_below)), "small")

    def action_flip(self) -> None:
        self.flipped = not self.flipped
        self.draw()

    def action_size(self) -> None:
        fitting = [size for size in SIZES if self.fits(size)]
        if len(fitting) < 2:
            self.notify("only the small size fits this terminal")
            return
        place = fitting.index(self.board_size) if self.board_size in fitting else -1
        self.chosen_size = fitting[(place + 1) % len(fitting)]
        self.draw()
