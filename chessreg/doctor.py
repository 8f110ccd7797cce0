"""Problems of attempts, jobs and results, and their automatic fixes.

A fix never removes a result. It corrects the recorded state of attempts, jobs and units, imports waiting results,
removes the files of crashed writers from `tmp/`, and fetches or forgets the locations of bytes. Altered bytes, and
groups of arrays that overlap, go into the bin; their units then count as incomplete.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, func, select

from chessreg.entities import gc, groups
from chessreg.entities.merge import find_merged_runs
from chessreg.errors import ChessregError
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.registry.run_state import list_unit_ranges, read_complete_units
from chessreg.registry.tables import Cause, JobState
from chessreg.runs import ingest, transfer, watch
from chessreg.scheduling import queue, worker
from chessreg.scheduling.presence import Presence
from store.errors import CorruptError, NotInStoreError, StoreError
from store.process import ProcessId, get_this_process, is_this_machine

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from store import Store


@dataclass(frozen=True)
class Problem:
    """A problem: its place, its description, the command that fixes it, and the fix itself if it is safe."""

    check: str
    detail: str
    hint: str
    fix: Callable[[], object] | None = None


def find_problems(database: Database, store: Store, registry: str, *, digests: bool = False) -> Iterator[Problem]:
    """Yield every problem. With `digests`, every byte of every artifact and array is read again."""
    checks: tuple[Callable[[], Iterator[Problem]], ...] = (
        partial(find_waiting_fragments, database, store),  # attempts first, then their results
        partial(find_forgotten_files, database, store),
        partial(find_orphans, database),
        partial(find_overdue_attempts, database, store),
        partial(find_unattended_attempts, database, store, registry),
        partial(find_leftovers, store),
        partial(find_unfinished_artifacts, database, store),
        partial(find_missing_files, database, store),
        partial(find_torn_groups, database, store),
        partial(find_damaged_groups, database, store, digests),
        partial(find_rows_beyond_units, database),
        partial(find_differing_mirrors, database),
        partial(find_differing_numbers, database),
        *([partial(find_wrong_digests, database, store)] if digests else []),
    )
    for look in checks:
        try:
            yield from look()
        except (ChessregError, StoreError) as error:  # and the others look on
            yield Problem("work", error.message, error.hint)


def build_store_conditions(session: Session, root: Path) -> list[ColumnElement[bool]]:
    """Return the conditions for locations in the store at `root`. Machines that share a registry in PostgreSQL may have
    separate stores at the same path; only locations of this machine, or of an unknown one, then count."""
    location = tables.ArtifactLocation
    conditions: list[ColumnElement[bool]] = [location.uri.startswith(f"{root}/", autoescape=True)]
    if session.get_bind().dialect.name == "postgresql":
        conditions.append(location.machine_id.is_(None) | location.machine_id.in_(select_own_machine_ids()))
    return conditions


def select_own_machine_ids() -> Select[UUID]:
    """Return the query for the ids of this machine's rows: one for each state of its hardware and software."""
    machine, process = tables.Machine, get_this_process()
    is_same_system = machine.system_id.is_not_distinct_from(process.system_id)
    return select(machine.id).where(machine.host == process.host, is_same_system)


def find_missing_store(database: Database, root: Path) -> Problem | None:
    """Return the problem of a missing store, if anything was ever in it."""
    location = tables.ArtifactLocation
    with database.read() as session:
        has_no_bytes = (
            session.scalar(select(func.count()).select_from(location).where(*build_store_conditions(session, root)))
            or 0
        )
    if not has_no_bytes:
        return None
    hint = "put it back, or give its place: --store FOLDER; `chessreg init` creates an empty one"
    return Problem("store", f"{root} is gone, and {has_no_bytes} artifacts with it", hint)


def find_orphans(database: Database) -> Iterator[Problem]:
    """Yield attempts that are recorded as running on this machine and whose process is gone."""
    for attempt, process in watch.read_running_attempts(database):
        if process.is_gone():
            lost_ids = [attempt.id]
            yield Problem(
                "orphans",
                f"attempt {attempt.id.hex[-6:]} of run {attempt.run_id.hex[-6:]} runs, but its process "
                f"{attempt.pid} is gone",
                "chessreg doctor --fix",
                lambda attempt_ids=lost_ids: watch.mark_lost(database, attempt_ids, Cause.KILLED, watch.GONE_MESSAGE),  # type: ignore[misc]
            )


def find_overdue_attempts(database: Database, store: Store) -> Iterator[Problem]:
    """Yield attempts on other machines whose check-in is overdue, as observed from here."""
    start = time.monotonic()
    for attempt in watch.Watcher(store).list_overdue(watch.read_running_attempts(database), start):
        lost_ids = [attempt.id]
        yield Problem(
            "promises",
            f"attempt {attempt.id.hex[-6:]} of run {attempt.run_id.hex[-6:]} did not check in as promised",
            "chessreg doctor --fix",
            lambda attempt_ids=lost_ids: watch.mark_lost(
                database, attempt_ids, Cause.LOST, "it did not check in as promised"
            ),  # type: ignore[misc]
        )


def find_unattended_attempts(database: Database, store: Store, registry: str) -> Iterator[Problem]:
    """Yield jobs of this host without a supervisor, and processes that work for no running job."""
    presence = Presence(store)
    with database.read() as session:
        jobs = queue.read_own_jobs(session, store, *queue.ACTIVE_STATES)
        unfinished_jobs = [job for job in jobs if job.state is JobState.RUNNING or queue.can_progress(session, job)]
        running_ids = {job.id.hex for job in jobs if job.state is JobState.RUNNING}
    if unfinished_jobs and not presence.read_holder():
        yield Problem(
            "supervisor",
            f"{len(unfinished_jobs)} jobs wait or run on {socket.gethostname()}, and no supervisor looks after them",
            "chessreg supervisor start",
            lambda: presence.start(registry),
        )
    for path in store.runs.glob("*/jobs/*/process.json"):
        process = ProcessId.from_record(worker.read_json_or_none(path))
        if process is None or path.parent.name in running_ids:
            continue
        if process.is_gone() is False:
            if presence.read_holder():
                continue  # just started, and about to be noted
            yield Problem(
                "orphans",
                f"process {process.pid} works at job {path.parent.name[-6:]}, which is not recorded as running",
                "chessreg supervisor start",
            )


def find_waiting_fragments(database: Database, store: Store) -> Iterator[Problem]:
    """Yield problems for foreign files among the fragments, and for fragments that wait to be ingested or are set
    aside.
    """
    from store.fragments import list_foreign_files

    for path in list_foreign_files(store):
        yield Problem("fragments", f"{path} is not a fragment of a run", "move it elsewhere, or remove it")
    rows = ingest.list_waiting(database, store)
    wait = [row for row in rows if row["state"] == "waiting"]
    set_aside = [row for row in rows if row["state"] == "set aside"]
    if wait:
        yield Problem(
            "fragments",
            f"{len(wait)} wait to be imported: {wait[0]['why']}",
            "chessreg recover",
            lambda: ingest.ingest_waiting(database, store),
        )
    if set_aside:
        yield Problem(
            "fragments",
            f"{len(set_aside)} are set aside: {set_aside[0]['why']}",
            "chessreg recover --list && chessreg recover --again",
        )


def find_forgotten_files(database: Database, store: Store) -> Iterator[Problem]:
    """Yield fragments that were imported once and that the registry lacks, because a backup was restored or a power cut
    took its last transactions. Their rows are added by key, so none is duplicated."""
    from store.fragments import list_ingested

    record = tables.FragmentRecord
    with database.read() as session:
        known_names = set(session.scalars(select(record.name)))
    unknown_fragments = [fragment for fragment in list_ingested(store) if fragment.name not in known_names]
    if not unknown_fragments:
        return

    def ingest_again() -> None:
        for fragment in unknown_fragments:
            fragment.path.rename(store.incoming / fragment.name)
        ingest.ingest_waiting(database, store)

    runs = len({fragment.run_id for fragment in unknown_fragments})
    yield Problem(
        "fragments",
        f"the registry lacks {len(unknown_fragments)} imported fragments of {runs} runs: it is older than the store",
        "chessreg doctor --fix",
        ingest_again,
    )


def find_differing_mirrors(database: Database) -> Iterator[Problem]:
    """Yield Parquet files of complete runs whose rows differ from the registry's."""
    from chessreg.queries import mirror
    from chessreg.queries.engine import open_shared_engine

    for path in mirror.find_differing_files(database, open_shared_engine(database).extras()):
        detail = f"{path} does not hold the registry's rows of its run"
        yield Problem("mirror", detail, "chessreg doctor --fix", partial(path.unlink, missing_ok=True))


def find_differing_numbers(database: Database) -> Iterator[Problem]:
    """Yield a problem for each file of stored query numbers that differ from the results in the registry. The fix
    removes the file."""
    from chessreg.queries import numbers

    for path in numbers.find_differing_number_files(database):
        detail = f"{path} does not hold the numbers of the registry's results"
        yield Problem("mirror", detail, "chessreg doctor --fix", partial(path.unlink, missing_ok=True))


def find_leftovers(store: Store) -> Iterator[Problem]:
    """Yield files that ended processes left in `tmp/`."""
    stale_stagings = gc.list_stale_staging(store)
    if stale_stagings:
        yield Problem(
            "staging",
            f"processes that have ended left {len(stale_stagings)} unfinished files or folders in {store.tmp}, "
            f"{sum(item.bytes for item in stale_stagings):,} bytes",
            "chessreg doctor --fix",
            store.clean_staging,
        )


def find_unfinished_artifacts(database: Database, store: Store) -> Iterator[Problem]:
    """Yield artifacts that were begun and never completed."""
    staging = tables.ArtifactState.STAGING
    with database.read() as session:
        rows = session.scalars(select(tables.Artifact.digest).where(tables.Artifact.state == staging)).all()
    for digest in rows:
        is_present = store.exists(digest)

        def complete_artifact(digest: str = digest) -> None:
            store.verify(digest)
            with database.write() as session:
                session.get_one(tables.Artifact, digest).state = tables.ArtifactState.COMPLETE

        state = "its bytes are in the store" if is_present else "its bytes are not in the store"
        yield Problem(
            "artifacts",
            f"artifact {digest[:12]} was begun and never completed; {state}",
            "chessreg doctor --fix" if is_present else "rerun the command that made it",
            complete_artifact if is_present else None,
        )


def find_missing_files(database: Database, store: Store) -> Iterator[Problem]:
    """Yield missing bytes that are recorded in this store and that something registered and not archived needs.
    Activations that a merge did not copy are listed by `list_unpulled_groups` instead."""
    with database.read() as session:
        location = tables.ArtifactLocation
        rows = session.execute(
            select(tables.Artifact.digest, tables.Artifact.kind, tables.Artifact.bytes, location.uri)
            .join(location, location.digest == tables.Artifact.digest)
            .where(*build_store_conditions(session, store.root))
        ).all()
        activations = list_activation_groups(session)
        remote_digests = {item.digest for item in list_unpulled_groups(session, store)}
        needed_keys, _ = gc.find_used_keys(session)
    items = [item for _, item in activations if item.digest not in remote_digests]
    arrays = {item.digest for _, item in activations}
    for digest, kind, size, uri in rows:
        if digest not in arrays and digest in needed_keys and not store.exists(digest):
            item = transfer.TransferItem(digest, f"{kind} {digest[:6]}", size)
            yield make_missing_problem(database, store, item, uri)
    recorded_digests = {digest for digest, _, _, _ in rows}
    for item in items:
        if (
            item.array in needed_keys
            and not item.is_in(store)
            and (item.digest in recorded_digests or is_written_here(database, item))
        ):
            yield make_missing_problem(database, store, item, None)


def list_activation_groups(session: Session) -> list[tuple[UUID, transfer.TransferItem]]:
    """Return every registered group of activations, with the run that made it."""
    return [
        (group.run_id, transfer.TransferItem(group.digest, f"activations of run {group.run_id.hex[-6:]}", group.bytes,
                                     array=group.path.removeprefix("arrays/")))
        for table in names.list_array_tables(session) for group in session.scalars(select(table))
    ]  # fmt: skip


def list_unpulled_groups(session: Session, store: Store) -> list[transfer.TransferItem]:
    """Return activations of merged runs that were never pulled into this store: a merge copies rows, not bytes. Groups
    that this machine recorded as present were pulled, and are missing if they are gone."""
    location = tables.ArtifactLocation
    conditions = *build_store_conditions(session, store.root), location.machine_id.in_(select_own_machine_ids())
    recorded_digests, merged_runs = (
        set(session.scalars(select(location.digest).where(*conditions))),
        find_merged_runs(session),
    )
    return [
        item
        for run_id, item in list_activation_groups(session)
        if run_id in merged_runs and item.digest not in recorded_digests and not item.is_in(store)
    ]


def find_remote_bytes(database: Database, store: Store) -> Iterator[Problem]:
    """Yield bytes that may be missing from the store: activations of merged runs, which --fix leaves alone."""
    with database.read() as session:
        groups = list_unpulled_groups(session, store)
    if groups:
        runs = list(dict.fromkeys(item.what.split()[-1] for item in groups))
        run_names = f"{len(runs)} runs ({', '.join(runs[:3])}{', …' * (len(runs) > 3)})"
        yield Problem(
            "activations",
            f"those of {run_names if len(runs) > 1 else f'run {runs[0]}'}, "
            f"{sum(item.bytes for item in groups):,} bytes, "
            "are not in the store: the runs were merged, which copies rows",
            f"chessreg pull {runs[0]} --from STORE brings them from the store where they are",
        )


def is_written_here(database: Database, item: transfer.TransferItem) -> bool:
    """Return whether a group of activations was written on this machine, and so must be present."""
    with database.read() as session:
        return any(is_this_machine(host, system) for host, system in transfer.find_cache_machines(session, item))


def make_missing_problem(database: Database, store: Store, item: transfer.TransferItem, uri: str | None) -> Problem:
    """Return the problem of an item whose bytes are missing.

    Its fix restores them from the bin; otherwise it removes the recorded location `uri` and fetches them.
    """
    path = item.key
    if any(gc.get_original_path(bin_path, store) == path for bin_path in gc.list_bin_folders(store)):
        detail = f"{item.what} is needed again, and is in the bin of {store.root}"
        return Problem("files", detail, "chessreg gc --restore", lambda: gc.restore_from_bin(store, path))

    def fetch_or_forget() -> None:
        if uri is not None:
            with database.write() as session:
                location = tables.ArtifactLocation
                session.execute(delete(location).where(location.digest == item.digest, location.uri == uri))
        transfer.pull_items(database, store, [item])

    command = f"`chessreg doctor --fix`, else {transfer.rerun_command(database, item)}"
    return Problem("files", f"{item.what} is not in {store.root}", command, fetch_or_forget)


def find_torn_groups(database: Database, store: Store) -> Iterator[Problem]:
    """Yield runs whose groups of arrays do not hold each recorded unit exactly once."""
    for run in groups.find_torn_runs(database):
        command = f"chessreg doctor --fix && chessreg run --resume {run.run_id.hex[-6:]}"
        yield Problem("units", run.wrong, command, partial(groups.repair_groups, database, store, run))


def find_damaged_groups(database: Database, store: Store, digests: bool) -> Iterator[Problem]:
    """Yield groups of arrays that lack a chunk; with `digests`, also those with an altered byte."""
    from store.arrays import ArrayGroup

    with database.read() as session:
        rows = [(table, row) for table in names.list_array_tables(session) for row in session.scalars(select(table))]
        session.expunge_all()
    for table, row in rows:
        array = row.path.removeprefix("arrays/")
        try:
            group = ArrayGroup(store.get_array_path(array))
            if digests:
                group.verify()
            if group.digest != row.digest:
                raise CorruptError(f"{row.path} is not the group that the registry knows")
        except NotInStoreError:
            continue  # another check reports it, if it should be here
        except CorruptError as error:
            torn_run = groups.TornRun(row.run_id, table, error.message)
            item = transfer.TransferItem(row.digest, error.message, row.bytes, array=array)
            yield Problem(
                "arrays", f"{error.message}, of run {row.run_id.hex[-6:]}",
                f"chessreg doctor --digests --fix && chessreg run --resume {row.run_id.hex[-6:]}",
                partial(fetch_or_make_again, database, store, torn_run, item),
            )  # fmt: skip
        except StoreError as error:  # it cannot be read, or no group can have its name
            yield Problem("arrays", f"{error.message}, of run {row.run_id.hex[-6:]}", error.hint or "chessreg pull")


def fetch_or_make_again(database: Database, store: Store, of: groups.TornRun, item: transfer.TransferItem) -> str:
    """Move the damaged group of `item` into the bin and pull an intact copy. Return a description of the fix.

    If no copy can be pulled, mark the group's units of the run `of` as incomplete.
    """
    assert item.array is not None
    groups.move_group_to_bin(store, item.array)
    try:
        transfer.pull_items(database, store, [item])
    except (ChessregError, StoreError):
        return groups.repair_groups(database, store, of, damaged_paths=[f"arrays/{item.array}"])
    return "fetched again"


def find_rows_beyond_units(database: Database) -> Iterator[Problem]:
    """Yield rows of units that no attempt recorded as complete."""
    with database.read() as session:
        runs = session.scalars(select(tables.Run.id).where(tables.Run.completed_at.is_(None)).order_by(tables.Run.id))
        for run_id in runs.all():
            for result_table in RESULT_TABLES:
                if units := list_units_beyond(session, result_table, run_id):
                    yield Problem(
                        "units",
                        f"run {run_id.hex[-6:]} has {result_table} rows of {len(units)} units that are not done",
                        "chessreg doctor --fix",
                        partial(remove_rows, database, result_table, run_id),
                    )


def list_units_beyond(session: Session, result_table: str, run_id: UUID) -> set[int]:
    """Return units of a run that have rows in this result table and are incomplete."""
    table = tables.Base.metadata.tables[result_table]
    units = set(session.scalars(select(table.c.unit).where(table.c.run_id == run_id).distinct()))
    return units - read_complete_units(session, run_id) if units else units


def remove_rows(database: Database, result_table: str, run_id: UUID) -> None:
    """Remove the rows of a run's incomplete units; the next attempt writes them again."""
    table = tables.Base.metadata.tables[result_table]
    with database.write() as session:
        for start, stop in list_unit_ranges(list_units_beyond(session, result_table, run_id)):
            within = table.c.run_id == run_id, table.c.unit >= start, table.c.unit < stop
            session.execute(delete(table).where(*within))


def find_wrong_digests(database: Database, store: Store) -> Iterator[Problem]:
    """Yield artifacts with altered bytes. They are kept for inspection."""
    for artifact in store.list():
        try:
            store.verify(artifact.digest)
        except CorruptError as error:
            yield Problem("digests", error.message, "chessreg pull it from elsewhere, or make it again")
        except StoreError:
            continue  # gone meanwhile


def apply_fix(problem: Problem) -> str:
    """Fix a problem, and return the outcome in words."""
    if problem.fix is None:
        return "not by itself"
    start = time.monotonic()
    try:
        outcome = problem.fix()
    except (ChessregError, StoreError) as error:
        return error.message
    return f"fixed in {time.monotonic() - start:.1f} s" + (
        f"; {outcome}" if outcome and isinstance(outcome, str) else ""
    )
