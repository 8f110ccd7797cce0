"""Activation caches: their arrays, and whether the bytes are still what was published."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.registry import names, tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.registry.database import Database
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


def load_cache(inputs: Inputs, recipe: str, field: str = "cache") -> CachedActivations:
    """The activations behind an input reference. Raises NotFoundError or BadInputError when they are not all here."""
    from store.arrays import ActivationArray

    run = inputs.run(recipe, "cache")
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
    for row in rows:
        inputs.located(field, recipe, row.digest, run.id, array=row.path.removeprefix("arrays/"))
    return CachedActivations(run, rows, ActivationArray.open(*(inputs.store.root / row.path for row in rows)))


def cached_layers(inputs: Inputs, recipe: str) -> tuple[int, ...]:
    """The layers of a cache run, from its rows alone."""
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(recipe, "cache"))
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
