"""Activation caches: their arrays, and whether the bytes are still what was published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.entities.base import Entity, Row, annotations_of_run, by_run
from chessreg.entities.display import Column, Part, Printed, Thing, Verified, counted, facts, size
from chessreg.errors import NotFoundError
from chessreg.registry import names, tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.registry.database import Database
    from chessreg.session import Session
    from store import Store
    from store.arrays import ActivationArray


def hook_point(layer: int) -> str:
    """TransformerLens' name of the residual stream after a block."""
    return f"blocks.{layer}.hook_resid_post"


def layer_of(hook_point: str) -> int:
    return int(hook_point.split(".")[1])


class CachedActivations:
    """The activations of a cache run, as `chessreg.open().cache(…)` gives them."""

    def __init__(self, run: tables.Run, groups: list[tables.ActivationCache], array: ActivationArray) -> None:
        self.run, self.groups, self.array = run, groups, array

    @property
    def layers(self) -> list[int]:
        return [layer_of(point) for point in self.groups[0].hook_points]

    @property
    def checkpoint_id(self) -> Any:
        return self.groups[0].checkpoint_id

    @property
    def checkpoint(self) -> str:
        """The input reference of the model."""
        return str(self.run.spec["checkpoint"])

    @property
    def dataset(self) -> str:
        """The input reference of the games."""
        return str(self.run.spec["dataset"])

    @property
    def sites(self) -> str:
        """The name of the sites whose activations are here: dots, even-spaces, …"""
        return str(self.run.spec["positions"])

    @property
    def first(self) -> int:
        """How many sites at each game's start are left out."""
        return int(self.run.spec["first"])

    @property
    def centred(self) -> bool:
        """Whether the residual stream is that of a model whose weights were centred (Karvonen specification 2.3)."""
        return bool(self.array.parts[0].attributes["spec"]["residual"] == "centred")

    def read(self, layer: int, rows: Any = None) -> np.ndarray:
        """Activations float32 [rows, d_model] of one layer."""
        from store.array_format import as_float32

        return as_float32(self.array.read(hook_point(layer), rows), self.run.spec["dtype"])

    def batches(self, layer: int, batch_rows: int = 4096, seed: int = 0, epoch: int = 0) -> Any:
        """Shuffled batches of one layer, every row once in an epoch: (row numbers, {hook point: activations})."""
        return self.array.iter_batches(hook_point(layer), batch_rows, seed=seed, epoch=epoch)


def load_cache(inputs: Inputs, reference: str, field: str = "cache") -> CachedActivations:
    """The activations behind an input reference. Raises NotFoundError or BadInputError when they are not all here."""
    from store.arrays import ActivationArray

    run = inputs.run(reference, "cache")
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
    for row in rows:
        inputs.located(field, reference, row.digest, run.id, array=row.path.removeprefix("arrays/"))
    return CachedActivations(run, rows, ActivationArray.open(*(inputs.store.root / row.path for row in rows)))


def cached_layers(inputs: Inputs, reference: str) -> tuple[int, ...]:
    """The layers of a cache run, from its rows alone."""
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(reference, "cache"))
    return tuple(layer_of(point) for point in rows[0].hook_points)


def verify_cache(database: Database, store: Store, reference: str) -> dict[str, Any]:
    """Read every byte of a cache again: run_id, groups, rows, bytes (of chunk files), seconds.

    Raises NotFoundError when it is no cache or its bytes are elsewhere, CorruptError naming the chunk that changed.
    """
    from store.arrays import Group
    from store.errors import CorruptError

    with database.read() as session:
        run_id: UUID = names.resolve(session, "cache", reference)
        rows = session.scalars(
            select(tables.ActivationCache)
            .where(tables.ActivationCache.run_id == run_id)
            .order_by(tables.ActivationCache.start)
        ).all()
        session.expunge_all()
    inputs, began = Inputs(database, store), time.monotonic()
    for row in rows:
        place = store.root / row.path
        if not place.exists():
            inputs.located(
                "cache", f"run:{run_id.hex}", row.digest, run_id, array=row.path.removeprefix("arrays/")
            )  # pulls, or says what is missing, and where to look
        group = Group(place)
        group.verify()
        if group.digest != row.digest:
            raise CorruptError(f"{row.path} is not the group that the registry knows", "chessreg doctor")
    if not rows:
        raise NotFoundError(f"run {reference} has made no cache", "chessreg cache list")
    return {
        "run_id": run_id,
        "groups": len(rows),
        "rows": sum(row.rows for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "seconds": time.monotonic() - began,
    }


class Caches(Entity):
    """Activation caches: list, show, verify."""

    table = tables.ActivationCache
    plural = "caches"
    place = 30
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("checkpoint", "checkpoint"), Column("rows", "rows"),
        Column("d_model", "d model"), Column("dtype", "dtype"),
        Column("hook_points", "hook points", text=lambda points: span(points)), Column("bytes", "bytes"),
    )  # fmt: skip
    overview_columns = (
        *columns[2:4], Column("bytes", "size", "bytes"), Column("layers", "layers"), *columns[4:6],
        Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no activation caches yet: chessreg run cache --checkpoint MODEL --dataset GAMES"
    hidden = ("groups",)
    list_help = "List the activation caches, one line a run."
    show_help = "Show one cache, with the groups of arrays that it is joined from."
    example = "reference-fit"
    verify_help = "Read every byte of a cache again and compare it with what was published."

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """One row a run: its groups joined."""
        return [
            {
                **{key: rows[0][key] for key in ("name", "checkpoint", "run_id", "checkpoint_id", "hook_points")},
                "start": rows[0]["start"],
                "stop": rows[-1]["stop"],
                "rows": sum(row["rows"] for row in rows),
                **{key: rows[0][key] for key in ("d_model", "dtype")},
                "bytes": sum(row["bytes"] for row in rows),
                "groups": [{k: row[k] for k in ("start", "stop", "rows", "bytes", "path", "digest")} for row in rows],
            }
            for rows in by_run(super().rows(sql, reference)).values()
        ]

    def one(self, rows: list[Row]) -> Row:
        return {**rows[0], "layers": len(rows[0]["hook_points"])}

    def printed(self, row: Row, lines: Sequence[str] = (), remarks: Sequence[str] = ()) -> Printed:
        groups = [
            f"units {group['start']}–{group['stop'] - 1}  {group['rows']:,} rows  {group['path']}"
            for group in row["groups"]
        ]
        return super().printed(row, groups, remarks)

    def thing(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            (row,) = self.rows(sql, id.hex)
            annotations = annotations_of_run(sql, id)
        layers = [{"layer": n, "hook_point": point, "values": row["rows"] * row["d_model"]}
                  for n, point in enumerate(row["hook_points"])]  # fmt: skip
        groups = [{**group, "units": f"{group['start']:,} to {group['stop'] - 1:,}"} for group in row["groups"]]
        return Thing(
            f"cache of {row['checkpoint'] or 'an unnamed model'} · {row['rows']:,} rows × {row['d_model']} · "
            f"{counted(len(layers), 'layer')} · {row['dtype']} · {size(row['bytes'])}",
            annotations,
            [
                Part(f"layers {len(layers)}",
                     (Column("layer", "#"), Column("hook_point", "hook point"), Column("values", "values")), layers),
                Part(f"groups {len(groups)}",
                     (Column("units", "units"), Column("rows", "rows"), Column("bytes", "bytes"),
                      Column("path", "path"), Column("digest", "digest")), groups),
                facts(row),
            ],
        )  # fmt: skip

    def verify(self, session: Session, reference: str, **options: Any) -> Verified:
        counts = verify_cache(session.database, session.store, reference)
        outcome = f"every byte is as it was published: {counted(counts['groups'], 'group')}, {size(counts['bytes'])}"
        return Verified(counts, list(counts), outcome)


def span(hook_points: list[str]) -> str:
    """Hook points in a table's cell: the first and the last."""
    return hook_points[0] if len(hook_points) == 1 else f"{hook_points[0]} … {hook_points[-1]} ({len(hook_points)})"
