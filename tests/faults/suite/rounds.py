"""The rounds: do a small piece of work, let one fault strike, repair it as a user would, and count the faults that
remain."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import ledger
import others
from actors import UNHEARD, Actor, Fault, Moments, act
from check import Counts, as_if_nothing_had_been, at_the_end, meanwhile, readable
from disk import Disk
from homes import Home
from sqlalchemy import select
from subjects import SUBJECTS
from supervised import NOT_BEGUN, supervise

from chessreg import doctor as health
from chessreg.noise import generator
from chessreg.registry import tables
from chessreg.registry.names import add_annotation
from chessreg.registry.run_state import read_complete_units
from chessreg.registry.tables import Cause, JobState
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs import attempt, task
from chessreg.runs.attempt import AttemptOrigin, RunAttempt
from chessreg.runs.ingest import ingest_fragments, ingest_waiting
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import resolve_spec
from chessreg.scheduling import queue
from chessreg.scheduling.launch import Order
from chessreg.scheduling.launch import launch_orders as launch_orders

SOURCE = f"{Path(ledger.__file__).resolve()}:Ledger"
HARMLESS = ("SIGSTOP", "stepped")
FAR = 500_000  # numbers of rounds are smaller
TRIES = 6  # how often a user says `retry` before giving up


@dataclass
class Round:
    """One round: everything in it follows from the seed and its number, but for the race between processes."""

    number: int
    seed: int
    cause: str
    subject: str
    home: Home
    expected: dict[str, list[str]] = field(default_factory=dict)  # the home of a subject without a fault
    moments: int = 0  # that a subject's work has then
    counts: Counts = field(default_factory=Counts)
    struck: bool = False
    hurt: set[int] = field(default_factory=set)  # pids whose attempts may have ended badly
    recovery: Any = None  # when recovery began
    stopped_for: float = 0.2  # seconds that SIGSTOP lasts
    spoiled: bool = False  # the home is of no more use

    def __post_init__(self) -> None:
        self.random = generator("faults", self.seed, self.number)
        self.kind = find_kind(SOURCE)
        self.count = int(self.random.integers(3, 8))
        self.spec = self.kind.spec(seed=self.seed * 1_000_000 + self.number, count=self.count)
        self.what = self.cause.split()[-1]
        self.disk: Disk | None = None

    @property
    def run_id(self) -> UUID:
        with self.home.open() as session:
            return resolve_spec(self.kind, self.spec, session.inputs).run_id

    def fault(self, moments: int) -> Fault:
        """A fault at one of the first `moments` moments."""
        moment = int(self.random.integers(1, moments + 1))
        spell = int(self.random.integers(1, moments)) if self.random.random() < 0.5 else 0
        what = {"full": "full", "write": "torn", "back": "SIGTERM", "cut": "SIGKILL", "stepped": "clock"}.get(
            self.what, self.what
        )
        if self.what == "full":
            return Fault(what, moment, spell, int(self.random.choice([0, 0, 500, 5000])))
        if self.what == "error":
            return Fault(str(self.random.choice(["EIO", "ENOSPC"])), moment, spell and int(self.random.integers(1, 4)))
        if self.what == "stepped":
            return Fault(what, moment, int(self.random.choice([-400 * 86400, -3600, -5, 5, 3600, 400 * 86400])))
        return Fault(what, moment, spell)

    def act(self, work: Callable[[], int | None], fault: Fault | None = None, moments: Moments | None = None) -> Actor:
        return act(work, self.home.said, fault, moments, self.disk)

    def unhurt(self, what: str, actor: Actor, allowed: tuple[int, ...] = (0,)) -> None:
        """Wait for an actor that no fault strikes: it must come to a good end."""
        code = self._wait(what, actor)
        if code is not None and code not in allowed:
            self.counts.wrong(f"{what} ended with {code}, though nothing had struck it: {last_line(self.home.said)}")

    def ended(self, what: str, actor: Actor) -> None:
        """Wait for the actor that was to be struck; one that the fault missed must come to a good end."""
        code = self._wait(what, actor)
        if not actor.moments.struck:
            self.unhurt(what, actor)
            return
        self.struck = True
        if self.what in HARMLESS:
            self.unhurt(what, actor)
            return
        self.hurt.add(actor.moments.struck)
        if self.what == "SIGKILL" and code != -signal.SIGKILL:
            self.counts.wrong(f"{what} ended with {code} after SIGKILL")

    def _wait(self, what: str, actor: Actor) -> int | None:
        try:
            if self.what == "SIGSTOP" and actor.wait_for_stop():
                time.sleep(self.stopped_for)
                os.kill(actor.pid, signal.SIGCONT)
            return actor.wait()
        except TimeoutError as error:
            self.counts.wrong(f"{what}: {error}")
            return None


def play(this: Round) -> None:
    """Play a round; its counts then contain the faults."""
    task.FLUSH_INTERVAL_S = float(
        this.random.choice([0.0, 0.01, 2.0])
    )  # each unit a fragment, or some together, or all
    PLAYS.get(this.cause, subject)(this)


# -- the work during which the fault strikes ------------------------------------------------------------------------


def run(this: Round) -> None:
    """A run in the foreground is struck."""
    this.ended("run", this.act(lambda: run_it(this), this.fault(190)))
    again(this)


def power_cut(this: Round) -> None:
    """The power is cut during a run, or after it has reported that it is complete: unsynced data may be lost."""
    this.disk = Disk(this.home.folder / "synced", [this.home.folder / "store"], this.home.file)
    this.ended("run", this.act(lambda: run_it(this), this.fault(230)))
    this.disk.cut(this.random)
    this.struck, this.disk = True, None
    again(this)


def four_writers(this: Round) -> None:
    """The power is cut under four writers: two runs, an ingest of fragments that wait, and notes. Each process writes
    down the results that the registry has acknowledged; all of them exist afterwards."""
    second, third = (replace(this, number=this.number + add * FAR) for add in (1, 2))
    this.unhurt("bare machine", this.act(lambda: on_a_bare_machine(third)))
    acknowledged = this.home.folder / "acknowledged"
    acknowledged.write_bytes(b"")
    this.disk = Disk(this.home.folder / "synced", [this.home.folder / "store"], this.home.file)
    writers = [
        this.act(lambda: acknowledging(this, acknowledged, lambda: run_it(this, pause=0.002))),
        this.act(lambda: acknowledging(second, acknowledged, lambda: run_it(second, pause=0.002))),
        this.act(lambda: acknowledging(third, acknowledged, lambda: take_in_for_ever(third))),
        this.act(lambda: notes(this, acknowledged)),
    ]
    writers[0].wait_for(int(this.random.integers(1, 600)))
    for writer in writers:
        with suppress(ProcessLookupError):
            os.kill(writer.pid, signal.SIGKILL)
    for writer in writers:
        this.hurt.add(writer.pid)
        writer.wait()
    this.disk.cut(this.random)
    this.struck, this.disk = True, None
    every = {one.spec.seed: one for one in (this, second, third)}
    for one in every.values():
        one.struck, one.disk, one.hurt = True, None, this.hurt
        meanwhile(one)
    keeps(this, every, acknowledged.read_text().splitlines())
    for one in every.values():
        again(one)


def acknowledging(this: Round, file: Path, work: Callable[[], int]) -> int:
    """Do this, and write down the units that the registry has after each ingest."""
    handle, real = os.open(file, os.O_WRONLY | os.O_APPEND), attempt.ingest_fragments

    def ingest_and_note(database: Any, store: Any) -> Any:
        report = real(database, store)
        run_id = uuid_of_round(this, database, store)
        with database.read() as sql:
            done = sorted(read_complete_units(sql, run_id))
        os.write(handle, "".join(f"unit {this.spec.seed} {unit}\n" for unit in done).encode())
        return report

    attempt.ingest_fragments = ingest_and_note
    return work()


def uuid_of_round(this: Round, database: Any, store: Any) -> UUID:
    return resolve_spec(this.kind, this.spec, Inputs(database, store)).run_id


def take_in_for_ever(this: Round) -> int:
    with this.home.open() as session:
        while True:
            attempt.ingest_fragments(session.database, session.store)
            time.sleep(0.002)


def notes(this: Round, file: Path) -> int:
    """Notes for a run, each its own transaction, until the power goes. Now and then SQLite's log is copied back."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND)
    with this.home.open() as session:
        run_id = uuid_of_round(this, session.database, session.store)
        for number in itertools.count():
            with session.database.write() as sql:
                add_annotation(sql, "run", run_id, "note", f"note {number}")
            os.write(handle, b"note %d\n" % number)
            if number % 4 == 3 and not this.home.server:
                with session.database._writer.connect() as connection:
                    connection.connection.dbapi_connection.execute("PRAGMA wal_checkpoint")  # type: ignore[union-attr]
            time.sleep(0.002)
    return 0


def keeps(this: Round, every: dict[int, Round], acknowledged: list[str]) -> None:
    """Every row that the registry had acknowledged exists."""
    with this.home.open() as session, session.database.read() as sql:
        run_id = uuid_of_round(this, session.database, session.store)
        log = tables.Annotation
        noted = set(sql.scalars(select(log.value).where(log.target == run_id.hex)))
        of_notes = {line for line in acknowledged if line.startswith("note ")}
        this.counts.add("lost", "acknowledged notes", len(of_notes - noted))
        for seed, one in every.items():
            run_id = uuid_of_round(one, session.database, session.store)
            of_units = {int(line.split()[2]) for line in acknowledged if line.startswith(f"unit {seed} ")}
            this.counts.add("lost", "acknowledged units", len(of_units - read_complete_units(sql, run_id)))


def two_runs(this: Round) -> None:
    """A run is stopped, and another of the same spec takes its place; then the first wakes up."""
    actor = this.act(lambda: run_it(this), this.fault(190))
    if stopped := actor.wait_for_stop():
        other = this.act(lambda: run_it(this))
        time.sleep(this.stopped_for)
        os.kill(actor.pid, signal.SIGCONT)
        this.unhurt("the other run", other, (0, 1) if this.stopped_for > 25 else (0,))
        this.struck = True
    this.unhurt("the run that was stopped" if stopped else "run", actor)
    again(this)


def subject(this: Round) -> None:
    """A subject's work is struck, and begun again."""
    it = SUBJECTS[this.subject]
    it.prepare(this.home)
    if this.what == "cut":
        folders = [this.home.folder / name for name in ("store", *it.folders) if (this.home.folder / name).exists()]
        this.disk = Disk(this.home.folder / "synced", folders, this.home.file)
    this.ended(it.name, this.act(lambda: it.work(this.home), this.fault(this.moments)))
    if this.disk is not None:
        this.disk.cut(this.random)
        this.struck, this.disk = True, None
    readable(this)
    this.recovery = get_utc_now()
    and_again(this, lambda: it.work(this.home))
    as_if_nothing_had_been(this, it)


def run_it(this: Round, pause: float = 0.0) -> int:
    with this.home.open() as session:
        report = session.run(this.spec, this.kind.options(pause=pause), kind=SOURCE)
    return 130 if report.interrupted else 0


def shard(this: Round) -> None:
    """One of the shards of a launch is struck."""
    moments = Moments()
    fault, victim = this.fault(55), int(this.random.integers(0, launch(this) + 1))
    supervisor = this.act(lambda: supervise(this.home, fault, victim, moments), moments=moments)
    this.unhurt("supervisor", supervisor)
    if moments.struck:
        this.struck = True
        this.hurt.add(moments.struck)
    finish_jobs(this)


def supervisor(this: Round) -> None:
    """The supervisor is struck while its shards work."""
    launch(this, pause=0.02)
    fault = this.fault(260)
    if fault.what == "full" and not fault.spell:  # it would wait for free space forever
        fault = replace(fault, spell=40)
    actor = this.act(lambda: supervise(this.home), fault)
    this.ended("supervisor", actor)
    if this.what == "full" and actor.code not in (0, UNHEARD, NOT_BEGUN):
        this.counts.wrong(f"the supervisor ended with {actor.code} on a full disk: {last_line(this.home.said)}")
    if this.struck and this.what == "SIGTERM":
        this.hurt.update(pids(this.home, this.run_id))  # it asked them to end
    finish_jobs(this)


def two_ingests(this: Round) -> None:
    """Fragments of a machine without a registry are ingested by two processes at once; one of them is struck."""
    this.unhurt("bare machine", this.act(lambda: on_a_bare_machine(this)))
    start = Moments()

    def take_in() -> None:
        while not start.passed:
            time.sleep(0.0002)
        with this.home.open() as session:
            for _ in range(3):
                ingest_fragments(session.database, session.store)

    both = [this.act(take_in, this.fault(70)), this.act(take_in)]
    start.passed = 1
    this.ended("ingest", both[0])
    this.unhurt("the other ingest", both[1])
    this.hurt.clear()  # the attempt had ended before
    again(this)


def on_a_bare_machine(this: Round) -> int:
    with this.home.open() as session:
        resolved = resolve_spec(this.kind, this.spec, session.inputs)
        missing = list(range(resolved.units - 1))  # the reduce needs a registry
        one = RunAttempt(resolved, this.kind.options(), session.inputs, (), missing, where=AttemptOrigin(ingests=False))
        return 130 if one.execute() else 0


def database(this: Round) -> None:
    """The database is killed under a run or a launch, up to four times: PostgreSQL's server, or another writer of
    SQLite."""
    launched = bool(this.random.random() < 0.3)
    if launched:
        launch(this, pause=0.02)
        actor = this.act(lambda: supervise(this.home))
    else:
        actor = this.act(lambda: run_it(this, pause=0.005))
    reached = actor.wait_for(int(this.random.integers(1, 250 if launched else 150)))
    this.struck = reached
    times = int(this.random.integers(1, 5))
    if this.home.server:
        for _ in range(times):
            this.home.server.kill(str(this.random.choice(["postmaster", "immediate", "backend"])))
            time.sleep(float(this.random.random()) * 0.2)
            this.home.server.start()
            time.sleep(float(this.random.random()) * 0.2)
        this.hurt.update((actor.pid, *pids(this.home, this.run_id)))
        # If the database was lost before they began, both report it and end.
        this.unhurt("supervisor" if launched else "run", actor, (0, NOT_BEGUN) if launched else (0, 1))
        if launched:  # a worker that it started may have met the outage
            this.hurt.update(pids(this.home, this.run_id))
    else:
        for _ in range(times):
            holds = Moments()
            intruder = this.act(lambda holds=holds: write_and_hang(this, holds))
            while not holds.passed and not intruder.ended():
                time.sleep(0.001)
            time.sleep(float(this.random.random()) * 0.1)
            os.kill(intruder.pid, signal.SIGKILL)
            intruder.wait()
        this.unhurt("supervisor" if launched else "run", actor)
    finish_jobs(this) if launched else again(this)


def write_and_hang(this: Round, holds: Moments) -> int:
    """Write wrong rows in a transaction that never ends, far more than the page cache holds."""
    from chessreg.registry.identity import make_id

    with this.home.open() as session, session.database.write() as sql:
        sql.connection().exec_driver_sql("PRAGMA cache_size = 2")  # so that the log has pages of it
        run_id = resolve_spec(this.kind, this.spec, session.inputs).run_id
        if sql.get(tables.Run, run_id) is None:
            run_id = sql.scalars(select(tables.Run.id).limit(1)).first()
        if run_id is not None:
            for unit in range(1000, 1200):
                sql.add(
                    tables.MetricPoint(run_id=run_id, unit=unit, name="poison", step=0, attempt_id=make_id(), value=0.0)
                )
            sql.flush()
        holds.passed = 1
        time.sleep(60)
    return 1


def full(this: Round) -> None:
    """The disk fills up under a run, a shard, a supervisor or an ingest."""
    {"run": run, "shard": shard, "supervisor": supervisor, "ingest": two_ingests}[
        str(this.random.choice(["run", "shard", "supervisor", "ingest"]))
    ](this)


def torn(this: Round) -> None:
    """The disk holds other bytes than it took, under a run or a shard."""
    (run if this.random.random() < 0.7 else shard)(this)


def put_back(this: Round) -> None:
    """A backup of the registry is put back that knows half of a run; the store still has all of it."""
    this.ended("run", this.act(lambda: run_it(this), this.fault(150)))
    meanwhile(this)
    this.recovery = get_utc_now()
    this.home.save()
    this.unhurt("run again", this.act(lambda: run_it(this)))
    this.home.put_back()
    meanwhile(this)
    this.unhurt("recover and doctor", this.act(lambda: mend(this.home)))
    at_the_end(this)


PLAYS: dict[str, Callable[[Round], None]] = {
    "run SIGTERM": run,
    "run SIGKILL": run,
    "shard SIGTERM": shard,
    "shard SIGKILL": shard,
    "supervisor SIGTERM": supervisor,
    "supervisor SIGKILL": supervisor,
    "ingest SIGTERM": two_ingests,
    "ingest SIGKILL": two_ingests,
    "database killed": database,
    "disk full": full,
    "torn write": torn,
    "registry put back": put_back,
    "run power cut": power_cut,
    "four writers power cut": four_writers,
    "run I/O error": run,
    "run clock stepped": run,
    "run SIGSTOP": run,
    "two runs SIGSTOP": two_runs,
    "two launches": others.two_launches,
    "hostile place": others.hostile_place,
    "hostile registry": others.hostile_registry,
    "old library": others.old_library,
}
LEDGER = "ledger"
OTHER_KINDS = {"hostile place": "pull", "hostile registry": "merge"}
QUICK = (LEDGER, "cache", "merge", "pull")  # work that takes little time
OF_SUBJECTS = ("SIGTERM", "SIGKILL", "power cut", "disk full", "I/O error", "clock stepped", "SIGSTOP")
CELLS = [(cause, OTHER_KINDS.get(cause, LEDGER)) for cause in PLAYS]
CELLS += [(cause, name) for cause in OF_SUBJECTS for name in SUBJECTS]


# -- the repair by a user -------------------------------------------------------------------------------------------


def again(this: Round) -> None:
    """`run` again, with `recover` and `doctor --fix` before or after."""
    meanwhile(this)
    this.recovery = get_utc_now()
    and_again(this, lambda: run_it(this))
    at_the_end(this)


def and_again(this: Round, work: Callable[[], int | None]) -> None:
    """The work once more, `recover` and `doctor --fix` before or after it."""
    doctor_first = this.random.random() < 0.5

    def both() -> int | None:
        if doctor_first:
            mend(this.home)
        code = work()
        if not doctor_first:
            mend(this.home)
        return code

    this.unhurt("once more, and doctor", this.act(both))


def mend(home: Home) -> None:
    with home.open() as session:
        ingest_waiting(session.database, session.store)
        for finding in health.find_problems(session.database, session.store, home.url):
            if finding.check != "supervisor":
                print(f"doctor: {finding.detail}: {health.apply_fix(finding)}")


def launch(this: Round, pause: float = 0.0) -> int:
    """Queue the round's spec as one or two shards and the reduce; returns how many shards."""
    shards = int(this.random.integers(1, 3))
    with this.home.open() as session:
        how = this.kind.options(device="cpu", threads=1, pause=pause)
        order = Order(this.kind, this.spec, how, shards=shards)
        launch_orders([order], session.database, session.store, this.home.folder)
    return shards


def finish_jobs(this: Round) -> None:
    """Start the supervisor, and `retry` unfinished jobs, until every job has finished."""
    meanwhile(this)
    this.recovery = get_utc_now()
    for _ in range(TRIES):
        with this.home.open() as session, session.database.write() as sql:
            left = [
                job for job in queue.read_own_jobs(sql, session.store, *JobState) if job.cause is not Cause.FINISHED
            ]
            queue.retry_jobs(sql, left)
        if not left:
            break
        this.unhurt("next supervisor", this.act(lambda: supervise(this.home, cold=this.number % 25 == 24)))
    this.unhurt("recover and doctor", this.act(lambda: mend(this.home)))
    at_the_end(this)


def pids(home: Home, run_id: UUID) -> set[int]:
    """Of the attempts at a run, by the registry and by the jobs' folders."""
    from chessreg.scheduling import worker

    with home.open() as session, session.database.read() as sql:
        known = {a.pid for a in sql.query(tables.Attempt).filter(tables.Attempt.run_id == run_id)}
        notes = session.store.runs.glob(f"{run_id.hex}/jobs/*/process.json")
        return known | {found["pid"] for path in notes if (found := worker.read_json_or_none(path))}


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1] if lines else "it said nothing"
