"""Reading blocks of games in several processes, in the order of the blocks.

A process of a pool imports this module only, so that a script that adds games needs no `if __name__ == "__main__"`. It
has its own session, which Ctrl-C does not reach, and ends when its standard input does: with its parent, however that
ends.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from chessreg.child import build_child_environment, build_python_command
from chessreg.errors import BadInputError, ChessregError
from chessreg.games.boards.moves import HashSet
from chessreg.games.datasets.game_filter import GameFilter
from chessreg.games.datasets.reader import GameReader
from chessreg.games.datasets.rows import BlockRows, Split, read_block


class SourceBlock(NamedTuple):
    """A block of a source: its text, its first line in the source, and the function that finds its games."""

    text: bytes
    first_line: int
    split: Split


class BlockReader(NamedTuple):
    """The settings by which all blocks of a dataset are read; see `read_block`."""

    player: GameReader
    min_plies: int
    excluded_games: HashSet | None
    game_filter: GameFilter

    def read(self, block: SourceBlock) -> BlockRows:
        return read_block(
            block.text,
            block.first_line,
            self.player,
            self.min_plies,
            block.split,
            self.excluded_games,
            self.game_filter,
        )


class BlockPool:
    """Reads blocks in `processes` processes, or in this one if that is 1."""

    def __init__(self, reader: BlockReader, processes: int) -> None:
        self.reader, self.processes = reader, processes
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle_processes: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(processes)  # one waits for each process

    def read(self, blocks: Iterable[SourceBlock]) -> Iterator[BlockRows]:
        """Yield the rows of each block in order, while the next blocks are being read.

        Raises ChessregError if a process is killed.
        """
        if self.processes == 1:
            yield from map(self.reader.read, blocks)
            return
        pending: deque[Future[BlockRows]] = deque()
        for block in blocks:
            if len(self._processes) < self.processes:
                self._start_process()
            pending.append(self._threads.submit(self._read_in_process, block))
            if len(pending) > self.processes + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _start_process(self) -> None:
        """Start one more process, which accepts blocks once it is prepared."""
        process = subprocess.Popen(
            build_python_command(__name__),
            env=build_child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(process)
        self._threads.submit(self._send_reader, process)

    def _send_reader(self, process: subprocess.Popen[bytes]) -> None:
        """Send the reader to a new process, then offer the process for blocks."""
        try:
            with suppress(BrokenPipeError):  # the first block reports a process that ended
                _send(process, self.reader)
        finally:
            self._idle_processes.put(process)

    def _read_in_process(self, block: SourceBlock) -> BlockRows:
        """Return the games of a block, read by an idle process.

        Raises the process's BadInputError, and ChessregError if it was killed.
        """
        process = self._idle_processes.get()
        try:
            _send(process, block)
            assert process.stdout
            rows: BlockRows | BadInputError = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ChessregError("a process that reads games was killed", "use less memory: --processes 1") from error
        finally:
            self._idle_processes.put(process)
        if isinstance(rows, BadInputError):
            raise rows
        return rows

    def __enter__(self) -> BlockPool:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()


def _send(process: subprocess.Popen[bytes], message: BlockReader | SourceBlock) -> None:
    assert process.stdin
    pickle.dump(message, process.stdin, pickle.HIGHEST_PROTOCOL)
    process.stdin.flush()


def _run_process() -> None:
    """Read a BlockReader and then blocks from standard input; write the rows of each block, or the error."""
    reader: BlockReader = pickle.load(sys.stdin.buffer)
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):  # the parent has ended
        while True:
            block: SourceBlock = pickle.load(sys.stdin.buffer)
            answer: BlockRows | BadInputError
            try:
                answer = reader.read(block)
            except BadInputError as error:
                answer = error
            pickle.dump(answer, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    _run_process()
