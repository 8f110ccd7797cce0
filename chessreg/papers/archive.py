"""A paper that is partly done as one file, which another machine takes in and goes on from.

A zip file: `registry.db` with the rows of the paper's runs, `store` with the bytes that steps to come read and the
states of trainings that are not complete, and `paper.json`. Scratch steps (activations) are left out: a step that needs
one makes it again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from sqlalchemy import select

from chessreg.entities.merge import MergeReport, export_runs, merge
from chessreg.errors import DAMAGE_ERRORS, BadInputError, ChessregError, NotFoundError, first_line, writing
from chessreg.papers.work import PREPARATIONS, Work
from chessreg.registry import lineage, tables
from chessreg.registry.identity import uuid_from_digest
from chessreg.runs import transfer, unfinished
from store.errors import StoreError
from store.files import is_disk_full
from store.places import open_place
from store.store import Store

if TYPE_CHECKING:
    from chessreg.papers.plan import Step

ROWS, ABOUT, BYTES = "registry.db", "paper.json", "store"
INSIDE = re.compile(r"registry\.db|paper\.json|store/[\w.-]+(/[\w.-]+)*")  # nothing else is unpacked
RUN = re.compile(r"[0-9a-f]{32}")
MOST_BYTES = 64 << 30  # of one unpacked
UNREADABLE: tuple[type[Exception], ...] = (BadZipFile, OSError, zlib.error, struct.error, *DAMAGE_ERRORS)
MOST_ABOUT = 1 << 20  # bytes of its paper.json


def save(work: Work, path: Path) -> dict[str, Any]:
    """Write the runs of a paper to one file; return the numbers of runs, artifacts, training states and bytes.

    Raises NotFoundError if no run has begun or an artifact is missing, BadInputError if the file cannot be written.
    """
    session, chosen = work.session, {step.name: step for step in work.steps}
    whole = Work(session, work.paper, work.request)  # selected steps may read outputs of the others
    plan = {planned.step.name: planned for planned in whole.plan()}
    runs = {name: run for name, run in runs_begun(whole).items() if name in chosen and not chosen[name].scratch}
    if not runs:
        raise NotFoundError("nothing of this paper is here yet", "leave out --save to do it")
    left = [name for name, planned in plan.items() if not planned.done]
    wanted = bytes_to_come(whole, [name for name in left if name in chosen], runs)
    others = bytes_to_come(whole, left, runs)  # also what steps read that were not chosen, as far as it is here
    wanted += [item for item in others if item not in wanted and item.here(session.store)]
    with session.store.scratch("paper") as root:
        export_runs(session.database, root / ROWS, set(runs.values()))
        there = Store.create(root / BYTES)
        for item in wanted:
            open_place(str(there.root)).put_artifact(session.store, item.digest)
        states = unfinished.carry_states(session.database, session.store, there, runs.values())
        about = {"paper": work.paper.name, "tag": work.tag, "complete": sum(plan[name].done for name in chosen)}
        (root / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        write_zip(root, path)
    made = {"runs": len(runs), "artifacts": len(wanted), "states": states, "bytes": path.stat().st_size}
    return {**about, "steps": len(chosen), **made}


def load(work: Work, path: Path) -> tuple[MergeReport, int]:
    """Import a file of `save`; return the imported rows and the number of training states. Idempotent.

    Raises NotFoundError or BadInputError for any other file, StoreError if a process works on such a training.
    """
    states = 0
    with unpacked(path, work.session.store) as root:
        try:
            about = json.loads((root / ABOUT).read_text(encoding="utf-8"))
            tag = str(about["tag"])
        except UNREADABLE as error:
            raise BadInputError(
                f"{path} is not a saved paper", "chessreg paper NAME … --save FILE writes one"
            ) from error
        if not (root / ROWS).is_file():
            raise BadInputError(f"{path} is not a saved paper: it holds no {ROWS}")
        if tag != work.tag:
            raise BadInputError(f"{path} is of {tag}, this is {work.tag}", "give the same checkpoint, dataset and size")
        session = work.session
        there = store_in(root, path)  # everything is checked before any of it is imported
        try:
            report = merge(session.database, session.store, str(root / ROWS))
        except ChessregError as error:
            message = error.message.replace(str(root / ROWS), ROWS)
            raise BadInputError(f"{path}: {message}", error.hint) from error
        if there is not None:
            digests = [folder.name for folder in there.artifacts.glob("*/*")]
            items = [transfer.TransferItem(digest, f"artifact {digest[:8]}", 0) for digest in digests]
            transfer.pull_items(session.database, session.store, items, open_place(str(there.root)))
            runs = [UUID(hex=folder.name) for folder in there.runs.iterdir() if RUN.fullmatch(folder.name)]
            states = unfinished.carry_states(session.database, there, session.store, runs)
    return report, states


def store_in(root: Path, path: Path) -> Store | None:
    """Return the store in an unpacked paper, or None. Raises BadInputError if it is damaged or not a store."""
    if not (root / BYTES).is_dir():
        return None
    try:
        there = Store(root / BYTES)
        for state in there.runs.glob("*/*"):
            unfinished.read_progress(state)
        for artifact in there.artifacts.glob("*/*"):
            there.verify(artifact.name)
        return there
    except (StoreError, ChessregError) as error:
        message = error.message.replace(str(root / BYTES), BYTES)
        raise BadInputError(f"{path} is not a saved paper: {message}") from error


def runs_begun(work: Work) -> dict[str, UUID]:
    """Return step → run for all runs that have begun."""
    from chessreg.runs.resolve import resolve_and_hash

    runs = {}
    with work.session.database.read() as sql:
        for step in work.steps:
            if step.kind in PREPARATIONS or not step.needs <= work.references.keys():
                continue
            run = uuid_from_digest(resolve_and_hash(*work.spec(step), work.session.inputs)[1])
            if sql.get(tables.Run, run) is not None:
                runs[step.name] = run
    return runs


def bytes_to_come(work: Work, left: list[str], runs: dict[str, UUID]) -> list[transfer.TransferItem]:
    """Return the artifacts that incomplete steps read or have written."""
    steps = {name: work.step(name) for name in left}
    read: set[str] = set(left)
    for step in steps.values():
        read |= step.needs
    for picture in work.paper.pictures:  # drawn again with every report
        read |= {name for name in picture.after if name in runs}
    items: dict[str, transfer.TransferItem] = {}
    with work.session.database.read() as sql:
        for name in sorted(read):
            for node in nodes_of(work, work.step(name), runs):
                items |= {i.digest: i for i in transfer.items_of_node(sql, node) if i.array is None}
    return list(items.values())


def nodes_of(work: Work, step: Step, runs: dict[str, UUID]) -> Iterator[lineage.Node]:
    """Return the output of a step: its run, or the control or games that it prepared; never the user's own data."""
    if step.name in runs:
        yield lineage.Node("run", runs[step.name].hex)
    elif step.kind in PREPARATIONS and step.kind != "split" and (made := work.references.get(step.name)):
        identity = made.partition(":")[2]
        with work.session.database.read() as sql:
            controls = select(tables.Checkpoint.id).where(tables.Checkpoint.artifact == identity)
            games = select(tables.Dataset.id).where(tables.Dataset.identity == identity)
            for noun, ids in (("checkpoint", controls), ("dataset", games)):
                yield from (lineage.Node(noun, id.hex) for id in sql.scalars(ids))


def write_zip(root: Path, path: Path) -> None:
    """Write the files below a folder as a zip file, atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            with ZipFile(aside, "w", ZIP_DEFLATED) as archive:
                for file in sorted(file for file in root.rglob("*") if file.is_file()):
                    archive.write(file, str(file.relative_to(root)))
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink()


@contextmanager
def unpacked(path: Path, store: Store) -> Iterator[Path]:
    """Unpack a zip file into a folder that exists during the block.

    The file may be a third party's: only plain files with names that `save` writes are unpacked.
    """
    with store.scratch("paper") as folder:
        try:
            with ZipFile(path) as archive:
                listed = [info for info in archive.infolist() if not info.is_dir()]
                odd = [info.filename for info in listed if not INSIDE.fullmatch(info.filename) or ".." in info.filename]
                if odd:
                    raise BadInputError(f"{path} holds {odd[0]!r}, which no saved paper does")
                if any(info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for info in listed):
                    raise BadInputError(f"{path} is packed as no saved paper is")
                if any(info.filename == ABOUT and info.file_size > MOST_ABOUT for info in listed):
                    raise BadInputError(f"{path} is not a saved paper: its {ABOUT} is too long")
                wanted, free = sum(info.file_size for info in listed), shutil.disk_usage(folder).free
                if wanted > min(MOST_BYTES, free):
                    most = f"{free:,} bytes, which are free" if free < MOST_BYTES else f"{MOST_BYTES >> 30} GiB"
                    raise BadInputError(f"{path} would unpack to more than {most}")
                for info in listed:
                    target = folder / info.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as source, target.open("wb") as out:
                        shutil.copyfileobj(source, out)
        except FileNotFoundError as error:
            raise NotFoundError(f"{path} does not exist") from error
        except UNREADABLE as error:
            if is_disk_full(error):
                raise ChessregError(
                    f"cannot unpack {path}: the disk is full", "free some space and try again"
                ) from error
            raise BadInputError(f"{path} is not a saved paper: {first_line(error)}") from error
        yield folder
