"""The rows that scored games become: one model of columns for classes, one for ratings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, model_serializer

from chessreg.experiments.cache.kind import hook_point
from chessreg.games.position_hash import HashSet

if TYPE_CHECKING:
    from chessreg.experiments.probe.data import ProbeData
    from chessreg.experiments.probe.fitting import Standard
    from chessreg.experiments.probe.scoring import GameScore


class Sparse(BaseModel):
    """Columns of which those without a value are left out of the row."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: Any) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class ProbeScore(Sparse):
    """The columns that probes add to their scores.

    `right_at` has two hex digits for each position of the game in order: squares right there. The ply of position i is
    `ply_first + i * ply_step`, or where plies are not evenly spaced the three hex digits i of `ply_at`. In SQL:

        WITH read AS (SELECT *, unnest(range(length(right_at) // 2)) AS i FROM probe_score)
        SELECT CASE WHEN ply_at IS NULL THEN ply_first + i * ply_step
                    ELSE ('0x' || substr(ply_at, 3 * i + 1, 3))::INTEGER END AS ply,
               sum(('0x' || substr(right_at, 2 * i + 1, 2))::INTEGER) / sum(n // positions) AS accuracy
        FROM read GROUP BY ply ORDER BY ply
    """

    hook_point: str
    label: str
    positions: int  # looked-at positions of this game
    exact: int  # of them, those with every square right
    majority: int  # squares right by always naming the class most frequent on that square in the fitting games
    unseen: int | None = None  # positions that no fitted position equals (pieces and side to move)
    unseen_correct: int | None = None  # squares right in them
    right_at: str | None = None
    ply_first: int | None = None
    ply_step: int | None = None
    ply_at: str | None = None
    game_class: int | None = None  # skill: the game's class, 0 the weakest
    vote_class: int | None = None  # of one square: the class read at most positions of the game
    mean_class: int | None = None  # of one square: the class of the mean logit over the game
    length_class: int | None = None  # skill: what the game's length alone says
    source_class: int | None = None  # skill: what source and time control alone say
    majority_class: int | None = None  # skill: what is most frequent in the fitted games


class RatingRow(Sparse):
    """The columns of a rating read off a game by regression. Errors are in Elo, summed over `positions`."""

    split: str
    layer: int
    hook_point: str
    positions: int
    elo: float  # the truth
    absolute_error: float | None = None
    majority_error: float | None = None  # of one position: always naming the mean of the fitted games
    length_error: float | None = None  # naming the mean of fitted games as long
    source_error: float | None = None  # naming the mean of fitted games of that source and time control


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
        hook_point=hook_point(layer),
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
    from chessreg.experiments.probe.scoring import logits_by_game

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
                hook_point=hook_point(layer),
                positions=len(read),
                elo=elo,
                absolute_error=float(np.abs(read - elo).sum()),
                **{f"{name}_error": abs(value - elo) for name, value in said.items()},
            ),
        )
