"""Fitted probes: read back from the store, and chosen among their layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from sqlalchemy import func, select

from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class FittedProbe:
    """A linear probe without bias: logits[square, class] = residual · weight[:, square, class]."""

    weight: np.ndarray  # float32 [d_model, squares, classes]; squares 64 or 1; classes 1 for regression
    hook_point: str
    layer: int
    label: str
    centred: bool  # whether it was fitted on residuals minus their mean over d_model
    detail: Mapping[str, Any] = field(default_factory=dict)  # meta.json: skill report, mean and std of ratings, …


def probe_rows(inputs: Inputs, recipe: str) -> dict[int, tables.Probe]:
    """The rows of a probe run by layer."""
    rows: list[tables.Probe] = inputs.rows(tables.Probe, inputs.run(recipe))
    return {row.layer: row for row in rows}


def load_probe(inputs: Inputs, recipe: str, layer: int | None = None) -> FittedProbe:
    """The probe of one layer of a probe run; without a layer the one that its validation games choose."""
    from safetensors.numpy import load_file

    rows = probe_rows(inputs, recipe)
    wanted = layer
    if wanted is None:
        wanted = next(iter(rows)) if len(rows) == 1 else best_layer(inputs, recipe)
    if wanted not in rows:
        raise BadInputError(f"that probe run has no layer {wanted}", f"it has {', '.join(map(str, rows))}")
    row = rows[wanted]
    found = inputs.located(f"probe layer {wanted}", recipe, row.artefact, row.run_id)
    weight = load_file(found.path / "probe.safetensors")["weight"]
    return FittedProbe(weight, row.hook_point, row.layer, row.label, bool(row.detail["centred"]), dict(row.detail))


def best_layer(inputs: Inputs, recipe: str, on: Literal["validation", "test"] = "validation") -> int:
    """The layer of a probe run with the highest accuracy (of regression: the lowest error) on its validation games.

    on="test" chooses on the test games, as the paper did (specification 3.5): what it then scores there is biased
    upwards, and a table that shows it says so.
    """
    run = inputs.run(recipe)
    scores, metric = tables.Score, tables.MetricPoint
    with inputs.database.read() as session:
        found = session.execute(
            select(scores.layer)
            .where(scores.run_id == run.id, scores.split == on, scores.item >= 0)
            .group_by(scores.layer)
            .order_by((func.sum(scores.correct) * 1.0 / func.sum(scores.n)).desc(), scores.layer)
        ).first()
        if found is None:
            found = session.execute(
                select(tables.Probe.layer)
                .join(metric, (metric.run_id == tables.Probe.run_id) & (metric.unit == tables.Probe.unit))
                .where(metric.run_id == run.id, metric.name == f"{on}_mae")
                .order_by(metric.value, tables.Probe.layer)
            ).first()
    if found is None or found[0] is None:
        raise BadInputError(f"probe run {run.id.hex[-6:]} has no {on} scores", "say which layer")
    return int(found[0])
