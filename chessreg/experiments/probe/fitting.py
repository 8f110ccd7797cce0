"""Fitting linear probes of many layers at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from chessreg.experiments.cache.kind import hook_point
from chessreg.experiments.probe.data import ProbeData

if TYPE_CHECKING:
    from chessreg.experiments.probe.kind import ProbeSpec


@dataclass(frozen=True)
class Standard:
    """A rating as regression sees it: (Elo - mean) / std of the fitted positions."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: np.ndarray) -> Standard:
        """Of Elo float32 [n]."""
        return cls(float(values.mean(dtype=np.float64)), max(float(values.std(dtype=np.float64)), 1e-6))


def fit(
    spec: ProbeSpec,
    data: ProbeData,
    rows: np.ndarray,
    layers: list[int],
    device: str,
    on_progress: Callable[[float, str], None],
    standard: Standard | None = None,
) -> np.ndarray:
    """Probe weights float32 [layer, d_model, squares, classes], fitted on the rows where `rows` is True.

    Karvonen's loss and optimiser (specification 3.4): cross-entropy averaged over positions and summed over squares,
    AdamW; every step sees the same positions in all layers. With `normalise` each layer is divided by its root mean
    square while it is fitted, so that one learning rate suits them all; the weights returned are those of the residual
    as it is. Activations are read from the store in permuted chunks, never all at once.

    standard: for regression, whose loss is the squared error of the standardised rating (one class of one square).
    """
    width, squares, outputs = data.cache.array.d_model, data.labels.shape[1], max(data.classes, 1)
    seeded = torch.Generator().manual_seed(spec.seed * 1_000_003 + spec.replicate)
    weight = spec.init * torch.randn(len(layers), width, squares * outputs, generator=seeded) / width**0.5
    weight = weight.to(device).requires_grad_()
    optimizer = torch.optim.AdamW(
        [weight], lr=spec.learning_rate, betas=(spec.beta1, spec.beta2), weight_decay=spec.weight_decay
    )
    points = [hook_point(layer) for layer in layers]
    scale = torch.tensor(sizes(data, layers, spec.normalise), device=device).clamp_min(1e-6)[:, None, None]
    steps = spec.epochs * -(-int(rows.sum()) // spec.batch_positions)
    step = 0
    for epoch in range(spec.epochs):
        for batch in data.cache.array.iter_batches(points, spec.batch_positions, spec.seed, epoch, keep=rows):
            residual = torch.from_numpy(np.stack([batch.float32(point) for point in points])).to(device)
            if spec.schedule == "linear":
                for group in optimizer.param_groups:
                    group["lr"] = spec.learning_rate * (1 - 0.9 * step / steps)
            logits = torch.bmm(residual / scale, weight).view(len(layers), -1, outputs)
            if standard is None:
                target = torch.from_numpy(data.labels[batch.rows].astype(np.int64)).to(device)
                loss = F.cross_entropy(logits.flatten(0, 1), target.flatten().repeat(len(layers)), reduction="sum")
            else:
                wanted = torch.from_numpy((data.labels[batch.rows] - standard.mean) / standard.std).float().to(device)
                loss = F.mse_loss(logits, wanted[None].expand(len(layers), -1, -1), reduction="sum")
            (loss / len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 20 == 0:
                on_progress(0.9 * step / steps, f"epoch {epoch + 1}/{spec.epochs}")
    return (weight.detach() / scale).cpu().view(len(layers), width, squares, outputs).numpy()


def sizes(data: ProbeData, layers: list[int], normalise: bool) -> list[float]:
    """What each layer is divided by while it is fitted: its root mean square over the first 4,096 rows, or 1."""
    if not normalise:
        return [1.0] * len(layers)
    return [float(np.sqrt(np.square(data.cache.read(layer, slice(0, 4096))).mean())) for layer in layers]
