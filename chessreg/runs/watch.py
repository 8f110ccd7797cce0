"""Detection of lost attempts: on this host by the process table, elsewhere by missing check-ins.

An attempt promises when it will check in next. A watcher measures from the moment when it saw that promise, with its
own clock, so clocks need not agree. A missed check-in makes an attempt `lost`, never `failed`. An attempt that checks
in again is running again (`ingest`), and late results count.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.tables.types import get_utc_now
from store.files import read_json, write_whole
from store.process import ProcessId, get_machine_name, read_boot_id

if TYPE_CHECKING:
    from store import Store

GONE_MESSAGE = "its process has ended: it was killed or it crashed"
RunningAttempts = list[tuple[tables.Attempt, ProcessId]]
SLOW_READ_S = 5.0  # a slower read means that the registry stalled, so promises are not judged


def mark_dead_attempts(database: Database) -> int:
    """Mark attempts of this host as lost if their process has ended. Return their number."""
    return mark_gone_lost(database, read_running_attempts(database))


def mark_gone_lost(database: Database, attempts: RunningAttempts) -> int:
    """Mark attempts as lost if their process has ended. Return their number."""
    dead_attempts = [attempt.id for attempt, process in attempts if process.is_gone()]
    return mark_lost(database, dead_attempts, tables.Cause.KILLED, GONE_MESSAGE)


def read_running_attempts(database: Database) -> RunningAttempts:
    """Return the attempts recorded as running, each with its process."""
    with database.read() as session:
        attempts = session.execute(
            select(tables.Attempt, tables.Machine.host, tables.Machine.system_id)
            .join(tables.Machine, tables.Machine.id == tables.Attempt.machine_id)
            .where(tables.Attempt.state == tables.AttemptState.RUNNING)
        ).all()
        session.expunge_all()
    return [
        (attempt, ProcessId(host, system, attempt.boot_id, attempt.pid, attempt.pid_started))
        for attempt, host, system in attempts
    ]


def mark_lost(database: Database, attempts: list[UUID], cause: tables.Cause, message: str) -> int:
    """Mark attempts as lost with this cause and message unless they have ended meanwhile. Returns the number marked.

    `attempts` are ids.
    """
    if not attempts:
        return 0
    lost_count = 0
    with database.write() as session:
        for attempt_id in attempts:
            attempt = session.get_one(tables.Attempt, attempt_id)
            if attempt.state is tables.AttemptState.RUNNING:
                attempt.state, attempt.cause = tables.AttemptState.LOST, cause
                attempt.ended_at, attempt.message = get_utc_now(), message
                attempt.units_done = max(attempt.units_done, count_units_done(session, attempt_id))
                lost_count += 1
    return lost_count


def count_units_done(session: Session, attempt_id: UUID) -> int:
    """Return the number of units that an attempt was the first to complete."""
    ranges = tables.UnitRange
    return session.scalar(select(func.sum(ranges.stop - ranges.start)).where(ranges.attempt_id == attempt_id)) or 0


class Watcher:
    """The promised check-ins of attempts, and when this host first saw each promise.

    They are stored in the store, so that short-lived commands share them. After a restart of the machine or a failed
    read, the watcher starts over rather than mark an attempt as lost by mistake.
    """

    def __init__(self, store: Store) -> None:
        self.file = store.root / f"watch-{get_machine_name()}.json"

    def mark_lost_attempts(self, database: Database, start_s: float | None = None) -> int:
        """Mark attempts as lost whose process has ended or whose check-in is overdue. Return their number.

        Call it after ingest. `start_s` is `time.monotonic()` before the ingest, to detect a slow registry.
        """
        start_s = time.monotonic() if start_s is None else start_s
        attempts = read_running_attempts(database)
        lost_count = mark_gone_lost(database, attempts)
        overdue_ids = [attempt.id for attempt in self.list_overdue(attempts, start_s)]
        return lost_count + mark_lost(database, overdue_ids, tables.Cause.LOST, "it did not check in as promised")

    def list_overdue(self, attempts: RunningAttempts, start_s: float) -> list[tables.Attempt]:
        """Return the attempts on other hosts that missed their check-in, and store the current promises.

        `start_s` is `time.monotonic()` before the attempts were read.
        """
        other_attempts = [attempt for attempt, process in attempts if process.is_gone() is None]
        now = time.monotonic()
        if not other_attempts:
            self.forget()
            return []
        promises = {} if now - start_s > SLOW_READ_S else self._read_notes()
        notes: dict[str, list[Any]] = {}
        overdue_attempts = []
        for attempt in other_attempts:
            promise, since = promises.get(attempt.id.hex, ("", now))
            if promise != attempt.checked_in_at.isoformat():
                promise, since = attempt.checked_in_at.isoformat(), now
            notes[attempt.id.hex] = [promise, since]
            if now - since > attempt.next_check_in_seconds:
                overdue_attempts.append(attempt)
        self._write_notes(notes)
        return overdue_attempts

    def forget(self) -> None:
        """Discard the noted check-in times of attempts on other hosts."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _read_notes(self) -> dict[str, tuple[str, float]]:
        """Return attempt → (promised check-in, time at which this machine first saw it), noted since the machine
        started.
        """
        try:
            notes = read_json(self.file)
            if notes["boot"] != read_boot_id():
                return {}
            return {key: (promise, float(since)) for key, (promise, since) in notes["seen"].items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write_notes(self, notes: dict[str, list[Any]]) -> None:
        with suppress(OSError):
            write_whole(self.file, json.dumps({"boot": read_boot_id(), "seen": notes}).encode())
