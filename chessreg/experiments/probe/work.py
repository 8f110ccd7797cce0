"""The work of a probe run: load, fit, score and publish."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.optim.adamw import adamw

from chessreg.errors import BadInputError, DivergedError
from chessreg.experiments.probe.data import (
    Labelling,
    ProbeData,
    RowSelection,
    compute_baseline_keys,
    compute_length_edges,
    make_allocator,
    predict_from_keys,
)
from chessreg.experiments.probe.reading import (
    Baselines,
    RatingScaler,
    ScoreRankings,
    build_rating_rows,
    build_score_columns,
    score_probe,
)
from chessreg.experiments.probe.training import (
    FitState,
    ProbeTraining,
    check_fitted,
    count_epoch_steps,
    iterate_probe_batches,
    measure_layer_scales,
)
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.overlap import EvaluatedGames, TrainingOverlap
from chessreg.games.boards.moves import HashSet
from chessreg.games.datasets.labels import SHUFFLED_SUFFIX
from chessreg.models.devices import flush_denormals, prepare_device
from chessreg.runs.activations import CachedActivations
from chessreg.runs.fitted import Reader, make_linear_reader

if TYPE_CHECKING:
    from chessreg.experiments.probe.spec import ProbeOptions, ProbeSpec
    from chessreg.experiments.sae.probes import Features
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


class SingleTensorAdamW:
    """`torch.optim.AdamW` for one tensor, with identical bits.

    It calls the same function without the class, whose first use imports torch's compiler (2 seconds of CPU time, more
    than a small run needs). `is_fused`: as `AdamW(fused=True)`, in one pass over the tensors, four times faster and
    with other last bits.
    """

    def __init__(
        self, weight: torch.Tensor, beta1: float, beta2: float, weight_decay: float, is_fused: bool = False
    ) -> None:
        self.weight, self.betas, self.weight_decay, self.is_fused = weight, (beta1, beta2), weight_decay, is_fused
        self.mean, self.square = torch.zeros_like(weight), torch.zeros_like(weight)
        self.steps = torch.tensor(0.0, device=weight.device if is_fused else "cpu")

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors that a step changes, by name. Copying values into them restores a state."""
        return {"weight": self.weight, "mean": self.mean, "square": self.square, "steps": self.steps}

    @torch.no_grad()
    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """Take one step down the gradient."""
        adamw(
            [self.weight],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            fused=self.is_fused,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def compute_gradient_by_autograd(
    residual: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, outputs: int
) -> torch.Tensor:
    """Return the gradient of the loss over residuals [layer, n, d_model], shaped like weight [layer, d_model, squares *
    classes].

    target: classes int64 [n, squares], or standardized ratings float32 [n, 1].
    """
    layers = len(weight)
    leaf = weight.detach().requires_grad_()
    logits = torch.bmm(residual, leaf).view(layers, -1, outputs)
    if target.dtype == torch.int64:
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten().repeat(layers), reduction="sum")
    else:
        loss = F.mse_loss(logits, target[None].expand(layers, -1, -1), reduction="sum")
    (loss / len(target)).backward()
    assert leaf.grad is not None
    return leaf.grad


def compute_gradient_in_one_pass(
    residual: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, outputs: int
) -> torch.Tensor:
    """Return the gradient of `compute_gradient_by_autograd` in closed form, five times faster.

    `residual` is [layers, positions, d_model], `target` int64 (classes) or float (values) [positions, squares], and
    `weight` [layers, d_model, outputs * squares], where `outputs` is the number of classes or 1. With respect to the
    logits the gradient is the softmax minus 1 at the true class, or twice the error. The softmax runs along squares,
    which are adjacent in memory.
    """
    layers, positions = len(weight), len(target)
    logits = torch.bmm(residual, weight).view(layers, positions, outputs, -1)
    if target.dtype == torch.int64:
        logits = logits.softmax(2)
        right = target[None, :, None].expand(layers, -1, -1, -1)
        logits.scatter_add_(2, right, logits.new_full((), -1.0).expand(right.shape))
    else:
        logits = 2 * (logits - target[None, :, None])
    return torch.bmm(residual.mT, logits.flatten(2).div_(positions))


def clip_gradient(gradient: torch.Tensor, squares: int, limit: float) -> torch.Tensor:
    """Return the gradient [layer, d_model, squares * classes] with each layer's norm, divided by `squares`, clipped to
    `limit`.

    This equals `torch.nn.utils.clip_grad_norm_` on a loss averaged over squares.
    """
    norms = torch.linalg.vector_norm(gradient, dim=(1, 2), keepdim=True) / squares
    return gradient * (limit / (norms + 1e-6)).clamp(max=1.0)


def fit_probes(training: ProbeTraining) -> np.ndarray:
    """Return probe weights float32 [layer, d_model, squares, classes] of `training.layers`.

    Karvonen's loss and optimizer (2024, section 3.1): cross-entropy averaged over positions and summed over squares,
    and AdamW; for regression the squared error of the standardized rating. Every step sees the same positions in all
    layers. With `normalize_activations` each layer is divided by its root mean square during fitting, so that one
    learning rate suits all layers. The returned weights apply to the unscaled residual. Activations are read from the
    store in permuted chunks, or by game, and never held in memory as a whole. An interrupted fit resumes from
    `training.state` with the same bits. Raises DivergedError for weights that are not finite.
    """
    spec, data, layers, device, state = training.spec, training.data, training.layers, training.device, training.state
    width, squares, outputs = training.d_model, training.squares, training.classes
    random_generator = torch.Generator().manual_seed(
        (spec.seed * 1_000_003 + spec.replicate) % 2**64
    )  # torch accepts 64 bits
    # Drawn for every layer of the run, so that a layer starts with the same weights in every attempt.
    every = list(training.every)
    initial_weights = torch.randn(len(every), width, squares * outputs, generator=random_generator)[
        [every.index(n) for n in layers]
    ]
    weight = (spec.init * initial_weights / width**0.5).to(device)
    has_whole_games = spec.batch_games is not None
    if has_whole_games:
        weight = weight.unflatten(2, (squares, outputs)).mT.flatten(2).contiguous()
    gradient = compute_gradient_in_one_pass if has_whole_games else compute_gradient_by_autograd
    optimizer = SingleTensorAdamW(weight, spec.beta1, spec.beta2, spec.weight_decay, is_fused=has_whole_games)
    scale = torch.tensor(measure_layer_scales(data, layers, spec.normalize_activations), device=device).clamp_min(1e-6)[
        :, None, None
    ]
    steps = spec.epochs * count_epoch_steps(spec, data, training.rows)
    read_residuals = data.reader(layers) if has_whole_games else None
    first_epoch, first_batch = (0, 0) if state is None else state.restore(optimizer.state())
    step = int(optimizer.steps)
    with flush_denormals() if has_whole_games else nullcontext():
        for epoch in range(first_epoch, spec.epochs):
            batches = enumerate(iterate_probe_batches(spec, data, training.rows, layers, epoch, read_residuals), 1)
            for batch, (places, residual) in islice(batches, first_batch if epoch == first_epoch else 0, None):
                target = training.targets(places).to(device)
                slope = gradient(torch.from_numpy(residual).to(device) / scale, weight, target, outputs)
                if spec.max_grad_norm is not None:
                    slope = clip_gradient(slope, squares, spec.max_grad_norm)
                optimizer.step(slope, spec.learning_rate * SCHEDULES[spec.schedule](step / steps))
                step += 1
                if step % 20 == 0:
                    if state is not None:
                        state.save_if_due(optimizer.state(), (epoch, batch))
                    training.on_progress(0.9 * step / steps, f"epoch {epoch + 1}/{spec.epochs}")
    if state is not None:
        state.save_if_due(optimizer.state(), (spec.epochs, 0))
    if has_whole_games:
        weight = weight.unflatten(2, (outputs, squares)).mT.flatten(2)
    fitted_weights = (weight / scale).cpu().view(len(layers), width, squares, outputs)
    if not bool(fitted_weights.isfinite().all()):
        raise DivergedError(
            "the probe's weights are not finite",
            "give a smaller --learning-rate, and check the cache with chessreg cache verify",
        )
    return fitted_weights.numpy()


SCHEDULES: dict[str, Callable[[float], float]] = {  # share of the steps done → share of the learning rate
    "linear": lambda progress: 1 - 0.9 * progress,
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}


class ProbeWork:
    """One attempt at the missing layers of a probe run."""

    def __init__(self, task: Task[ProbeSpec, ProbeOptions], all_layers: tuple[int, ...]) -> None:
        self.task, self.spec = task, task.spec
        self.all_layers, self.layers = all_layers, {unit: all_layers[unit] for unit in task.units}
        self.state = FitState(task, list(self.layers.values()))
        self.device = prepare_device(task.options.device, task.options.threads)
        self.allocate = make_allocator(task.folder, task.options.memory_mib)
        self.features = load_features(task.inputs, self.spec, list(self.layers.values()))
        self.data = self.load(self.spec.cache, "cache")
        self.heldout_rows = self.data.draw_held_out(self.spec.validation, self.spec.seed, self.spec.split)
        self.fit_rows = self.data.rows & ~self.heldout_rows
        if not self.fit_rows.any():
            raise BadInputError("one game is too few to fit and to evaluate a probe", "cache more games")
        if self.spec.shuffled_label_control is not None:
            self.data.permute_labels(self.fit_rows, self.spec.shuffled_label_control)
        self.sites = name_probe_sites(task.inputs, self.data.cache, self.spec)
        self.test_sets: list[tuple[str, ProbeData, np.ndarray]] = [("validation", self.data, self.heldout_rows)]
        if self.spec.test_cache:
            report = self.data.skill.report if self.data.skill else None
            test = self.load(self.spec.test_cache, "test_cache", report)
            self.test_sets.append(("test", test, test.rows))

    def load(self, reference: str, field: str, skill_report: Any = None) -> ProbeData:
        """Return the labelled data of a cache, as features if the source is not the residual. `skill_report` is a skill
        report."""
        spec = self.spec
        data = ProbeData.load(
            self.task.inputs, reference, Labelling(spec.label, spec.skill, spec.seed, skill_report), field,
            selection=RowSelection.from_spec(spec), allocate=self.allocate,
            pattern=spec.hook_point,
        )  # fmt: skip
        return data if self.features is None else self.features.view(data)

    def run_units(self) -> None:
        """Fit the probes of all missing layers, then score and publish each."""
        spec, task, data = self.spec, self.task, self.data
        if data.skill is not None:
            task.progress(0.0, str(data.skill.report))
        overlaps = self.measure_overlaps()
        standard = RatingScaler.from_ratings(data.labels[self.fit_rows]) if data.classes == 0 else None
        fitted_probes = self.fit(standard)
        fit_positions = HashSet(data.positions[self.fit_rows])
        majority = data.find_majority_classes(self.fit_rows) if data.classes else np.zeros(1, np.int8)
        baselines = {split: self.predict_baselines(on) for split, on, _ in self.test_sets}
        row = {
            "train_games": len(np.unique(data.item[self.fit_rows])),
            "train_positions": int(self.fit_rows.sum()),
            "detail": {
                "overlap": overlaps,
                **RowSelection.from_spec(spec).as_detail(),
                **({"skill": data.skill.report.as_json()} if data.skill else {}),
                **({"mean": standard.mean, "std": standard.std} if standard else {}),
                **({} if standard else {"majority": majority.tolist()}),
                **(self.features.build_columns(spec.min_class_positions) if self.features else {}),
            },
        }
        for (unit, layer), (tensors, reader) in zip(self.layers.items(), fitted_probes, strict=True):
            for split, on, mask in self.test_sets:
                if standard is None:
                    self.emit_scores(unit, layer, split, on, mask, reader, majority, fit_positions, baselines[split])
                else:
                    self.emit_ratings(unit, layer, split, on, mask, reader, standard, baselines[split])
            publish_probe(task, data.cache, unit, layer, tensors, row, self.sites)
            task.done(unit)
        task.flush()
        self.state.remove()  # the artifacts have its content

    def fit(self, standard: RatingScaler | None) -> list[tuple[dict[str, np.ndarray], Reader]]:
        """Fit the missing layers. Return the tensors to publish for each layer, and its reader.

        `standard` has the mean and deviation of the fitted ratings, or is None for classes.
        """
        spec, data, layers, report = self.spec, self.data, list(self.layers.values()), self.task.progress
        kind: Any = self.task.kind  # `Probe`, or a user's subclass of it
        training = ProbeTraining(
            spec, data, self.fit_rows, layers, self.all_layers, self.device, report, standard, self.state
        )
        if self.features is None:
            fitted_probes = kind.fit(training)
            check_fitted(kind.name, training, fitted_probes)
            return [(tensors, kind.reader(tensors, self.device)) for tensors in fitted_probes]
        if self.features.is_learned:
            weights = fit_probes(training)
        else:
            weights = self.features.compute_contrast(data, self.fit_rows, layers, spec.min_class_positions, report)
        return [
            (self.features.build_tensors(layer, weight), make_linear_reader(weight, self.device))
            for layer, weight in zip(layers, weights, strict=True)
        ]

    def emit_scores(
        self,
        unit: int,
        layer: int,
        split: str,
        on: ProbeData,
        mask: np.ndarray,
        reader: Reader,
        majority: np.ndarray,
        fit_positions: HashSet,
        baselines: Baselines | None,
    ) -> None:
        """Emit a score row for each game of `on`, and the accuracy of each square over all its games.

        `mask` bool [positions] selects positions. `majority` has the most frequent class of each square in the fit
        data, `fit_positions` the hashes of the fitted positions, and `baselines` guesses without the model. Probes of
        one phase also get the ROC-AUC of each class (Davis 2025, section 4.4), which takes longer than fitting a small
        probe.
        """
        right, positions = np.zeros(on.labels.shape[1], np.int64), 0
        rankings = ScoreRankings(on.classes) if self.spec.phase is not None else None
        for game_score in score_probe(reader, on, mask, layer, self.device, rankings=rankings):
            self.task.emit(
                "score",
                unit,
                build_score_columns(
                    game_score, on, layer, get_fitted_label(self.spec), majority, fit_positions, baselines
                ),
                split=split,
                item=game_score.game,
                layer=layer,
                n=game_score.n,
                correct=game_score.correct,
                counts=game_score.counts,
            )
            right += game_score.right.sum(0)
            positions += len(game_score.right)
        if len(right) > 1 and positions:
            for square, count in enumerate(right.tolist()):
                self.task.emit(
                    "metric_point", unit, name=f"{split}_square_accuracy", step=square, value=count / positions
                )
        if rankings is not None:
            emit_aucs(self.task, unit, split, rankings)

    def emit_ratings(
        self,
        unit: int,
        layer: int,
        split: str,
        on: ProbeData,
        mask: np.ndarray,
        reader: Reader,
        standard: RatingScaler,
        baselines: Baselines | None,
    ) -> None:
        """Emit a prediction row for each game of `on`, and the mean absolute error over all positions, in Elo.

        `mask` bool [positions] selects positions, and `standard` converts the reader's output to Elo.
        """
        error, positions, name = 0.0, 0, f"{split}:{self.spec.skill.rating}:{layer}"
        for game, value, columns in build_rating_rows(reader, on, mask, layer, split, standard, baselines, self.device):
            self.task.emit("prediction", unit, columns, item=game, name=name, value=value)
            error += columns.absolute_error or 0.0
            positions += columns.positions
        if positions:
            self.task.emit("metric_point", unit, name=f"{split}_mae", step=0, value=error / positions)

    def predict_baselines(self, on: ProbeData) -> Baselines | None:
        """Return the predictions of the baselines for the games, learned from the fitted games: length, source, and
        majority."""
        data = self.data
        if data.skill is None or on.skill is None:
            return None
        games, _ = self.task.inputs.dataset(data.cache.dataset)
        is_fitted = np.isin(data.places, data.item[self.fit_rows])
        edges = compute_length_edges(games.take(data.places[is_fitted], ["plies"]).column("plies").to_numpy())
        fit_keys, test_keys = (
            compute_baseline_keys(self.task.inputs, data, edges),
            compute_baseline_keys(self.task.inputs, on, edges),
        )
        truth = (data.skill.classes if data.classes else data.skill.rating).astype(np.float64)
        truth = np.where(is_fitted, truth, np.nan)
        guesses = {
            name: predict_from_keys(fit_keys[name], truth, test_keys[name], data.classes).tolist() for name in fit_keys
        }
        places = on.places.tolist()
        return Baselines({name: dict(zip(places, values, strict=True)) for name, values in guesses.items()})

    def measure_overlaps(self) -> dict[str, Any]:
        """Return the overlap of the evaluated games with the model's training games, and of the test games with the
        fitted games."""
        inputs, spec = self.task.inputs, self.spec
        checkpoint = str(inputs.run(spec.cache, "cache").spec["checkpoint"])
        evaluated_games = [on.select_evaluated(mask) for _, on, mask in self.test_sets]
        counts: dict[str, TrainingOverlap] = {
            "checkpoint": overlap.measure_overlap(
                inputs, checkpoint, concatenate_evaluated(evaluated_games), self.task.progress
            )
        }
        if len(evaluated_games) > 1:
            items, _ = inputs.items(self.data.cache.dataset)
            fitted_items = np.unique(self.data.item[self.fit_rows]).astype(np.int64)
            counts["probe"] = overlap.measure_game_overlap([(items, fitted_items)], evaluated_games[1])
        return {name: value.columns() for name, value in counts.items()}


def get_fitted_label(spec: ProbeSpec) -> str:
    """Return the label's name in rows of probes and scores: `skill`, or for shuffled labels `skill-shuffled`."""
    return spec.label if spec.shuffled_label_control is None else f"{spec.label}{SHUFFLED_SUFFIX}"


def emit_aucs(task: Task[Any, Any], unit: int, split: str, rankings: ScoreRankings) -> None:
    """Emit ROC-AUC on raw logits and on softmax as metrics.

    `test_auc_softmax` has one value per class (step), `test_auc_softmax_flat` one for all classes together. A class
    that is never the true one has no value.
    """
    for name in rankings.NAMES:
        areas = [(f"{split}_auc_{name}", step, area) for step, area in enumerate(rankings.compute_class_areas(name))]
        for metric, step, area in (*areas, (f"{split}_auc_{name}_flat", 0, rankings.flat(name))):
            if area is not None:
                task.emit("metric_point", unit, name=metric, step=step, value=area)


def load_features(inputs: Inputs, spec: ProbeSpec, layers: list[int]) -> Features | None:
    """Return the features that replace the residual; None if the source is the residual."""
    if spec.source == "residual":
        return None
    from chessreg.experiments.sae.probes import Features

    return Features.load(inputs, spec.source, spec.sae, spec.expansion, layers, spec.hook_point)


def name_probe_sites(inputs: Inputs, cache: CachedActivations, spec: ProbeSpec) -> str:
    """Return the name of the tokens that a probe is fitted at: the cache's sites, or the sites of the spec's phase."""
    if spec.phase is None:
        return cache.sites
    from chessreg.encodings import get_phase_site

    return get_phase_site(inputs.encoding(cache.checkpoint), int(spec.phase))


def concatenate_evaluated(parts: list[EvaluatedGames]) -> EvaluatedGames:
    """Return several evaluated sets as one."""
    return EvaluatedGames(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("games", "openings", "positions"))
    )


def publish_probe(
    task: Task[ProbeSpec, Any],
    cache: CachedActivations,
    unit: int,
    layer: int,
    tensors: dict[str, np.ndarray],
    row: dict[str, Any],
    sites: str,
) -> None:
    """Publish the probe of one layer as an artifact (safetensors and meta.json), and record its row.

    row holds train_games, train_positions and detail, which is part of both. sites: the name of the tokens that it was
    fitted at.
    """
    spec = task.spec
    meta = {
        "hook_point": cache.hook_point(layer),
        "layer": layer,
        "label": get_fitted_label(spec),
        "centred": cache.centred,
        **row["detail"],
    }
    task.publish_layer(
        "probe",
        unit,
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        meta,
        checkpoint_id=cache.checkpoint_id,
        label=get_fitted_label(spec),
        positions=sites,
        classes=tensors["weight"].shape[-1],
        train_games=row["train_games"],
        train_positions=row["train_positions"],
        epochs=float(spec.epochs),
        norm=float(np.linalg.norm(tensors["weight"])),
    )
