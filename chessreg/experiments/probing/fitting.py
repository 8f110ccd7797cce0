"""Fitting and scoring linear probes of many layers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from chessreg.experiments.cache import hook_point
from chessreg.experiments.probing.data import ProbeData

if TYPE_CHECKING:
    from chessreg.experiments.probe import ProbeSpec


def fit(
    spec: ProbeSpec,
    data: ProbeData,
    rows: np.ndarray,
    layers: list[int],
    device: str,
    on_progress: Callable[[float, str], None],
) -> np.ndarray:
    """Probe weights float32 [layer, d_model, 64, classes], fitted on the rows where `rows` is True.

    Karvonen's loss and optimiser (specification 3.4): cross-entropy averaged over positions and summed over squares,
    AdamW; every step sees the same positions in all layers. Each layer is divided by its root mean square while it is
    fitted, so that one learning rate suits them all; the weights returned are those of the residual as it is.
    """
    width, classes = data.cache.array.d_model, data.classes
    seeded = torch.Generator().manual_seed(spec.seed * 1_000_003 + spec.replicate)
    weight = 0.1 * torch.randn(len(layers), width, 64 * classes, generator=seeded) / width**0.5
    weight = weight.to(device).requires_grad_()
    optimizer = torch.optim.AdamW(
        [weight], lr=spec.learning_rate, betas=(spec.beta1, spec.beta2), weight_decay=spec.weight_decay
    )
    points = [hook_point(layer) for layer in layers]
    sizes = [float(np.sqrt(np.square(data.cache.read(layer, slice(0, 4096))).mean())) for layer in layers]
    scale = torch.tensor(sizes, device=device).clamp_min(1e-6)[:, None, None]
    steps = spec.epochs * -(-int(rows.sum()) // spec.batch_positions)
    step = 0
    for epoch in range(spec.epochs):
        for batch in data.cache.array.iter_batches(points, spec.batch_positions, spec.seed, epoch, keep=rows):
            residual = torch.from_numpy(np.stack([batch.float32(point) for point in points])).to(device)
            target = torch.from_numpy(data.labels[batch.rows].astype(np.int64)).to(device)
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate * (1 - 0.9 * step / steps)
            logits = torch.bmm(residual / scale, weight).view(len(layers), -1, classes)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten().repeat(len(layers)), reduction="sum")
            (loss / len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 20 == 0:
                on_progress(0.9 * step / steps, f"epoch {epoch + 1}/{spec.epochs}")
    return (weight.detach() / scale).cpu().view(len(layers), width, 64, classes).numpy()


@torch.no_grad()
def score(
    weight: np.ndarray, data: ProbeData, rows: np.ndarray, layer: int, majority: np.ndarray, device: str
) -> Iterator[tuple[Any, ...]]:
    """Per game: (game, squares, right, counts, positions, positions all right, squares right by majority).

    counts is int32 little endian [3, classes]: true positives, false positives, false negatives.
    """
    classes = data.classes
    flat = torch.from_numpy(weight.reshape(weight.shape[0], -1)).to(device)
    chosen = np.flatnonzero(rows)
    predicted = np.empty((len(chosen), 64), np.int8)
    for start in range(0, len(chosen), 4096):
        residual = torch.from_numpy(data.cache.read(layer, chosen[start : start + 4096])).to(device)
        logits = (residual @ flat).view(-1, 64, classes)
        predicted[start : start + 4096] = logits.argmax(-1).to(torch.int8).cpu().numpy()
    truth, games = data.labels[chosen], data.item[chosen]
    order = np.argsort(games, kind="stable")
    edges = np.flatnonzero(np.diff(games[order], prepend=-1, append=-1))
    for low, high in pairwise(edges):
        at = order[low:high]
        p, t = predicted[at], truth[at]
        right = p == t
        named = np.bincount(p.ravel(), minlength=classes)
        there = np.bincount(t.ravel(), minlength=classes)
        both = np.bincount(t[right], minlength=classes)
        counts = np.stack([both, named - both, there - both]).astype("<i4").tobytes()
        by_majority = int((majority == t).sum())
        yield int(games[at[0]]), t.size, int(right.sum()), counts, len(at), int(right.all(1).sum()), by_majority
