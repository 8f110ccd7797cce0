"""Steps shared by all registrations: check that registry and name can be used, and record the artifact."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.machine import describe_this_machine
from chessreg.registry.tables.types import get_utc_now

if TYPE_CHECKING:
    from store import StoredArtifact


class _Undo(Exception):
    """Raised to roll back a transaction."""


def check_registration(database: Database, name: str | None) -> None:
    """Fail early: raise before the work starts if the registry is not writable or `name` is not a valid name."""
    if name is not None:
        names.require_name(name)
    state = tables.RegistryState
    with suppress(_Undo), database.write() as session:
        session.execute(
            update(state).values(data_version=state.data_version)
        )  # SQLite reports a read-only file only on writing
        raise _Undo


def require_unused_name(database: Database, noun: str, name: str | None, target: UUID | None = None) -> None:
    """Raise BadInputError if `name` belongs to an entity other than `target` (None: not registered yet)."""
    if name is not None:
        with database.read() as session:
            names.require_free_name(session, noun, target or "", name)


def lock_registrations(session: Session) -> None:
    """Wait for concurrent registrations to end. On SQLite, every write transaction does so already."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg register'))"))


def record_artifact(session: Session, artifact: StoredArtifact) -> None:
    """Record a published artifact, its location and this machine. Existing rows are kept."""
    lock_registrations(session)
    if session.get(tables.Artifact, artifact.digest) is None:
        session.add(
            tables.Artifact(
                digest=artifact.digest,
                kind=artifact.kind,
                bytes=artifact.bytes,
                state=tables.ArtifactState.COMPLETE,
                created_at=get_utc_now(),
            )
        )
    machine = describe_this_machine()
    if session.get(tables.Machine, machine["id"]) is None:
        session.add(tables.Machine(**machine))
    session.flush()
    record_verification(session, artifact)


def record_verification(session: Session, artifact: StoredArtifact) -> None:
    """Record that the bytes of the artifact on this machine were read and match its digest now."""
    session.merge(
        tables.ArtifactLocation(
            digest=artifact.digest,
            uri=str(artifact.path),
            machine_id=describe_this_machine()["id"],
            verified_at=get_utc_now(),
        )
    )


def assign_name(session: Session, noun: str, target: UUID, name: str | None) -> None:
    """Add `name` to the names of an entity. Raises BadInputError if another entity has this name."""
    if name is not None:
        names.add_name(session, noun, target, name)
