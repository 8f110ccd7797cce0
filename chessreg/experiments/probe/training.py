"""The data, batches, saved state and checks that a kind of probe is fitted with, ours or a user's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chessreg.errors import ChessregError, DivergedError, get_first_line, reraise_lack_of_memory
from chessreg.experiments.probe.data import ProbeData
from chessreg.experiments.probe.reading import RatingScaler
from chessreg.experiments.probe.spec import FIT_STATES
from store.files import replace_file

if TYPE_CHECKING:
    from chessreg.experiments.probe.spec import ProbeSpec
    from chessreg.runs.task import Task

SAVE_INTERVAL_S = 30.0


@dataclass(frozen=True)
class ProbeTraining:
    """The data that a kind of probe is fitted on, and the settings and device to fit with.

    `rows`: bool [positions of the cache], those to fit on. `layers`: 0-based, those to fit now, of `every` layer of the
    run. `standard`: the mean and standard deviation of ratings for regression, which has no classes; else None.
    `state`: where `fit_probes` saves an interrupted fit; a kind that uses `batches` starts it again.
    """

    spec: Any
    data: ProbeData
    rows: np.ndarray
    layers: list[int]
    every: tuple[int, ...]
    device: str
    on_progress: Callable[[float, str], None]
    standard: RatingScaler | None = None
    state: FitState | None = None

    @property
    def d_model(self) -> int:
        return self.data.cache.array.d_model

    @property
    def squares(self) -> int:
        """64, or 1 for a label of the whole position or game."""
        return self.data.labels.shape[1]

    @property
    def classes(self) -> int:
        """Number of classes of each square; 1 for regression."""
        return max(self.data.classes, 1)

    def generator(self, layer: int) -> torch.Generator:
        """Return a generator on the CPU for the first weights of `layer`. It depends on seed, replicate and layer."""
        return torch.Generator().manual_seed(
            ((self.spec.seed * 1_000_003 + self.spec.replicate) * 1_000_003 + layer) % 2**63
        )

    def scale(self, layer: int) -> float:
        """Return the root mean square of the layer's activations, or 1.0 without `normalize_activations`."""
        return measure_layer_scales(self.data, [layer], self.spec.normalize_activations)[0]

    def batches(self, layer: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the residuals float32 [n, d_model] and targets of each step of all epochs, on the device.

        Targets are classes int64 [n, squares], or for regression standardized ratings float32 [n, 1]. Batches follow
        `batch_positions` or `batch_games`, and depend on the seed alone. Each step reports progress.
        """
        spec, data, start = self.spec, self.data, self.layers.index(layer)
        steps, done_steps = spec.epochs * count_epoch_steps(spec, data, self.rows), 0
        read_residuals = data.reader([layer]) if spec.batch_games is not None else None
        for epoch in range(spec.epochs):
            for places, residual in iterate_probe_batches(spec, data, self.rows, [layer], epoch, read_residuals):
                yield torch.from_numpy(residual[0]).to(self.device), self.targets(places).to(self.device)
                done_steps += 1
                if done_steps % 20 == 0:
                    share = (start + done_steps / steps) / len(self.layers)
                    self.on_progress(0.9 * share, f"layer {layer}, epoch {epoch + 1}/{spec.epochs}")

    def targets(self, places: np.ndarray) -> torch.Tensor:
        """Return the targets of the positions at these rows of the cache, [n, squares].

        int64 classes, or float32 ratings after mean and standard deviation of the fitted ones are removed.
        """
        labels = self.data.labels[places]
        if self.standard is None:
            return torch.from_numpy(labels.astype(np.int64))
        return torch.from_numpy((labels - self.standard.mean) / self.standard.std).float()


def check_fitted(kind: str, training: ProbeTraining, fitted_tensors: list[dict[str, np.ndarray]]) -> None:
    """Raise ChessregError if a kind's `fit` did not return one dict per layer, with finite directions in `weight`."""
    shape = (training.d_model, training.squares, training.classes)
    if len(fitted_tensors) != len(training.layers):
        raise ChessregError(f"kind {kind} fitted {len(fitted_tensors)} probes for {len(training.layers)} layers")
    for layer, tensors in zip(training.layers, fitted_tensors, strict=True):
        weight = tensors.get("weight")
        if weight is None or weight.shape != shape:
            problem = "no tensor `weight`" if weight is None else f"`weight` {list(weight.shape)}"
            raise ChessregError(
                f"kind {kind}, layer {layer}: `fit` returned {problem}",
                f"directions float32 [d_model, squares, classes] = {list(shape)}",
            )
        if not all(bool(np.isfinite(value).all()) for value in tensors.values()):
            raise DivergedError(f"the probe of layer {layer} is not finite", "use a smaller --learning-rate")


class FitState:
    """Saves the fit of these layers in the run's folder, every `SAVE_INTERVAL_S` and when the task stops.

    A file has the weights and Adam's averages [layer, d_model, squares * classes] of its `layers`, and its `place`:
    the epoch and the number of its finished batches. An attempt that lacks only some of these layers can use it.
    """

    def __init__(self, task: Task[Any, Any], layers: list[int]) -> None:
        self.task, self.layers = task, layers
        self.path = task.folder / FIT_STATES.replace("*", "_".join(map(str, layers)))
        self.restored_path: Path | None = None
        self.last_save_time = time.monotonic()

    def restore(self, tensors: dict[str, torch.Tensor]) -> tuple[int, int]:
        """Load the most advanced state of these layers into `tensors`, and return its place: epoch and batch.

        Returns (0, 0) without a state. Raises ChessregError for a damaged file.
        """
        place = 0, 0
        for path in sorted(self.task.folder.glob(FIT_STATES)):
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
                epoch, batch = state["place"]
                if (epoch, batch) <= place or not set(self.layers) <= set(state["layers"]):
                    continue
                rows = [state["layers"].index(layer) for layer in self.layers]
                for name, values in tensors.items():
                    values.copy_(state[name][rows] if values.ndim else state[name])
            except Exception as error:  # torch raises several types for a foreign file
                reraise_lack_of_memory(error)
                raise ChessregError(
                    f"the saved state {path} cannot be read: {get_first_line(error)}", "remove it to start again"
                ) from error
            place, self.restored_path = (epoch, batch), path
        return place

    def save_if_due(self, tensors: dict[str, torch.Tensor], place: tuple[int, int]) -> None:
        """Save after a signal, or if the last save is `SAVE_INTERVAL_S` ago. A crash leaves the previous state."""
        if not self.task.stopping and time.monotonic() - self.last_save_time < SAVE_INTERVAL_S:
            return
        state = {"place": list(place), "layers": self.layers, **tensors}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self.path, self.path.with_name(f".{self.path.name}.{os.getpid()}")) as file:
            torch.save(state, file)
        self.last_save_time = time.monotonic()

    def remove(self) -> None:
        """Remove the saved state, and the one that was restored, because the probes are published."""
        self.path.unlink(missing_ok=True)
        if self.restored_path is not None:
            self.restored_path.unlink(missing_ok=True)


def count_epoch_steps(spec: ProbeSpec, data: ProbeData, rows: np.ndarray) -> int:
    """Return the number of steps in one epoch over the rows where `rows` is True."""
    if spec.batch_games is not None:
        return -(-len(np.unique(data.item[rows])) // spec.batch_games)
    return -(-int(rows.sum()) // spec.batch_positions)


def iterate_probe_batches(
    spec: ProbeSpec,
    data: ProbeData,
    rows: np.ndarray,
    layers: list[int],
    epoch: int,
    read_residuals: Callable[[np.ndarray], np.ndarray] | None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the data of each step of an epoch: row numbers int64 [n] and residuals float32 [layer, n, d_model].

    `read_residuals` returns the residuals of whole games. It is `None` if steps use single positions.
    """
    if read_residuals is not None:
        assert spec.batch_games
        for places in data.iterate_whole_games(rows, spec.batch_games, spec.seed, epoch):
            yield places, read_residuals(places)
        return
    points = [data.cache.hook_point(layer) for layer in layers]
    for batch in data.cache.array.iter_batches(points, spec.batch_positions, spec.seed, epoch, keep=rows):
        yield batch.rows, np.stack([batch.float32(point) for point in points])


def measure_layer_scales(data: ProbeData, layers: list[int], normalize: bool) -> list[float]:
    """Return the divisor of each layer during fitting: its root mean square over the first 4,096 rows, or 1."""
    if not normalize:
        return [1.0] * len(layers)
    return [float(np.sqrt(np.square(data.cache.values(layer, slice(0, 4096))).mean())) for layer in layers]
