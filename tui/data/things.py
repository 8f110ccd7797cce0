"""What is in a registry beside runs: datasets, checkpoints, caches, probes, vectors, SAEs, each as rows of a list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tui.data.pages import Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session

NOUNS = ("dataset", "checkpoint", "cache", "probe", "vector", "sae")
OF_RUNS = ("cache", "probe", "vector", "sae")


def listed(session: Session) -> dict[str, list[Row]]:
    """The rows of every noun, newest last, without what is in the archive. A row is opened by its id, `thing`."""
    with session.database.read() as sql:
        return {noun: rows(sql, noun) for noun in NOUNS}


def rows(sql: SqlSession, noun: str) -> list[Row]:
    found = MAKERS[noun](sql)
    key = "run_id" if noun in OF_RUNS else "id"
    return [{**row, "noun": noun, "thing": row[key]} for row in found if not row.get("archived")]


def datasets(sql: SqlSession) -> list[dict[str, Any]]:
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    parts: dict[UUID, list[str]] = defaultdict(list)
    for split in sql.query(tables.Split).order_by(tables.Split.created_at, tables.Split.low):
        parts[split.dataset_id].append(split.name)
    return [{**row, "parts": parts[row["id"]]} for row in listing.entities(sql, "dataset", tables.Dataset)]


def checkpoints(sql: SqlSession) -> list[dict[str, Any]]:
    from chessreg.registry import names, tables
    from chessreg.registry import read as listing

    found = listing.entities(sql, "checkpoint", tables.Checkpoint)
    called = {row["id"]: row["name"] or row["id"].hex[-6:] for row in found}
    runs = names.names(sql, "run")
    return [{**row, "made_by": runs.get(row["run_id"]), "twin_of": twin_of(row, called)} for row in found]


def twin_of(row: dict[str, Any], called: dict[UUID, str]) -> str | None:
    """The model whose untrained twin a checkpoint is."""
    return called.get(row["parent_id"]) if row["source_format"] == "random-init" else None


def caches(sql: SqlSession) -> list[dict[str, Any]]:
    from chessreg.registry import read as listing

    return [{**row, "layers": len(row["hook_points"])} for row in with_words(sql, listing.caches(sql))]


def probes(sql: SqlSession) -> list[dict[str, Any]]:
    """One row a run, with the layer that its validation games choose."""
    from chessreg.cli.probe import with_model
    from chessreg.registry import read as listing

    found = []
    for layers in by_run(with_model(listing.probes(sql))).values():
        best = max(layers, key=lambda row: (row["validation_accuracy"] or 0.0, -row["layer"]))
        found.append({**best, "layers": len(layers), "best_layer": best["layer"] if len(layers) > 1 else None})
    return with_words(sql, found)


def vectors(sql: SqlSession) -> list[dict[str, Any]]:
    """One row a run, with its smallest and its largest norm."""
    from chessreg.cli.vector import with_norms
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    found = []
    for layers in by_run(with_norms(listing.made(sql, "vector", tables.Vector))).values():
        norms = [row["norm"] for row in layers]
        found.append({**layers[0], "layers": len(layers), "norm_least": min(norms), "norm_most": max(norms)})
    return with_words(sql, found)


def saes(sql: SqlSession) -> list[dict[str, Any]]:
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    return with_words(sql, listing.made(sql, "sae", tables.Sae))


MAKERS: dict[str, Callable[[SqlSession], list[dict[str, Any]]]] = {
    "dataset": datasets,
    "checkpoint": checkpoints,
    "cache": caches,
    "probe": probes,
    "vector": vectors,
    "sae": saes,
}


def by_run(found: list[dict[str, Any]]) -> dict[UUID, list[dict[str, Any]]]:
    grouped: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        grouped[row["run_id"]].append(row)
    return grouped


def with_words(sql: SqlSession, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is said of the runs that made these."""
    from chessreg.registry import read as listing

    said = listing.words(sql, "run")
    return [{**listing.NOTHING_SAID, **said.get(row["run_id"], {}), **row} for row in found]
