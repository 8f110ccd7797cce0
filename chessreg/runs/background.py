"""Ingests fragments while a run continues, so that an unresponsive registry never delays it."""

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

ANSWER_TIMEOUT_S = 60.0  # without progress, after which the end of a run no longer waits for the registry


class Ingester(threading.Thread):
    """Thread that ingests the fragments in a store whenever it is woken.

    `outage` is the reason why the last ingest failed, or None. `refused` lists why fragments of the run were
    quarantined.
    """

    def __init__(self, database: Database, store: Store, run_id: UUID) -> None:
        super().__init__(name="ingest", daemon=True)
        self.outage: str | None = None
        self.refusals: list[str] = []
        self._database, self._store, self._run_id = database, store, run_id
        self._change = threading.Condition()
        self._requested_number = self._done_number = 0  # numbers of ingests
        self._has_ended = False
        self._progress_time = time.monotonic()  # time of the last progress
        self._error: BaseException | None = None

    @contextmanager
    def run_during_block(self) -> Iterator[None]:
        """Run the thread during the block, and let its last ingest finish afterwards."""
        self.start()
        try:
            yield
        finally:
            with self._change:
                self._has_ended = True
                self._change.notify_all()

    def request_ingest(self) -> int:
        """Request an ingest and return its number. Does not wait."""
        with self._change:
            self._requested_number += 1
            self._change.notify_all()
            return self._requested_number

    def wait_until_ingested(self) -> None:
        """Wait until everything written so far was ingested. Raises the errors of `raise_error`.

        If the registry makes no progress for ANSWER_TIMEOUT_S, set `outage` and return.
        """
        number = self.request_ingest()
        self._progress_time = time.monotonic()
        with self._change:
            while self._done_number < number:
                self._change.wait(1.0)
                if time.monotonic() - self._progress_time > ANSWER_TIMEOUT_S:
                    self.outage = f"the registry has not answered for {ANSWER_TIMEOUT_S:.0f} s"
                    return
        self.raise_error()

    def raise_error(self) -> None:
        """Raise, once, an error of an ingest that is not about the registry, such as a full disk."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run(self) -> None:
        """Ingest the fragments after each request, until the ingester is closed and no request is left."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._has_ended or self._requested_number > self._done_number)
                if self._requested_number == self._done_number:
                    return
                number = self._requested_number
            self._note_progress()
            try:
                self.refusals += ingest_fragments(
                    self._database, self._store, self._note_progress
                ).list_quarantine_reasons(self._run_id)
                self.outage = None
            except (DBAPIError, ChessregError) as error:
                self.outage = str(error).split("\n", 1)[0]
            except BaseException as error:  # raised by the run
                self._error = error
            with self._change:
                self._done_number = number
                self._change.notify_all()

    def _note_progress(self) -> None:
        self._progress_time = time.monotonic()
