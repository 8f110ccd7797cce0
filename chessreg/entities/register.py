"""What every registration of a thing has in common: a registry that can be written, a free name, artifact rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.machine import this_machine
from chessreg.registry.tables.types import utc_now

if TYPE_CHECKING:
    from store import StoredArtifact


class _Undo(Exception):
    """Leaves a transaction without a trace."""


def prepare(database: Database, name: str | None) -> None:
    """Refuse now what would be refused after the work: a registry that cannot be written, a name that cannot be one."""
    if name is not None:
        names.require_name(name)
    state = tables.RegistryState
    with suppress(_Undo), database.write() as session:
        session.execute(update(state).values(data_version=state.data_version))  # SQLite tells only when it writes
        raise _Undo


def refuse_taken(database: Database, noun: str, name: str | None, target: UUID | None = None) -> None:
    """BadInputError when `name` belongs to another thing than `target` (None: a thing that is not there yet)."""
    if name is not None:
        with database.read() as session:
            names.require_free_name(session, noun, target or "", name)


def one_at_a_time(session: Session) -> None:
    """Wait for the registrations of others to end; on SQLite every transaction that writes does so anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg register'))"))


def record_artifact(session: Session, artifact: StoredArtifact) -> None:
    """Rows of a published artifact, of where it lies, and of this machine. What is there already stays."""
    one_at_a_time(session)
    if session.get(tables.Artifact, artifact.digest) is None:
        session.add(
            tables.Artifact(
                digest=artifact.digest,
                kind=artifact.kind,
                bytes=artifact.bytes,
                state=tables.ArtifactState.COMPLETE,
                created_at=utc_now(),
            )
        )
    machine = this_machine()
    if session.get(tables.Machine, machine["id"]) is None:
        session.add(tables.Machine(**machine))
    session.flush()
    verified(session, artifact)


def verified(session: Session, artifact: StoredArtifact) -> None:
    """Note that the artifact's bytes were read and found right, here and now."""
    session.merge(
        tables.ArtifactLocation(
            digest=artifact.digest,
            uri=str(artifact.path),
            machine_id=this_machine()["id"],
            verified_at=utc_now(),
        )
    )


def give_name(session: Session, noun: str, target: UUID, name: str | None) -> None:
    """Let a thing go by this name, beside those it has. Raises BadInputError for a name that another thing has."""
    if name is not None:
        names.add_name(session, noun, target, name)
