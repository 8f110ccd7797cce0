"""Fitted probes in the store: written as safetensors with meta.json, read back, and chosen among their layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.cache.kind import CachedActivations, hook_point
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.experiments.probe.kind import ProbeSpec
    from chessreg.games.skill import SkillReport
    from chessreg.runs.task import Task


@dataclass(frozen=True)
class FittedProbe:
    """A linear probe without bias: logits[square, class] = residual · weight[:, square, class]."""

    weight: np.ndarray  # float32 [d_model, squares, classes]; squares 64 or 1; classes 1 for regression
    hook_point: str
    layer: int
    label: str
    centred: bool  # whether it was fitted on residuals minus their mean over d_model
    detail: Mapping[str, Any] = field(default_factory=dict)  # meta.json: skill report, mean and std of ratings, …


def publish(
    task: Task[ProbeSpec, Any], cache: CachedActivations, unit: int, layer: int, weight: np.ndarray, row: dict[str, Any]
) -> None:
    """The probe of one layer as an artefact (safetensors and meta.json), and its row.

    row holds train_games, train_positions and detail, which goes into both.
    """
    from safetensors.numpy import save_file

    spec = task.spec
    centred = cache.array.parts[0].attributes["spec"]["residual"] == "centred"
    meta = {"hook_point": hook_point(layer), "layer": layer, "label": spec.label, "centred": centred, **row["detail"]}
    with task.output(f"layer-{layer}", unit, "probe") as folder:
        save_file({"weight": np.ascontiguousarray(weight)}, folder / "probe.safetensors")
        (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True))
    task.record(
        "probe",
        run_id=task.run_id,
        unit=unit,
        artefact=task.last_output.digest,
        checkpoint_id=cache.checkpoint_id,
        hook_point=hook_point(layer),
        layer=layer,
        label=spec.label,
        positions=cache.spec.positions,
        classes=weight.shape[-1],
        train_games=row["train_games"],
        train_positions=row["train_positions"],
        epochs=float(spec.epochs),
        norm=float(np.linalg.norm(weight)),
        detail=meta,
    )


def load_probe(inputs: Inputs, recipe: str, layer: int | None = None) -> FittedProbe:
    """The probe of one layer of a probe run; without a layer the one that its validation games choose."""
    from safetensors.numpy import load_file

    run = inputs.run(recipe)
    rows: list[tables.Probe] = inputs.rows(tables.Probe, run)
    wanted = layer
    if wanted is None:
        wanted = rows[0].layer if len(rows) == 1 else best_layer(inputs, recipe)
    row = next((r for r in rows if r.layer == wanted), None)
    if row is None:
        raise BadInputError(f"that probe run has no layer {wanted}", f"it has {', '.join(str(r.layer) for r in rows)}")
    found = inputs.located(f"probe layer {wanted}", recipe, row.artefact, run.id)
    weight = load_file(found.path / "probe.safetensors")["weight"]
    return FittedProbe(weight, row.hook_point, row.layer, row.label, bool(row.detail["centred"]), dict(row.detail))


def best_layer(inputs: Inputs, recipe: str, on: Literal["validation", "test"] = "validation") -> int:
    """The layer of a probe run with the highest accuracy (of regression: the lowest error) on its validation games.

    on="test" chooses on the test games, as the paper did (specification 3.5): what it then scores there is biased
    upwards, and a table that shows it says so.
    """
    from sqlalchemy import func, select

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


def skill_report(probe: FittedProbe) -> SkillReport | None:
    """Of a skill or rating probe: the classes of the games it was fitted on."""
    from chessreg.games.skill import SkillReport

    found = probe.detail.get("skill")
    return SkillReport(**found) if found else None
