"""The table of all actions of the terminal UI. Keys, footer, palette and help are generated from it.

An action belongs to a place: a screen, the table, or `everywhere`. The class of the place defines `action_<method>` and
takes its BINDINGS from `make_bindings(place)`, so keys and help always agree with the code. `command` is the equivalent
command; words in capitals are placeholders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from string import punctuation
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.keys import _character_to_key

from tui.entries import ENTRIES


@dataclass(frozen=True)
class Action:
    """An action of one place. `short` is its label in the footer; actions without one are not shown there."""

    place: str
    method: str
    keys: str  # Textual's names, separated by commas; the first one is displayed
    text: str
    short: str = ""
    command: str = ""
    parameter: str = ""  # passed to the method
    writes: bool = True  # rows, files or settings: refused with --read-only; False where it is declared by `reads`
    first: bool = False  # handle the key before the focused widget: the next keys belong to the new focus
    verb: str = ""  # the letter's meaning, if broader than the method
    ascii: bool = False  # arrows are shown by their names: as letters they would be other keys

    @property
    def name(self) -> str:
        return f"{self.place}.{self.method}{'.' + self.parameter if self.parameter else ''}"

    @property
    def meaning(self) -> str:
        """The meaning of the action's letter, the same in every place."""
        return self.verb or self.method

    @property
    def call(self) -> str:
        """The action in Textual's notation."""
        return f"{self.method}({self.parameter!r})" if self.parameter else self.method

    @property
    def shown_keys(self) -> str:
        labels = KEY_LABELS | ARROW_LABELS if self.ascii else KEY_LABELS
        return " ".join(labels.get(key, key) for key in self.keys.split(","))

    @property
    def shown_key(self) -> str:
        return self.shown_keys.partition(" ")[0]


def reads(*fields: Any, **options: Any) -> Action:
    """Return an action that changes no row, file or setting."""
    return replace(Action(*fields, **options), writes=False)


ARROW_LABELS = {"up": "Up", "down": "Down", "left": "Left", "right": "Right"}
KEY_LABELS = {
    "up": "↑", "down": "↓", "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home",
    "end": "End", "enter": "Enter", "escape": "Esc", "question_mark": "?", "slash": "/", "space": "Space",
    "ctrl+p": "^p", "colon": ":", "ctrl+s": "^s", "ctrl+c": "^c", "ctrl+o": "^o", "ctrl+r": "^r", "f5": "F5",
    "G": "G", "tab": "Tab", "shift+tab": "S-Tab", "ctrl+n": "^n",
    "asterisk": "*", "greater_than_sign": ">", "less_than_sign": "<", "right_parenthesis": ")",
    "left_parenthesis": "(", "ctrl+d": "^d", "ctrl+u": "^u", "exclamation_mark": "!", "backspace": "Bksp",
    "plus": "+", "minus": "-", "equals_sign": "=", "right_square_bracket": "]", "left_square_bracket": "[", "f1": "F1",
    "full_stop": ".", "comma": ",", "delete": "Del", "number_sign": "#", "f6": "F6", "f7": "F7", "ctrl+l": "^l",
    "ctrl+y": "^y", "dollar_sign": "$", "percent_sign": "%", "at": "@", "right_curly_bracket": "}",
    "ctrl+z": "^z",
}  # fmt: skip
EVERYWHERE, TABLE, FILTER, CONFIRM, SQUARES = "everywhere", "table", "filter", "confirm", "squares"
PLACES_WITH_OWN_KEYS = (
    EVERYWHERE,
    FILTER,
    CONFIRM,
    SQUARES,
    "field",
    "prompt",
    "jump",
    "editor",
    "sql",
)  # places where keys of `everywhere` have another meaning
SHARED_PLACES = (  # screens, and the places whose keys they share
    *((place, ("annotate",)) for place in ("runs", "run", "data", "thing")),
    *((place, ("scoped", "result")) for place in ("answer", "plot", "heat-board")),
    *((place, ("result",)) for place in ("rows", "sql")), ("queries", ("scoped",)),
    *((place, ("position",)) for place in ("board", "pair")),
    *((place, ("four-boards", "position")) for place in ("lab", "edit")), ("edit", ("case-boards", "position")),
)  # fmt: skip
PIECE_NAMES = ("pawn", "knight", "bishop", "rook", "queen", "king")
LETTER_PIECES = {
    **dict(zip("PNBRQK", (f"white {name}" for name in PIECE_NAMES), strict=True)),
    **dict(zip("pnbrqk", (f"black {name}" for name in PIECE_NAMES), strict=True)),
}
ACTIONS: tuple[Action, ...] = (
    reads(EVERYWHERE, "help", "question_mark,f1", "Show the keys of this screen", "help", "chessreg tui --help"),
    *(reads(EVERYWHERE, "go", entry.key, entry.text, command=entry.command, parameter=entry.name)
      for entry in ENTRIES),
    reads(EVERYWHERE, "back", "escape,backspace", "Clear the filter, or go back", "back"),
    reads(EVERYWHERE, "reload", "r", "Reload this screen", command="chessreg runs list"),
    reads(EVERYWHERE, "messages", "ctrl+n", "Show past messages and unwritten changes"),
    reads(EVERYWHERE, "palette", "ctrl+p,colon", "Find an action by name", "actions"),
    reads(EVERYWHERE, "jump", "ctrl+o", "Jump to a part of the screen by letter"),
    reads(EVERYWHERE, "copy_command", "y", "Copy the equivalent command"),
    reads(EVERYWHERE, "theme", "T", "Switch the theme: dark, light, high contrast"),
    reads(EVERYWHERE, "glyphs", "a", "Draw pieces solid, in outline or as letters", command="chessreg tui --ascii"),
    reads(EVERYWHERE, "suspend", "ctrl+z", "Suspend to the shell; fg resumes"),
    Action(EVERYWHERE, "picture", "ctrl+s", "Save a screenshot (SVG)", writes=True),
    reads(EVERYWHERE, "quit", "q,ctrl+c", "Quit", "quit"),
    reads(TABLE, "cursor_down", "down,j", "Next row"),
    reads(TABLE, "cursor_up", "up,k", "Previous row"),
    reads(TABLE, "page_down", "pagedown,ctrl+d", "Page down"),
    reads(TABLE, "page_up", "pageup,ctrl+u", "Page up"),
    reads(TABLE, "first", "home,g", "First row"),
    reads(TABLE, "last", "end,G", "Last row"),
    reads(TABLE, "scroll_columns", "left,h", "Scroll columns left", parameter="-1"),
    reads(TABLE, "scroll_columns", "right,l", "Scroll columns right", parameter="1"),
    reads(TABLE, "open", "enter,o", "Open the row", "open"),
    reads(TABLE, "inspect", "i", "Show all fields of the row", "fields"),
    reads(TABLE, "find", "slash", "Filter rows by words or columns: elo>1900 result:1-0", "filter", first=True),
    reads(TABLE, "sort", "greater_than_sign", "Sort by the next column, then in the default order", "sort",
          parameter="1"),
    reads(TABLE, "sort", "less_than_sign", "Reverse the order", parameter="0"),
    reads(TABLE, "number", "number_sign", "Go to a row number"),
    Action("messages", "drop", "x", "Discard the change", "discard", writes=True, verb="cancel"),
    Action("messages", "again", "R", "Retry writing the changes", "retry", writes=True, verb="retry"),
    reads(FILTER, "leave", "enter,down", "Keep the filter and go to the list", "to the list"),
    reads(FILTER, "complete", "tab", "Accept the suggestion"),
    reads(FILTER, "clear_words", "escape,ctrl+c", "Clear the filter", "clear"),
    Action("home", "begin", "D", "Run the demo in this registry", "demo", "chessreg demo", "demo", writes=True),
    Action("home", "begin", "A", "Add games, positions or a model from a file", "add data",
           "chessreg dataset add FILE --name games", "data", writes=True, verb="add"),
    Action("home", "begin", "M", "Import the bundled model", "bundled model",
           "chessreg import checkpoint --reference --name reference", "model", writes=True, verb="import"),
    reads("home", "other", "tab", "Next list: machines, active jobs, ended runs", "next list",
          "chessreg status --since 1d", "1"),
    reads("home", "other", "shift+tab", "Previous list", parameter="-1"),
    Action("home", "launch", "ctrl+l", "Launch an experiment", "launch", "chessreg launch KIND", writes=True),
    reads("home", "failure", "exclamation_mark", "Open the log of the last failure", command="chessreg logs JOB"),
    Action("home", "cancel", "x", "Cancel the job; complete units are kept", "cancel", "chessreg cancel JOB",
           writes=True),
    Action("home", "retry", "R", "Retry the unfinished job", "retry", "chessreg retry JOB",
           writes=True),
    reads("runs", "filter", "slash", "Filter the runs as you type", "filter", "chessreg runs list WORD", first=True),
    reads("runs", "mark", "space", "Mark the run and move down: to compare or annotate several",
          "mark and move down"),
    reads("runs", "compare", "c", "Compare the marked runs, or the attempts of one", "compare",
          "chessreg compare RUN RUN"),
    reads("runs", "lineage", "L", "Show the lineage: inputs and descendants", "lineage",
          "chessreg lineage RUN"),
    Action("runs", "launch", "ctrl+l", "Launch with other settings: opens a form with those of the run",
           "launch again", "chessreg launch KIND", writes=True),
    reads("runs", "columns", "C", "Choose the columns", "columns", "chessreg runs list --json"),
    Action("runs", "add", "A", "Import published results from a file", "import",
           "chessreg import results FILE --name NAME", writes=True),
    Action("runs", "merge", "M", "Merge another registry, after a preview", "merge",
           "chessreg merge FOLDER --dry-run", writes=True, verb="import"),
    reads("runs", "unmark", "u", "Unmark all", verb="take back"),
    Action("annotate", "toggle_mark", "asterisk", "Star or unstar", "star", "chessreg runs star RUN",
           "star", writes=True),
    Action("annotate", "tag", "t", "Add or remove a tag", "tag", "chessreg runs tag RUN TAG", writes=True),
    Action("annotate", "note", "n", "Add a note", "note", "chessreg runs note RUN TEXT", writes=True),
    Action("annotate", "name", "N", "Set the name", command="chessreg runs name RUN NAME", writes=True),
    Action("annotate", "toggle_mark", "B", "Pin as the baseline of comparisons, or unpin",
           command="chessreg runs pin RUN", parameter="pin", writes=True, verb="pin"),
    Action("annotate", "toggle_mark", "z", "Archive or unarchive",
           command="chessreg runs archive RUN", parameter="archive", writes=True),
    Action("annotate", "invalidate", "I", "Mark as invalid, with a reason",
           command="chessreg runs invalidate RUN --why TEXT", writes=True),
    Action("merge", "merge", "M", "Merge: add new runs and results, list conflicts", "merge",
           "chessreg merge FOLDER", writes=True, verb="import"),
    reads("merge", "pane", "tab,right_square_bracket", "Next part: runs or conflicts", "next part",
          "chessreg merge FOLDER --dry-run", "1"),
    reads("merge", "pane", "shift+tab,left_square_bracket", "Previous part", parameter="-1"),
    reads("columns", "shown", "space", "Show or hide the column", "show or hide"),
    reads("columns", "shift", "K", "Move the column up (left in the list)", "up", parameter="-1"),
    reads("columns", "shift", "J", "Move the column down (right in the list)", "down", parameter="1"),
    reads("compare", "pane", "tab,right_square_bracket", "Next part of the comparison", "next part",
          "chessreg compare RUN RUN", "1"),
    reads("compare", "pane", "shift+tab,left_square_bracket", "Previous part", parameter="-1"),
    reads("compare", "baseline", "b", "Use the next run as the baseline", "baseline", "chessreg compare BASELINE RUN"),
    Action("compare", "pin", "B", "Pin or unpin the baseline", "pin", "chessreg runs pin RUN",
           writes=True, verb="pin"),
    reads("compare", "curve", "right_parenthesis", "Curve of the next metric", "next curve",
          "chessreg compare RUN RUN --curves", "1"),
    reads("compare", "curve", "left_parenthesis", "Curve of the previous metric", parameter="-1"),
    reads("lineage", "way", "tab", "Show inputs, descendants or both", "direction", "chessreg lineage RUN --up"),
    reads("lineage", "fold", "space", "Fold or unfold the branch", "fold"),
    reads("lineage", "root", "L", "Show the lineage of this row", "lineage", "chessreg lineage RUN", verb="lineage"),
    reads("data", "noun", "tab,right_square_bracket", "Next list: datasets, checkpoints, caches, …", "next",
          "chessreg dataset list", "1"),
    reads("data", "noun", "shift+tab,left_square_bracket", "Previous list", parameter="-1"),
    reads("data", "lineage", "L", "Show the lineage: inputs and descendants", "lineage",
          "chessreg lineage DATASET"),
    Action("data", "add", "A", "Import games, a model, a probe, a vector or an SAE", "add",
           "chessreg dataset add FILE --name NAME", writes=True),
    reads("data", "rows", "v", "List the dataset's games or positions", "games",
          "chessreg board DATASET:0", verb="view"),
    Action("data", "split", "S", "Split the dataset into named parts", "split",
           "chessreg dataset split DATASET --parts fit=0.8,test=0.2", writes=True),
    reads("thing", "pane", "tab,right_square_bracket", "Next part", "next part", "chessreg probe show RUN", "1"),
    reads("thing", "pane", "shift+tab,left_square_bracket", "Previous part", parameter="-1"),
    reads("thing", "lineage", "L", "Show the lineage: inputs and descendants", "lineage",
          "chessreg lineage DATASET"),
    reads("thing", "rows", "v", "List the dataset's games or positions", "games",
          "chessreg board DATASET:0", verb="view"),
    Action("thing", "verify", "V", "Verify every byte against its digest", "verify", "chessreg cache verify RUN",
           writes=True),
    reads("run", "lineage", "L", "Show the lineage: inputs and descendants", "lineage",
          "chessreg lineage RUN"),
    Action("run", "launch", "ctrl+l", "Launch with other settings: opens a form with those of the run",
           "launch again", "chessreg launch KIND", writes=True),
    reads("run", "pane", "tab,right_square_bracket", "Next part of the run", "next part",
          "chessreg runs show RUN", "1"),
    reads("run", "pane", "shift+tab,left_square_bracket", "Previous part of the run", parameter="-1"),
    reads("boards", "result_table", "tab", "Next list: games, trials, scores, dataset games",
          "next list", 'chessreg query --sql "SELECT * FROM trial"', "1"),
    reads("boards", "result_table", "shift+tab", "Previous list", parameter="-1"),
    reads("board", "step", "right,l", "Next position", "step", "chessreg board RUN:UNIT --ply N", "1"),
    reads("board", "step", "left,h", "Previous position", parameter="-1"),
    reads("board", "edge", "home,g", "First position", parameter="first"),
    reads("board", "edge", "end,G", "Last position", parameter="last"),
    reads("board", "row", "down,j", "Board of the next row", "next row", parameter="1"),
    reads("board", "row", "up,k", "Board of the previous row", parameter="-1"),
    reads("board", "layer", "right_square_bracket", "Probe reading of the next layer", "layer",
          "chessreg board RUN:UNIT --ply N", "1"),
    reads("board", "layer", "left_square_bracket", "Probe reading of the previous layer", parameter="-1"),
    reads("board", "illegal", "exclamation_mark", "Next error: an illegal attempt, or a misread square",
          "next error"),
    reads("board", "limit", "dollar_sign", "Go to the move limit",
          command="chessreg board RUN:UNIT --ply N"),
    reads("board", "beside", "c", "Compare with another arm's game of the same opening", "compare",
          "chessreg game part RUN:UNIT", verb="compare"),
    reads("board", "evaluate", "E", "Evaluate every position with Stockfish",
          "evaluate", "chessreg board RUN:UNIT --ply N --evaluate nodes=10000"),
    reads("board", "model", "m", "Show the model's likeliest moves as arrows",
          "model's moves", 'chessreg lab --checkpoint NAME --moves "e4 e5 …"'),
    reads("board", "go_to", "number_sign", "Go to a ply", command="chessreg board RUN:UNIT --ply N"),
    reads("board", "flip", "f", "Flip the board", "flip"),
    reads("board", "size", "space", "Next board size", "size"),
    reads("board", "scroll_text", "pagedown", "Scroll the text down", parameter="1"),
    reads("board", "scroll_text", "pageup", "Scroll the text up", parameter="-1"),
    reads("board", "inspect", "i", "Show all fields of the row"),
    reads("pair", "step", "right,l", "Next ply of both games", "step", "chessreg board RUN:UNIT --ply N", "1"),
    reads("pair", "step", "left,h", "Previous ply of both games", parameter="-1"),
    reads("pair", "edge", "home,g", "First position", parameter="first"),
    reads("pair", "edge", "end,G", "Last position", parameter="last"),
    reads("pair", "parts", "d", "Go to the ply where the games diverge", "divergence",
          "chessreg game part RUN:UNIT RUN:UNIT"),
    reads("pair", "illegal", "exclamation_mark", "Next illegal attempt in either game", "illegal attempt"),
    reads("pair", "limit", "dollar_sign", "Go to the move limit"),
    reads("pair", "go_to", "number_sign", "Go to a ply", command="chessreg board RUN:UNIT --ply N"),
    reads("pair", "partner", "tab", "Next arm with this opening", "next arm", "chessreg game part RUN:UNIT", "1"),
    reads("pair", "partner", "shift+tab", "Previous arm with this opening", parameter="-1"),
    reads("pair", "flip", "f", "Flip the boards", "flip"),
    reads("pair", "size", "space", "Next board size", "size"),
    reads("four-boards", "layer", "right,l", "Probe reading of the next layer", "layer",
          "chessreg lab RUN:UNIT --layer N", "1"),
    reads("four-boards", "layer", "left,h", "Probe reading of the previous layer", parameter="-1"),
    reads("four-boards", "label", "full_stop", "Next class of the heat map: k q r b n p, empty, P N B R Q K", "class",
          "chessreg heatmap RUN:UNIT --class LETTER", "1"),
    reads("four-boards", "label", "comma", "Previous class of the heat map", parameter="-1"),
    reads("four-boards", "view", "v", "Show the position, the probe's readings or all four boards", "boards",
          "chessreg lab RUN:UNIT"),
    reads("four-boards", "heat", "H", "Turn the heat map on or off"),
    reads("four-boards", "flip", "f", "Flip the boards", "flip"),
    reads("four-boards", "size", "space", "Next board size", "size"),
    reads("case-boards", "heat", "H", "Turn the heat map on or off"),
    reads("case-boards", "flip", "f", "Flip the boards", "flip"),
    reads("case-boards", "size", "space", "Next board size", "size"),
    reads("position", "copy_position", "F", "Copy the position as FEN", command="chessreg board RUN:UNIT --as fen",
          parameter="fen"),
    reads("position", "copy_position", "P", "Copy the game as PGN", command="chessreg board RUN:UNIT --as pgn",
          parameter="pgn"),
    reads("position", "copy_position", "W", "Copy a web link: Lichess's analysis of the position",
          command="chessreg board RUN:UNIT --as lichess", parameter="lichess"),
    reads("edit", "row", "down,j", "Next state", "next state", "chessreg board RUN:UNIT", "1"),
    reads("edit", "row", "up,k", "Previous state", parameter="-1"),
    reads("edit", "condition", "tab", "Next condition: edit, random-0, shuffled-0, …", "condition",
          "chessreg board RUN:UNIT --condition NAME", "1"),
    reads("edit", "condition", "shift+tab", "Previous condition", parameter="-1"),
    reads("edit", "inspect", "i", "Show all fields of the trial"),
    reads("edit", "lab", "e", "Open the position in the lab", "lab", verb="edit"),
    reads("lab", "scale", "plus,equals_sign", "Increase the scale", "scale", "chessreg lab … --scale S", "1"),
    reads("lab", "scale", "minus", "Decrease the scale; below 0 the edit reverses", parameter="-1"),
    reads("lab", "point", "down,j", "Select the next move", parameter="1"),
    reads("lab", "point", "up,k", "Select the previous move", parameter="-1"),
    reads("lab", "play", "enter", "Play the selected move", "play", 'chessreg lab … --moves "e4 e5 …"'),
    reads("lab", "squares", "e", "Edit the target board: place and remove pieces", "board",
          'chessreg lab … --board "d5=. d7=p"', verb="edit"),
    reads("lab", "clear_board", "Z", "Reset the target board", command="chessreg lab …", verb="everything back"),
    reads("lab", "condition", "tab", "Next condition: edit, patch (needs a move taken back), random-0, …", "condition",
          "chessreg lab … --condition NAME", "1"),
    reads("lab", "condition", "shift+tab", "Previous condition", parameter="-1"),
    reads("lab", "back_move", "u", "Take back a move", "take back", verb="take back"),
    reads("lab", "forward_move", "U", "Replay the move, or play the model's move"),
    reads("lab", "type", "slash", "Type moves or a FEN", "moves", 'chessreg lab … --moves "e4 e5 Nf3"', first=True),
    reads("lab", "edited_layer", "right_square_bracket", "Edit the next layer", "edited layer",
          "chessreg lab … --layers N", "1"),
    reads("lab", "edited_layer", "left_square_bracket", "Edit the previous layer", parameter="-1"),
    reads("lab", "all_layers", "right_curly_bracket", "Edit all layers, or the selected one",
          command="chessreg lab … --layers 0-7"),
    reads("lab", "tool", "right_parenthesis", "Next probe or vector", "probe", "chessreg lab … --probe RUN"),
    reads("lab", "model", "m", "Next model", "model", "chessreg lab --checkpoint NAME"),
    reads("lab", "tokens", "at", "Edit the last token or all tokens", command="chessreg lab … --token-mask all"),
    Action("lab", "store", "w", "Store the edit as a run", "store", 'chessreg run edit --moves "e4 e5 Nf3" …',
           writes=True, verb="write"),
    reads(SQUARES, "move", "up", "Up one rank", parameter="up"),
    reads(SQUARES, "move", "down", "Down one rank", parameter="down"),
    reads(SQUARES, "move", "left", "Left one file", "square", parameter="left"),
    reads(SQUARES, "move", "right", "Right one file", parameter="right"),
    *(reads(SQUARES, "put", piece, f"Place a {name}", parameter=piece) for piece, name in LETTER_PIECES.items()),
    reads(SQUARES, "put", "full_stop,delete,x", "Remove the piece", "remove", parameter="."),
    reads(SQUARES, "take_back", "backspace,u", "Undo the last change", "take back"),
    reads(SQUARES, "leave", "enter,escape", "Return to the keys of the lab", "done"),
    reads("queries", "filter", "slash", "Search the queries", "search", "chessreg query --list", first=True),
    reads("queries", "sql", "e", "Write a SQL query", "SQL", 'chessreg query --sql "SELECT …"', verb="edit"),
    reads("queries", "plot", "v", "Plot the answer", "plot", "chessreg plot --list", verb="view"),
    reads("queries", "published", "p", "Compare with the papers' numbers", command='chessreg query "NAME" --published',
          verb="paper"),
    reads("scoped", "scope", "s", "Set the scope of all queries: checkpoint, run, tag, machine, since, where", "scope",
          'chessreg query "NAME" --checkpoint NAME --since 7d'),
    reads("jobs", "filter", "slash", "Filter the jobs as you type", "filter", "chessreg jobs", first=True),
    Action("jobs", "launch", "ctrl+l", "Launch with other settings: opens a form with those of the job",
           "launch again", "chessreg launch KIND", writes=True),
    Action("jobs", "cancel", "x", "Cancel the job; complete units are kept", "cancel", "chessreg cancel JOB",
           writes=True),
    Action("jobs", "cancel", "X", "Cancel every job of its launch",
           command="chessreg cancel LAUNCH", parameter="launch", writes=True),
    Action("jobs", "retry", "R", "Retry the unfinished job", "retry", "chessreg retry JOB",
           writes=True),
    Action("jobs", "priority", "plus,equals_sign", "Raise the priority", command="chessreg priority JOB --by 1",
           parameter="1", writes=True),
    Action("jobs", "priority", "minus", "Lower the priority", command="chessreg priority JOB --by -1", parameter="-1",
           writes=True),
    reads("job", "pane", "tab", "Log, attempts, settings or first results", "next part", "chessreg job show JOB", "1"),
    reads("job", "pane", "shift+tab", "Previous part", parameter="-1"),
    reads("job", "find", "slash", "Find words in the log, or filter the rows of a table", "find",
          "chessreg logs JOB", first=True),
    reads("job", "hit", "right_parenthesis", "Next match", parameter="1"),
    reads("job", "hit", "left_parenthesis", "Previous match", parameter="-1"),
    reads("job", "shard", "right_square_bracket", "Next shard", "next shard", "chessreg attach JOB", "1"),
    reads("job", "shard", "left_square_bracket", "Previous shard", parameter="-1"),
    reads("job", "run", "v", "Open its run", "run", "chessreg runs show RUN", verb="view"),
    Action("job", "launch", "ctrl+l", "Launch with other settings: opens a form with those of the job",
           "launch again", "chessreg launch KIND", writes=True),
    Action("job", "cancel", "x", "Cancel the job; complete units are kept", "cancel", "chessreg cancel JOB",
           writes=True),
    Action("job", "cancel", "X", "Cancel every job of its launch", command="chessreg cancel LAUNCH", parameter="launch",
           writes=True),
    Action("job", "retry", "R", "Retry the unfinished job", "retry", "chessreg retry JOB",
           writes=True),
    Action("job", "priority", "plus,equals_sign", "Raise the priority", command="chessreg priority JOB --by 1",
           parameter="1", writes=True),
    Action("job", "priority", "minus", "Lower the priority", command="chessreg priority JOB --by -1", parameter="-1",
           writes=True),
    reads("log", "scroll_log", "down,j", "Scroll down", command="chessreg logs -f JOB", parameter="1"),
    reads("log", "scroll_log", "up,k", "Scroll up, and stop following the log", parameter="-1"),
    reads("log", "scroll_log", "pagedown,space,ctrl+d", "Page down", parameter="page"),
    reads("log", "scroll_log", "pageup,ctrl+u", "Page up", parameter="-page"),
    reads("log", "scroll_log", "home,g", "Go to the beginning", parameter="first"),
    reads("log", "scroll_log", "end,G", "Go to the end, and follow the log", parameter="last"),
    reads("log", "scroll_side", "right,l", "Scroll right", parameter="1"),
    reads("log", "scroll_side", "left,h", "Scroll left", parameter="-1"),
    reads("launch", "filter", "slash", "Search the kinds of experiments", "search", "chessreg launch --help",
          first=True),
    Action("launch", "file", "A", "Open a custom kind from a file", "custom kind", "chessreg launch ./FILE.py",
           verb="add", writes=True),
    reads("form", "move", "down,j", "Next setting", parameter="1"),
    reads("form", "move", "up,k", "Previous setting", parameter="-1"),
    reads("form", "move", "pagedown,ctrl+d", "Ten settings down", parameter="10"),
    reads("form", "move", "pageup,ctrl+u", "Ten settings up", parameter="-10"),
    reads("form", "edge", "home,g", "First setting", parameter="first"),
    reads("form", "edge", "end,G", "Last setting", parameter="last"),
    Action("form", "launch", "ctrl+l", "Launch, and open the job", "launch", "chessreg launch KIND", writes=True),
    reads("form", "edit", "enter,o", "Choose or type a value", "edit", "chessreg launch KIND --help"),
    reads("form", "type", "e", "Type a value instead of choosing one", verb="edit"),
    reads("form", "turn", "space,right,l", "Next choice", parameter="1"),
    reads("form", "turn", "left,h", "Previous choice", parameter="-1"),
    reads("form", "default", "u,delete", "Reset to the default", "default", verb="take back"),
    reads("form", "clear_form", "Z", "Reset every setting and discard the draft",
          verb="everything back"),
    reads("form", "preset", "p", "Next preset, as in a paper", "preset", "chessreg launch KIND --preset NAME", "1",
          verb="paper"),
    reads("form", "preset", "left_parenthesis", "Previous preset", parameter="-1"),
    reads("form", "wrong", "exclamation_mark", "Next setting that is missing or wrong", "next missing"),
    Action("form", "after_launch", "x", "Cancel the job that is being queued", "cancel", "chessreg cancel JOB",
           "cancel", writes=True, verb="cancel"),
    Action("form", "after_launch", "R", "Queue the cancelled job again", "retry", "chessreg retry JOB", "retry",
           writes=True, verb="retry"),
    reads("form", "run", "v", "Open the existing run, or its job", "run", "chessreg runs show RUN", verb="view"),
    reads("form", "filter", "slash", "Find a setting", "find", "chessreg launch KIND --help", first=True),
    reads("field", "keep", "enter", "Keep the value", "keep", parameter="0"),
    reads("field", "keep", "down,tab", "Keep the value and go to the next setting", "next", parameter="1"),
    reads("field", "keep", "up,shift+tab", "Keep the value and go to the previous setting", parameter="-1"),
    reads("field", "undo", "escape,ctrl+c", "Restore the previous value", "cancel"),
    reads("files", "up", "minus", "Go to the parent folder", "parent folder"),
    reads("files", "take", "space", "Choose this file or folder", "choose"),
    reads("files", "type", "e", "Type a path", "path", verb="edit"),
    reads("picker", "filter", "slash", "Search", "search", first=True),
    reads("picker", "mark", "space", "Mark the row and move down: to choose several",
          "mark and move down"),
    reads("confirm", "answer", "y,enter", "Yes", "yes", parameter="yes"),
    reads("confirm", "answer", "n,escape,q,ctrl+c", "No", "no", parameter="no"),
    reads("page", "scroll_text", "down,j", "Scroll down", parameter="1"),
    reads("page", "scroll_text", "up,k", "Scroll up", parameter="-1"),
    reads("page", "scroll_text", "pagedown,space", "Page down", parameter="page"),
    reads("page", "scroll_text", "pageup", "Page up", parameter="-page"),
    reads("answer", "published", "p", "Compare with the papers' numbers", "published",
          'chessreg query "NAME" --published', verb="paper"),
    reads("answer", "plot", "v", "Plot the answer", "plot", 'chessreg plot "NAME"', verb="view"),
    reads("answer", "all_columns", "plus", "Show all columns, or the main ones", "all columns",
          'chessreg query "NAME" --wide'),
    reads("notes", "scroll_notes", "down,j", "Scroll the notes down", parameter="1"),
    reads("notes", "scroll_notes", "up,k", "Scroll the notes up", parameter="-1"),
    reads("answer", "partial", "percent_sign", "Include unfinished runs, or exclude them", "unfinished",
          'chessreg query "NAME" --partial'),
    reads("answer", "scoring", "O", "Score games as in the papers, or as in their code",
          command='chessreg query "NAME" --scoring author-2024'),
    *(reads(place, "lineage", "L", "Show the lineage of the row's run", "lineage",
            "chessreg lineage RUN") for place in ("answer", "rows", "sql")),
    reads("answer", "meaning", "C", "Explain the columns", "columns", 'chessreg query "NAME" --columns',
          verb="columns"),
    Action("result", "export", "w", "Export to a file: CSV, markdown, LaTeX, JSON, Parquet or SVG", "export",
           'chessreg query "NAME" --output FILE', verb="write", writes=True),
    reads("result", "copy_as", "Y", "Copy as markdown", command='chessreg query "NAME" --format markdown',
          parameter="markdown"),
    reads("result", "copy_as", "ctrl+y", "Copy as LaTeX",
          command='chessreg query "NAME" --format latex', parameter="latex"),
    reads("plot", "turn", "tab,right,l", "Next plot of the query", "next plot", parameter="1"),
    reads("plot", "turn", "shift+tab,left,h", "Previous plot", parameter="-1"),
    reads("plot", "scroll_text", "down,j,pagedown", "Scroll the text down", parameter="1"),
    reads("plot", "scroll_text", "up,k,pageup", "Scroll the text up", parameter="-1"),
    reads("heat-board", "panel", "right,l,right_square_bracket",
          "Next board, such as the next layer", "layer", 'chessreg plot "NAME"', "1"),
    reads("heat-board", "panel", "left,h,left_square_bracket", "Previous board", parameter="-1"),
    reads("heat-board", "series", "tab", "Next series: probe, model or split", "next", parameter="1"),
    reads("heat-board", "series", "shift+tab", "Previous series", parameter="-1"),
    reads("heat-board", "flip", "f", "Flip the boards", "flip"),
    reads("heat-board", "size", "space", "Next board size", "size"),
    reads("sql", "run", "f5,ctrl+r", "Run the statement", "run", 'chessreg query --sql "SELECT …"', first=True),
    reads(
        "sql", "explain", "f6", "Explain: list the tables and rows that it reads", "explain",
        'chessreg query --explain --sql "SELECT …"', first=True,
    ),
    reads("sql", "history", "f7", "Show earlier statements", "history", first=True),
    reads("history", "take", "space", "Copy the statement into the editor", "copy"),
    reads("sql", "edit", "e,slash", "Return to the editor", "edit"),
    reads("sql", "shut", "escape", "Go back"),
    reads("editor", "complete", "tab", "Complete the name of a table or column", "complete"),
    reads("editor", "take", "enter", "Accept the completion", first=True),
    reads("editor", "choose", "down", "Next completion", parameter="1", first=True),
    reads("editor", "choose", "up", "Previous completion", parameter="-1", first=True),
    reads("editor", "vim", "f8", "Turn vim keys on or off"),
    reads("editor", "leave", "escape", "Close the completions, or go to the rows", "to the rows"),
    reads("jump", "leave", "escape,ctrl+o,ctrl+c", "Cancel"),
    reads("prompt", "accept", "enter", "Confirm", "confirm", first=True),
    reads("prompt", "cancel", "escape,ctrl+c", "Cancel", "cancel"),
)  # fmt: skip


def apply_keys(actions: Iterable[Action], keys: Mapping[str, str]) -> list[Action]:
    """Return the actions with the user's keys. `keys` maps an action's name to its keys; other actions keep theirs."""
    return [replace(action, keys=keys[action.name]) if action.name in keys else action for action in actions]


def list_place_actions(place: str) -> list[Action]:
    """Return the actions of one place in table order."""
    return [action for action in ACTIONS if action.place == place]


def make_bindings(place: str) -> list[Any]:
    """Return the BINDINGS of the class of a place."""
    return [
        Binding(action.keys, action.call, action.text, id=action.name, priority=action.first)
        for action in list_place_actions(place)
    ]


HARMLESS_APP_ACTIONS = (
    "focus_next",
    "focus_previous",
    "command_palette",
    "help_quit",
    "bell",
)  # actions of textual's App that only display something


@cache
def can_write(cls: type, method: str) -> bool:
    """Return whether an action method of a class (a screen, a widget or the app) may change something.

    Actions declared for the class state it. Undeclared methods count as writing, except Textual's methods outside of
    its App, because App can save screenshots anywhere.
    """
    classes = cls.__mro__
    ids = {b.id for each in classes for b in vars(each).get("BINDINGS", ()) if isinstance(b, Binding)}
    actions = [action for action in ACTIONS if action.method == method and action.name in ids]
    if actions:
        return any(action.writes for action in actions)
    owner = next((each for each in classes if {f"action_{method}", f"_action_{method}"} & vars(each).keys()), None)
    is_textual_class = owner is not None and owner.__module__.partition(".")[0] == "textual"
    return not is_textual_class or (owner is App and method not in HARMLESS_APP_ACTIONS)


def check_keys(actions: Iterable[Action] = ACTIONS) -> None:
    """Raise ValueError if two actions of one place, or a screen and `everywhere`, use the same key."""
    by_place: dict[str, dict[str, str]] = {}
    for action in actions:
        keys = by_place.setdefault(action.place, {})
        for key in action.keys.split(","):
            if key in keys:
                raise ValueError(f"{key} in {action.place} is both {keys[key]} and {action.name}")
            keys[key] = action.name
    for place, keys in by_place.items():
        shared_keys = set(keys) & set(by_place.get(EVERYWHERE, {})) if place not in PLACES_WITH_OWN_KEYS else set()
        if shared_keys:
            raise ValueError(f"{', '.join(sorted(shared_keys))} of {place} is taken everywhere")


def check_shared_places(actions: Sequence[Action]) -> None:
    """Raise ValueError if a screen and a place whose keys it shares use the same key."""
    for place, other_places in SHARED_PLACES:
        actions_by_key: dict[str, Action] = {}
        for action in (action for action in actions if action.place in (place, *other_places)):
            for key in action.keys.split(","):
                if (one := actions_by_key.setdefault(key, action)) is not action:
                    raise ValueError(f"{key} in {place} is both {one.name} and {action.name}")


def check_table_keys(actions: Sequence[Action], before: Sequence[Action] = ACTIONS) -> None:
    """Raise ValueError if a screen and its table use the same key and did not do so before; the table would
    receive it."""
    clashes = list_table_clashes(before)
    places = {screen.place for screen, table in clashes if screen.method != "filter" and table.method != "find"}
    clashing_names = {(screen.name, table.name) for screen, table in clashes}
    for screen, table in list_table_clashes(actions):
        if screen.place not in (*PLACES_WITH_OWN_KEYS, *places) and (screen.name, table.name) not in clashing_names:
            raise ValueError(f"{screen.name} and {table.name} want the same key, {screen.keys}")


def check_text_keys(actions: Iterable[Action]) -> None:
    """Raise ValueError if the key of an action is a printable character in a place where text is typed."""
    for action in actions:
        text = [key for key in action.keys.split(",") if len(key) == 1 or key in SIGN_KEYS]
        if text and (action.place in TEXT_PLACES or (action.place == "sql" and action.first)):
            raise ValueError(f"{text[0]} of {action.name} is text where it is typed")


def list_table_clashes(actions: Sequence[Action]) -> list[tuple[Action, Action]]:
    """Return (screen action, table action) pairs that share a key."""
    tables = [action for action in actions if action.place == TABLE]
    return [
        (screen, table)
        for screen in actions
        for table in tables
        if screen.place != TABLE and set(screen.keys.split(",")) & set(table.keys.split(","))
    ]


TEXT_PLACES = (FILTER, "field", "prompt", "editor")  # where text is typed
SIGN_KEYS = {_character_to_key(sign) for sign in f"{punctuation} "}
LETTER_PLACES = (CONFIRM, SQUARES)  # where letters are answers: yes and no, pieces
LETTER_KEYS = {
    "h": "left",
    "j": "down",
    "k": "up",
    "l": "right",
    "g": "home",
    "G": "end",
    "o": "enter",
}  # alternatives to keys


def check_letters(actions: Iterable[Action] = ACTIONS) -> None:
    """Raise ValueError if a letter has different meanings in different places.

    All actions of a letter need the same method or verb. A letter that replaces an arrow, Home, End or Enter is bound
    together with that key.
    """
    action_by_letter: dict[str, Action] = {}
    for action in actions:
        keys = action.keys.split(",")
        for letter in (key for key in keys if len(key) == 1 and key.isalpha() and action.place not in LETTER_PLACES):
            if letter in LETTER_KEYS:
                if LETTER_KEYS[letter] not in keys:
                    raise ValueError(f"{letter} is {LETTER_KEYS[letter]}, and {action.name} is not that")
            elif (one := action_by_letter.setdefault(letter, action)).meaning != action.meaning:
                raise ValueError(f"{letter} is {one.meaning} in {one.name}, and {action.meaning} in {action.name}")


check_keys()
check_letters()
check_text_keys(ACTIONS)
