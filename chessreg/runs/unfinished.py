"""Saved states of incomplete units (such as a trainer's), and copying them between stores.

A state is a file in the run's folder, written by `torch.save`, with a `place`: a list of increasing numbers, the most
significant first. Of two states of one unit the more advanced is kept, so copying twice, or back, does nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import ChessregError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.registry import lineage, tables
from chessreg.runs.kind import find_kind
from store.files import WriterLock, convert_os_errors, discard_path, sync_path
from store.places import FolderPlace, TransferPlace
from store.store import Store

if TYPE_CHECKING:
    from chessreg.registry.database import Database


@contextmanager
def lock_states(store: Store, run_id: UUID, names: Iterable[str]) -> Iterator[None]:
    """Lock these state files of a run during the block. Raises StoreError naming a process that holds one."""
    locks: list[WriterLock] = []
    try:
        for name in names:
            locks.append(WriterLock(store.tmp, f"{run_id.hex}-{name}", f"{name} of run {run_id.hex[-6:]}"))
        yield
    finally:
        for lock in locks:
            lock.release()


def read_progress(state: Path) -> list[int]:
    """Return the `place` of a state. Raises ChessregError for a file that is not a state."""
    import torch

    try:
        place: Any = torch.load(state, map_location="cpu", weights_only=True, mmap=True)["place"]
        return [int(number) for number in place]
    except Exception as error:  # torch raises errors of many types
        reraise_lack_of_memory(error)
        raise ChessregError(
            f"{state} is not a saved state: {get_first_line(error)}", "remove it to start from scratch"
        ) from error


def list_states(database: Database, store: Store, run_id: UUID) -> list[Path]:
    """Return the states of an incomplete run. Empty if its kind saves none or is not installed."""
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
    """Copy the states of these runs to another store, and return their number. `database` contains the runs.

    Complete runs have no states. Raises StoreError if a process is using a state to be replaced, and ChessregError for
    a damaged state.
    """
    carried_count = 0
    for run_id in runs:
        for state in list_states(database, source, run_id):
            place, target_state = read_progress(state), target.run_folder(run_id.hex) / state.name
            with lock_states(target, run_id, [state.name]):
                if target_state.exists() and read_progress(target_state) >= place:
                    continue
                copy_state(state, target_state)
            carried_count += 1
    return carried_count


def copy_states(
    database: Database, source: Store | TransferPlace, target: Store | TransferPlace, references: Iterable[str]
) -> int:
    """Copy the states of the runs among `references` from `source` to `target`. Returns their number.

    It is 0 if either side is a bucket, which holds no states.
    """
    one, other = (place.store if isinstance(place, FolderPlace) else place for place in (source, target))
    if not (isinstance(one, Store) and isinstance(other, Store)):
        return 0
    with database.read() as session:
        nodes = [lineage.find_node(session, reference) for reference in references]
    return carry_states(database, one, other, [UUID(hex=node.id) for node in nodes if node.noun == "run"])


def copy_state(state: Path, target: Path) -> None:
    """Copy a state atomically. If the source is replaced meanwhile, the opened version is copied."""
    part_path = target.with_suffix(".carried")
    with convert_os_errors(f"copy {state}"):
        try:
            shutil.copyfile(state, part_path)
            sync_path(part_path)
            part_path.replace(target)
            sync_path(target.parent)
        finally:
            discard_path(part_path)
