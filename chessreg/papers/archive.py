"""Save an unfinished paper to one file, and load that file on another machine to continue there.

The zip file contains `registry.db` with the rows of the paper's runs, `store` with the artifacts that remaining steps
read and the states of unfinished trainings, and `paper.json`. Scratch steps (activations) are left out and recomputed
when a step needs them.
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

from chessreg.entities.merge import MergeReport, export_runs, merge_source
from chessreg.errors import (
    DAMAGE_ERRORS,
    BadInputError,
    ChessregError,
    NotFoundError,
    get_first_line,
    report_write_errors,
)
from chessreg.papers.work import PREPARATIONS, Work
from chessreg.registry import lineage, tables
from chessreg.registry.identity import make_uuid
from chessreg.runs import transfer, unfinished
from store.errors import StoreError
from store.files import is_disk_full
from store.places import open_place
from store.store import Store

if TYPE_CHECKING:
    from chessreg.papers.plan import Step

ROWS_FILE, ABOUT_FILE, STORE_FOLDER = "registry.db", "paper.json", "store"
MEMBER_PATTERN = re.compile(r"registry\.db|paper\.json|store/[\w.-]+(/[\w.-]+)*")  # nothing else is unpacked
RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
MAX_UNPACKED_BYTES = 64 << 30
UNREADABLE_ERRORS: tuple[type[Exception], ...] = (BadZipFile, OSError, zlib.error, struct.error, *DAMAGE_ERRORS)
MAX_ABOUT_BYTES = 1 << 20  # of paper.json


def save_paper(work: Work, path: Path) -> dict[str, Any]:
    """Write the runs of a paper to one file; return the numbers of runs, artifacts, training states and bytes.

    Raises NotFoundError if no run has begun or an artifact is missing, BadInputError if the file cannot be written.
    """
    session, selected_steps = work.session, {step.name: step for step in work.steps}
    full_work = Work(session, work.paper, work.request)  # selected steps may read outputs of the others
    plan = {step_plan.step.name: step_plan for step_plan in full_work.plan()}
    runs = {
        name: run
        for name, run in find_begun_runs(full_work).items()
        if name in selected_steps and not selected_steps[name].scratch
    }
    if not runs:
        raise NotFoundError("no run of this paper has begun", "run the command without --save")
    missing_steps = [name for name, step_plan in plan.items() if not step_plan.is_done]
    artifacts = list_needed_artifacts(full_work, [name for name in missing_steps if name in selected_steps], runs)
    other_artifacts = list_needed_artifacts(
        full_work, missing_steps, runs
    )  # inputs of steps that are not selected, if present
    artifacts += [item for item in other_artifacts if item not in artifacts and item.is_in(session.store)]
    with session.store.open_scratch("paper") as root:
        export_runs(session.database, root / ROWS_FILE, set(runs.values()))
        packed_store = Store.create(root / STORE_FOLDER)
        for item in artifacts:
            open_place(str(packed_store.root)).put_artifact(session.store, item.digest)
        states = unfinished.carry_states(session.database, session.store, packed_store, runs.values())
        about = {
            "paper": work.paper.name,
            "tag": work.tag,
            "complete": sum(plan[name].is_done for name in selected_steps),
        }
        (root / ABOUT_FILE).write_text(json.dumps(about), encoding="utf-8")
        write_zip(root, path)
    summary = {"runs": len(runs), "artifacts": len(artifacts), "states": states, "bytes": path.stat().st_size}
    return {**about, "steps": len(selected_steps), **summary}


def load_paper(work: Work, path: Path) -> tuple[MergeReport, int]:
    """Import a file written by `save_paper`. Return the imported rows and the number of training states. Idempotent.

    Raises NotFoundError or BadInputError for any other file, StoreError if a process works on such a training.
    """
    states = 0
    with unpack_paper(path, work.session.store) as root:
        try:
            about = json.loads((root / ABOUT_FILE).read_text(encoding="utf-8"))
            tag = str(about["tag"])
        except UNREADABLE_ERRORS as error:
            raise BadInputError(
                f"{path} is not a saved paper", "chessreg paper NAME … --save FILE writes one"
            ) from error
        if not (root / ROWS_FILE).is_file():
            raise BadInputError(f"{path} is not a saved paper: it holds no {ROWS_FILE}")
        if tag != work.tag:
            raise BadInputError(f"{path} is of {tag}, this is {work.tag}", "give the same checkpoint, dataset and size")
        session = work.session
        packed_store = open_packed_store(root, path)  # everything is checked before any of it is imported
        try:
            report = merge_source(session.database, session.store, str(root / ROWS_FILE))
        except ChessregError as error:
            message = error.message.replace(str(root / ROWS_FILE), ROWS_FILE)
            raise BadInputError(f"{path}: {message}", error.hint) from error
        if packed_store is not None:
            digests = [folder.name for folder in packed_store.artifacts.glob("*/*")]
            items = [transfer.TransferItem(digest, f"artifact {digest[:8]}", 0) for digest in digests]
            transfer.pull_items(session.database, session.store, items, open_place(str(packed_store.root)))
            runs = [
                UUID(hex=folder.name) for folder in packed_store.runs.iterdir() if RUN_ID_PATTERN.fullmatch(folder.name)
            ]
            states = unfinished.carry_states(session.database, packed_store, session.store, runs)
    return report, states


def open_packed_store(root: Path, path: Path) -> Store | None:
    """Return the store in an unpacked paper, or None. Raises BadInputError if it is damaged or not a store."""
    if not (root / STORE_FOLDER).is_dir():
        return None
    try:
        packed_store = Store(root / STORE_FOLDER)
        for state in packed_store.runs.glob("*/*"):
            unfinished.read_progress(state)
        for artifact in packed_store.artifacts.glob("*/*"):
            packed_store.verify(artifact.name)
        return packed_store
    except (StoreError, ChessregError) as error:
        message = error.message.replace(str(root / STORE_FOLDER), STORE_FOLDER)
        raise BadInputError(f"{path} is not a saved paper: {message}") from error


def find_begun_runs(work: Work) -> dict[str, UUID]:
    """Return step → run for all runs that have begun."""
    from chessreg.runs.resolve import resolve_and_hash

    runs = {}
    with work.session.database.read() as sql:
        for step in work.steps:
            if step.kind in PREPARATIONS or not step.needs <= work.references.keys():
                continue
            run = make_uuid(resolve_and_hash(*work.spec(step), work.session.inputs)[1])
            if sql.get(tables.Run, run) is not None:
                runs[step.name] = run
    return runs


def list_needed_artifacts(work: Work, missing_steps: list[str], runs: dict[str, UUID]) -> list[transfer.TransferItem]:
    """Return the artifacts that the incomplete steps `missing_steps` read or have written."""
    steps = {name: work.step(name) for name in missing_steps}
    needed_steps: set[str] = set(missing_steps)
    for step in steps.values():
        needed_steps |= step.needs
    for picture in work.paper.pictures:  # drawn again with every report
        needed_steps |= {name for name in picture.after if name in runs}
    items: dict[str, transfer.TransferItem] = {}
    with work.session.database.read() as sql:
        for name in sorted(needed_steps):
            for node in list_output_nodes(work, work.step(name), runs):
                items |= {i.digest: i for i in transfer.list_node_items(sql, node) if i.array is None}
    return list(items.values())


def list_output_nodes(work: Work, step: Step, runs: dict[str, UUID]) -> Iterator[lineage.Node]:
    """Yield the output of a step: its run, or the control or games it prepared. User data is excluded."""
    if step.name in runs:
        yield lineage.Node("run", runs[step.name].hex)
    elif step.kind in PREPARATIONS and step.kind != "split" and (reference := work.references.get(step.name)):
        identity = reference.partition(":")[2]
        with work.session.database.read() as sql:
            controls = select(tables.Checkpoint.id).where(tables.Checkpoint.artifact == identity)
            games = select(tables.Dataset.id).where(tables.Dataset.identity == identity)
            for noun, ids in (("checkpoint", controls), ("dataset", games)):
                yield from (lineage.Node(noun, id.hex) for id in sql.scalars(ids))


def write_zip(root: Path, path: Path) -> None:
    """Write the files below a folder as a zip file, atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with report_write_errors(path):
            with ZipFile(temporary, "w", ZIP_DEFLATED) as archive:
                for file in sorted(file for file in root.rglob("*") if file.is_file()):
                    archive.write(file, str(file.relative_to(root)))
            with temporary.open("rb") as temporary_file:
                os.fsync(temporary_file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def unpack_paper(path: Path, store: Store) -> Iterator[Path]:
    """Unpack a file of `save_paper`; yield a folder that exists during the block.

    The file may be a third party's: only files with names that `save_paper` writes are unpacked. Raises BadInputError
    for any other zip file, and for one that would unpack to more than MAX_UNPACKED_BYTES or the free space.
    """
    with store.open_scratch("paper") as folder:
        try:
            with ZipFile(path) as archive:
                members = [info for info in archive.infolist() if not info.is_dir()]
                odd = [
                    info.filename
                    for info in members
                    if not MEMBER_PATTERN.fullmatch(info.filename) or ".." in info.filename
                ]
                if odd:
                    raise BadInputError(f"{path} is not a saved paper: it contains {odd[0]!r}")
                if any(info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for info in members):
                    raise BadInputError(f"{path} is not a saved paper: unknown compression")
                if any(info.filename == ABOUT_FILE and info.file_size > MAX_ABOUT_BYTES for info in members):
                    raise BadInputError(f"{path} is not a saved paper: its {ABOUT_FILE} is too long")
                needed_bytes, free = sum(info.file_size for info in members), shutil.disk_usage(folder).free
                if needed_bytes > min(MAX_UNPACKED_BYTES, free):
                    most = (
                        f"{free:,} bytes, which are free"
                        if free < MAX_UNPACKED_BYTES
                        else f"{MAX_UNPACKED_BYTES >> 30} GiB"
                    )
                    raise BadInputError(f"{path} would unpack to more than {most}")
                for info in members:
                    target = folder / info.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as source, target.open("wb") as target_file:
                        shutil.copyfileobj(source, target_file)
        except FileNotFoundError as error:
            raise NotFoundError(f"{path} does not exist") from error
        except UNREADABLE_ERRORS as error:
            if is_disk_full(error):
                raise ChessregError(
                    f"cannot unpack {path}: the disk is full", "free some space and try again"
                ) from error
            raise BadInputError(f"{path} is not a saved paper: {get_first_line(error)}") from error
        yield folder
