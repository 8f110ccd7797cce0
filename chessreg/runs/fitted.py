"""Reading probes and directions that were fitted for one layer; `Task.publish_layer` publishes them.

The artifact of a layer contains its tensors (safetensors) and meta.json. Its row is in the table `probe` or `vector`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sqlalchemy import func, select

from chessreg.errors import BadInputError, get_first_line
from chessreg.models.hook_points import to_hook_pattern
from chessreg.registry import tables
from chessreg.runs.activations import list_cached_layers
from chessreg.runs.inputs import IMPORTED_PREFIX, PROBE, Inputs

if TYPE_CHECKING:
    import torch

    from chessreg.runs.kind import Kind


def read_layer(path: Path, **dimensions: int) -> dict[str, np.ndarray]:
    """Return name → array from a layer's safetensors file. `dimensions` gives the required arrays and their ndim.

    The file may be third-party. Raises BadInputError if it is damaged or lacks a required array.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise BadInputError(f"{path} is damaged: {get_first_line(error)}", "chessreg doctor --digests") from error
    for name, count in dimensions.items():
        if name not in arrays or arrays[name].ndim != count or arrays[name].dtype.kind not in "fiu":
            raise BadInputError(
                f"{path} has no array {name} with {count} dimensions", "import a file written by chessreg"
            )
    return arrays


# -- probes ------------------------------------------------------------------------------------------------------------


Reader = Callable[["torch.Tensor"], "torch.Tensor"]
"""Logits float32 [n, squares, classes] that a probe computes from residuals float32 [n, d_model]."""


def make_linear_reader(weight: np.ndarray, device: str = "cpu") -> Reader:
    """Return the reader of a linear probe without bias: logits[square, class] = residual · weight[:, square, class]."""
    import torch

    flat = torch.from_numpy(weight.reshape(weight.shape[0], -1)).to(device)
    return lambda residual: (residual @ flat).view(-1, *weight.shape[1:])


@dataclass(frozen=True)
class FittedProbe:
    """A probe of one layer. Unless `load_kind` is set, it is linear and has no bias.

    `load_kind` returns the user's kind that fitted the probe. It raises NotTrustedError if that kind's file is not
    trusted. `weight` then holds the directions that edits add, and only the kind computes logits, from `tensors`.
    """

    weight: np.ndarray  # float32 [d_model, squares, classes]; squares 64 (a1, b1, …, h8) or 1; classes 1 for regression
    hook_point: str
    layer: int
    label: str
    centred: bool  # whether it was fitted on residuals minus their mean over d_model
    detail: Mapping[str, Any] = field(default_factory=dict)  # meta.json: skill report, mean and std of ratings, …
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    load_kind: Callable[[], Any] | None = None

    def reader(self, device: str = "cpu") -> Reader:
        """Return the function from residuals on `device` to the probe's logits."""
        if self.load_kind is None:
            return make_linear_reader(self.weight, device)
        reader: Reader = self.load_kind().reader(self.tensors, device)
        return reader


ClassDirection = Literal["raw", "class-centred", "empty-minus-piece"]
"""How the direction of a class is computed. Adding a vector to all classes of a square does not change the softmax, so
a raw class vector (used in the papers) is not unique, while differences of classes are."""


def make_class_directions(weight: np.ndarray, direction: ClassDirection, empty: int) -> np.ndarray:
    """Return directions float32 [d_model, squares, classes] from probe weights of that shape.

    raw: the weights. class-centred: minus their mean over the square's classes. empty-minus-piece: the class's weights
    minus those of the empty square (class number `empty`), so 0 for the empty square itself.
    """
    if direction == "class-centred":
        return weight - weight.mean(-1, keepdims=True)
    if direction == "empty-minus-piece":
        return weight - weight[..., empty : empty + 1]
    return weight


def select_cached_layers(
    inputs: Inputs,
    rows: Mapping[int, tables.ProbeRecord | tables.VectorRecord],
    cache: str,
    wanted_layers: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the layers in `wanted_layers`, or without any all layers that are both in `rows` and in the cache.

    Raises BadInputError for a wanted layer that is missing in either, and if no layer is in both.
    """
    row = next(iter(rows.values()))
    cached_layers = list_cached_layers(inputs, cache, to_hook_pattern(row.hook_point))
    layers = tuple(sorted(rows.keys() & set(cached_layers)))
    if missing_layers := set(wanted_layers) - set(layers):
        raise BadInputError(
            f"layer {min(missing_layers)} needs both a {row.__tablename__} and activations",
            f"choose from {list(layers)}",
        )
    if not layers:
        raise BadInputError(
            f"no layer of the {row.__tablename__} is in the cache", f"it holds {', '.join(map(str, cached_layers))}"
        )
    return wanted_layers or layers


def read_probe_rows(inputs: Inputs, reference: str) -> dict[int, tables.ProbeRecord]:
    """Return layer → row of a probe run."""
    rows: list[tables.ProbeRecord] = inputs.rows(tables.ProbeRecord, inputs.run(reference))
    return {row.layer: row for row in rows}


def load_probe(inputs: Inputs, reference: str, layer: int | None = None) -> FittedProbe:
    """Return the probe of one layer of a probe run. Without `layer`, the layer is chosen by validation accuracy."""
    rows = read_probe_rows(inputs, reference)
    target_layer = layer
    if target_layer is None:
        target_layer = next(iter(rows)) if len(rows) == 1 else find_best_layer(inputs, reference)
    if target_layer not in rows:
        raise BadInputError(f"that probe run has no layer {target_layer}", f"it has {', '.join(map(str, rows))}")
    row = rows[target_layer]
    located_input = inputs.locate_bytes(f"probe layer {target_layer}", reference, row.artifact, row.run_id)
    arrays = read_layer(located_input.path / "probe.safetensors", weight=3)
    run = inputs.run(reference)
    linear = run.kind in (PROBE, IMPORTED_PREFIX + PROBE)
    return FittedProbe(
        arrays["weight"],
        row.hook_point,
        row.layer,
        row.label,
        bool(row.detail["centred"]),
        dict(row.detail),
        arrays,
        None if linear else partial(_load_kind, inputs, run),
    )


def _load_kind(inputs: Inputs, run: tables.Run) -> Kind:
    from chessreg.runs.kind import find_kind_of_record

    with inputs.database.read() as session:
        return find_kind_of_record(session.get_one(tables.KindRecord, (run.kind, run.version)), inputs.store.read_only)


def find_best_layer(inputs: Inputs, reference: str) -> int:
    """Return the layer of a probe run with the best validation result: highest accuracy, or lowest error for
    regression.

    Raises BadInputError if the run has no validation scores.
    """
    run = inputs.run(reference)
    scores, metric = tables.Score, tables.MetricPoint
    with inputs.database.read() as session:
        layer = session.execute(
            select(scores.layer)
            .where(scores.run_id == run.id, scores.split == "validation", scores.item >= 0)
            .group_by(scores.layer)
            .order_by((func.sum(scores.correct) * 1.0 / func.sum(scores.n)).desc(), scores.layer)
        ).first()
        if layer is None:
            layer = session.execute(
                select(tables.ProbeRecord.layer)
                .join(metric, (metric.run_id == tables.ProbeRecord.run_id) & (metric.unit == tables.ProbeRecord.unit))
                .where(metric.run_id == run.id, metric.name == "validation_mae")
                .order_by(metric.value, tables.ProbeRecord.layer)
            ).first()
    if layer is None or layer[0] is None:
        raise BadInputError(f"probe run {run.id.hex[-6:]} has no validation scores", "choose one with --layer")
    return int(layer[0])


# -- directions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Direction:
    """A direction in the residual stream after one block, and the data that it was computed from."""

    vector: np.ndarray  # float32 [d_model]
    high: np.ndarray | None = None  # float32 [d_model], of the strong games; vector = high - low
    low: np.ndarray | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    sums: np.ndarray | None = None  # float32 [games, d_model], of a contrast from one forward pass

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.vector))

    def compute_side_norms(self) -> dict[str, float]:
        """Return the norms of the high and low sides, if there are two."""
        sides = {"norm_high": self.high, "norm_low": self.low}
        return {name: float(np.linalg.norm(side)) for name, side in sides.items() if side is not None}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the stored tensors, each float32 [d_model]."""
        tensors = {"vector": self.vector, "high": self.high, "low": self.low}
        return {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items() if value is not None}


def compute_cosine_similarity(one: np.ndarray, other: np.ndarray, centre: bool = False) -> float:
    """Return the cosine of two directions [d_model], or 0 if one of them is 0.

    `centre` subtracts the mean of each first, to compare raw with centred residual streams (as in Karvonen's code).
    """
    a, b = one.astype(np.float64), other.astype(np.float64)
    if centre:
        a, b = a - a.mean(), b - b.mean()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def read_vector_rows(inputs: Inputs, reference: str) -> dict[int, tables.VectorRecord]:
    """Return layer → row of a vector run."""
    rows: list[tables.VectorRecord] = inputs.rows(tables.VectorRecord, inputs.run(reference, "vector"))
    return {row.layer: row for row in rows}


def load_direction(inputs: Inputs, reference: str, layer: int) -> Direction:
    """Return the direction of one layer of a vector run, with its two sides if it has them."""
    rows = read_vector_rows(inputs, reference)
    if layer not in rows:
        raise BadInputError(f"that vector run has no layer {layer}", f"it has {', '.join(map(str, sorted(rows)))}")
    return load_vector_row(inputs, reference, rows[layer])


def load_vector_row(inputs: Inputs, reference: str, row: tables.VectorRecord) -> Direction:
    """Return the direction of a row of the table `vector`."""
    folder = inputs.locate_bytes(f"vector layer {row.layer}", reference, row.artifact, row.run_id).path
    arrays = read_layer(folder / "vector.safetensors", vector=1)
    return Direction(arrays["vector"], arrays.get("high"), arrays.get("low"), dict(row.detail))


def load_vector(inputs: Inputs, reference: str, layer: int | None = None) -> np.ndarray:
    """Return the vector of one layer of a vector run, float32 [d_model]. `layer` may be None if the run has only one.

    Raises BadInputError for a layer that the run does not have, and if the run has several and `layer` is None.
    """
    if layer is None:
        layers = list(read_vector_rows(inputs, reference))
        if len(layers) > 1:
            raise BadInputError("that vector run has several layers", f"layer={layers[0]}; it has {layers}")
        (layer,) = layers
    return load_direction(inputs, reference, layer).vector
