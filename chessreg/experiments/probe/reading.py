"""Readings of probes on the positions of each game, in bounded memory: logits, scores and rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chessreg.experiments.probe.data import ProbeData
from chessreg.experiments.probe.spec import ProbeScore, RatingRow
from chessreg.games.boards.moves import HashSet
from chessreg.runs.fitted import Reader

if TYPE_CHECKING:
    from chessreg.runs.fitted import FittedProbe
    from chessreg.runs.inputs import Inputs

POSITIONS_AT_ONCE = 4096


def prepare_reading(
    inputs: Inputs, reference: str, probe: FittedProbe, data: ProbeData
) -> tuple[FittedProbe, ProbeData]:
    """Return the probe and the data in the form in which its scores are computed.

    `reference` is the probe's run. The weights of a probe of an SAE become weights on its latents, and the data the
    latents; any other probe and its data are returned unchanged.
    """
    if "source" not in probe.detail:
        return probe, data
    from chessreg.experiments.sae.probes import get_read_view

    return get_read_view(inputs, reference, probe, data)


@dataclass(frozen=True)
class RatingScaler:
    """Standardization of ratings for regression: (Elo - mean) / std of the fitted positions."""

    mean: float
    std: float

    @classmethod
    def from_ratings(cls, values: np.ndarray) -> RatingScaler:
        """Return the scaler of Elo ratings float32 [n]."""
        return cls(float(values.mean(dtype=np.float64)), max(float(values.std(dtype=np.float64)), 1e-6))


@dataclass(frozen=True)
class GameLogits:
    """One game's positions in the order of its text: row numbers int64 [p], logits float32 [p, squares, classes]."""

    game: int
    rows: np.ndarray
    logits: np.ndarray


@torch.no_grad()
def iterate_game_logits(
    reader: Reader, data: ProbeData, rows: np.ndarray, layer: int, device: str = "cpu", centre: bool = False
) -> Iterator[GameLogits]:
    """Yield the probe's logits for the rows where `rows` is True, game by game.

    `reader` computes the logits from residuals. centre: subtract each residual's own mean first, for a probe that was
    fitted on centred residuals, as Karvonen's.
    """
    row_numbers = np.flatnonzero(rows)
    array = data.cache.array
    order = row_numbers[np.lexsort((array.token[row_numbers], array.ply[row_numbers], data.item[row_numbers]))]
    edges = np.flatnonzero(np.diff(data.item[order], prepend=-1, append=-1))
    for low, high in split_games(edges, POSITIONS_AT_ONCE):
        at = order[edges[low] : edges[high]]
        residual = torch.from_numpy(data.cache.values(layer, at)).to(device)
        if centre:
            residual = residual - residual.mean(-1, keepdim=True)
        logits = reader(residual).cpu().numpy()
        for start, stop in pairwise(edges[low : high + 1] - edges[low]):
            yield GameLogits(int(data.item[at[start]]), at[start:stop], logits[start:stop])


def split_games(edges: np.ndarray, positions: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [low, high) of games with at most `positions` positions in total, but at least one game."""
    low, games = 0, len(edges) - 1
    while low < games:
        high = int(np.searchsorted(edges, edges[low] + positions, "right")) - 1
        high = min(max(high, low + 1), games)
        yield low, high
        low = high


@dataclass(frozen=True)
class GameScore:
    """The score of one game, with the numbers of a `score` row (see `probe.ProbeScore`)."""

    game: int
    n: int
    correct: int
    counts: bytes  # int32 little endian [3, classes]: true positives, false positives, false negatives
    right: np.ndarray  # bool [positions, squares]
    rows: np.ndarray  # int64 [positions]
    truth: np.ndarray  # int8 [positions, squares]
    mean_class: int  # with one square: the class of the mean logit over the game
    vote_class: int  # with one square: the class read at most positions; the lower one in a tie


def score_probe(
    reader: Reader,
    data: ProbeData,
    rows: np.ndarray,
    layer: int,
    device: str = "cpu",
    centre: bool = False,
    rankings: ScoreRankings | None = None,
) -> Iterator[GameScore]:
    """Yield each game's score, in the order of the games' rows in their dataset.

    `rows` bool [positions] selects the positions that are read, `centre` subtracts each residual's own mean first, and
    `rankings` collects every logit.
    """
    for logits in iterate_game_logits(reader, data, rows, layer, device, centre):
        classes = logits.logits.shape[-1]
        read_classes = logits.logits.argmax(-1)
        truth = data.labels[logits.rows].astype(np.int64)
        right = read_classes == truth
        if rankings is not None:
            rankings.add(logits.logits, truth)
        read_counts = np.bincount(read_classes.ravel(), minlength=classes)
        truth_counts = np.bincount(truth.ravel(), minlength=classes)
        correct_counts = np.bincount(truth[right], minlength=classes)
        yield GameScore(
            game=logits.game,
            n=truth.size,
            correct=int(right.sum()),
            counts=np.stack([correct_counts, read_counts - correct_counts, truth_counts - correct_counts])
            .astype("<i4")
            .tobytes(),
            right=right,
            rows=logits.rows,
            truth=truth,
            mean_class=int(logits.logits[:, 0].mean(0, dtype=np.float64).argmax()),
            vote_class=int(np.bincount(read_classes[:, 0], minlength=classes).argmax()),
        )


@dataclass(frozen=True)
class Baselines:
    """Predictions of the skill baselines for each game: name → row in the dataset → class or Elo."""

    guesses: dict[str, dict[int, float]]

    def get_guesses(self, game: int) -> dict[str, float]:
        return {name: values[game] for name, values in self.guesses.items()}


def pack_plies(ply: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Return the columns `right_at` and `ply_…` of one game: ply int [p], correct squares int [p]."""
    columns: dict[str, Any] = {"right_at": "".join(f"{value:02x}" for value in right.tolist())}
    steps = np.diff(ply)
    if len(steps) == 0 or (steps == steps[0]).all():
        step = int(steps[0]) if len(steps) else 1
        return columns | {"ply_first": int(ply[0]), "ply_step": step}
    return columns | {"ply_at": "".join(f"{value:03x}" for value in ply.tolist())}


def build_score_columns(
    score: GameScore,
    data: ProbeData,
    layer: int,
    label: str,
    majority: np.ndarray,
    fit_positions: HashSet | None,
    baselines: Baselines | None,
) -> ProbeScore:
    """Return the kind's columns of one game's score. `fit_positions` are the positions that the probe was fitted on."""
    right = score.right.sum(1)
    columns: dict[str, Any] = pack_plies(data.ply[score.rows], right)
    if fit_positions is not None:
        new = ~fit_positions.contains(data.positions[score.rows])
        columns |= {"unseen": int(new.sum()), "unseen_correct": int(right[new].sum())}
    if score.truth.shape[1] == 1:
        columns |= {"vote_class": score.vote_class, "mean_class": score.mean_class}
    if data.skill is not None:
        columns["game_class"] = int(score.truth[0, 0])
        guesses = baselines.get_guesses(score.game) if baselines else {}
        columns |= {f"{name}_class": int(value) for name, value in guesses.items()}
    return ProbeScore(
        hook_point=data.cache.hook_point(layer),
        label=label,
        positions=len(score.rows),
        exact=int(score.right.all(1).sum()),
        majority=int((majority == score.truth).sum()),
        **columns,
    )


def build_rating_rows(
    reader: Reader,
    data: ProbeData,
    rows: np.ndarray,
    layer: int,
    split: str,
    standard: RatingScaler,
    baselines: Baselines | None,
    device: str,
) -> Iterator[tuple[int, float, RatingRow]]:
    """Yield for each game its row in the dataset, the mean Elo rating read at its positions, and its columns.

    `rows` bool [positions] selects positions of `data`. `standard` converts the reader's output to Elo. `baselines`
    adds the absolute errors of its guesses. `split` is a column.
    """
    for logits in iterate_game_logits(reader, data, rows, layer, device, centre=False):
        elo_read = logits.logits[:, 0, 0].astype(np.float64) * standard.std + standard.mean
        elo = float(data.labels[logits.rows[0], 0])
        guesses = baselines.get_guesses(logits.game) if baselines else {}
        yield (
            logits.game,
            float(elo_read.mean()),
            RatingRow(
                split=split,
                layer=layer,
                hook_point=data.cache.hook_point(layer),
                positions=len(elo_read),
                elo=elo,
                absolute_error=float(np.abs(elo_read - elo).sum()),
                **{f"{name}_error": abs(value - elo) for name, value in guesses.items()},
            ),
        )


# -- ROC-AUC of each class against all others, over every square of every position, in bounded memory ------------------
# Davis computes it on raw logits (4.4). Adding one vector to all classes of a square changes that value, but not the
# one on softmax. A probability is ranked by its log-odds, so that values close to 1 stay distinct.

RANK_BITS = 16  # of a float32 that rank it: sign, exponent and 7 of the mantissa; closer values are ties
RANK_BINS = 1 << RANK_BITS


class ScoreRankings:
    """Counts of the scores given to the true class and to other classes.

    counts int64 [2, 2, classes, RANK_BINS]: by raw logits and by softmax; for other classes and for the true class.
    """

    NAMES = ("logits", "softmax")

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = np.zeros((2, 2, classes, RANK_BINS), np.int64)

    def add(self, logits: np.ndarray, truth: np.ndarray) -> None:
        """Add logits float32 [..., classes] with the true classes int [...]."""
        by_class = np.ascontiguousarray(logits.reshape(-1, self.classes).T, np.float32)
        number = np.arange(self.classes)[:, None]
        place = np.where(truth.reshape(1, -1) == number, number + self.classes, number) * RANK_BINS
        for counts, scores in zip(self.counts, (by_class, compute_log_odds(by_class)), strict=True):
            np.add.at(counts.reshape(-1), (place + rank_scores(scores)).ravel(), 1)

    def compute_class_areas(self, name: str) -> list[float | None]:
        """Return the area of each class; None for a class that is never, or always, the true one."""
        wrong, right = self.counts[self.NAMES.index(name)]
        return [compute_auc(*pair) for pair in zip(wrong, right, strict=True)]

    def flat(self, name: str) -> float | None:
        """Return the area over all classes together, with each score of each class as one observation."""
        wrong, right = self.counts[self.NAMES.index(name)]
        return compute_auc(wrong.sum(0), right.sum(0))


def rank_scores(scores: np.ndarray) -> np.ndarray:
    """Return rank bins int32, shaped like `scores` float32. Larger scores have larger bins."""
    bits = scores.view(np.int32)
    order = bits >> (32 - RANK_BITS)  # for negative numbers the rest counts downwards
    return np.where(bits < 0, -1 - (order & (RANK_BINS // 2 - 1)), order) + RANK_BINS // 2


def compute_log_odds(logits: np.ndarray) -> np.ndarray:
    """Return log p / (1 - p) of the softmax, float32 like `logits` [classes, n]."""
    exponentials = logits - logits.max(0)
    weights = np.exp(exponentials)
    # The other classes are summed directly: subtracting from the total could give 0.
    best_logits, column = exponentials.argmax(0), np.arange(logits.shape[1])
    other_weights = weights.sum(0) - weights
    weights[best_logits, column] = 0.0
    other_weights[best_logits, column] = weights.sum(0)
    odds: np.ndarray = exponentials - np.log(np.maximum(other_weights, np.float32(1e-37)))
    return odds


def compute_auc(wrong: np.ndarray, right: np.ndarray) -> float | None:
    """Return the probability that a true class ranks above another one, with ties counted half.

    The counts are int64 [bins], lowest bin first. Return None if one of them is empty.
    """
    positive, negative = int(right.sum()), int(wrong.sum())
    if not positive or not negative:
        return None
    wrong_below = np.cumsum(wrong) - wrong
    # In floats, because products of counts exceed 2^63 for millions of squares.
    return float((right * (wrong_below + wrong / 2.0)).sum(dtype=np.float64) / (float(positive) * negative))
