"""One UCI engine process, used directly through its pipes.

python-chess's `SimpleEngine` costs about the time of 500 nodes per move (an event loop, a thread switch, and parsing of
every info line). In this module a move is one write, one or two reads and a search for the last score.

No engine outlives its parent: the parent has the only write end of its standard input, which closes at any exit,
including SIGKILL, and a UCI engine quits at end of file, even in mid-search. It runs in a separate session, so that
Ctrl-C in the terminal reaches only the parent.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chessreg.errors import BadInputError, ChessregError

MULTI_PV = "MultiPV"
HANDSHAKE_TIMEOUT_S = 20.0  # time to read a 50 MB network file from a cold disk
MAX_OUTPUT_BYTES = 64 << 20
"""Maximum output of one search; Stockfish writes some hundred kilobytes per hour."""


class EngineDiedError(ChessregError):
    """Raised when an engine process ends or stops responding during its work. `cause` is the attempt's cause."""

    cause = "engine_died"


class EngineAnswerError(EngineDiedError):
    """Raised when an engine answers an illegal move or an unreadable score."""


class Variation(NamedTuple):
    """One variation of a search: its first move, and centipawns or moves to mate from the side to move's view."""

    move: str
    score: int | None
    mate: int | None


@dataclass(frozen=True)
class SearchResult:
    """The output of one `go`.

    `score` is centipawns and `mate` moves to mate, both from the side to move's view, None if the last score is
    unreadable. `move` is the text of the engine's answer, unchecked, or None for `(none)` and the null move. `seconds`
    is the wall time of the search. `lines` are the variations of a search under MultiPV, best first. `engine` names the
    process.
    """

    move: str | None
    score: int | None
    mate: int | None
    nodes: int
    seconds: float
    lines: tuple[Variation, ...] = ()
    engine: str = ""


class UciProcess:
    """A running engine after its handshake.

    Raises BadInputError if the program is not a UCI engine, EngineDiedError if it ends or does not answer.
    """

    def __init__(self, path: Path, options: Mapping[str, str | int]) -> None:
        self.path = path
        self._options: dict[str, str] = {MULTI_PV: "1"}  # UCI's default
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                [str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise BadInputError(f"cannot start the engine {path}: {error.strerror}", "chessreg doctor") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin_fd = self._process.stdin.fileno()
        self._stdout_fd = self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._stdout_fd, select.POLLIN)
        try:
            self._send("uci\n")
            self.greeting = self._read_until(b"uciok", HANDSHAKE_TIMEOUT_S).decode("utf-8", "replace").splitlines()
        except EngineDiedError as error:
            self.close()
            raise BadInputError(f"{path} is not a UCI engine: {error.message}", "chessreg doctor") from error
        try:
            for name, value in options.items():
                self.set_option(name, value)
            self._send("isready\n")
            self._read_until(b"readyok", HANDSHAKE_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def name(self) -> str:
        """The program and its process id, for error messages."""
        return f"{self.path.name} (process {self.pid})"

    def set_option(self, name: str, value: str | int) -> None:
        """Send an option unless it already has that value."""
        text = str(value)
        if self._options.get(name) != text:
            self._send(f"setoption name {name} value {text}\n")
            self._options[name] = text

    def search(self, position: str, go: str, timeout: float, *, is_fresh: bool = False) -> SearchResult:
        """Run one search. `position` and `go` are whole UCI commands; `is_fresh` resets the engine first
        (ucinewgame)."""
        start = time.perf_counter()
        self._send(f"ucinewgame\n{position}\n{go}\n" if is_fresh else f"{position}\n{go}\n")
        output = self._read_until(b"bestmove", timeout)
        seconds = time.perf_counter() - start
        info, _, last_line = output.rpartition(b"\n")
        move = b"".join(last_line.removeprefix(b"bestmove").split()[:1]).decode("utf-8", "replace")
        score, mate = _find_last_score(info)
        nodes = _parse_integer(_find_last_field(info, b" nodes ")[0]) or 0
        lines = _parse_variations(info) if self._options[MULTI_PV] != "1" else ()
        text = None if move in ("(none)", "0000") else move
        return SearchResult(text, score, mate, nodes, seconds, lines, self.name)

    def close(self) -> None:
        """Ask the engine to quit, kill it after a second, and close the pipes. Only for the owning thread."""
        if self._process.poll() is None:
            with contextlib.suppress(EngineDiedError):
                self._send("quit\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def kill(self) -> None:
        """Kill the engine and reap it; from any thread.

        The pipes stay open, because another thread may be using them, and a closed descriptor's number could be reused.
        """
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _send(self, text: str) -> None:
        """Write commands to the engine. Raises EngineDiedError."""
        data = text.encode()
        try:
            while data:
                data = data[os.write(self._stdin_fd, data) :]
        except (OSError, ValueError) as error:
            raise self._make_exit_error("ended") from error

    def _read_until(self, word: bytes, timeout: float) -> bytes:
        """Return the output up to and including the line that starts with `word`."""
        deadline = time.monotonic() + timeout
        scan_start = 0
        while True:
            at = 0 if self._buffer.startswith(word) else self._buffer.find(b"\n" + word, scan_start)
            if at >= 0 and (end := self._buffer.find(b"\n", at + 1)) >= 0:
                output, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
                return output
            scan_start = max(0, len(self._buffer) - len(word) - 1) if at < 0 else at
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise self._make_exit_error(f"gave no answer for {timeout:.0f} s")
            try:
                chunk = os.read(self._stdout_fd, 1 << 16)
            except OSError as error:
                raise self._make_exit_error("ended") from error
            if not chunk:
                raise self._make_exit_error("ended")
            if len(self._buffer) > MAX_OUTPUT_BYTES:
                raise EngineAnswerError(f"engine {self.name} wrote {MAX_OUTPUT_BYTES >> 20} MiB without an answer")
            self._buffer += chunk

    def _make_exit_error(self, action: str) -> EngineDiedError:
        """Return an EngineDiedError with the process's exit status or signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2 if action == "ended" else 0)
        code = self._process.returncode
        status = "" if code is None else f" with signal {-code}" if code < 0 else f" with exit status {code}"
        return EngineDiedError(f"engine {self.name} {action}{status}")


def _parse_integer(fields: list[bytes]) -> int | None:
    """Return the first field as a number of at most seven digits, else None."""
    return int(fields[0]) if fields and re.fullmatch(rb"[+-]?\d{1,7}", fields[0]) else None


def _find_last_field(info: bytes, name: bytes, end: int | None = None) -> tuple[list[bytes], int]:
    """Return (the words after the last ` name ` of an info line before `end`, its offset); ([], -1) if there is no such
    field.

    Text after `string` is ignored, because it is arbitrary.
    """
    while (at := info.rfind(name, 0, end)) >= 0:
        head = info[info.rfind(b"\n", 0, at) + 1 : at].split()
        if head[:1] == [b"info"] and b"string" not in head:
            return info[at + len(name) :].split(b"\n", 1)[0].split(), at
        end = at
    return [], -1


def _find_last_score(info: bytes) -> tuple[int | None, int | None]:
    """Return (centipawns, mate) of the last exact score, or of the last bound if no score is exact."""
    fallback: tuple[int | None, int | None] = (None, None)
    fields, at = _find_last_field(info, b" score ")
    while at >= 0:
        value = _parse_integer(fields[1:2])
        if fields[:1] not in ([b"cp"], [b"mate"]) or value is None:
            return None, None
        score = (value, None) if fields[0] == b"cp" else (None, value)
        if fields[2:3] not in ([b"lowerbound"], [b"upperbound"]):
            return score
        if fallback == (None, None):
            fallback = score
        fields, at = _find_last_field(info, b" score ", at)
    return fallback


def _parse_variations(info: bytes) -> tuple[Variation, ...]:
    """Return the last variation of each rank of a search under MultiPV, best first."""
    last_variations: dict[int, Variation] = {}
    for text in info.split(b"\n"):
        if not text.startswith(b"info"):
            continue
        fields = text.partition(b" string ")[0].split()
        values = {name: fields[at + 1 :] for at, name in enumerate(fields) if name in (b"multipv", b"score", b"pv")}
        rank, value = _parse_integer(values.get(b"multipv", [])), _parse_integer(values.get(b"score", [])[1:2])
        kind, moves = values.get(b"score", [])[:1], values.get(b"pv", [])
        if rank is None or value is None or kind not in ([b"cp"], [b"mate"]) or not moves:
            continue
        score, mate = (value, None) if kind == [b"cp"] else (None, value)
        last_variations[rank] = Variation(moves[0].decode("utf-8", "replace"), score, mate)
    return tuple(last_variations[rank] for rank in sorted(last_variations))
