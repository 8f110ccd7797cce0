"""The distribution over the next token of every case and condition, in the store.

One artefact for a group of units: a zarr group `probabilities.zarr` with `probabilities` float32 [case, condition,
output] and `unit` int64 [case], its attributes the conditions' names. It is an output of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

KIND = "probabilities"
FOLDER = "probabilities.zarr"


def write_probabilities(
    task: Task[Any, Any], first: int, units: Sequence[int], conditions: Sequence[str], values: np.ndarray
) -> None:
    """Publish the probabilities float32 [case, condition, output] of a group of units, whose first one is `first`."""
    with task.output(f"{KIND}-{first}", first, KIND) as folder:
        write_group(folder / FOLDER, units, conditions, values)


def write_group(path: Path, units: Sequence[int], conditions: Sequence[str], values: np.ndarray) -> None:
    """The zarr group at this path."""
    import zarr
    from zarr.storage import LocalStore

    group = zarr.create_group(LocalStore(path), zarr_format=3, attributes={"conditions": list(conditions)})
    rows = max(1, (4 << 20) // (4 * values.shape[1] * values.shape[2]))
    for name, array, chunks in (
        (KIND, values.astype("<f4"), (rows, *values.shape[1:])),
        ("unit", np.asarray(units, "<i8"), (len(units),)),
    ):
        made = group.create_array(
            name,
            shape=array.shape,
            chunks=tuple(min(c, s) for c, s in zip(chunks, array.shape, strict=True)),
            dtype=array.dtype,
            compressors=None,
            fill_value=float("nan") if array.dtype.kind == "f" else -1,
            config={"write_empty_chunks": True},
        )
        made[...] = array


def probabilities_of(inputs: Inputs, run_id: UUID, unit: int) -> dict[str, np.ndarray]:
    """Condition → probabilities float32 [output] of the next token, of one unit of a run.

    Raises NotFoundError where the run has none of it, or its bytes are on another machine.
    """
    output = tables.Output
    with inputs.database.read() as session:
        rows = session.execute(
            select(output.name, output.unit, output.digest)
            .where(output.run_id == run_id, output.unit <= unit, output.name.like(f"{KIND}-%"))
            .order_by(output.unit.desc())
        ).all()
    for _, _, digest in rows:
        if not inputs.store.exists(digest):
            continue
        units, conditions, values = read_group(inputs.store.path(digest) / FOLDER)
        [places] = np.nonzero(units == unit)
        if len(places):
            return dict(zip(conditions, values[int(places[0])], strict=True))
    raise NotFoundError(f"the probabilities of unit {unit} are not here", "chessreg pull brings a run's artefacts")


def read_group(path: Path) -> tuple[np.ndarray, list[str], Any]:
    """Units int64 [case], conditions, and the array [case, condition, output], read where it is looked at."""
    import zarr
    from zarr.storage import LocalStore

    group = zarr.open_group(LocalStore(path, read_only=True), mode="r")
    values: Any = group[KIND]
    if values.nchunks_initialized != values.nchunks:  # zarr reads a missing chunk as fill values
        raise NotFoundError(f"{path} lacks some of its chunks", "chessreg doctor --digests")
    units: Any = group["unit"]
    return np.asarray(units[...]), list(group.attrs["conditions"]), values  # type: ignore[arg-type]
