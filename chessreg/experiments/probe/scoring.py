"""Scoring probes: what they read off each position, game by game, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from chessreg.experiments.probe.data import ProbeData

POSITIONS_AT_ONCE = 4096


@dataclass(frozen=True)
class GameLogits:
    """One game's positions in the order of its text: row numbers int64 [p], logits float32 [p, squares, classes]."""

    game: int
    rows: np.ndarray
    logits: np.ndarray


@torch.no_grad()
def logits_by_game(
    weight: np.ndarray, data: ProbeData, rows: np.ndarray, layer: int, device: str = "cpu", centre: bool = False
) -> Iterator[GameLogits]:
    """The probe's logits for the rows where `rows` is True, game by game.

    weight is float32 [d_model, squares, classes]. centre: subtract each residual's own mean first, for a probe that was
    fitted on centred residuals (Karvonen specification 2.3).
    """
    chosen = np.flatnonzero(rows)
    order = chosen[np.lexsort((data.cache.array.token[chosen], data.item[chosen]))]
    edges = np.flatnonzero(np.diff(data.item[order], prepend=-1, append=-1))
    flat = torch.from_numpy(weight.reshape(weight.shape[0], -1)).to(device)
    for low, high in blocks(edges, POSITIONS_AT_ONCE):
        at = order[edges[low] : edges[high]]
        residual = torch.from_numpy(data.cache.read(layer, at)).to(device)
        if centre:
            residual = residual - residual.mean(-1, keepdim=True)
        logits = (residual @ flat).view(-1, *weight.shape[1:]).cpu().numpy()
        for start, stop in pairwise(edges[low : high + 1] - edges[low]):
            yield GameLogits(int(data.item[at[start]]), at[start:stop], logits[start:stop])


def blocks(edges: np.ndarray, positions: int) -> Iterator[tuple[int, int]]:
    """Ranges [low, high) of games whose positions together are at most so many, but at least one game."""
    low, games = 0, len(edges) - 1
    while low < games:
        high = int(np.searchsorted(edges, edges[low] + positions, "right")) - 1
        high = min(max(high, low + 1), games)
        yield low, high
        low = high


@dataclass(frozen=True)
class GameScore:
    """How one game was read; the numbers that `score` rows hold (see `probe.ProbeScore`)."""

    game: int
    n: int
    correct: int
    counts: bytes  # int32 little endian [3, classes]: true positives, false positives, false negatives
    right: np.ndarray  # bool [positions, squares]
    rows: np.ndarray  # int64 [positions]
    truth: np.ndarray  # int8 [positions, squares]
    mean_class: int  # of one square: the class of the mean logit over the game
    vote_class: int  # of one square: the class read at most positions; the lower on a draw


def score(
    weight: np.ndarray, data: ProbeData, rows: np.ndarray, layer: int, device: str = "cpu", centre: bool = False
) -> Iterator[GameScore]:
    """Each game's score, in the order of the games' rows in their dataset."""
    for found in logits_by_game(weight, data, rows, layer, device, centre):
        classes = weight.shape[-1]
        read = found.logits.argmax(-1)
        truth = data.labels[found.rows].astype(np.int64)
        right = read == truth
        named = np.bincount(read.ravel(), minlength=classes)
        there = np.bincount(truth.ravel(), minlength=classes)
        both = np.bincount(truth[right], minlength=classes)
        yield GameScore(
            game=found.game,
            n=truth.size,
            correct=int(right.sum()),
            counts=np.stack([both, named - both, there - both]).astype("<i4").tobytes(),
            right=right,
            rows=found.rows,
            truth=truth,
            mean_class=int(found.logits[:, 0].mean(0, dtype=np.float64).argmax()),
            vote_class=int(np.bincount(read[:, 0], minlength=classes).argmax()),
        )
