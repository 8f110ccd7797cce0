"""The moves a model would make, as bars: the clean model's beside the edited one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from tui.columns import fitted

if TYPE_CHECKING:
    from chessreg.lab.answer import Answer, Ranked, Side

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
        text.append(line_of(move, sign, wide) + "\n", "bold" if place == chosen else "not bold")
    return text


def line_of(move: Ranked, sign: str, wide: int) -> str:
    """`* Nf3     0.412 ━━━━━`: the star says that the move is legal on the board aimed at too."""
    bar = "━" * round(move.probability * max(0, wide - NUMBERS))
    return fitted(f"{sign} {move.san:<7} {move.probability:.3f} {bar}", wide)
