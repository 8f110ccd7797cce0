"""Faults after a crash: results lost, doubled, orphaned, overlapping, in a wrong state, unreadable.

Everything is known beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ledger
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as SqlSession

from chessreg import doctor as health
from chessreg.registry import tables
from chessreg.registry.tables import AttemptState, Cause, JobState
from chessreg.scheduling import queue, worker
from chessreg.scheduling.worker import select_shard_units
from store import Store
from store.errors import StoreError
from store.fragments import list_ingested, list_pending
from store.process import get_process_start, read_boot_id

if TYPE_CHECKING:
    from rounds import Round
    from subjects import Subject

COUNTED = ("lost", "doubled", "orphaned", "overlapping", "wrong", "unreadable")
KILLED = {("killed", "killed"), ("lost", "killed"), ("finished", "finished")}
FAILED = {("failed", "failed"), ("finished", "finished")}
ENDS = {  # outcome of an attempt that was hurt: state and cause
    "SIGTERM": KILLED,
    "SIGKILL": KILLED,
    "full": KILLED | FAILED,
    "killed": KILLED | FAILED,  # the database
    "write": FAILED,
    "back": KILLED,
    "cut": KILLED,
    "error": KILLED | FAILED,
}


@dataclass
class Counts:
    """The number of results of each sort, and their description."""

    numbers: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, sort: str, what: str, number: int = 1) -> None:
        if number:
            self.numbers[sort] += number
            self.notes.append(f"{sort}: {what}" + (f" ({number})" if number > 1 else ""))

    def wrong(self, what: str) -> None:
        self.add("wrong", what)


def meanwhile(this: Round) -> None:
    """Invariants that hold at any moment, even between a fault and its repair: all visible data are whole and true."""
    readable(this)
    with this.home.open() as session, session.database.read() as sql:
        run = sql.get(tables.Run, this_run(this, session))
        if run is None:
            return
        done = units(sql, run.id)
        if run.completed_at and set(done) != set(range(run.units)):
            this.counts.wrong("the run is called complete, and units are missing")
        rows(this, sql, run.id, set(done))
        for job in queue.read_own_jobs(sql, session.store, JobState.ENDED):
            mine = select_shard_units(run.units - 1, run.units, job.shard, job.shards)
            if job.run_id == run.id and job.cause is Cause.FINISHED and not set(mine) <= set(done):
                this.counts.wrong("a job is called finished, and units of it are missing")


def at_the_end(this: Round) -> None:
    """Invariants after every repair: each result exists once, and every statement about it is true."""
    this.counts.add("orphaned", "processes that nobody looks after", strays(this))
    with this.home.open() as session:
        readable(this)
        store, run_id = session.store, this_run(this, session)
        with session.database.read() as sql:
            run = sql.get(tables.Run, run_id)
            every = set(range(this.count + 1))
            if run is None:
                this.counts.add("lost", "the run", len(every))
                return
            done = units(sql, run_id)
            this.counts.add("lost", "units", len(every - set(done)))
            this.counts.add("doubled", "units", sum(done.values()) - len(done))
            if run.completed_at is None or run.units != len(every):
                this.counts.wrong("the run is not called complete")
            rows(this, sql, run_id, every)
            outputs(this, sql, store, run_id)
            conflicts = sql.query(tables.Conflict).filter(tables.Conflict.run_id == run_id).count()
            this.counts.add("doubled", "conflicts of rows that cannot differ", conflicts)
            attempts(this, sql, run_id)
            for job in queue.read_own_jobs(sql, store, *JobState):
                if job.state is not JobState.ENDED or job.cause is not Cause.FINISHED:
                    this.counts.wrong(f"{queue.format_job_title(job)} is {job.state}, {job.cause}: {job.message}")
            fragments(this, sql, store, run_id)
        leftovers(this, store)
        for finding in health.find_problems(session.database, store, this.home.url):
            this.counts.wrong(f"doctor finds: {finding.detail}")
        refuses_doubles(this, session.database, run_id)


def this_run(this: Round, session: Any) -> Any:
    from chessreg.runs.resolve import resolve_spec

    return resolve_spec(this.kind, this.spec, session.inputs).run_id


def units(sql: SqlSession, run_id: Any) -> Counter[int]:
    """The number of times that each unit of a run is recorded as done."""
    ranges = sql.query(tables.UnitRange).filter(tables.UnitRange.run_id == run_id)
    return Counter(unit for found in ranges for unit in range(found.start, found.stop))


def rows(this: Round, sql: SqlSession, run_id: Any, done: set[int]) -> None:
    """The rows of these units exist, once, with the right values, and no others; their attempts are known."""
    point, score = tables.MetricPoint.__table__.c, tables.Score.__table__.c
    of_points = select(point.unit, point.name, point.step, point.value, point.attempt_id)
    of_scores = select(score.unit, score.item, score.correct, score.attempt_id)
    found = [
        ((p.unit, p.name, p.step), p.value, p.attempt_id) for p in sql.execute(of_points.where(point.run_id == run_id))
    ]
    found += [
        ((s.unit, "score", s.item), float(s.correct), s.attempt_id)
        for s in sql.execute(of_scores.where(score.run_id == run_id))
    ]
    expected = ledger.points(this.spec.seed, this.count)
    expected |= {(unit, "score", unit): float(unit) for unit in range(this.count)}
    expected = {key: value for key, value in expected.items() if key[0] in done}
    times = Counter(key for key, _, _ in found)
    values = {key: value for key, value, _ in found}
    this.counts.add("lost", "rows", len(expected.keys() - values.keys()))
    this.counts.add("lost", "rows with another value", sum(values.get(key, v) != v for key, v in expected.items()))
    this.counts.add("doubled", "rows", sum(times.values()) - len(times))
    this.counts.add("orphaned", "rows of no unit", len(values.keys() - expected.keys()))
    known = set(sql.scalars(select(tables.Attempt.id).where(tables.Attempt.run_id == run_id)))
    this.counts.add("orphaned", "rows of no attempt", sum(attempt not in known for _, _, attempt in found))


def outputs(this: Round, sql: SqlSession, store: Store, run_id: Any) -> None:
    """Every output is recorded, and its bytes are those that the unit wrote."""
    recorded = {o.name: o.digest for o in sql.query(tables.Output).filter(tables.Output.run_id == run_id)}
    expected = ledger.pages(this.spec.seed, this.count)
    this.counts.add("lost", "outputs", len(expected.keys() - recorded.keys()))
    this.counts.add("orphaned", "outputs that nobody made", len(recorded.keys() - expected.keys()))
    for name, content in expected.items():
        if name not in recorded:
            continue
        artifact = sql.get(tables.Artifact, recorded[name])
        if artifact is None or artifact.state is not tables.ArtifactState.COMPLETE:
            this.counts.wrong(f"the artifact of {name} is not complete")
        try:
            if store.verify(recorded[name]).file.read_bytes() != content:
                this.counts.add("lost", f"bytes of {name}")
        except StoreError as error:
            this.counts.add("lost", error.message)


def whole_artifacts(this: Round, store: Store) -> None:
    """The content stored under a digest has that digest."""
    for folder in store.artifacts.glob("??/*"):
        if folder.name in this.home.intact:
            continue
        try:
            store.verify(folder.name)
            this.home.intact.add(folder.name)
        except StoreError as error:
            this.counts.add("unreadable", f"to be seen, and not whole: {error.message}")


def readable(this: Round) -> None:
    """Visible data are whole, and everything that the registry claims is present; waiting fragments can be read;
    fragments removed from the queue are in the registry."""
    from store.arrays import ArrayGroup

    with this.home.open() as session:
        store = session.store
        whole_artifacts(this, store)
        for path in store.arrays.iterdir():
            try:
                ArrayGroup(path).verify()
            except StoreError as error:
                this.counts.add("unreadable", error.message)
        for fragment in list_pending(store):
            try:
                fragment.read_header()
            except StoreError as error:
                this.counts.add("unreadable", error.message)
        with session.database.read() as sql:
            for group in sql.scalars(select(tables.ActivationCache)):
                path = store.root / group.path
                try:
                    if this.subject != "pull" and ArrayGroup(path).digest != group.digest:
                        this.counts.add("unreadable", f"{path.name} is not what the registry says")
                except StoreError as error:
                    this.counts.add("lost", error.message)
                done = units(sql, group.run_id)
                apart = sum(unit not in done for unit in range(group.start, group.stop))
                this.counts.add("wrong", f"units of {path.name} are not said to be done", apart)
            location = tables.ArtifactLocation
            here = sql.execute(
                select(location.digest, location.uri).where(location.uri.startswith(str(store.root), autoescape=True))
            )
            for digest, uri in here:
                if "/artifacts/" in uri and not store.exists(digest):
                    this.counts.add("lost", f"bytes of {digest[:12]}, which the registry says are here")
            taken = set(sql.scalars(select(tables.FragmentRecord.name)))
        unknown = {fragment.name for fragment in list_ingested(store)} - taken
        if this.what != "back":
            this.counts.add("lost", "fragments out of the queue that the registry does not know", len(unknown))


def as_if_nothing_had_been(this: Round, subject: Subject) -> None:
    """Rows and bytes are those of a home without a fault; attempts have ended; nothing is left to repair."""
    from subjects import facts

    with this.home.open() as session:
        readable(this)
        with session.database.read() as sql:
            spans = Counter(
                (span.run_id, unit) for span in sql.query(tables.UnitRange) for unit in range(span.start, span.stop)
            )
            this.counts.add("overlapping", "units in two ranges", sum(spans.values()) - len(spans))
            caches = sql.query(tables.ActivationCache).all()
            held = Counter((group.run_id, unit) for group in caches for unit in range(group.start, group.stop))
            this.counts.add("overlapping", "units in two groups", sum(held.values()) - len(held))
            conflicts = sql.query(tables.Conflict).count()
            this.counts.add("doubled", "conflicts of rows that cannot differ", max(conflicts - subject.conflicts, 0))
            this.counts.add("lost", "conflicts that must be listed", max(subject.conflicts - conflicts, 0))
            for attempt in sql.query(tables.Attempt):
                if attempt.state is AttemptState.RUNNING:
                    this.counts.wrong("an attempt is said to run")
        for finding in health.find_problems(session.database, session.store, this.home.url, digests=True):
            this.counts.wrong(f"doctor finds: {finding.detail}")
    try:
        found = facts(this.home)
    except StoreError as error:
        this.counts.add("unreadable", error.message)
        return
    for name, rows_here in found.items():
        wanted, here = Counter(this.expected[name]), Counter(rows_here)
        missing, more = list((wanted - here).elements()), list((here - wanted).elements())
        this.counts.add("lost", f"of {name}: {str(missing)[:300]}", len(missing))
        this.counts.add("orphaned", f"of {name}: {str(more)[:300]}", len(more))


def attempts(this: Round, sql: SqlSession, run_id: Any) -> None:
    """Every attempt has ended, as it really did."""
    for attempt in sql.query(tables.Attempt).filter(tables.Attempt.run_id == run_id):
        end = str(attempt.state), str(attempt.cause)
        hurt = attempt.pid in this.hurt and attempt.started_at < this.recovery
        if end not in (ENDS[this.what] if hurt else {("finished", "finished")}):
            this.counts.wrong(f"an attempt {'that was hurt ' * hurt}is {' '.join(end)}: {attempt.message}")
        if attempt.ended_at is None and attempt.state is not AttemptState.RUNNING:
            this.counts.wrong("an attempt has ended, nobody knows when")
        code = {"finished": (0,), "killed": (130, 137, 143), "failed": (1, 73, 120)}.get(end[0], (None,))
        if attempt.exit_code not in code:
            this.counts.wrong(f"an attempt that {end[0]} has exit status {attempt.exit_code}")
        ranges = sql.query(tables.UnitRange).filter(tables.UnitRange.attempt_id == attempt.id)
        if attempt.units_done < sum(found.stop - found.start for found in ranges):
            this.counts.wrong(f"an attempt {' '.join(end)} has done more units than it says")


def fragments(this: Round, sql: SqlSession, store: Store, run_id: Any) -> None:
    """No fragment waits or is set aside; the kept ones are those that the registry has ingested."""
    this.counts.add("orphaned", "fragments that wait", len(list_pending(store)))
    this.counts.add("orphaned", "fragments set aside", sum(1 for _ in store.quarantine.glob("*.zst")))
    kept = {fragment.name for fragment in list_ingested(store, run_id.hex)}
    taken = set(sql.scalars(select(tables.FragmentRecord.name).where(tables.FragmentRecord.run_id == run_id)))
    this.counts.add("lost", "fragments of the registry that are not kept", len(taken - kept))
    this.counts.add("orphaned", "kept fragments that the registry never took in", len(kept - taken))


def leftovers(this: Round, store: Store) -> None:
    """Leftovers of crashed writers can be distinguished from everything else, and cleaned."""
    store.clean_staging(0)
    left = [path.name for path in store.tmp.iterdir()]
    this.counts.add("orphaned", f"left-overs that cannot be told: {', '.join(left)[:200]}", len(left))


def strays(this: Round) -> int:
    """Processes of jobs that still live."""
    living = 0
    for path in (this.home.folder / "store" / "runs").glob("*/jobs/*/process.json"):
        found = worker.read_json_or_none(path)
        living += bool(
            found and found["boot_id"] == read_boot_id() and get_process_start(found["pid"]) == found["started"]
        )
    return living


def refuses_doubles(this: Round, database: Any, run_id: Any) -> None:
    """The database itself refuses a second copy of a row, from any writer."""
    for table in (tables.MetricPoint, tables.Score, tables.UnitRange, tables.Output, tables.FragmentRecord):
        columns = table.__table__
        with database.read() as sql:
            row = sql.execute(select(columns).where(columns.c.run_id == run_id)).mappings().first()
        if row is None:
            continue
        try:
            with database.write() as sql:
                sql.execute(columns.insert(), [dict(row)])
                raise Doubled
        except IntegrityError:
            continue
        except Doubled:
            this.counts.add("doubled", f"rows of {columns.name}: the registry would take one twice")


class Doubled(Exception):
    """Rolls the second copy back."""


def whole_home(this: Round) -> None:
    """Invariants of a whole home after any operation."""
    with this.home.open() as session, session.database.read() as sql:
        if this.home.backend == "sqlite":
            said = [row[0] for row in sql.connection().exec_driver_sql("PRAGMA integrity_check")]
            this.counts.add("wrong", f"the database is damaged: {said[:3]}", int(said != ["ok"]))
            broken = list(sql.connection().exec_driver_sql("PRAGMA foreign_key_check"))
            this.counts.add("orphaned", "rows whose parent is gone", len(broken))
        poison = sql.query(tables.MetricPoint).filter(tables.MetricPoint.name == "poison").count()
        this.counts.add("orphaned", "rows of a transaction that never ended", poison)
