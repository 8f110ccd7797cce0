"""What probes read off the positions of each game, in bounded memory: logits, scores and rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chessreg.experiments.probe.data import ProbeData
from chessreg.experiments.probe.spec import ProbeScore, RatingRow
from chessreg.games.moves import HashSet

if TYPE_CHECKING:
    from chessreg.experiments.probe.work import Standard

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
    array = data.cache.array
    order = chosen[np.lexsort((array.token[chosen], array.ply[chosen], data.item[chosen]))]
    edges = np.flatnonzero(np.diff(data.item[order], prepend=-1, append=-1))
    flat = torch.from_numpy(weight.reshape(weight.shape[0], -1)).to(device)
    for low, high in blocks(edges, POSITIONS_AT_ONCE):
        at = order[edges[low] : edges[high]]
        residual = torch.from_numpy(data.cache.values(layer, at)).to(device)
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


@dataclass(frozen=True)
class Baselines:
    """What the baselines of skill say of each game: row in the dataset → class or Elo, by name."""

    said: dict[str, dict[int, float]]

    def of(self, game: int) -> dict[str, float]:
        return {name: values[game] for name, values in self.said.items()}


def packed_plies(ply: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """The columns `right_at` and `ply_…` of one game: ply int [p], squares right int [p]."""
    columns: dict[str, Any] = {"right_at": "".join(f"{value:02x}" for value in right.tolist())}
    steps = np.diff(ply)
    if len(steps) == 0 or (steps == steps[0]).all():
        step = int(steps[0]) if len(steps) else 1
        return columns | {"ply_first": int(ply[0]), "ply_step": step}
    return columns | {"ply_at": "".join(f"{value:03x}" for value in ply.tolist())}


def score_columns(
    found: GameScore,
    data: ProbeData,
    layer: int,
    label: str,
    majority: np.ndarray,
    seen: HashSet | None,
    baselines: Baselines | None,
) -> ProbeScore:
    """The own columns of one game's score. `seen` are the positions that the probe was fitted on."""
    right = found.right.sum(1)
    columns: dict[str, Any] = packed_plies(data.cache.array.ply[found.rows], right)
    if seen is not None:
        new = ~seen.contains(data.positions[found.rows])
        columns |= {"unseen": int(new.sum()), "unseen_correct": int(right[new].sum())}
    if found.truth.shape[1] == 1:
        columns |= {"vote_class": found.vote_class, "mean_class": found.mean_class}
    if data.skill is not None:
        columns["game_class"] = int(found.truth[0, 0])
        said = baselines.of(found.game) if baselines else {}
        columns |= {f"{name}_class": int(value) for name, value in said.items()}
    return ProbeScore(
        hook_point=data.cache.hook_point(layer),
        label=label,
        positions=len(found.rows),
        exact=int(found.right.all(1).sum()),
        majority=int((majority == found.truth).sum()),
        **columns,
    )


def rating_rows(
    weight: np.ndarray,
    data: ProbeData,
    rows: np.ndarray,
    layer: int,
    split: str,
    standard: Standard,
    baselines: Baselines | None,
    device: str,
    centre: bool = False,
) -> Iterator[tuple[int, float, RatingRow]]:
    """Per game: its row in the dataset, the mean rating read off its positions, and its columns."""
    for found in logits_by_game(weight, data, rows, layer, device, centre):
        read = found.logits[:, 0, 0].astype(np.float64) * standard.std + standard.mean
        elo = float(data.labels[found.rows[0], 0])
        said = baselines.of(found.game) if baselines else {}
        yield (
            found.game,
            float(read.mean()),
            RatingRow(
                split=split,
                layer=layer,
                hook_point=data.cache.hook_point(layer),
                positions=len(read),
                elo=elo,
                absolute_error=float(np.abs(read - elo).sum()),
                **{f"{name}_error": abs(value - elo) for name, value in said.items()},
            ),
        )
