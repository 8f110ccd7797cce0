"""Whether the inputs of a spec can be read from here: checked before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import tables
from chessreg.registry.identity import uuid_of
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.runs import transfer


def finished(session: Session, reference: str) -> bool:
    """Whether what a `run:` reference names is made: the run complete, or the output that is named there already."""
    spec_hash, _, output = reference.removeprefix("run:").partition("/")
    run = session.get(tables.Run, uuid_of(spec_hash))
    if run is None:
        return False
    made = output and session.get(tables.Output, (run.id, output)) is not None
    return bool(made) or run.completed_at is not None


def require(inputs: Inputs, field: str, reference: str) -> None:
    """See that the bytes behind a finished reference are here, fetching them from a place within reach if need be.

    Raises NotFoundError that says which machine has them, and the command that helps.
    """
    from chessreg.runs import transfer

    missing = [item for item in items(inputs, reference) if not item.here(inputs.store)]
    try:
        transfer.pull(inputs.database, inputs.store, missing)
    except NotFoundError as error:
        raise NotFoundError(f"{field}: {error.message}", error.hint) from error


def items(inputs: Inputs, reference: str) -> list[transfer.Item]:
    """The bytes behind a reference: artefacts, and groups of activations."""
    from chessreg.runs.transfer import Item

    found = []
    with inputs.database.read() as session:
        for digest, what in digests(session, reference):
            row = session.get(tables.Artefact, digest)
            found.append(Item(digest, what, row.bytes if row else 0))
        if reference.startswith("run:"):
            run_id = uuid_of(reference.removeprefix("run:").partition("/")[0])
            cache = tables.ActivationCache
            for group in session.scalars(select(cache).where(cache.run_id == run_id).order_by(cache.start)):
                what = f"activations [{group.start}, {group.stop}) of run {run_id.hex[-6:]}"
                found.append(Item(group.digest, what, group.bytes, array=group.path.removeprefix("arrays/")))
    return found


def digests(session: Session, reference: str) -> list[tuple[str, str]]:
    """(digest, what it is) of the artefacts behind a reference."""
    if reference.startswith("sha256:"):
        digest = reference.removeprefix("sha256:")
        row = session.get(tables.Artefact, digest)
        return [(digest, f"{row.kind if row else 'artefact'} {digest[:6]}")]
    if reference.startswith("dataset:"):
        identity = reference.removeprefix("dataset:").partition("[")[0]
        found = session.scalars(select(tables.Dataset).where(tables.Dataset.identity == identity)).first()
        if found is None:
            raise NotFoundError(f"dataset {identity[:12]}… is not in this registry", "chessreg dataset add FILE")
        return [(found.artefact, f"dataset {found.id.hex[-6:]}")]
    spec_hash, _, output = reference.removeprefix("run:").partition("/")
    wanted = select(tables.Output).where(tables.Output.run_id == uuid_of(spec_hash)).order_by(tables.Output.name)
    rows = session.scalars(wanted.where(tables.Output.name == output) if output else wanted).all()
    return [(row.digest, f"{row.name} of run {spec_hash[26:32]}") for row in rows]


def open_dependency(kind: str, run_id_hex: str, tried: bool) -> BadInputError:
    """What to say of an input that is not made yet, and that nobody works at."""
    short = run_id_hex[-6:]
    help = f"chessreg retry {short}" if tried else f"chessreg launch --resume {short}"
    return BadInputError(f"{kind} {short} is not complete, and no job works at it", help)
