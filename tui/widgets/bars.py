"""The bars above and below a screen: navigation, keys, errors, filters and pane names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.widgets._toast import ToastRack

from tui.actions import FILTER, Action, make_bindings
from tui.columns import MORE_MARK, fit_text
from tui.data.query_answers import SCOPE_GRAMMAR, complete_scope, parse_scope
from tui.entries import ENTRIES


class Piece(NamedTuple):
    """A part of the top bar: its text, its style, and the message that a click on it posts."""

    text: str
    style: str
    target: TopBar.Chosen | None = None


class TopBar(Widget):
    """The screens by key and name, and the registry at the right. Inner screens add a second line with breadcrumbs. If
    the width is too small, the registry is cut first."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "top-bar--crumb", "top-bar--here", "top-bar--key", "top-bar--room", "top-bar--registry", "top-bar--held",
    }  # fmt: skip
    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; background: $panel; color: $foreground; }
    TopBar.-deep { height: 2; }
    TopBar > .top-bar--crumb { color: $text-muted; background: $background; }
    TopBar > .top-bar--here { color: $foreground; background: $background; text-style: bold; }
    TopBar > .top-bar--key { color: $text-accent; }
    TopBar > .top-bar--room { color: $background; background: $accent; text-style: bold; }
    TopBar > .top-bar--registry { color: $text-muted; }
    TopBar > .top-bar--held { color: $text-error; text-style: bold; }
    """

    crumbs: reactive[tuple[str, ...]] = reactive(())
    room: reactive[str] = reactive("")
    registry: reactive[str] = reactive("")
    held: reactive[int] = reactive(0)  # changes not written yet
    at_work: reactive[str] = reactive("")  # commands started by this app

    class Chosen(Message):
        """A click on a screen's name, or on the breadcrumb at `depth`. With neither, on the number of held changes."""

        def __init__(self, room: str = "", depth: int | None = None) -> None:
            super().__init__()
            self.room, self.depth = room, depth

    def watch_crumbs(self, crumbs: tuple[str, ...]) -> None:
        self.set_class(len(crumbs) > 2, "-deep")

    def make_screen_pieces(self, gap: int, with_name: bool = True) -> list[Piece]:
        """Return the screens by key and name, the current one highlighted, or keys alone without `with_name`."""
        pieces = []
        for entry in ENTRIES:
            go = self.Chosen(entry.name)
            if entry.name == self.room:
                pieces.append(Piece(f" {entry.key} {entry.name} ", "room", go))
            else:
                name = f" {entry.name} " if with_name else " "
                pieces += [Piece(f" {entry.key}", "key", go), Piece(name, "registry", go)]
            pieces.append(Piece(" " * gap, "registry"))
        return pieces[:-1]

    def make_pieces(self) -> list[Piece]:
        """Return the pieces of the first line from left to right. They fill its width exactly."""
        busy = f" running: {self.at_work} " if self.at_work else ""
        waiting_text = f" ! {self.held} not written: ^n " if self.held else busy
        status_piece = Piece(waiting_text, "held" if self.held else "key", self.Chosen())
        home = Piece(" chessreg ", "key", self.Chosen(depth=0))
        place = Piece(f" {self.registry} ", "registry")
        rows = (
            [home, *self.make_screen_pieces(1), status_piece, place],
            [home, *self.make_screen_pieces(0), status_piece, place],
            [home, *self.make_screen_pieces(0), status_piece],
            [*self.make_screen_pieces(0), status_piece], [*self.make_screen_pieces(0, with_name=False), status_piece],
        )  # fmt: skip
        width = self.size.width
        pieces = next((row for row in rows if count_cells(row) <= width), rows[-1])
        at = next(n for n, piece in enumerate(pieces) if piece is status_piece)
        gap = Piece(" " * max(0, width - count_cells(pieces)), "registry")
        return [*pieces[:at], gap, *pieces[at:]]

    def list_breadcrumbs(self) -> list[Piece]:
        """Return the pieces of the second line: the breadcrumbs. If they do not fit, the first ones are dropped."""
        before = [
            piece
            for depth, crumb in enumerate(self.crumbs[1:-1], 1)
            for piece in (Piece(crumb, "crumb", self.Chosen(depth=depth)), Piece(" › ", "crumb"))
        ]
        current_crumb, width = self.crumbs[-1], self.size.width - 2
        if count_cells(before) + cell_len(current_crumb) > width:
            before = [Piece("… › ", "crumb", self.Chosen(depth=len(self.crumbs) - 2))]
        if (over := count_cells(before) + cell_len(current_crumb) - width) > 0:
            current_crumb = fit_text(current_crumb, max(0, cell_len(current_crumb) - over))
        return [Piece(" ", "crumb"), *before, Piece(current_crumb, "here")]

    def render_line(self, y: int) -> Strip:
        style = self.get_component_rich_style
        pieces = self.make_pieces() if y == 0 else self.list_breadcrumbs()
        line = Strip([Segment(piece.text, style(f"top-bar--{piece.style}")) for piece in pieces])
        return line.adjust_cell_length(self.size.width, self.rich_style if y == 0 else style("top-bar--crumb"))

    def on_click(self, event: events.Click) -> None:
        at = 0
        for piece in self.make_pieces() if event.y == 0 else self.list_breadcrumbs():
            if at <= event.x < at + cell_len(piece.text) and piece.target is not None:
                self.post_message(piece.target)
            at += cell_len(piece.text)


def count_cells(pieces: Sequence[Piece]) -> int:
    return sum(cell_len(piece.text) for piece in pieces)


KEY_BAR_LINES = 1


class Banner(Static):
    """A message above the screen. `set_message` shows it and `clear_message` hides it."""

    DEFAULT_CSS = """
    Banner { height: auto; max-height: 3; padding: 0 1; display: none; color: $foreground; }
    Banner.-said { display: block; }
    Banner.-busy { background: $warning-muted; color: $text-warning; }
    Banner.-wrong { background: $error-muted; color: $text-error; text-style: bold; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.message = ""

    def set_message(self, message: str, wrong: bool = False) -> None:
        """Show a message, as an error if `wrong`, otherwise as work in progress."""
        if message != self.message:
            self.message = message
            self.update(("! " if wrong else "") + message)
        self.set_class(True, "-said")
        self.set_class(wrong, "-wrong")
        self.set_class(not wrong, "-busy")

    def clear_message(self) -> None:
        self.message = ""
        self.remove_class("-said", "-wrong", "-busy")

    def on_show(self) -> None:
        self.lift_toasts()

    def on_hide(self) -> None:
        self.lift_toasts()

    def on_resize(self) -> None:
        self.lift_toasts()

    def lift_toasts(self) -> None:
        """Keep the toasts above the message and the key bar."""
        covered_lines = KEY_BAR_LINES + (self.outer_size.height if self.has_class("-said") else 0)
        for rack in self.screen.query(ToastRack):
            rack.styles.margin = (0, 0, covered_lines, 0)


class KeyBar(Widget):
    """The key and label of each action that has a label. Actions that do not fit appear only in the help."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--word"}
    DEFAULT_CSS = """
    KeyBar { height: 1; background: $panel; color: $foreground; }
    KeyBar > .key-bar--key { color: $text-accent; text-style: bold; }
    KeyBar > .key-bar--word { color: $text-muted; }
    """

    actions: reactive[tuple[Action, ...]] = reactive(())

    def place_actions(self) -> list[tuple[int, int, Action]]:
        """Return (first cell, last cell + 1, action) for each action that fits. If not all fit and a table can be
        exported, those of FOOTER_LAST come last."""
        placed_actions = self._place_actions(self.actions)
        if len(placed_actions) == len(self.actions) or not any(action.method == "export" for action in self.actions):
            return placed_actions
        return self._place_actions(sorted(self.actions, key=lambda action: action.method in FOOTER_LAST))

    def _place_actions(self, actions: Iterable[Action]) -> list[tuple[int, int, Action]]:
        """Return (first cell, end cell, action) for the actions that fit into the width."""
        at, placed_actions = 1, []
        for action in actions:
            action_cells = cell_len(action.shown_key) + 1 + cell_len(action.short)
            if at + action_cells > self.size.width:
                break
            placed_actions.append((at, at + action_cells, action))
            at += action_cells + 2
        return placed_actions

    def render_line(self, y: int) -> Strip:
        key, word = self.get_component_rich_style("key-bar--key"), self.get_component_rich_style("key-bar--word")
        line = [Segment(" ", word)]
        for _, _, action in self.place_actions():
            line += [Segment(action.shown_key, key), Segment(f" {action.short}  ", word)]
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        for begin, end, action in self.place_actions():
            if begin <= event.x < end:
                self.app.simulate_key(action.keys.split(",")[0])


FOOTER_FIRST = ("help", "quit", "back", "open")  # in this order
# less used than the export of a table, and last where not all fit
FOOTER_LAST = ("all_columns", "partial", "explain", "history", "lineage", "meaning", "scope")


def choose_footer_actions(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions that have a label. Actions needed on every screen come first, so that a narrow footer shows
    them."""
    named_actions = [action for action in actions if action.short]
    global_actions = [
        action for action in named_actions if action.place in ("everywhere", "table") and action.method in FOOTER_FIRST
    ]
    first_actions = sorted(global_actions, key=lambda action: FOOTER_FIRST.index(action.method))
    return (*first_actions, *(action for action in named_actions if action not in first_actions))


class PaneStrip(Widget):
    """Names of panes. The current one is also in brackets, so that it is recognizable without color. `«` and `»` mark
    names further left and right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"pane-strip--name", "pane-strip--here"}
    DEFAULT_CSS = """
    PaneStrip { height: 1; background: $surface; }
    PaneStrip > .pane-strip--name { color: $text-muted; }
    PaneStrip > .pane-strip--here { color: $text-accent; text-style: bold; }
    """

    names: reactive[tuple[str, ...]] = reactive(())
    place: reactive[int] = reactive(0)

    class Chosen(Message):
        """The user chose the pane number `place`."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    early = 0  # steps requested before the names were known

    def step(self, way: int) -> int | None:
        """Mark the next or previous name and return its place. Before the names are known, return None and choose it
        as soon as they are."""
        if not self.names:
            self.early += way
            return None
        self.place = (self.place + way) % len(self.names)
        return self.place

    def watch_names(self) -> None:
        """Choose the name that was requested before the names were known."""
        if self.names and (way := self.early):
            self.early = 0
            self.call_later(lambda: self.post_message(self.Chosen(self.step(way) or 0)))

    def make_labels(self) -> list[str]:
        return [f"[{name}]" if n == self.place else f" {name} " for n, name in enumerate(self.names)]

    @property
    def first_cell(self) -> int:
        """The first visible cell, chosen so that the current name is fully visible next to the marks."""
        cells = self.make_labels()
        before = 1 + sum(cell_len(cell) + 1 for cell in cells[: self.place])
        mark_cell = cell_len(cells[self.place]) + 1 if self.place < len(cells) else 0
        return min(before - 1, max(0, before + mark_cell + len(MORE_MARK) - 1 - self.size.width))

    def render_line(self, y: int) -> Strip:
        """Draw the names. `«` and `»` mark names that are cut or hidden at that side."""
        line, width = [Segment(" ", self.rich_style)], self.size.width
        for n, cell in enumerate(self.make_labels()):
            style = self.get_component_rich_style(f"pane-strip--{'here' if n == self.place else 'name'}")
            line.append(Segment(cell + " ", style))
        whole_line, mark = Strip(line), self.get_component_rich_style("pane-strip--name")
        shown_part = whole_line.crop_extend(self.first_cell, self.first_cell + width, self.rich_style)
        if self.first_cell:
            shown_part = Strip.join([Strip([Segment("«", mark)]), shown_part.crop(1)])
        if whole_line.cell_length - 1 > self.first_cell + width:
            shown_part = Strip.join([shown_part.crop(0, width - len(MORE_MARK)), Strip([Segment(MORE_MARK, mark)])])
        return shown_part

    def on_click(self, event: events.Click) -> None:
        at = 1 - self.first_cell
        for n, cell in enumerate(self.make_labels()):
            if at <= event.x < at + len(cell):
                self.post_message(self.Chosen(n))
            at += len(cell) + 1


TYPING_PAUSE_S = 0.12


class FilterBar(Input):
    """A filter line. Enter and ↓ return to the list; Esc also clears the filter. If `hides` is true, the filter hides
    rows, and Esc on the screen clears it before leaving."""

    BINDINGS = make_bindings(FILTER)

    DEFAULT_CSS = """
    FilterBar {
        height: 3; border: round $edge; padding: 0 1; background: $surface; color: $foreground;
        border-title-color: $foreground; border-title-style: bold; border-subtitle-color: $text-muted;
    }
    FilterBar:focus { border: round $accent; border-title-color: $text-accent; }
    FilterBar > .input--placeholder, FilterBar > .input--suggestion { color: $text-muted; }
    """

    class Typed(Message):
        """The filter text changed."""

        def __init__(self, text: str, bar: FilterBar) -> None:
            super().__init__()
            self.text, self.bar = text, bar

    class Left(Message):
        """The focus returns to the list."""

    def __init__(
        self,
        placeholder: str,
        id: str | None = None,
        hides: bool = True,
        leads: str = "to the list, again opens",
        offered_words: Sequence[str] = (),
        title: str = "filter",
    ) -> None:
        super().__init__(placeholder=placeholder, id=id, select_on_focus=False)
        self.border_title = f"{title} · Esc clears it" if hides else title
        if offered_words:
            self.suggester = ColumnSuggester(offered_words)
        self.leads = leads  # label of Enter in the footer
        self.display = False
        self._timer: Timer | None = None
        self._posted_text = ""
        self.hides = hides

    match_text: reactive[str] = reactive("")  # number of matching rows

    def watch_match_text(self, match_text: str) -> None:
        self.border_subtitle = match_text.strip()

    def open(self) -> None:
        """Show and focus the line. Existing text is selected: typing replaces it, → keeps it."""
        self.display = True
        self.screen.set_focus(self)  # immediately, so that the next key reaches this line
        self.action_select_all()

    def set_text(self, text: str) -> None:
        """Set the text and apply it, as if it had been typed."""
        self.value = self._posted_text = text
        self.cursor_position = len(text)
        self.display = bool(text) or self.has_focus

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(TYPING_PAUSE_S, self._post_typed)

    def _post_typed(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self.value != self._posted_text:
            self._posted_text = self.value
            self.post_message(self.Typed(self.value, self))

    def action_leave(self) -> None:
        self._post_typed()
        self.display = bool(self.value)
        self.post_message(self.Left())

    def action_complete(self) -> None:
        """Accept the suggestion."""
        self.action_cursor_right()

    def action_clear_words(self) -> None:
        self.value = ""
        self._post_typed()
        self.display = False
        self.post_message(self.Left())


class ColumnSuggester(Suggester):
    """Suggests column names, with the operator that follows, for the word being typed."""

    def __init__(self, known_names: Sequence[str] = ()) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.known_names = list(known_names)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the text with its last word completed to a known one, else None. A leading `!` is kept."""
        before, space, last_word = value.rpartition(" ")
        bare = last_word.removeprefix("!").lower()
        word = next((word for word in self.known_names if bare and word.startswith(bare) and word != bare), None)
        return f"{before}{space}{'!' if last_word.startswith('!') else ''}{word}" if word else None


class FindBar(FilterBar):
    """The search terms that filter a table: `elo>1900 result:1-0`. Tab and → accept the suggested column."""

    def __init__(self) -> None:
        super().__init__("words, or a column: elo>1900 result:1-0 !draw", id="find")
        self.suggester = self.columns = ColumnSuggester()


class ScopeSuggester(Suggester):
    """Suggests existing names for the last word."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.known_names: list[str] = []

    async def get_suggestion(self, value: str) -> str | None:
        return complete_scope(value, self.known_names)


class ScopeBar(FilterBar):
    """A FilterBar that acts on Enter rather than on each key, because a query may be slow. → accepts the suggestion."""

    def __init__(self, id: str | None = "scope") -> None:
        super().__init__(SCOPE_GRAMMAR, id=id, hides=False, leads="apply", title="scope of all queries")
        self.suggestions = ScopeSuggester()
        self.suggester = self.suggestions

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.set_class(not self.is_valid_scope(event.value), "-wrong")

    @staticmethod
    def is_valid_scope(text: str) -> bool:
        """Return whether the text is a valid scope."""
        from chessreg.errors import BadInputError

        try:
            parse_scope(text)
        except BadInputError:
            return False
        return True

    DEFAULT_CSS = """
    ScopeBar.-wrong { color: $text-error; }
    """
