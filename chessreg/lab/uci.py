"""The Universal Chess Interface for a `LabPlayer`: any model as an engine in a chess GUI.

Two threads share the work. The reading thread answers at once everything that needs no model: `uci` before torch is
imported, `isready` during a search, `stop` and `quit`. The main thread does the slow work in the order of the commands:
loading (at the first `isready`, `ucinewgame` or `go`), options and moves. A move costs one pass of the model over its
tokens and no search, so limits of time, depth and nodes have no effect.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import Queue

import chess

from chessreg.errors import BadInputError, ChessregError
from chessreg.lab.player import LabPlayer, PlayerEdit, PlayerMove
from chessreg.models.decoding.policies import make_policy
from chessreg.noise import Stream
from chessreg.runs.spec import parse_list
from chessreg.terminal import make_visible

MAX_LINE_BYTES = 1 << 20  # longer input is not a command
MAX_LEGAL_MOVES = 218  # in one position
QUIT_WAIT_S = 2.0  # `quit` waits this long for a pass of the model, or for the import of torch
EMPTY = "<empty>"  # how the protocol writes an empty text
POLICY_TEMPERATURES = "own"  # the default temperatures of a policy


@dataclass(frozen=True)
class UciSettings:
    """The options that `setoption` changes."""

    policy: str = "legal"
    temperatures: tuple[float, ...] = (0.0,)
    seed: int = 0
    multipv: int = 1
    probability_as_score: bool = True
    threads: int = 1
    edit: PlayerEdit = field(default_factory=PlayerEdit)


@dataclass
class GoCommand:
    """A `go` command: the position (None if the last `position` was invalid), the number of the game, the moves to
    search (empty: all), and whether to wait for `stop`."""

    board: chess.Board | None
    position_error: str
    game: int
    search_moves: tuple[chess.Move, ...]
    is_delayed: bool
    release_event: threading.Event


class UciEngine:
    """One session of the protocol. `write` sends one line to the GUI and is called from both threads."""

    def __init__(self, player: LabPlayer, name: str, write: Callable[[str], None], settings: UciSettings) -> None:
        self.player, self.name, self.settings = player, name, settings
        self._write, self._lock = write, threading.Lock()
        self.work: Queue[Callable[[], None] | None] = Queue()
        self.finish_event = threading.Event()
        self._board: chess.Board | None = chess.Board()
        self._position_error = ""
        self._game = 0
        self._searches: list[GoCommand] = []  # requested and not answered

    # -- the reading thread -----------------------------------------------------------------------------------------

    def read(self, lines: Iterator[str]) -> None:
        """Handle lines until `quit` or the end of the input.

        The main thread then finishes the commands received before and ends. After `quit` the process waits for it at
        most QUIT_WAIT_S.
        """
        quits = False
        try:
            for line in lines:
                quits = line.split() == ["quit"]
                if quits:
                    break
                self.hear(line)
        except BrokenPipeError:  # the GUI no longer reads our answers
            pass
        except OSError as error:
            self._fail(error)
        self._release()
        self.work.put(None)
        if quits and not self.finish_event.wait(QUIT_WAIT_S):
            os._exit(0)

    def _fail(self, error: OSError) -> None:
        """Make the main thread raise this error."""

        def fail() -> None:
            raise error

        self.work.put(fail)

    def hear(self, line: str) -> None:
        """Answer one line, or queue its work. Words before a command are ignored, as the protocol demands."""
        words = line.split()
        at = next((place for place, word in enumerate(words) if word in COMMANDS), None)
        if at is not None:
            COMMANDS[words[at]](self, words[at + 1 :])

    def _uci(self, words: list[str]) -> None:
        """Send name, author and options."""
        lines = [f"id name chessreg {self.name}", "id author the chessreg maintainers", *self._options(), "uciok"]
        self._write_lines(*lines)

    def _isready(self, words: list[str]) -> None:
        """Send `readyok`: at once during a search, else after the checkpoint is loaded."""
        if self._searches:
            self._write_lines("readyok")
        else:
            self.work.put(self._load)
            self.work.put(lambda: self._write_lines("readyok"))

    def _ucinewgame(self, words: list[str]) -> None:
        """Start a new game, from the initial position."""
        self._game += 1
        self._board, self._position_error = chess.Board(), ""
        self.work.put(self._load)

    def _position(self, words: list[str]) -> None:
        """Set the board. An invalid position or move is reported with `info string`."""
        try:
            self._board, moves = parse_position(words)
        except BadInputError as error:
            self._board, self._position_error = None, error.message
            self.info(f"invalid position: {error.message}")
            return
        self._position_error = ""
        if lost_castling := find_lost_castling(words, self._board):
            self.info(
                f"castling {lost_castling} is not possible in this position and is ignored; "
                "Chess960 castling is not supported"
            )
        for word in moves:
            try:
                move = self._board.parse_uci(word)
                if not move:
                    raise ValueError
            except ValueError:
                self.info(f"{word} is not legal in {self._board.fen()}: the moves before it are kept")
                return
            self._board.push(move)

    def _go(self, words: list[str]) -> None:
        """Queue a search of the current position."""
        board = None if self._board is None else self._board.copy()
        search_moves: tuple[chess.Move, ...] = ()
        if board is not None and "searchmoves" in words:
            legal = {move.uci(): move for move in board.legal_moves}
            move_texts = words[words.index("searchmoves") + 1 :]
            search_moves = tuple(dict.fromkeys(legal[word] for word in move_texts if word in legal))
        is_delayed = "infinite" in words or "ponder" in words
        go = GoCommand(board, self._position_error, self._game, search_moves, is_delayed, threading.Event())
        self._searches.append(go)
        self.work.put(lambda: self._search(go))

    def _release(self, words: list[str] | None = None) -> None:
        """Let every waiting search send its move (`stop`, `ponderhit`)."""
        for go in list(self._searches):
            go.release_event.set()

    def _setoption(self, words: list[str]) -> None:
        """Queue a change of an option."""
        at = words.index("value") if "value" in words else len(words)
        if words[:1] != ["name"] or at < 2:
            self.info("setoption name NAME value VALUE")
            return
        name, value = " ".join(words[1:at]), " ".join(words[at + 1 :])
        self.work.put(lambda: self._set(name, value))

    # -- the main thread --------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Do the queued work until the input ends. Raises the errors of loading the checkpoint."""
        try:
            while (job := self.work.get()) is not None:
                job()
        except BrokenPipeError:
            pass
        finally:
            self.finish_event.set()

    def _load(self) -> None:
        """Load the checkpoint and the edit."""
        self.player.load()

    def _set(self, name: str, value: str) -> None:
        try:
            self.set(name, value)
        except (ChessregError, ValueError) as error:
            message = error.message if isinstance(error, ChessregError) else str(error)
            self.info(f"{name} is unchanged: {message}")

    def set(self, name: str, value: str) -> None:
        """Set an option. Raises BadInputError, NotFoundError or ValueError, and then keeps the option's value."""
        option = next((option for option in OPTIONS if option.lower() == name.lower()), None)
        if option is None:
            raise BadInputError(f"{name!r} is not an option", f"the options are {', '.join(OPTIONS)}")
        settings = OPTIONS[option](self.settings, "" if value == EMPTY else value.strip())
        make_policy(settings.policy, settings.temperatures)
        if settings.edit != self.settings.edit:
            self.player.edit(settings.edit)
        if settings.threads != self.settings.threads:
            self.player.set_threads(settings.threads)
        self.settings = settings

    def _options(self) -> list[str]:
        """Return the lines that list the options, with their current values as defaults."""
        settings, edit = self.settings, self.settings.edit
        heat = ",".join(f"{value:g}" for value in settings.temperatures) or POLICY_TEMPERATURES
        policies = dict.fromkeys(("legal", "trie", "retry:5", "free", "value", settings.policy))
        scale = EMPTY if edit.scale is None else f"{edit.scale:g}"
        score = str(settings.probability_as_score).lower()
        return [
            f"option name Policy type combo default {settings.policy} {' '.join(f'var {name}' for name in policies)}",
            f"option name Temperature type string default {heat}",
            f"option name Seed type spin default {settings.seed} min 0 max {(1 << 31) - 1}",
            f"option name Intervention type string default {edit.intervention or EMPTY}",
            f"option name Layers type string default {','.join(map(str, edit.layers)) or EMPTY}",
            f"option name Scale type string default {scale}",
            f"option name MultiPV type spin default {settings.multipv} min 1 max {MAX_LEGAL_MOVES}",
            f"option name ProbabilityAsScore type check default {score}",
            f"option name Threads type spin default {settings.threads} min 1"
            f" max {max(settings.threads, os.cpu_count() or 1)}",
        ]

    def _search(self, go: GoCommand) -> None:
        """Search one position and send `bestmove`."""
        start, settings = time.monotonic(), self.settings
        result = None
        try:
            if go.board is None:
                self.info(f"no position: {go.position_error}")
            else:
                key = Stream.UCI, settings.seed, go.game, go.board.ply()
                result = self.player.find(go.board, settings.policy, settings.temperatures, key, go.search_moves)
                for line in format_info_lines(result, go.board, settings, round(1000 * (time.monotonic() - start))):
                    self._write_lines(line)
            if go.is_delayed:
                go.release_event.wait()
        finally:
            self._searches.remove(go)
        self._write_lines(f"bestmove {'(none)' if result is None or result.move is None else result.move.uci()}")

    # -- output ----------------------------------------------------------------------------------------------------

    def info(self, text: str) -> None:
        """Send a text to the GUI as `info string`."""
        self._write_lines(f"info string {make_visible(' '.join(text.split()))}")

    def _write_lines(self, *lines: str) -> None:
        """Write complete lines to the GUI; a lock keeps lines of two threads apart."""
        with self._lock:
            for line in lines:
                self._write(line)


COMMANDS: dict[str, Callable[[UciEngine, list[str]], None]] = {
    "uci": UciEngine._uci,
    "isready": UciEngine._isready,
    "ucinewgame": UciEngine._ucinewgame,
    "position": UciEngine._position,
    "go": UciEngine._go,
    "stop": UciEngine._release,
    "ponderhit": UciEngine._release,
    "setoption": UciEngine._setoption,
}


def format_info_lines(
    player_move: PlayerMove, board: chess.Board, settings: UciSettings, milliseconds: int
) -> Iterator[str]:
    """Yield the info lines of a move. `milliseconds` is the time it took.

    The legal moves are variations of one move each: the played move first, then by falling probability. If the move was
    drawn and another is more probable, an info string reports it.

    `p` is the model's probability of a move among the legal ones. GUIs show no variation without a score, so the score
    repeats it in hundredths of a pawn (0.43 is 43 %). It is not an evaluation. A fallback move of which the model's
    probability is unknown has the score 0.
    """
    if player_move.move is None:
        yield f"info depth 0 score {'mate' if board.is_check() else 'cp'} 0"
        return
    for note in player_move.notes:
        yield f"info string {make_visible(' '.join(note.split()))}"
    if player_move.mass is not None:
        yield f"info string legal mass {player_move.mass:.4f}"
    move_uci, likeliest = player_move.move.uci(), next(iter(player_move.shares), None)
    if likeliest not in (None, move_uci) and move_uci in player_move.shares:
        more = f"{likeliest} has p={player_move.shares[likeliest]:.4f}"
        yield f"info string {move_uci} was drawn with p={player_move.shares[move_uci]:.4f}; {more}"
    for number, uci in enumerate(list(dict.fromkeys((move_uci, *player_move.shares)))[: settings.multipv], 1):
        share = player_move.shares.get(uci)
        score = f"score cp {round(100 * (share or 0.0))} " if settings.probability_as_score else ""
        size = f"nodes {len(player_move.shares)} time {milliseconds}"
        probability = "" if share is None else f" string p={share:.4f}"
        yield f"info depth 1 seldepth 1 multipv {number} {score}{size} pv {uci}{probability}"


def parse_position(words: list[str]) -> tuple[chess.Board, list[str]]:
    """Return the position that the words of a `position` command begin with, and the moves after it.

    Castling and en passant rights that the board does not allow are removed, because GUIs write them. Raises
    BadInputError for an invalid position, and for Chess960 castling.
    """
    at = words.index("moves") if "moves" in words else len(words)
    moves = words[at + 1 :]
    if words[:1] == ["startpos"]:
        return chess.Board(), moves
    if words[:1] != ["fen"]:
        raise BadInputError("position needs startpos or fen FEN, optionally followed by moves", "")
    fen = " ".join(words[1:at])
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise BadInputError(f"{fen!r} is not a FEN: {error}", "") from error
    rights = board.castling_rights
    board.castling_rights = board.clean_castling_rights()
    if board.castling_rights != rights and not set(words[3]) <= set("KQkq"):
        raise BadInputError(f"castling {words[3]} in {fen!r} is Chess960 castling, which is not supported", "")
    if board.ep_square is not None and not board.has_legal_en_passant():
        board.ep_square = None
    if not board.is_valid():
        raise BadInputError(f"{fen!r} is not a position of a chess game", "")
    return board, moves


def find_lost_castling(words: list[str], board: chess.Board) -> str:
    """Return the castling rights of a position's FEN that the board does not have."""
    rights = words[3] if words[:1] == ["fen"] and len(words) > 3 else "-"
    return "".join(letter for letter in rights if letter in "KQkq" and letter not in board.castling_xfen())


# -- options ---------------------------------------------------------------------------------------------------------


def parse_whole_number(text: str, low: int, high: int) -> int:
    """Return a whole number between `low` and `high`. Raises ValueError otherwise."""
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
        raise ValueError(f"give a whole number from {low} to {high}, not {text!r}")
    return int(text)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Return the temperatures: one, or one for each try. Empty for `own`: the policy's defaults. Raises ValueError."""
    if text.lower() == POLICY_TEMPERATURES:
        return ()
    values = parse_list(text, float)
    if not values or not all(0 <= value < 100 for value in values):
        raise ValueError(
            f"a temperature is 0 or positive, or {POLICY_TEMPERATURES} for the policy's defaults; not {text!r}"
        )
    return values


def parse_scale(text: str) -> float | None:
    """Return the factor on an edit, or None for an empty text: the recorded scale. Raises ValueError."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"give a number as scale, not {text!r}")
    return value


def parse_check(text: str) -> bool:
    """Return the value of a UCI option of type check."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"give true or false, not {text!r}")
    return text.lower() == "true"


OPTIONS: dict[str, Callable[[UciSettings, str], UciSettings]] = {
    "Policy": lambda now, text: replace(now, policy=text),
    "Temperature": lambda now, text: replace(now, temperatures=parse_temperatures(text)),
    "Seed": lambda now, text: replace(now, seed=parse_whole_number(text, 0, (1 << 31) - 1)),
    "Intervention": lambda now, text: replace(now, edit=replace(now.edit, intervention=text)),
    "Layers": lambda now, text: replace(now, edit=replace(now.edit, layers=parse_list(text, int))),
    "Scale": lambda now, text: replace(now, edit=replace(now.edit, scale=parse_scale(text))),
    "MultiPV": lambda now, text: replace(now, multipv=parse_whole_number(text, 1, MAX_LEGAL_MOVES)),
    "ProbabilityAsScore": lambda now, text: replace(now, probability_as_score=parse_check(text)),
    "Threads": lambda now, text: replace(now, threads=parse_whole_number(text, 1, os.cpu_count() or 1)),
}


# -- the two streams -----------------------------------------------------------------------------------------------


def read_input_lines(descriptor: int) -> Iterator[str]:
    """Yield the lines of a file descriptor, including a last line without a line feed. Lines longer than MAX_LINE_BYTES
    are skipped.

    Reads without Python's buffers: their lock would keep the process from ending while a read waits.
    """
    remaining_bytes, is_skipping = b"", False
    while chunk := os.read(descriptor, 1 << 16):
        *whole_lines, remaining_bytes = (remaining_bytes + chunk).split(b"\n")
        for line in whole_lines:
            if not is_skipping and len(line) <= MAX_LINE_BYTES:
                yield line.decode("utf-8", "replace")
            is_skipping = False
        if len(remaining_bytes) > MAX_LINE_BYTES:
            remaining_bytes, is_skipping = b"", True
    if remaining_bytes and not is_skipping:
        yield remaining_bytes.decode("utf-8", "replace")


def make_line_writer(descriptor: int) -> Callable[[str], None]:
    """Return a function that writes one line to a file descriptor, or raises OSError if the reader closed it."""

    def write(text: str) -> None:
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        while data:
            data = data[os.write(descriptor, data) :]

    return write


def run_engine(engine: UciEngine, descriptor: int) -> None:
    """Answer the commands on a file descriptor until it ends. Raises the errors of loading the checkpoint."""
    reader = threading.Thread(target=engine.read, args=(read_input_lines(descriptor),), name="uci", daemon=True)
    reader.start()
    engine.serve()
    reader.join(QUIT_WAIT_S)  # a thread that still runs while Python ends aborts the process
