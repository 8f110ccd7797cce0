"""The figures of docs/demo.md, computed again from the counts per cluster of the run that it prints.

The arithmetic here is its own: shares of sums, differences of the same clusters, intervals from resampled clusters.
tests/fixtures/readme/clusters.py writes the counts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.quick import quick_first

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "demo.md").read_text()
PROBES, EDITS, GAMES = (
    pq.read_table(ROOT / "tests" / "fixtures" / "readme" / f"{name}.parquet").to_pylist()
    for name in ("probes", "edits", "games")
)
NUMBER = re.compile(r"(-?\d+\.\d+) \[(-?\d+\.\d+), (-?\d+\.\d+)\]")
Clusters = dict[int, tuple[float, float]]  # cluster → numerator, denominator


def printed(query: str) -> list[tuple[list[str], list[tuple[float, ...]]]]:
    """Return the words and the numbers with their intervals of each row of a query's table on the page."""
    block = PAGE.partition(f'$ chessreg query "{query}"')[2].partition("\n\n")[0]
    lines = [line for line in block.splitlines()[2:] if re.match(r" +\d", line)]
    assert lines
    return [
        (re.split(r" {2,}", NUMBER.sub("", line).strip())[1:], [tuple(map(float, n)) for n in NUMBER.findall(line)])
        for line in lines
    ]


def share(clusters: Clusters, less: Clusters | None = None, scale: float = 1.0) -> tuple[float, float, float]:
    """Sum over sum, less that of other rows of the same clusters; and the 95 % of 4,000 resamples."""
    assert less is None or clusters.keys() == less.keys()
    drawn = np.random.default_rng(0).multinomial(len(clusters), [1 / len(clusters)] * len(clusters), 4000)

    def of(rows: Clusters, weights: np.ndarray) -> np.ndarray:
        above, below = np.array([rows[key] for key in clusters]).T
        return scale * (weights @ above) / (weights @ below)

    once = np.ones((1, len(clusters)))
    whole, all_drawn = ((of(clusters, w) - (of(less, w) if less else 0.0)) for w in (once, drawn))
    low, high = np.quantile(all_drawn, [0.025, 0.975])
    return float(whole[0]), float(low), float(high)


def agrees(told: tuple[float, ...], ours: tuple[float, float, float], digits: int) -> None:
    """The value to the last printed digit; the interval, of other resamples, within a fifth of its width."""
    assert told[0] == pytest.approx(ours[0], abs=0.51 * 10**-digits)
    assert told[1:] == pytest.approx(ours[1:], abs=0.2 * (ours[2] - ours[1]) + 0.51 * 10**-digits)


def scored(run: str, layer: int, split: str = "test") -> Clusters:
    mine = [row for row in PROBES if (row["run"], row["layer"], row["split"]) == (run, layer, split)]
    return {row["game"]: (row["correct"], row["n"]) for row in mine}


def best(run: str, split: str) -> int:
    return max(range(8), key=lambda layer: share(scored(run, layer, split))[0])


@pytest.mark.parametrize("row", quick_first(2, range(4)))
def test_probes(row: int) -> None:
    (_, weights, split, layer), numbers = printed("best probe layers")[row]
    run = {"trained": "reference-board", "untrained": "untrained-board"}[weights]
    assert int(layer) == best(run, split)
    agrees(numbers[0], share(scored(run, int(layer)), scale=100), 1)
    if weights == "trained":
        control = scored("untrained-board", best("untrained-board", split))
        agrees(numbers[1], share(scored(run, int(layer)), control, 100), 1)


def edited(run: str, condition: str, column: str, over: str) -> Clusters:
    mine = [row for row in EDITS if (row["run"], row["condition"]) == (run, condition)]
    return {row["game"]: (row[column], row[over]) for row in mine}


@pytest.mark.parametrize("row", range(4))
def test_edits_of_the_model_of_pgn_characters(row: int) -> None:
    words, numbers = printed("board intervention legality")[row]
    condition = {"random": "random-0", "shuffled": "shuffled-0"}.get(words[0], words[0])
    modified = edited("edits", condition, "modified", "texts")
    assert int(words[2]) == sum(
        row["states"] for row in EDITS if (row["run"], row["condition"]) == ("edits", condition)
    )
    agrees(numbers[0], share(edited("edits", condition, "original", "texts"), scale=100), 1)
    agrees(numbers[1], share(modified, scale=100), 1)
    against = [edited("edits", other, "modified", "texts") for other in ("clean", "random-0")]
    assert len(numbers) == {"clean": 2, "edit": 4}.get(condition, 3)
    for told, less in zip(numbers[2:], against, strict=False):
        agrees(told, share(modified, less, 100), 1)


@pytest.mark.parametrize("row", range(4))
def test_edits_of_the_model_of_uci_squares(row: int) -> None:
    words, numbers = printed("legal move mass by edit")[row]
    condition = {"None": "clean", "Random": "random-0", "Probe": "edit", "Shuffled": "shuffled-0"}[words[1]]
    target = edited("uci-edits", condition, "mass_modified", "states")
    assert int(words[2]) == sum(states for _, states in target.values())
    agrees(numbers[0], share(edited("uci-edits", condition, "mass_original", "states")), 3)
    agrees(numbers[1], share(target), 3)
    against = [edited("uci-edits", other, "mass_modified", "states") for other in ("clean", "random-0")]
    assert len(numbers) == {"clean": 2, "random-0": 3}.get(condition, 4)
    for told, less in zip(numbers[2:], against, strict=False):
        agrees(told, share(target, less), 3)


ARMS = ("plain", "skill-subtracted", "shuffled-subtracted", "uci-plain", "uci-unseen")
AGAINST: dict[str, tuple[str, ...]] = {
    "skill-subtracted": ("plain", "shuffled-subtracted"),
    "shuffled-subtracted": ("plain",),
    "uci-unseen": ("uci-plain",),
}


@pytest.mark.parametrize("row", range(5))
def test_matches(row: int) -> None:
    words, numbers = printed("elo by intervention")[row]

    def arm(name: str) -> Clusters:
        return {game["opening_number"]: (game["points"], 1) for game in GAMES if game["run"] == name}

    games: Any = [points for points, _ in arm(ARMS[row]).values()]
    assert list(map(int, words[2:6])) == [len(games), games.count(1.0), games.count(0.5), games.count(0.0)]
    agrees(numbers[0], share(arm(ARMS[row])), 3)
    others = AGAINST.get(ARMS[row], ())
    assert len(numbers) == 1 + len(others)
    for told, other in zip(numbers[1:], others, strict=True):
        agrees(told, share(arm(ARMS[row]), arm(other)), 3)


def test_wins_draws_and_losses_are_the_games_and_give_the_score() -> None:
    arms = printed("elo by intervention")
    plain = {words[0]: numbers[0][0] for words, numbers in arms if words[1] == "none"}
    assert len(arms) > len(plain) > 0
    for (checkpoint, _, *counts), numbers in arms:
        n, won, drawn, lost = map(int, counts)
        assert n == won + drawn + lost
        assert won + drawn / 2 == pytest.approx(n * numbers[0][0], abs=n * 0.0006)
        if len(numbers) > 1:
            assert numbers[1][0] == pytest.approx(numbers[0][0] - plain[checkpoint], abs=0.0011)
