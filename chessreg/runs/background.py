"""Ingests what a run writes while the run works on: a registry that does not answer never holds it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy.exc import DBAPIError

from chessreg.errors import ChessregError
from chessreg.registry.database import Database
from chessreg.runs.ingest import ingest_fragments
from store import Store

ANSWER_TIMEOUT_S = 60.0  # a registry that has taken no fragment for this long is given up at the end of a run


class Ingester(threading.Thread):
    """The thread that ingests the fragments in a store, whenever it is woken.

    `outage` says why the last try failed; None after a try that succeeded. `refused` lists why fragments of the run
    were set aside.
    """

    def __init__(self, database: Database, store: Store, run_id: UUID) -> None:
        super().__init__(name="ingest", daemon=True)
        self.outage: str | None = None
        self.refused: list[str] = []
        self._database, self._store, self._run_id = database, store, run_id
        self._changed = threading.Condition()
        self._asked = self._done = 0  # tries
        self._ended = False
        self._moved = time.monotonic()  # when a try began or ended, or a fragment was taken
        self._error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread for the block, and let its last try end after it."""
        self.start()
        try:
            yield
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def wake(self) -> int:
        """Have a try begin as soon as possible, and return its number. Does not wait."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def settle(self) -> None:
        """Wait until everything written so far was tried. Raises what `raise_error` raises."""
        number = self.wake()
        self._moved = time.monotonic()
        with self._changed:
            while self._done < number:
                self._changed.wait(1.0)
                if time.monotonic() - self._moved > ANSWER_TIMEOUT_S:
                    self.outage = f"the registry has not answered for {ANSWER_TIMEOUT_S:.0f} s"
                    return
        self.raise_error()

    def raise_error(self) -> None:
        """Raise, once, what a try raised that is not about the registry, such as a full disk."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._asked > self._done)
                if self._asked == self._done:
                    return
                number = self._asked
            self._note_progress()
            try:
                self.refused += ingest_fragments(self._database, self._store, self._note_progress).of_run(self._run_id)
                self.outage = None
            except (DBAPIError, ChessregError) as error:
                self.outage = str(error).split("\n", 1)[0]
            except BaseException as error:  # the run raises it
                self._error = error
            with self._changed:
                self._done = number
                self._changed.notify_all()

    def _note_progress(self) -> None:
        self._moved = time.monotonic()
