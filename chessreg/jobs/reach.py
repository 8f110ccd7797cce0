"""Whether the inputs of a spec can be read from here: checked before anything is queued."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.jobs.inputs import Inputs
from chessreg.registry import tables
from chessreg.registry.identity import uuid_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def finished(session: Session, recipe: str) -> bool:
    """Whether what a `run:` recipe names is made: the run complete, or the output that is named there already."""
    spec_hash, _, output = recipe.removeprefix("run:").partition("/")
    run = session.get(tables.Run, uuid_of(spec_hash))
    if run is None:
        return False
    made = output and session.get(tables.Output, (run.id, output)) is not None
    return bool(made) or run.completed_at is not None


def require(inputs: Inputs, field: str, recipe: str) -> None:
    """Raises NotFoundError unless the bytes behind a finished recipe are here; it says who has them, and what helps."""
    for digest, noun in digests(inputs, recipe):
        if not inputs.store.exists(digest):
            raise NotFoundError(*elsewhere(inputs, field, noun, digest))
    if recipe.startswith("run:"):
        for group in groups(inputs, recipe):
            if not (inputs.store.root / group.path).exists():
                raise NotFoundError(
                    f"{field}: activations [{group.start}, {group.stop}) of cache {group.run_id.hex[-6:]} are not in "
                    f"{inputs.store.root}",
                    f"chessreg push {group.run_id.hex[-6:]} where they are, or chessreg doctor --fix and run it again",
                )


def digests(inputs: Inputs, recipe: str) -> list[tuple[str, str]]:
    """(digest, noun) of the artefacts behind a recipe."""
    with inputs.database.read() as session:
        if recipe.startswith("sha256:"):
            digest = recipe.removeprefix("sha256:")
            row = session.get(tables.Artefact, digest)
            return [(digest, row.kind if row else "artefact")]
        if recipe.startswith("dataset:"):
            identity = recipe.removeprefix("dataset:").partition("[")[0]
            found = session.scalars(select(tables.Dataset.artefact).where(tables.Dataset.identity == identity)).first()
            if found is None:
                raise NotFoundError(f"dataset {identity[:12]}… is not in this registry", "chessreg dataset add FILE")
            return [(found, "dataset")]
        spec_hash, _, output = recipe.removeprefix("run:").partition("/")
        wanted = select(tables.Output).where(tables.Output.run_id == uuid_of(spec_hash))
        rows = session.scalars(wanted.where(tables.Output.name == output) if output else wanted).all()
        return [(row.digest, row.name) for row in rows]


def groups(inputs: Inputs, recipe: str) -> list[tables.ActivationCache]:
    """The groups of activations that a run has written."""
    run_id = uuid_of(recipe.removeprefix("run:").partition("/")[0])
    with inputs.database.read() as session:
        found = list(session.scalars(select(tables.ActivationCache).where(tables.ActivationCache.run_id == run_id)))
        session.expunge_all()
    return found


def elsewhere(inputs: Inputs, field: str, noun: str, digest: str) -> tuple[str, str]:
    """Message and hint for bytes that are not here: the machines that have them."""
    with inputs.database.read() as session:
        hosts = set(
            session.scalars(
                select(tables.Machine.host)
                .join(tables.ArtefactLocation, tables.ArtefactLocation.machine_id == tables.Machine.id)
                .where(tables.ArtefactLocation.digest == digest)
            )
        ) - {socket.gethostname()}
    if hosts:
        where = " and ".join(sorted(hosts))
        return f"{field}: {noun} {digest[:6]} is only on {where}", f"run chessreg push {digest[:6]} there"
    message = f"{field}: {noun} {digest[:6]} is registered, but its bytes are not in {inputs.store.root}"
    return message, "chessreg doctor lists missing files"


def open_dependency(kind: str, run_id_hex: str, tried: bool) -> BadInputError:
    """What to say of an input that is not made yet, and that nobody works at."""
    short = run_id_hex[-6:]
    help = f"chessreg retry {short}" if tried else f"chessreg launch --resume {short}"
    return BadInputError(f"{kind} {short} is not complete, and no job works at it", help)
