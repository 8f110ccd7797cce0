"""Base classes of screens with boards: orientation, size, and the four boards of an edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Static

from chessreg.games.boards.boardframe import BoardFrame
from tui.actions import Action, make_bindings
from tui.screens.base import AppScreen
from tui.widgets.board import BoardPane, Squares, compute_board_extent, describe_square, list_sizes
from tui.widgets.moves import Rankings

if TYPE_CHECKING:
    from chessreg.lab.answer import LabAnswer


class DrawingScreen(AppScreen):
    """A screen that draws boards. Subclasses implement `can_draw`, `draw` and `position`."""

    BINDINGS = make_bindings("position")
    finds = False

    flipped = False
    clicked_square: int | None = None  # the clicked square
    chosen_size: int | None = None

    def can_draw(self, size: int, text: int = 0) -> bool:
        """Return whether the boards fit the screen at this size, with `text` lines below."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the boards and their texts from the data already read."""
        raise NotImplementedError

    @property
    def text_below(self) -> int:
        """Lines of text to reserve below the boards when the size is chosen automatically."""
        return 0

    @property
    def board_size(self) -> int:
        """The chosen size if it fits, otherwise the largest that leaves room for the text."""
        sizes, chosen_size = list_sizes(self.app.glyphs), self.chosen_size
        if chosen_size is not None and chosen_size in sizes and self.can_draw(chosen_size):
            return chosen_size
        return next((size for size in reversed(sizes) if self.can_draw(size, self.text_below)), sizes[0])

    # -- the position ---------------------------------------------------------------------------------------------

    @property
    def position(self) -> BoardFrame | None:
        """The frame to copy: the actual board, without edits."""
        raise NotImplementedError

    @property
    def pgn(self) -> str:
        """The PGN of the current game."""
        return self.position.pgn if self.position is not None else ""

    def action_copy_position(self, format: str) -> None:
        frame = self.position
        if frame is None:
            self.notify("no position is shown yet", severity="warning")
            return
        text = self.pgn if format == "pgn" else frame.lichess if format == "lichess" else frame.whole_fen
        is_unavailable = format != "pgn" and not frame.position
        line = text.strip().splitlines()[-1]
        self.app.copy(text, f"{line}\nthe side to move is unknown; White is assumed" if is_unavailable else line)

    def on_squares_clicked(self, event: Squares.Clicked) -> None:
        pane = event.squares.parent
        self.handle_click("" if pane is None else pane.id or "", event.square)

    def handle_click(self, pane: str, square: int) -> None:
        """Show details of a square of the board in `pane`. A second click hides them."""
        self.clicked_square = None if self.clicked_square == square else square
        self.draw()

    def action_flip(self) -> None:
        self.flipped = not self.flipped
        self.draw()

    def action_size(self) -> None:
        fitting_sizes = [size for size in list_sizes(self.app.glyphs) if self.can_draw(size)]
        if len(fitting_sizes) < 2:
            self.notify("only the smallest size fits this terminal")
            return
        place = fitting_sizes.index(self.board_size) if self.board_size in fitting_sizes else -1
        self.chosen_size = fitting_sizes[(place + 1) % len(fitting_sizes)]
        self.draw()


PANES = ("original", "target", "before", "after")
PARTS = {"all boards": PANES, "the position": PANES[:2], "probe readings": PANES[2:]}
LARGE_SQUARE_LINES = 3  # square height at which all four boards are shown by default
NUMBERS_LINES, NUMBERS_CELLS = 8, 44  # space for the numbers below or next to the boards
ROW_CHROME_LINES = 5  # bars, head and heat line
SQUARE_CHROME_LINES = 4  # with the numbers next to the boards


class FourBoardsScreen(DrawingScreen):
    """Four boards in a row, or two by two, that show one answer of the lab.

    Keys change the layer, the class of the heat, size and orientation without asking the model again.
    """

    also: ClassVar[tuple[str, ...]] = ("four-boards", "position")
    follows = False
    AUTO_FOCUS = ""
    BINDINGS = make_bindings("four-boards")
    DEFAULT_CSS = """
    FourBoardsScreen #head { height: auto; max-height: 3; padding: 0 1; text-style: bold; color: $text-accent; }
    FourBoardsScreen #message { height: auto; padding: 1 2; color: $text-muted; display: none; }
    FourBoardsScreen #stage { height: 1fr; }
    FourBoardsScreen #boards { height: auto; width: auto; }
    FourBoardsScreen #boards Horizontal { height: auto; width: auto; }
    FourBoardsScreen #numbers { height: 1fr; width: 1fr; }
    FourBoardsScreen #heat-line { height: auto; padding: 0 1; color: $text-muted; }
    FourBoardsScreen BoardPane { margin: 0 0 0 1; }
    FourBoardsScreen #legend { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    FourBoardsScreen BoardPane > .board-caption, FourBoardsScreen BoardPane > .board-legend { display: none; }
    FourBoardsScreen.-row #stage { layout: vertical; }
    FourBoardsScreen.-row #boards { layout: horizontal; }
    FourBoardsScreen.-square #stage { layout: horizontal; }
    FourBoardsScreen.-square #boards { layout: vertical; }
    FourBoardsScreen.-square #legend { max-height: 4; }
    FourBoardsScreen.-empty #stage { display: none; }
    FourBoardsScreen.-empty #message { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(classes="-row -empty")
        self.answer: LabAnswer | None = None
        self.stored_boards: list[BoardFrame] = []  # drawn until there is an answer
        self.shown_layer: int | None = None
        self.label: int | None = None  # class of the heat; None: the removed piece
        self.heated = True
        self.part: str | None = None  # the chosen key of PARTS

    def body(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        yield Static("", id="message", markup=False)
        with Container(id="stage"):
            with Container(id="boards"):
                with Horizontal():
                    yield BoardPane(id="original")
                    yield BoardPane(id="target")
                with Horizontal():
                    yield BoardPane(id="before")
                    yield BoardPane(id="after")
            with Vertical(id="numbers"):
                yield Static("", id="heat-line", markup=False)
                yield Static("", id="legend", markup=False)
                yield Rankings()

    # -- drawing --------------------------------------------------------------------------------------------------

    @property
    def layer_place(self) -> int:
        """The index of the shown layer in the answer."""
        from chessreg.lab.answer import find_layer_place

        assert self.answer
        layer = self.shown_layer if self.shown_layer in self.answer.layers else None
        return find_layer_place(self.answer, layer)

    @property
    def heat_label(self) -> int | None:
        """The class whose probability is drawn as heat, or None."""
        from chessreg.games.datasets.labels import PIECE_CLASSES

        if not self.heated or self.answer is None:
            return None
        if self.label is None:
            return PIECE_CLASSES.index(self.answer.piece) if self.answer.piece else None
        return self.label

    def views(self) -> dict[str, BoardFrame]:
        """Return the available boards by pane."""
        from chessreg.lab.answer import build_belief_frame, build_position_frames

        if self.answer is None:
            return dict(zip(PANES, self.stored_boards, strict=False))
        answer = self.answer
        views = dict(zip(PANES, build_position_frames(answer), strict=False))
        if not self.heated:
            views = {pane: replace(frame, heat=None, heat_label="") for pane, frame in views.items()}
        if answer.layers:
            for pane, side_name in (("before", "clean"), ("after", "edited")):
                if side_name == "clean" or answer.edited is not None:
                    views[pane] = build_belief_frame(answer, side_name, self.layer_place, self.heat_label)
        return views

    def make_titles(self) -> dict[str, str]:
        """Return the titles of the boards, short enough for the smallest size."""
        if self.answer is None:
            return {"original": "original", "target": "target"}
        layer = f"L{self.answer.layers[self.layer_place]}" if self.answer.layers else ""
        wrong_counts = {pane: len(frame.marks) for pane, frame in self.views().items()}
        return {
            "original": "original",
            "target": "target" if self.answer.modified_fen else "edited",
            "before": f"{layer} clean, ?{wrong_counts.get('before', 0)}",
            "after": f"{layer} edited, ?{wrong_counts.get('after', 0)}",
        }

    def choose_part(self) -> str:
        """Return the key of PARTS to show.

        Unless one was chosen: all boards if their squares are large or two boards would not be larger.
        """
        views = self.views()
        if len(views) < len(PANES):
            return "all boards"
        if self.part is not None:
            return self.part
        sizes = list(reversed(list_sizes(self.app.glyphs)))
        size_of_all, size_of_two = (
            next((n for n in sizes if self.choose_arrangement(n, count)), 0) for count in (len(PANES), 2)
        )
        return "the position" if size_of_all < min(LARGE_SQUARE_LINES, size_of_two) else "all boards"

    def list_shown_panes(self) -> list[str]:
        views = self.views()
        return [name for name in PARTS[self.choose_part()] if name in views]

    def choose_arrangement(self, size: int, count: int) -> str | None:
        """Return `row` or `square`, whichever fits `count` boards of this size, or None.

        In a row the numbers are below the boards. Two boards with space for the numbers next to them are a square.
        """
        board_cells, high = compute_board_extent(size)
        width, height = self.app.size
        row = count * (board_cells + 1) <= width and high + 1 + ROW_CHROME_LINES + NUMBERS_LINES <= height
        fits_side_by_side = 2 * (board_cells + 1) + NUMBERS_CELLS <= width
        square = fits_side_by_side and ((count + 1) // 2) * (high + 1) + SQUARE_CHROME_LINES <= height
        return "square" if square and (count <= 2 or not row) else "row" if row else None

    def can_draw(self, size: int, text: int = 0) -> bool:
        return self.choose_arrangement(size, max(1, len(self.list_shown_panes()))) is not None

    def draw(self) -> None:
        """Draw the boards, the lines above and below them, and the numbers."""
        views, titles, size, panes = self.views(), self.make_titles(), self.board_size, self.list_shown_panes()
        self.set_class(not views, "-empty")
        way = self.choose_arrangement(size, max(1, len(panes))) or "row"
        self.set_class(way == "row", "-row")
        self.set_class(way == "square", "-square")
        for name in PANES:
            pane = self.query_one(f"#{name}", BoardPane)
            pane.display = name in panes
            if name in panes:
                pane.styles.width = compute_board_extent(size)[0]
                frame = replace(views[name], title=titles[name])
                if self.flipped:
                    frame = replace(frame, flipped=not frame.flipped)
                pane.show(frame, size, self.app.glyphs)
        self.query_one("#head", Static).update(self.make_head())
        self.query_one("#heat-line", Static).update(
            self.describe_heat() if self.clicked_square is None else self.describe_clicked_square()
        )
        self.query_one("#legend", Static).update(self.make_legend_line(panes))
        self.call_after_refresh(self.draw_numbers)

    def draw_numbers(self) -> None:
        """Show the moves before and after the edit, or clear them if they belong to an earlier position."""
        rankings = self.query_one(Rankings)
        if self.answer is not None:
            rankings.show(self.answer, self.selected_move)
        else:  # the moves belong to an earlier position
            rankings.clear()

    @property
    def selected_move(self) -> str | None:
        """The selected move in UCI notation, or None."""
        return None

    @property
    def position(self) -> BoardFrame | None:
        return self.views().get("original")

    def make_legend_line(self, panes: Sequence[str]) -> Text:
        """Return each sign and color in use on the boards, once."""
        line, listed_signs = Text(), set[str]()
        for name in panes:
            for sign, meaning in self.query_one(f"#{name}", BoardPane).squares.list_signs():
                if meaning not in listed_signs:
                    listed_signs.add(meaning)
                    line.append(" · " if line.plain else "").append_text(sign).append(f" {meaning}")
        if self.answer is not None and self.answer.clean.moves_modified:
            words, line_cells = "=  also legal on the target", self.app.size.width - 2
            breaks = self.has_class("-row") and line.cell_len <= line_cells < line.cell_len + len(words) + 3
            line.append(("\n" if breaks else " · ") if line.plain else "").append(words)
        return line

    def describe_clicked_square(self) -> str:
        """Return the content of the clicked square and the reading of the shown layer's probe."""
        import chess

        from chessreg.games.datasets.labels import PIECE_CLASSES

        assert self.clicked_square is not None
        original = self.views().get("original")
        words = (
            chess.square_name(self.clicked_square)
            if original is None
            else describe_square(original, self.clicked_square)
        )
        if self.answer is None or not self.answer.layers:
            return words
        sides = [self.answer.clean, *([self.answer.edited] if self.answer.edited is not None else [])]
        beliefs = [side.beliefs[self.layer_place, self.clicked_square] for side in sides]
        best = [(PIECE_CLASSES[int(one.argmax())], one.max()) for one in beliefs]
        readings = [f"{'empty' if name == '.' else name} {value:.3f}" for name, value in best]
        return f"{words} · layer {self.answer.layers[self.layer_place]} reads {' → '.join(readings)}"

    def make_head(self) -> str:
        """Return the lines above the boards."""
        raise NotImplementedError

    def describe_heat(self) -> str:
        """Return the class of the heat and how its highest probabilities changed."""
        import chess

        from chessreg.games.datasets.labels import PIECE_CLASSES

        label = self.heat_label
        if self.answer is not None and self.answer.next_token and (label is None or self.label is None):
            return format_origin_squares(self.answer)
        if self.answer is None or label is None or not self.answer.layers:
            return ""
        answer, place = self.answer, self.layer_place
        clean_beliefs = answer.clean.beliefs[place, :, label]
        first_squares = [] if answer.square is None else [answer.square]
        best = [*first_squares, *(int(n) for n in clean_beliefs.argsort()[::-1] if int(n) not in first_squares)][:3]
        edited_beliefs = clean_beliefs if answer.edited is None else answer.edited.beliefs[place, :, label]
        values = "  ".join(
            f"{chess.square_name(n)} {clean_beliefs[n]:.3f}"
            + ("" if answer.edited is None else f" → {edited_beliefs[n]:.3f}")
            for n in best
        )
        name = "empty" if PIECE_CLASSES[label] == "." else PIECE_CLASSES[label]
        return f"probability of {name}: {values}"

    def on_resize(self, event: events.Resize) -> None:
        self.draw()

    # -- actions --------------------------------------------------------------------------------------------------

    def list_actions(self) -> list[Action]:
        """Return the actions, starting with `view` so that the footer shows it first."""
        return sorted(super().list_actions(), key=lambda action: action.method != "view")

    def can_offer(self, action: Action) -> bool:
        if action.place == "four-boards" and action.method == "view":
            return len(self.views()) == len(PANES) and super().can_offer(action)
        if action.place == "four-boards" and action.method in ("layer", "label", "heat"):
            return self.answer is not None and bool(self.answer.layers) and super().can_offer(action)
        return super().can_offer(action)

    def action_view(self) -> None:
        """Show the next selection of the four boards, in the order of PARTS."""
        if len(self.views()) == len(PANES):
            parts = list(PARTS)
            self.part = parts[(parts.index(self.choose_part()) + 1) % len(parts)]
            self.draw()

    def action_layer(self, way: str) -> None:
        if self.answer is not None and self.answer.layers:
            layers = self.answer.layers
            self.shown_layer = layers[min(max(0, self.layer_place + int(way)), len(layers) - 1)]
            self.draw()

    def action_label(self, way: str) -> None:
        from chessreg.games.datasets.labels import PIECE_CLASSES

        now = self.heat_label
        self.heated = True
        self.label = 0 if now is None else (now + int(way)) % len(PIECE_CLASSES)
        self.draw()

    def action_heat(self) -> None:
        self.heated = not self.heated
        self.draw()


MIN_SHOWN_PROBABILITY = 0.001


def format_origin_squares(answer: LabAnswer) -> str:
    """Return the likeliest origin squares of the next move, before and after the edit."""
    import chess

    before = answer.clean.squares
    edited_squares = before if answer.edited is None else answer.edited.squares
    highest = [max(pair) for pair in zip(before, edited_squares, strict=True)]
    order = sorted((n for n in range(len(before)) if highest[n] >= MIN_SHOWN_PROBABILITY), key=lambda n: -highest[n])[
        :4
    ]
    values = "  ".join(
        f"{chess.square_name(n)} {before[n]:.3f}" + ("" if answer.edited is None else f" → {edited_squares[n]:.3f}")
        for n in order
    )
    return f"shade: the next move begins on {values}"
