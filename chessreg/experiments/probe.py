"""`probe`: linear probes on cached activations, all layers and all squares in one pass over the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from chessreg.errors import BadInputError
from chessreg.experiments.cache import CachedActivations, hook_point
from chessreg.jobs.inputs import Inputs
from chessreg.jobs.kind import Estimate, Kind
from chessreg.jobs.spec import How, Ref, Spec
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.jobs.task import Task

CacheRef = Annotated[str, Ref("run:cache")]


class ProbeSpec(Spec):
    cache: CacheRef = Field(description="activations to fit on")
    test_cache: Annotated[str | None, Ref("run:cache")] = Field(
        None, description="activations of other games to test on"
    )
    label: str = Field("piece", description="what is read off each square (Karvonen 2024, section 3.1)")
    layers: tuple[int, ...] = Field((), description="layers, 0-based; none given: all that are cached")
    validation: float = Field(0.1, gt=0, lt=1, description="share of the games held out of fitting, by game")
    epochs: int = Field(5, ge=1, description="passes over the cache (Karvonen Table 4)")
    batch_positions: int = Field(256, ge=1, description="positions in one step")
    learning_rate: float = Field(1e-2, gt=0, description="AdamW's, on residuals of size 1; falls to a tenth")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's (Karvonen Table 4)")
    beta1: float = Field(0.9, description="AdamW's (Karvonen Table 4)")
    beta2: float = Field(0.99, description="AdamW's (Karvonen Table 4)")


class ProbeScore(BaseModel):
    """The columns that probes add to their scores."""

    hook_point: str
    label: str
    positions: int  # looked-at positions of this game
    exact: int  # of them, those with every square right
    majority: int  # squares right by always naming the class most frequent on that square in the fitting games


@dataclass(frozen=True)
class FittedProbe:
    """A linear probe without bias: logits[square, class] = residual · weight[:, square, class]."""

    weight: np.ndarray  # float32 [d_model, 64, classes]
    hook_point: str
    layer: int
    label: str
    centred: bool  # whether it was fitted on residuals minus their mean over d_model


class Probe(Kind):
    """Linear probes of the board, one per layer, with a score for every game.

    Karvonen 2024, section 3: softmax regression of each square's content on the residual stream, without bias, the
    loss summed over the 64 squares. One unit is one layer; all missing layers are fitted in one pass over the cache.
    """

    name = "probe"
    example = "--cache reference-fit --test-cache reference-test --epochs 2"
    families = ("score", "metric_point")
    spec = ProbeSpec
    detail = {"score": ProbeScore}  # noqa: RUF012
    queries = ("probe accuracy by layer",)

    def units(self, spec: ProbeSpec, inputs: Inputs) -> int:
        return len(layers_of(spec, inputs))

    def estimate(self, spec: ProbeSpec, inputs: Inputs) -> Estimate:
        from chessreg.games.labels import label

        layers = layers_of(spec, inputs)
        run = inputs.run(spec.cache, "cache")
        tested = run.units * spec.validation
        if spec.test_cache:
            tested += inputs.run(spec.test_cache, "cache").units
        rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
        size = rows[0].d_model * 64 * len(label(spec.label).classes) * 4
        return Estimate({"score": int(tested * len(layers))}, size * len(layers))

    def run(self, task: Task[ProbeSpec, How]) -> None:
        from chessreg.experiments.probing.data import ProbeData
        from chessreg.experiments.probing.fitting import fit, score
        from chessreg.models.devices import prepare

        spec = task.spec
        device = prepare(task.how.device, task.how.threads)
        every = layers_of(spec, task.inputs)
        layers = {unit: every[unit] for unit in task.units}
        data = ProbeData.load(task.inputs, spec.cache, spec.label, "cache")
        held_out = data.held_out(spec.validation, spec.seed)
        weights = fit(spec, data, ~held_out, list(layers.values()), device, task.progress)
        tested = [("validation", data, held_out)]
        if spec.test_cache:
            test = ProbeData.load(task.inputs, spec.test_cache, spec.label, "test_cache")
            if test.cache.checkpoint_id != data.cache.checkpoint_id:
                raise BadInputError("--cache and --test-cache hold activations of different checkpoints")
            tested.append(("test", test, np.ones(len(test.item), bool)))
        majority = data.majority(~held_out)
        for number, (unit, layer) in enumerate(layers.items()):
            for split, on, mask in tested:
                for row in score(weights[number], on, mask, layer, majority, device):
                    game, n, correct, counts, positions, exact, by_majority = row
                    task.emit(
                        "score",
                        unit,
                        ProbeScore(
                            hook_point=hook_point(layer),
                            label=spec.label,
                            positions=positions,
                            exact=exact,
                            majority=by_majority,
                        ),
                        split=split,
                        item=game,
                        layer=layer,
                        n=n,
                        correct=correct,
                        counts=counts,
                    )
            publish(task, data, unit, layer, weights[number], int((~held_out).sum()))
            task.done(unit)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.probing.frames import frames_of_score

        return frames_of_score(row, inputs)


def layers_of(spec: ProbeSpec, inputs: Inputs) -> tuple[int, ...]:
    """The layers to fit; raises BadInputError for one that was not cached."""
    from chessreg.games.labels import label

    label(spec.label)
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(spec.cache, "cache"))
    cached = tuple(int(point.split(".")[1]) for point in rows[0].hook_points)
    if missing := set(spec.layers) - set(cached):
        raise BadInputError(f"layer {min(missing)} is not in the cache", f"it holds {', '.join(map(str, cached))}")
    return spec.layers or cached


def publish(
    task: Task[ProbeSpec, How], data: Any, unit: int, layer: int, weight: np.ndarray, train_positions: int
) -> None:
    """The probe of one layer as an artefact (safetensors and meta.json), and its row."""
    from safetensors.numpy import save_file

    cache: CachedActivations = data.cache
    centred = cache.array.parts[0].attributes["spec"]["residual"] == "centred"
    meta = {"hook_point": hook_point(layer), "layer": layer, "label": task.spec.label, "centred": centred}
    with task.output(f"layer-{layer}", unit, "probe") as folder:
        save_file({"weight": np.ascontiguousarray(weight)}, folder / "probe.safetensors")
        (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True))
    train_games = int(
        len(np.unique(data.item)) - len(np.unique(data.item[data.held_out(task.spec.validation, task.spec.seed)]))
    )
    task.record(
        "probe",
        run_id=task.run_id,
        unit=unit,
        artefact=task.last_output.digest,
        checkpoint_id=cache.checkpoint_id,
        hook_point=hook_point(layer),
        layer=layer,
        label=task.spec.label,
        positions=cache.spec.positions,
        classes=weight.shape[-1],
        train_games=train_games,
        train_positions=train_positions,
        epochs=float(task.spec.epochs),
        norm=float(np.linalg.norm(weight)),
        detail=meta,
    )


def load_probe(inputs: Inputs, recipe: str, layer: int | None = None) -> FittedProbe:
    """The probe of one layer of a probe run; without a layer the one that its validation games choose."""
    from safetensors.numpy import load_file

    run = inputs.run(recipe, "probe")
    rows: list[tables.Probe] = inputs.rows(tables.Probe, run)
    wanted = best_layer(inputs, recipe) if layer is None else layer
    row = next((r for r in rows if r.layer == wanted), None)
    if row is None:
        raise BadInputError(f"that probe run has no layer {wanted}", f"it has {', '.join(str(r.layer) for r in rows)}")
    found = inputs.located(f"probe layer {wanted}", recipe, row.artefact, inputs.store.path(row.artefact), run.id)
    weight = load_file(found.path / "probe.safetensors")["weight"]
    return FittedProbe(weight, row.hook_point, row.layer, row.label, bool(row.detail["centred"]))


def best_layer(inputs: Inputs, recipe: str) -> int:
    """The layer of a probe run with the highest accuracy on its validation games (never on test)."""
    from sqlalchemy import func, select

    run = inputs.run(recipe, "probe")
    scores = tables.Score
    with inputs.database.read() as session:
        found = session.execute(
            select(scores.layer)
            .where(scores.run_id == run.id, scores.split == "validation")
            .group_by(scores.layer)
            .order_by((func.sum(scores.correct) * 1.0 / func.sum(scores.n)).desc(), scores.layer)
        ).first()
    if found is None or found[0] is None:
        raise BadInputError(f"probe run {run.id.hex[-6:]} has no validation scores", "say which layer")
    return int(found[0])
