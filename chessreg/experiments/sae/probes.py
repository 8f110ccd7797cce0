"""Probes of an autoencoder's latents, and probes from differences of means (Davis 2026, section 3.4).

Each results in a weight on the residual stream, like that of a linear probe, so that edits accept it. `sae-latents`
(SAE-Probe) decodes the classes of a probe fitted on latents, W = W_dec U. `sae-contrast` (CD-Probe) decodes the mean
code of the positions with a class minus that of the positions without it. `means` (DM-Probe) is the difference of the
mean residuals themselves; comparing it with `sae-contrast` isolates the effect of the autoencoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from chessreg.errors import BadInputError
from chessreg.experiments.sae.stored import read_sae, select_sae_rows
from chessreg.games.datasets.labels import get_label
from chessreg.models.hook_points import format_hook_point, to_hook_pattern
from chessreg.models.sparse_autoencoders import SparseAutoencoder
from chessreg.registry import tables
from chessreg.runs.activations import CachedActivations
from chessreg.runs.fitted import FittedProbe, read_layer, read_probe_rows
from store.arrays import ActivationArray, Batch

if TYPE_CHECKING:
    from chessreg.experiments.probe.data import ProbeData
    from chessreg.experiments.probe.spec import ProbeSpec
    from chessreg.runs.inputs import Inputs

LATENTS, CONTRAST, MEANS = "sae-latents", "sae-contrast", "means"
ROWS_AT_ONCE = 2048
Data = TypeVar("Data", bound="ProbeData")


def check_source(inputs: Inputs, spec: ProbeSpec, checkpoint_id: Any, layers: Sequence[int]) -> None:
    """Raise BadInputError if the spec's source does not fit its SAE or its label.

    A source of latents needs an SAE of the same model at every layer's hook point; other sources must have none. A
    label must be a class of the position.
    """
    source, sae = spec.source, spec.sae
    if source != "residual" and get_label(spec.label).source == "rating":
        raise BadInputError(
            f"source {source} needs a label of classes, but {spec.label} is a number", "leave out --source"
        )
    if spec.expansion is not None and sae is None:
        raise BadInputError("--expansion chooses among the SAEs of --sae", "give --sae RUN, or leave it out")
    if source in ("residual", MEANS):
        if sae is not None:
            raise BadInputError(f"source {source} does not use --sae", "leave it out, or --source sae-latents")
        return
    if sae is None:
        raise BadInputError(f"source {source} needs --sae", "chessreg sae list")
    rows = select_sae_rows(inputs, sae, spec.expansion)
    if rows[0].checkpoint_id != checkpoint_id:
        raise BadInputError("--sae belongs to another model than --cache", "chessreg sae list")
    hook_points = {row.hook_point for row in rows}
    if missing_parts := [
        name for name in (format_hook_point(layer, spec.hook_point) for layer in layers) if name not in hook_points
    ]:
        raise BadInputError(
            f"the SAE run has no SAE of {missing_parts[0]}",
            f"it has {', '.join(sorted(hook_points))}; change --layers or --hook-point",
        )


class Features:
    """The features that a probe is fitted on, by layer: latents, or residuals.

    For differences of means, the mean over the fitted rows is subtracted, so that the probe needs no bias.
    """

    def __init__(self, source: str, saes: Mapping[int, SparseAutoencoder]) -> None:
        """saes: layer → its autoencoder; empty for `means`."""
        self.source, self.saes = source, saes
        self.mean: dict[int, np.ndarray] = {}
        self.counts = np.zeros((0, 0), np.int64)

    @classmethod
    def load(
        cls, inputs: Inputs, source: str, sae: str | None, expansion: int | None, layers: Sequence[int], pattern: str
    ) -> Features:
        """Return the features of a source: the autoencoders of these layers, or none if the source is `means`.

        `sae` is the reference of an SAE run (None for `means`), `expansion` its expansion factor, and `pattern` the
        hook point without its layer. Raises NotFoundError if there is no such SAE.
        """
        rows: dict[str, tables.SaeRecord] = (
            {row.hook_point: row for row in select_sae_rows(inputs, sae, expansion)} if sae else {}
        )
        saes = {layer: rows[format_hook_point(layer, pattern)] for layer in layers} if sae else {}
        return cls(source, {layer: read_sae(inputs, sae or "", row) for layer, row in saes.items()})

    @property
    def is_learned(self) -> bool:
        """Whether a probe is fitted on the features by gradient steps."""
        return self.source == LATENTS

    def compute_features(self, layer: int, residual: np.ndarray) -> np.ndarray:
        """Return features float32 [n, width] of residuals float32 [n, d_model]."""
        features = residual
        if layer in self.saes:
            features = self.saes[layer].encode(torch.from_numpy(np.ascontiguousarray(residual))).numpy()
        return features - self.mean[layer] if layer in self.mean else features

    def view(self, data: Data) -> Data:
        """Return the same data with features in place of activations."""
        return replace(data, cache=CachedFeatures(data.cache, self))

    def compute_contrast(
        self, data: ProbeData, rows: np.ndarray, layers: Sequence[int], min_sites: int, on_progress: Callable[..., None]
    ) -> np.ndarray:
        """Return the mean features of the positions with each class minus those of the positions without it.

        float32 [layer, width, squares, classes], over the rows where `rows` bool is True; 0 for a class with fewer than
        `min_sites` positions with or without it. `data` is a result of `view`.
        """
        row_numbers = np.flatnonzero(rows)
        squares, classes = data.labels.shape[1], data.classes
        self.counts = np.stack([(data.labels[row_numbers] == number).sum(0) for number in range(classes)], 1)
        directions = []
        for number, layer in enumerate(layers):
            total = np.zeros((data.cache.array.d_model, squares * classes))
            total_sum = np.zeros(data.cache.array.d_model)
            for low in range(0, len(row_numbers), ROWS_AT_ONCE):
                part = row_numbers[low : low + ROWS_AT_ONCE]
                features = data.cache.values(layer, part)
                with_class = (data.labels[part][:, :, None] == np.arange(classes)).reshape(len(part), -1)
                total += features.T @ with_class.astype(np.float32)
                total_sum += features.sum(0, dtype=np.float64)
                on_progress(0.9 * (number + low / len(row_numbers)) / len(layers), "means of each class")
            active_counts = self.counts.reshape(-1)
            inactive_counts = len(row_numbers) - active_counts
            is_measured = (active_counts >= min_sites) & (inactive_counts >= min_sites)
            difference = total / np.maximum(active_counts, 1) - (total_sum[:, None] - total) / np.maximum(
                inactive_counts, 1
            )
            directions.append(np.where(is_measured, difference, 0.0).astype(np.float32).reshape(-1, squares, classes))
            self.mean[layer] = (total_sum / len(row_numbers)).astype(np.float32)
        return np.stack(directions)

    def build_tensors(self, layer: int, weight: np.ndarray) -> dict[str, np.ndarray]:
        """Return the tensors to store, by name, of a probe with the weight `weight` on features, float32 [width,
        squares, classes].

        The tensor `weight` float32 [d_model, squares, classes] is the weight on the residual stream. With an
        autoencoder, `latent_weight` is the weight on latents and `decoder_bias` the decoder's bias.
        """
        tensors = {"weight": weight}
        if layer in self.saes:
            sae = self.saes[layer]
            flat = torch.from_numpy(weight.reshape(len(weight), -1))
            decoded_weights = (sae.W_dec.T @ flat / sae.scale).numpy().reshape(-1, *weight.shape[1:])
            bias = (sae.b_dec / sae.scale).numpy()  # not part of a direction; stored for other programs
            tensors = {"weight": decoded_weights, "latent_weight": weight, "decoder_bias": bias}
        if layer in self.mean:
            tensors |= {"feature_mean": self.mean[layer], "n_positions": self.counts.astype(np.int64)}
        return {name: np.ascontiguousarray(value) for name, value in tensors.items()}

    def build_columns(self, min_sites: int) -> dict[str, Any]:
        """Return the columns for meta.json. `min_sites` is the required number of positions of a class (`contrast`)."""
        extra: dict[str, Any] = {"source": self.source}
        if not self.is_learned:
            extra |= {
                "min_class_positions": min_sites,
                "classes_without_positions": int((self.counts < min_sites).sum()),
            }
        return extra


class CachedFeatures(CachedActivations):
    """A cache that returns features instead of activations."""

    def __init__(self, cache: CachedActivations, features: Features) -> None:
        self.__dict__.update(vars(cache))
        self._cache, self._features = cache, features
        layer_of_point = {cache.hook_point(layer): layer for layer in cache.layers}
        self.array = FeatureArray(cache.array, features, layer_of_point)

    def values(self, layer: int, rows: Any = None) -> np.ndarray:
        return self._features.compute_features(layer, self._cache.values(layer, rows))


class FeatureArray(ActivationArray):
    """The rows of an array with features instead of activations."""

    def __init__(self, array: ActivationArray, features: Features, layer_of_point: Mapping[str, int]) -> None:
        self.__dict__.update(vars(array))
        self._features, self._layer_of_point = features, layer_of_point
        widths = {sae.features for sae in features.saes.values()}
        self.d_model = widths.pop() if widths else array.d_model

    def iter_batches(self, hook_points: str | Sequence[str], *arguments: Any, **keywords: Any) -> Iterator[Batch]:
        for batch in super().iter_batches(hook_points, *arguments, **keywords):
            features = {
                name: self._features.compute_features(self._layer_of_point[name], batch.float32(name))
                for name in batch.layers
            }
            yield Batch(batch.rows, features, "float32")


def get_read_view(inputs: Inputs, reference: str, probe: FittedProbe, data: Data) -> tuple[FittedProbe, Data]:
    """Return a probe and its data in the form that its scores were computed with.

    `reference` is the probe's run. For the sources of this module, the result is the weight on features and a view of
    the features; any other probe and its data are returned unchanged.
    """
    if probe.detail.get("source") not in (LATENTS, CONTRAST, MEANS):
        return probe, data
    run, pattern = inputs.run(reference), to_hook_pattern(probe.hook_point)
    sae, expansion = run.spec.get("sae"), run.spec.get("expansion")
    features = Features.load(inputs, str(probe.detail["source"]), sae, expansion, [probe.layer], pattern)
    row = read_probe_rows(inputs, reference)[probe.layer]
    folder = inputs.locate_bytes(f"probe layer {probe.layer}", reference, row.artifact, row.run_id).path
    tensors = read_layer(folder / "probe.safetensors", weight=3)
    if "feature_mean" in tensors:
        features.mean[probe.layer] = tensors["feature_mean"]
    return replace(probe, weight=tensors.get("latent_weight", probe.weight)), features.view(data)
