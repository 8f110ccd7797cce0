"""The work of an SAE run: train in parallel, measure, publish."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chessreg.experiments.sae.data import CacheRows, ModelRows, SaeOrigin
from chessreg.experiments.sae.measuring import SaeMeasurement, count_firing_frequencies, measure_saes
from chessreg.experiments.sae.spec import LatentRow, SaeOptions, SaeSpec
from chessreg.experiments.sae.stored import SAE_FILE, build_output_name
from chessreg.experiments.sae.training import SaeTrainer
from chessreg.experiments.settings import overlap
from chessreg.models.devices import flush_denormals, prepare_device
from chessreg.models.language_model import LanguageModel
from chessreg.models.ranks import NEXT_STEP, Ranks, run_ranks

if TYPE_CHECKING:
    from chessreg.runs.task import Task

TRAINING_SHARE = 0.95  # share of the run's progress bar


def build_state_name(unit: int) -> str:
    """Return the name of the file in the run's folder that has the training state of a unit."""
    return f"sae-{unit}.pt"


def list_trainer_points(trainers: Iterable[SaeTrainer]) -> tuple[str, ...]:
    """Return the hook points of these trainers, each once."""
    return tuple(dict.fromkeys(trainer.point for trainer in trainers))


class SaeTraining:
    """The trainers of a run's missing units, and the rows that they learn from."""

    def __init__(self, spec: SaeSpec, rows: CacheRows | ModelRows, trainers: dict[int, SaeTrainer]) -> None:
        self.spec, self.rows, self.trainers = spec, rows, trainers

    def connect(self, ranks: Ranks) -> None:
        """Share all further steps with these processes."""
        if isinstance(self.rows, ModelRows):
            self.rows.ranks = ranks
        for trainer in self.trainers.values():
            trainer.ranks = ranks

    def run(self, should_continue: Callable[[], bool], after_step: Callable[[SaeTrainer], None]) -> None:
        """Train to the end, while `should_continue()` before a step; `after_step` receives one of the step's
        trainers."""
        with flush_denormals():
            self.learn_scales()
            while active_trainers := [trainer for trainer in self.trainers.values() if not trainer.is_complete]:
                stage, step = min((trainer.stage, trainer.step) for trainer in active_trainers)
                trainers = [trainer for trainer in active_trainers if trainer.stage == stage]
                batches = self.rows.batches(list_trainer_points(trainers), step)
                for at in range(step, trainers[0].count_steps(stage)):
                    if not should_continue():
                        return
                    batch = next(batches)
                    for trainer in trainers:  # those that are further ahead wait
                        if trainer.step == at and trainer.stage == stage:
                            trainer.update(batch[trainer.point])
                    after_step(trainers[0])

    def learn_scales(self) -> None:
        """Set mean and scale from the first tokens of the stream, for the trainings that have no state yet."""
        new = [trainer for trainer in self.trainers.values() if not trainer.has_state]
        if not new:
            return
        steps = -(-self.spec.mix_tokens // self.spec.batch_tokens)
        points = list_trainer_points(new)
        first_batches = [batch for _, batch in zip(range(steps), self.rows.batches(points), strict=False)]
        for trainer in new:
            trainer.learn_scale(torch.cat([batch[trainer.point] for batch in first_batches]))

    def follow(self, ranks: Ranks) -> None:
        """Take the steps that rank 0 commands, which alone writes and reports."""
        self.connect(ranks)
        self.run(lambda: ranks.receive() == NEXT_STEP, lambda trainer: None)


@dataclass(frozen=True)
class SaeFollower:
    """Builds in another process its part of the training. `cache_rows` are the rows of a cache. If it is None, the
    model computes the activations from games."""

    spec: SaeSpec
    origin: SaeOrigin
    model_folder: Path
    folder: Path
    units: tuple[int, ...]
    batch_games: int
    is_compiled: bool
    cache_rows: CacheRows | None

    def __call__(self, rank: int, device: str) -> Callable[[Ranks], None]:
        return self.build(device).follow

    def build(self, device: str, model: LanguageModel | None = None) -> SaeTraining:
        """Return the training on a device, restored to its place in the run."""
        rows: CacheRows | ModelRows
        if self.cache_rows is not None:
            rows = copy.copy(self.cache_rows)
            rows.device = device
        else:
            model = model or LanguageModel.load(self.model_folder, device=device)
            rows = ModelRows(self.spec, self.origin, model, self.batch_games)
        width = self.origin.row.d_model
        trainers = {
            unit: SaeTrainer(self.spec, point, expansion, width, self.folder / build_state_name(unit), device)
            for unit, (expansion, point) in enumerate(self.origin.list_saes(self.spec))
            if unit in self.units
        }
        for trainer in trainers.values():
            trainer.is_compiled = self.is_compiled
        return SaeTraining(self.spec, rows, trainers)


class SaeWork:
    """One attempt at the missing units of a run."""

    def __init__(self, task: Task[SaeSpec, SaeOptions]) -> None:
        self.task, self.spec, self.options = task, task.spec, task.options
        self.device = prepare_device(self.options.device, self.options.threads)
        self.origin = SaeOrigin.from_spec(self.spec, task.inputs)
        _, folder = task.inputs.checkpoint(self.origin.checkpoint)
        self.model = LanguageModel.load(folder, device=self.device)
        cache_rows = None if self.spec.cache is None else CacheRows(self.spec, self.origin, task.inputs, self.device)
        self.parts = SaeFollower(
            self.spec,
            self.origin,
            folder,
            task.folder,
            tuple(task.units),
            self.options.batch_games,
            self.options.compile,
            cache_rows,
        )
        self.training = self.parts.build(self.device, self.model)
        self.trainers = self.training.trainers
        self.ranks: Ranks | None = None
        self.last_save_time = time.monotonic()

    def run_units(self) -> None:
        """Train the missing units completely, measure and publish them, and remove their saved states."""
        places = [trainer.place for trainer in self.trainers.values()]
        self.task.resume(TRAINING_SHARE * min(done_steps / steps for done_steps, steps in places))
        with run_ranks(self, self.options.devices):
            self.training.run(self.command_step, self.end_step)
        self.save()
        self.measure_and_publish()
        self.task.flush()
        for trainer in self.trainers.values():  # the artifacts and the written fragment have their content
            trainer.path.unlink(missing_ok=True)

    # -- training -------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.task.folder

    def make_follower(self) -> SaeFollower:
        """Return the function that makes another process follow this training (chessreg/models/ranks.py)."""
        return self.parts

    def connect(self, ranks: Ranks) -> None:
        """Share all further steps with these processes."""
        self.ranks = ranks
        self.training.connect(ranks)

    def command_step(self) -> bool:
        """Start the next step in all other processes. Always True: a stop is raised by `end_step`."""
        if self.ranks is not None:
            self.ranks.send(NEXT_STEP)
        return True

    def end_step(self, trainer: SaeTrainer) -> None:
        """Save if it is time, and report the progress of all trainers. Raises StopRequest after a signal."""
        if self.task.stopping or time.monotonic() - self.last_save_time > self.options.checkpoint_seconds:
            self.save()
        done_steps, steps = trainer.place
        text = f"step {done_steps:,} of {steps:,}"
        if trainer.curve:
            text += f", loss {trainer.curve[-1]['train_loss']:.4g}, L0 {trainer.curve[-1]['train_l0']:.1f}"
        self.task.progress(TRAINING_SHARE * done_steps / steps, text)

    def save(self) -> None:
        """Write the state of every trainer."""
        for trainer in self.trainers.values():
            trainer.save()
        self.last_save_time = time.monotonic()

    # -- results --------------------------------------------------------------------------------------------------

    def measure_and_publish(self) -> None:
        """Measure all units in one pass over the held-out games, then emit and publish each."""
        spec, task = self.spec, self.task
        measurements = measure_saes(
            self.model,
            self.origin,
            {unit: (trainer.point, trainer.sae) for unit, trainer in self.trainers.items()},
            {trainer.point: trainer.mean for trainer in self.trainers.values()},
            spec.boards,
            self.options.batch_games,
            spec.seed,
            lambda share: task.progress(
                TRAINING_SHARE + (1 - TRAINING_SHARE) * 0.99 * share, "measuring on held-out games"
            ),
        )
        overlaps = self.measure_overlaps()
        for unit, trainer in self.trainers.items():
            measurement = measurements[unit]
            self.emit(unit, trainer, measurement)
            publish_sae(task, self.origin, unit, trainer, measurement, overlaps)
            task.done(unit)

    def emit(self, unit: int, trainer: SaeTrainer, measurement: SaeMeasurement) -> None:
        """Emit metrics, training curve, results of the search for λ, firing frequencies, and a row for each latent."""
        task = self.task
        for name, (value, low, high) in measurement.statistics.items():
            task.emit("statistic", unit, name=name, value=value, low=low, high=high, n=measurement.tokens)
        dead_fraction = trainer.dead_fraction
        task.emit(
            "statistic",
            unit,
            name="dead_fraction",
            value=dead_fraction,
            low=dead_fraction,
            high=dead_fraction,
            n=trainer.tokens,
        )
        points: dict[tuple[str, int], float] = {
            (name, int(point["step"])): value for point in trainer.curve for name, value in point.items()
        }
        points |= {("search_l0", place): value for place, value in enumerate(trainer.measured_l0)}
        points |= {("search_l1_coefficient", place): value for place, value in enumerate(self.spec.l0_search)}
        points |= {
            ("firing_frequency", place): float(count)
            for place, count in count_firing_frequencies(measurement.firing_counts, measurement.tokens).items()
        }
        points |= {("l1_coefficient", 0): trainer.coefficient, ("train_seconds", 0): trainer.seconds}
        for (name, step), value in points.items():
            if name != "step":
                task.emit("metric_point", unit, name=name, step=step, value=value)
        for latent in np.flatnonzero(measurement.firing_counts).tolist():
            row = build_latent_row(measurement, latent)
            strongest = row.activations[0] if row.activations else None
            task.emit("prediction", unit, row, item=latent, name="latent", value=strongest)

    def measure_overlaps(self) -> dict[str, Any]:
        """Return the overlap of the held-out games or positions with the model's training games and with this run's."""
        origin, inputs = self.origin, self.task.inputs
        evaluated_games = overlap.EvaluatedGames.from_items(origin.held_items, origin.held_places)
        counts = {
            "checkpoint": overlap.measure_overlap(inputs, origin.checkpoint, evaluated_games),
            "probe": overlap.measure_game_overlap([(origin.items, origin.places)], evaluated_games),
        }
        return {name: value.columns() for name, value in counts.items()}


def build_latent_row(measurement: SaeMeasurement, latent: int) -> LatentRow:
    """Return the columns of a latent: how often it is active, and its strongest positions."""
    value, at = measurement.strongest.value[:, latent], measurement.strongest.locations[:, :, latent]
    is_active = value > 0
    games, tokens, plies = (column[is_active].tolist() for column in at)
    return LatentRow(
        frequency=float(measurement.firing_counts[latent] / measurement.tokens),
        games=games,
        tokens=tokens,
        plies=plies,
        activations=[round(one, 4) for one in value[is_active].tolist()],
    )


def publish_sae(
    task: Task[SaeSpec, SaeOptions],
    origin: SaeOrigin,
    unit: int,
    trainer: SaeTrainer,
    measurement: SaeMeasurement,
    overlaps: dict[str, Any],
) -> None:
    """Publish the autoencoder of a unit as an artifact (safetensors and meta.json), and its row in the table `sae`.

    `measurement` has its metrics on held-out games, and `overlaps` the games, openings and positions that these share
    with the training data.
    """
    from safetensors.numpy import save_file

    sae = trainer.sae
    meta = {
        "hook_point": trainer.point,
        "layer": origin.find_layer(trainer.point),
        "architecture": "gated",
        "features": sae.features,
        "d_model": sae.d_model,
        "scale": sae.scale,
        "residual": origin.row.residual,
        "sites": origin.sites,
        "alignment": origin.alignment,
        "exclude_special": origin.exclude_special,
        "l1_coefficient": trainer.coefficient,
        "tokens": trainer.tokens,
        "train_games": len(origin.places),
        "heldout_games": len(origin.held_places),
        "expansion": trainer.expansion,
        "overlap": overlaps,
    }
    meta |= {name: measurement.statistics[name][0] for name in SHOWN_STATISTICS if name in measurement.statistics}
    with task.output(build_output_name(trainer.point, sae.features, sae.d_model), unit, "sae") as folder:
        save_file(sae.tensors(), folder / SAE_FILE)
        (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True), encoding="utf-8")
    task.record(
        "sae",
        run_id=task.run_id,
        unit=unit,
        artifact=task.last_output.digest,
        checkpoint_id=origin.row.id,
        hook_point=trainer.point,
        layer=meta["layer"],
        architecture="gated",
        features=sae.features,
        detail=meta,
    )


SHOWN_STATISTICS = ("l0", "explained_variance", "loss_recovered", "cosine", "silent_fraction")
