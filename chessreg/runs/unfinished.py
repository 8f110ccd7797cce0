"""What units that are not complete have reached (a trainer's state), carried from one store to another.

A state is a file in the run's folder that `torch.save` wrote, with its `place`: numbers that grow, the weightiest
first. Of two states of one unit the further one is kept, so that carrying twice, or back, does nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import ChessregError, NotFoundError, first_line
from chessreg.registry import lineage, tables
from chessreg.runs.kind import find_kind
from store.files import WriterLock, convert_os_errors, discard_path, fsync_path
from store.places import FolderPlace, TransferPlace
from store.store import Store

if TYPE_CHECKING:
    from chessreg.registry.database import Database


@contextmanager
def lock_states(store: Store, run_id: UUID, names: Iterable[str]) -> Iterator[None]:
    """No other process writes these states of a run. Raises StoreError that names the one that does."""
    held: list[WriterLock] = []
    try:
        for name in names:
            held.append(WriterLock(store.tmp, f"{run_id.hex}-{name}", f"{name} of run {run_id.hex[-6:]}"))
        yield
    finally:
        for lock in held:
            lock.release()


def read_progress(state: Path) -> list[int]:
    """How far a state is. Raises ChessregError for a file that is none."""
    import torch

    try:
        found: Any = torch.load(state, map_location="cpu", weights_only=True, mmap=True)["place"]
        return [int(number) for number in found]
    except Exception as error:  # what torch raises at a file that is none of its own is not one type
        raise ChessregError(f"{state} is no saved state: {first_line(error)}", "remove it to begin anew") from error


def list_states(database: Database, store: Store, run_id: UUID) -> list[Path]:
    """The states of a run that is not complete; none where its kind keeps none, or is not known here."""
    with database.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None or run.completed_at is not None:
            return []
        name = run.kind
    try:
        patterns = find_kind(name).states
    except NotFoundError:
        return []
    return sorted(path for pattern in patterns for path in (store.runs / run_id.hex).glob(pattern) if path.is_file())


def carry_states(database: Database, source: Store, target: Store, runs: Iterable[UUID]) -> int:
    """Bring the states of these runs from one store to another; returns how many came. `database` knows the runs.

    A run that is complete has none. Raises StoreError where a process is at work on a state that would be replaced,
    ChessregError for a state that is damaged.
    """
    brought = 0
    for run_id in runs:
        for state in list_states(database, source, run_id):
            place, there = read_progress(state), target.run_folder(run_id.hex) / state.name
            with lock_states(target, run_id, [state.name]):
                if there.exists() and read_progress(there) >= place:
                    continue
                copy_state(state, there)
            brought += 1
    return brought


def carry_states_of(
    database: Database, source: Store | TransferPlace, target: Store | TransferPlace, references: Iterable[str]
) -> int:
    """`carry` for the runs among what these name. A bucket takes none, and gives none."""
    one, other = (place.store if isinstance(place, FolderPlace) else place for place in (source, target))
    if not (isinstance(one, Store) and isinstance(other, Store)):
        return 0
    with database.read() as session:
        nodes = [lineage.find_node(session, reference) for reference in references]
    return carry_states(database, one, other, [UUID(hex=node.id) for node in nodes if node.noun == "run"])


def copy_state(state: Path, there: Path) -> None:
    """A copy is whole, or not there. A state may be replaced while it is copied: what was opened stays as it was."""
    aside = there.with_suffix(".carried")
    with convert_os_errors(f"copy {state}"):
        try:
            shutil.copyfile(state, aside)
            fsync_path(aside)
            aside.replace(there)
            fsync_path(there.parent)
        finally:
            discard_path(aside)
