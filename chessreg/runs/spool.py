"""Fragments that are not in the registry yet: those that wait, and those that were set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chessreg.errors import ChessregError
from chessreg.registry.database import Database
from chessreg.runs.ingest import ingest
from store.errors import StoreError

if TYPE_CHECKING:
    from store import Store

SUFFIX = ".jsonl.zst"


def waiting(database: Database, store: Store) -> list[dict[str, Any]]:
    """What waits (`incoming`) and what was set aside (`quarantine`), oldest first, each with its reason."""
    from store.fragments import pending

    found = []
    for fragment in pending(store):
        row: dict[str, Any] = {"fragment": fragment.name, "state": "waiting", "run": fragment.run_id[-6:]}
        try:
            header, chunks = fragment.header(), list(fragment.read())
            families = {family: sum(len(rows) for name, rows in chunks if name == family) for family, _ in chunks}
            row |= {"rows": sum(families.values()), "families": families, "created": header["created"]}
            row |= {"why": why_waiting(database, families, fragment.run_id)}
        except StoreError as error:
            row |= {"rows": None, "families": {}, "created": None, "why": error.message}
        found.append(row)
    for path in sorted(store.quarantine.glob(f"*{SUFFIX}")):
        reason = path.with_name(path.name + ".reason.txt")
        why = reason.read_text(errors="replace").strip() if reason.exists() else "set aside without a reason"
        run = path.name.removesuffix(SUFFIX).rpartition(".")[2][-6:]
        row = {"fragment": path.name, "state": "set aside", "run": run, "rows": None, "families": {}}
        found.append({**row, "created": path.stat().st_mtime, "why": why})
    return found


def why_waiting(database: Database, families: dict[str, int], run_id: str) -> str:
    """Why a whole fragment is not in: its run is not here, or nobody has come by yet."""
    from uuid import UUID

    from chessreg.registry import tables

    try:
        with database.read() as session:
            there = "run" in families or session.get(tables.Run, UUID(run_id)) is not None
    except (ChessregError, ValueError) as error:
        return str(error)
    return "not taken in yet" if there else "the fragment that says what this run is has not arrived"


def take_in(database: Database, store: Store) -> dict[str, Any]:
    """Take in what waits; returns how much that was. Raises RegistryError when the registry does not answer."""
    report = ingest(database, store)
    return {
        "fragments": report.fragments,
        "rows": report.rows,
        "repeated": report.repeated,
        "conflicts": report.conflicts,
        "set_aside": report.set_aside,
    }


def put_back(store: Store) -> int:
    """Put what was set aside back among those that wait; what is still damaged will be set aside again."""
    moved = 0
    for path in store.quarantine.glob(f"*{SUFFIX}"):
        path.rename(store.incoming / path.name)
        path.with_name(path.name + ".reason.txt").unlink(missing_ok=True)
        moved += 1
    return moved
