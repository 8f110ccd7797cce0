"""Vectors beside each other: norms, and cosines with every other vector of the same layer of the same model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.vector.contrast import cosine
from chessreg.experiments.vector.kind import read_vector, vector_rows
from chessreg.registry import names, tables
from store.errors import NotInStoreError

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

MOST = 200  # vectors that one is compared with, the newest


def norms(row: tables.Vector) -> dict[str, float | None]:
    """Norm of a vector and of its two sides (None: it has none), as specification 5.3 lists them."""
    return {"norm": row.norm, "norm_high": row.detail.get("norm_high"), "norm_low": row.detail.get("norm_low")}


def cosines(inputs: Inputs, recipe: str, layer: int) -> list[dict[str, Any]]:
    """This vector against the others of its layer and model: run_id, name, source, seed, norm, cosine; nearest first.

    Vectors of raw and of centred residuals are compared without their means. Those whose file is not here are left
    out, and nothing is compared with one whose own file is elsewhere; at most the newest 200 are read. Raises
    BadInputError when the run has no such layer.
    """
    rows = vector_rows(inputs, recipe)
    if layer not in rows:
        raise BadInputError(f"that vector run has no layer {layer}", f"it has {', '.join(map(str, sorted(rows)))}")
    mine = rows[layer]
    try:
        vector = read_vector(inputs, recipe, mine).vector
    except (NotFoundError, NotInStoreError):
        return []
    with inputs.database.read() as session:
        called = names.names(session, "run")
    found = []
    for row, other in others(inputs, mine):
        centre = row.detail.get("residual") != mine.detail.get("residual")
        found.append({
            "run_id": row.run_id, "name": called.get(row.run_id), "source": row.source, "seed": row.detail.get("seed"),
            "norm": row.norm, "cosine": cosine(vector, other, centre),
        })  # fmt: skip
    return sorted(found, key=lambda entry: (-abs(entry["cosine"]), str(entry["run_id"])))


def others(inputs: Inputs, mine: tables.Vector) -> Iterator[tuple[tables.Vector, np.ndarray]]:
    """Other vectors of the same model and layer, the newest first, with their values."""
    vector = tables.Vector
    with inputs.database.read() as session:
        rows = session.execute(
            select(vector, tables.Run.spec_hash)
            .join(tables.Run, tables.Run.id == vector.run_id)
            .where(vector.checkpoint_id == mine.checkpoint_id, vector.layer == mine.layer)
            .where((vector.run_id != mine.run_id) | (vector.unit != mine.unit))
            .order_by(tables.Run.created_at.desc(), vector.run_id, vector.unit)
            .limit(MOST)
        ).all()
        session.expunge_all()
    for row, spec_hash in rows:
        if mine.checkpoint_id is None and row.detail.get("model") != mine.detail.get("model"):
            continue  # imported ones of unknown models: only the name can tell that it is the same
        try:
            values = read_vector(inputs, f"run:{spec_hash}", row).vector
        except (NotFoundError, NotInStoreError):
            continue  # registered, but its bytes are elsewhere
        yield row, values


def between_layers(inputs: Inputs, recipe: str) -> tuple[list[int], np.ndarray]:
    """The layers of a vector run, and the cosines between their vectors, float64 [layers, layers]."""
    rows = vector_rows(inputs, recipe)
    layers = sorted(rows)
    vectors = [read_vector(inputs, recipe, rows[layer]).vector for layer in layers]
    return layers, np.array([[cosine(a, b) for b in vectors] for a in vectors])


def of_run(inputs: Inputs, one: str, other: str) -> dict[int, float]:
    """Cosine between two vector runs in every layer that both have."""
    left, right = vector_rows(inputs, one), vector_rows(inputs, other)
    return {
        layer: cosine(
            read_vector(inputs, one, left[layer]).vector,
            read_vector(inputs, other, right[layer]).vector,
            left[layer].detail.get("residual") != right[layer].detail.get("residual"),
        )
        for layer in sorted(left.keys() & right.keys())
    }
