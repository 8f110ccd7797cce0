"""One line above the keys that says what is slow, lost or wrong. It is there only when there is something to say."""

from __future__ import annotations

from textual.widgets import Static


class Banner(Static):
    """`say` shows a line, `hush` takes it away."""

    DEFAULT_CSS = """
    Banner { height: auto; max-height: 3; padding: 0 1; display: none; color: $foreground; }
    Banner.-said { display: block; }
    Banner.-busy { background: $warning-muted; color: $text-warning; }
    Banner.-wrong { background: $error-muted; color: $text-error; text-style: bold; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.words = ""

    def say(self, words: str, wrong: bool = False) -> None:
        if words != self.words:
            self.words = words
            self.update(("! " if wrong else "") + words)
        self.set_class(True, "-said")
        self.set_class(wrong, "-wrong")
        self.set_class(not wrong, "-busy")

    def hush(self) -> None:
        self.words = ""
        self.remove_class("-said", "-wrong", "-busy")
