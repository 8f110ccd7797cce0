"""RESULTS.md's table of Davis's reference result, computed again from the sums per game that are kept of it.

The arithmetic here is its own: means over cases, paired differences, intervals from resampled games. Autoencoders are
kept with the intervals of their run. tests/fixtures/davis/clusters.py writes what is read here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "davis"
CELLS = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
INTERVAL = re.compile(r"(-?[\d.]+)(?: \[(-?[\d.]+), (-?[\d.]+)\])?")
DAVIS = (ROOT / "RESULTS.md").read_text().replace("−", "-").partition("## Davis 2026")[2]
TEXT = re.sub(r"\s+", " ", DAVIS)
PRINTED = {cells[0]: cells[1:] for cells in CELLS.findall(DAVIS)}
BLOCKS = range(8)
COUNTED = ("game", "n", "correct")
NORMALISED = "d7e8fb normalised"  # the first control, its probe fitted to activations that are scaled
Value = tuple[float, float, float]


@cache
def table(name: str) -> dict[str, np.ndarray]:
    read = pq.read_table(FOLDER / f"{name}.parquet")
    return {column: read[column].to_numpy(zero_copy_only=False) for column in read.column_names}


@cache
def resamples(clusters: int) -> np.ndarray:
    """How often each cluster is drawn, float32 [1000, clusters]."""
    return np.random.default_rng(0).multinomial(clusters, [1 / clusters] * clusters, 1000).astype(np.float32)


def ratio(above: np.ndarray, below: np.ndarray) -> Value:
    """Sum over sum, and the 95 % of resamples of the clusters."""
    weights = resamples(len(above))
    low, high = np.quantile((weights @ above) / (weights @ below), [0.025, 0.975])
    return float(above.sum() / below.sum()), float(low), float(high)


def legal(phase: str) -> Value:
    rows = table("legal")
    mine = rows["phase"] == phase
    return tuple(100 * number for number in ratio(rows["correct"][mine], rows["n"][mine]))  # type: ignore[return-value]


def edited(kind: str, scale: float | None, layer: int, name: str = "edits") -> dict[int, tuple[int, float, float]]:
    """Game → cases, sum of the mass on the original board, on the target."""
    rows = table(name)
    mine = (rows["layer"] == layer) & (rows["type"] == kind)
    mine &= np.isnan(rows["scale"]) if scale is None else rows["scale"] == scale
    columns = (rows[name][mine] for name in ("game", "cases", "original", "target"))
    return {
        game: (cases, original / 1000, target / 1000) for game, cases, original, target in zip(*columns, strict=True)
    }


def difference(one: str, other: str, scale: float, column: int = 2, layer: int = 7) -> Value:
    return paired(edited(one, scale, layer), edited(other, None if other == "None" else scale, layer), column)


def paired(
    mine: dict[int, tuple[int, float, float]], theirs: dict[int, tuple[int, float, float]], column: int = 2
) -> Value:
    """Of games in which both edit the same cases: a class that was hardly seen has no difference of means."""
    games = [game for game in mine if game in theirs and mine[game][0] == theirs[game][0]]
    assert len(games) > 0.98 * len(theirs)
    differences = np.array([mine[game][column] - theirs[game][column] for game in games])
    return ratio(differences, np.array([mine[game][0] for game in games]))


def larger_minus_smaller(kind: str, scale: float) -> Value:
    """Target mass of edits at layer 4 by probes of an SAE of 16× minus that of 4×, same cases."""
    return paired(edited(kind, scale, 4), edited(kind, scale, 4, "smaller"))


def last_positions(scale: float) -> Value:
    """Target mass of edits at layer 7 by probes of the last five positions minus that by those of first plies."""
    theirs = edited("Probe", scale, 7, "last_positions")
    return paired(theirs, {game: sums for game, sums in edited("Probe", scale, 7).items() if game in theirs})


def of_layers(layers: range) -> Value:
    """Target mass of edits of several layers at once, each by its own probe, minus that by random directions."""
    rows = table("several_layers")
    mine = rows["layers"] == str(list(layers)).replace(" ", "")
    probe, random = ({game: (cases, 0.0, target / 1000) for game, cases, target in
                      zip(*(rows[name][mine & (rows["condition"] == condition)]
                            for name in ("game", "cases", "target")), strict=True)}
                     for condition in ("edit", "random"))  # fmt: skip
    return paired(probe, random)


def autoencoder(name: str, block: int, expansion: int = 16) -> Value:
    rows = table("saes")
    mine = (rows["hook_point"] == f"blocks.{block}.hook_resid_post") & (rows["name"] == name)
    mine &= rows["features"] == 192 * expansion
    return float(rows["value"][mine].item()), float(rows["low"][mine].item()), float(rows["high"][mine].item())


def other_autoencoder(name: str, tokens: int, l1: float) -> Value:
    """Of block 7, trained on more tokens or with a smaller λ than those of the result."""
    rows = table("sae_causes")
    mine = (rows["tokens"] == tokens) & (rows["l1"] == l1) & (rows["features"] == 3072) & (rows["name"] == name)
    return float(rows["value"][mine].item()), float(rows["low"][mine].item()), float(rows["high"][mine].item())


def effect(block: int, cosine: str = "raw", kept: str = "markov") -> Value:
    """Cohen's d as the run has it; resampled are positions, whose cosines are kept in thousandths. `kept`: the run that
    compares with the positions' own members, or `markov_prefixes`, with random prefixes."""
    rows, tests = table(kept), table(f"{kept}_tests")
    of_test = (tests["layer"] == block) & (tests["cosine"] == cosine)
    value, deviation, d = (tests[name][of_test].item() for name in ("value", "population_sd", "d"))
    assert d == pytest.approx(value / deviation)
    within = rows["excess" if cosine == "raw" else "centred"][rows["layer"] == block] / (1000 * deviation)
    mean, low, high = ratio(within, np.ones(len(within)))
    return d, d + low - mean, d + high - mean


def beyond_last_move(block: int) -> Value:
    """Centred cosines within a position less those with another board after the same last move."""
    rows = table("markov")
    mine = rows["layer"] == block
    within = (rows["centred"][mine] - rows["same_last"][mine]) / 1000
    known = within[np.isfinite(within)]
    return ratio(known, np.ones(len(known)))


def control(block: int) -> Value:
    """Of a random-init control: centred cosines within a position less those after the same last move."""
    rows = table("markov_control")
    mine = rows["layer"] == block
    within = (rows["centred"][mine] - rows["same_last"][mine]) / 1000
    known = within[np.isfinite(within)]
    return ratio(known, np.ones(len(known)))


def cosine(what: str, block: int) -> Value:
    """Mean centred cosine of states at the same position, or after the same last move on another board."""
    rows = table("markov")
    values = rows[{"same position": "centred", "same last move": "same_last"}[what]][rows["layer"] == block] / 1000
    known = values[np.isfinite(values)]
    return ratio(known, np.ones(len(known)))


def other_last_moves(block: int, beyond: bool = False) -> Value:
    """Mean centred cosine of states at the same position whose last moves differ, of the positions that have such;
    `beyond`: less that after the same last move on another board."""
    rows = table("markov")
    mine = rows["layer"] == block
    values = (rows["apart"][mine] - (rows["same_last"][mine] if beyond else 0)) / 1000
    known = values[np.isfinite(values)]
    return ratio(known, np.ones(len(known)))


def linear_minus_latents() -> Value:
    """Points of accuracy that probes of latents lose at block 0, same games."""
    rows = table("latents")
    linear, latents = (
        {game: (right, n) for game, right, n in zip(*(rows[name][rows["source"] == source]
                                                      for name in ("game", "correct", "n")), strict=True)}
        for source in ("residuals", "sae-latents")
    )  # fmt: skip
    assert linear.keys() == latents.keys()
    differences = [100 * (int(linear[game][0]) - int(latents[game][0])) for game in linear]
    return ratio(np.array(differences), np.array([n for _, n in linear.values()]))


def beyond_a_control(phase: str) -> Value:
    """Points of accuracy that joint probes of the model have beyond those of one random-init control, same games, at
    the site where they are furthest beyond it on the validation games."""
    rows = table("controls")
    there = (rows["phase"] == phase) & rows["furthest"]
    model, control = (
        {game: (right, n) for game, right, n in zip(*(rows[name][there & (rows["untrained"] == twin)]
                                                      for name in ("game", "correct", "n")), strict=True)}
        for twin in (False, True)
    )  # fmt: skip
    assert model.keys() == control.keys()
    differences = [100 * (int(model[game][0]) - int(control[game][0])) for game in model]
    return ratio(np.array(differences), np.array([n for _, n in model.values()]))


def read_by(phase: str, fitted: str) -> tuple[np.ndarray, np.ndarray]:
    """Of probes of the final LayerNorm fitted on "all" or "4,000" games, or of the "embeddings" on all, the model's and
    those of three random-init controls: a hundred times the squares that each reads right [4, games], and the squares
    [games]."""
    if fitted == "all":
        rows, others = table("controls"), table("more_controls")
        there = (rows["phase"] == phase) & rows["best"]
        each = [{name: rows[name][there & (rows["untrained"] == twin)] for name in COUNTED} for twin in (False, True)]
        names = sorted(set(others["control"].tolist()))
    else:
        each, others = [], table("three_controls" if fitted == "4,000" else fitted)
        names = sorted(
            set(others["control"].tolist()) - {NORMALISED}, key=lambda name: (name not in (0, "model"), name)
        )
    for name in names:
        own = (others["phase"] == phase) & (others["control"] == name)
        each.append({column: others[column][own] for column in COUNTED})
    assert len(each) == 4
    order = [np.argsort(one["game"]) for one in each]
    games, squares, right = (
        np.array([one[name][places] for one, places in zip(each, order, strict=True)]) for name in COUNTED
    )
    assert (games == games[0]).all()
    assert (squares == squares[0]).all()
    return 100.0 * right, squares[0].astype(float)


def beyond_three_controls(phase: str, fitted: str) -> Value:
    """Points of accuracy beyond the mean of three controls; resampled are the games, and the controls."""
    right, squares = read_by(phase, fitted)
    drawn = np.random.default_rng(1).multinomial(3, [1 / 3] * 3, 1000) / 3
    weights = resamples(len(squares))
    shares = weights @ right.T / (weights @ squares)[:, None]
    low, high = np.quantile(shares[:, 0] - (drawn * shares[:, 1:]).sum(1), [0.025, 0.975])
    mean = right.sum(1) / squares.sum()
    return float(mean[0] - mean[1:].mean()), float(low), float(high)


def beyond_the_most_frequent(phase: str) -> Value:
    """Points of accuracy that joint probes of the model's embeddings have beyond always naming the piece that is most
    frequent on the square."""
    rows = table("embeddings")
    own = (rows["phase"] == phase) & (rows["control"] == "model")
    return ratio(100.0 * (rows["correct"][own] - rows["majority"][own]), rows["n"][own])


def share_of_the_residual() -> Value:
    """Probe minus Random at the code's α, where that is a share of the residual's own norm."""
    rows = table("residual_norm")
    probe, random = (
        {game: (cases, target) for game, cases, target in zip(*(rows[name][rows["condition"] == condition]
                                                                for name in ("game", "cases", "target")), strict=True)}
        for condition in ("edit", "random")
    )  # fmt: skip
    assert len(probe) == len(random) == 500
    differences = np.array([(int(probe[game][1]) - int(random[game][1])) / 1000 for game in probe])
    return ratio(differences, np.array([cases for cases, _ in probe.values()]))


def points(source: str) -> np.ndarray:
    """Of a match without an edit (none), with it (probe) or with a random direction of its length: by opening."""
    rows = table("games")
    mine = rows["source"] == source
    assert sorted(rows["opening"][mine]) == list(range(200))
    return rows["points"][mine][np.argsort(rows["opening"][mine])]


def score(one: str, minus: str | None = None) -> Value:
    """Points a game; of two matches their difference, on the same openings."""
    return ratio(points(one) - (points(minus) if minus else 0), np.ones(200))


def elo(source: str) -> Value:
    """Against the opponent: 400 log10 of points won over points lost."""
    return tuple(400 * np.log10(share / (1 - share)) for share in score(source))  # type: ignore[return-value]


def worst(values: list[Value], least: bool = True) -> Value:
    return min(values) if least else max(values)


PHASES = ("white-origins", "white-destinations", "black-origins", "black-destinations")
MATCHES = {"the model as it is": "none", "edited": "probe", "a random direction of its length": "random"}
STRONG = 8.0  # chosen on the validation games
QUANTITIES: dict[str, tuple[Any, float | None, float | None]] = {
    # as RESULTS.md names it: the value, and what it must be at least, and at most
    "greedy origin strictly legal, White's, %": (lambda: legal("black-destination"), 95, None),
    "greedy origin strictly legal, Black's, %": (lambda: legal("white-destination"), 95, None),
    "greedy destination strictly legal, White's, %": (lambda: legal("white-origin"), 90, None),
    "greedy destination strictly legal, Black's, %": (lambda: legal("black-origin"), 90, None),
    **{
        f"joint probe minus three random-init controls, best of nine sites (final LayerNorm), {phase}, points": (
            lambda phase=phase: beyond_three_controls(phase, "all"), 8, None)
        for phase in PHASES
    },
    "target mass, Probe minus Random, α 0.5": (lambda: difference("Probe", "Random", 0.5), 0.10, None),
    "the same where α is a share of the residual's own norm": (share_of_the_residual, 0.10, None),
    "target mass, Probe minus Random, α 8": (lambda: difference("Probe", "Random", STRONG), 0.25, None),
    "original mass, Random minus None, α 0.5": (lambda: difference("Random", "None", 0.5, 1), -0.02, 0.02),
    "target mass, Probe minus Shuffled (the direction of another piece on that square), α 8": (
        lambda: difference("Probe", "Shuffled", STRONG), None, None),
    "original mass, Probe minus None, α 8": (lambda: difference("Probe", "None", STRONG, 1), None, None),
    "target mass, Probe minus SAE-Probe, α 8": (lambda: difference("Probe", "SAE-Probe", STRONG), 0.02, None),
    "target mass, Probe minus CD-Probe, α 8": (lambda: difference("Probe", "CD-Probe", STRONG), 0.05, None),
    "target mass, CD-Probe minus DM-Probe, α 8": (lambda: difference("CD-Probe", "DM-Probe", STRONG), -0.03, 0.03),
    "target mass, SAE-Probe minus None, α 8": (lambda: difference("SAE-Probe", "None", STRONG), None, None),
    "target mass at layer 4, α 8, Probe minus Random": (
        lambda: difference("Probe", "Random", STRONG, layer=4), None, None),
    "target mass at layer 4, α 8, Probe minus Shuffled": (
        lambda: difference("Probe", "Shuffled", STRONG, layer=4), None, None),
    "original mass at layer 4, α 8, Probe minus None": (
        lambda: difference("Probe", "None", STRONG, 1, layer=4), None, None),
    "target mass at layer 4, α 8, Probe minus SAE-Probe": (
        lambda: difference("Probe", "SAE-Probe", STRONG, layer=4), 0.02, None),
    "target mass at layer 4, α 8, Probe minus CD-Probe": (
        lambda: difference("Probe", "CD-Probe", STRONG, layer=4), 0.05, None),
    "target mass at layer 4, α 8, CD-Probe minus DM-Probe": (
        lambda: difference("CD-Probe", "DM-Probe", STRONG, layer=4), -0.03, 0.03),
    **{
        f"target mass at layer 4, α {scale:g}, {kind} of 16× minus of 4×": (
            lambda kind=kind, scale=scale: larger_minus_smaller(kind, scale), None, None)
        for scale in (0.5, STRONG) for kind in ("SAE-Probe", "CD-Probe")
    },
    "accuracy at white-destinations, linear minus SAE-Probe, points, least (block 0)": (linear_minus_latents, 1, None),
    "SAE, explained variance, blocks 0-6, least": (
        lambda: worst([autoencoder("explained_variance", block) for block in range(7)]), 0.85, None),
    "SAE, explained variance, block 7": (lambda: autoencoder("explained_variance", 7), 0.85, None),
    "SAE, L0, all blocks, most": (lambda: worst([autoencoder("l0", block) for block in BLOCKS], False), None, 40),
    "SAE, loss recovered, all blocks, least": (
        lambda: worst([autoencoder("loss_recovered", block) for block in BLOCKS]), 0.90, None),
    "Markov, d of raw cosines, least (block 0; it rises to block 7)": (
        lambda: worst([effect(block) for block in BLOCKS]), 2, None),
    "Markov, d of centred cosines, least (block 0; it rises to block 3 only)": (
        lambda: worst([effect(block, "centred") for block in BLOCKS]), 2, None),
    "Markov, d of raw cosines against random prefixes, least (block 1)": (
        lambda: worst([effect(block, "raw", "markov_prefixes") for block in BLOCKS]), 2, None),
    "Markov, d of centred cosines against random prefixes, least (block 1)": (
        lambda: worst([effect(block, "centred", "markov_prefixes") for block in BLOCKS]), 2, None),
    "Markov, beyond the same last move, blocks 3-7, least": (
        lambda: worst([beyond_last_move(block) for block in range(3, 8)]), 0.1, None),
    **{
        f"SAE of {expansion}×, {called}, block {block}": (
            lambda name=name, block=block, expansion=expansion: autoencoder(name, block, expansion), None, None)
        for called, name in (("explained variance", "explained_variance"), ("L0", "l0"))
        for block in (2, 4, 7) for expansion in (16, 4)
    },
    **{
        f"match, {what}, Elo against its opponent": (lambda source=source: elo(source), None, None)
        for what, source in MATCHES.items()
    },
    "match, points a game, edited minus as it is": (lambda: score("probe", "none"), None, None),
    "match, points a game, edited minus a random direction of its length": (
        lambda: score("probe", "random"), None, None),
    # causes of misses
    **{
        f"joint probe minus random-init control, {phase}, block {block}": (
            lambda phase=phase: beyond_a_control(phase), None, None)
        for phase, block in zip(PHASES, (0, 7, 0, 7), strict=True)
    },
    **{
        f"joint probe minus three random-init controls, final LayerNorm, of 4,000 games, {phase}": (
            lambda phase=phase: beyond_three_controls(phase, "4,000"), None, None)
        for phase in PHASES
    },
    **{
        f"joint probe minus three random-init controls, embeddings, {phase}": (
            lambda phase=phase: beyond_three_controls(phase, "embeddings"), None, None)
        for phase in PHASES
    },
    **{
        f"joint probe minus the most frequent piece of each square, embeddings, {phase}": (
            lambda phase=phase: beyond_the_most_frequent(phase), None, None)
        for phase in PHASES
    },
    **{
        f"Probe of last positions minus Probe, layer 7, α {scale:g}": (
            lambda scale=scale: last_positions(scale), None, None)
        for scale in (0.5, STRONG)
    },
    **{
        f"target mass, Probe minus Random, α 0.5, {what}": (lambda layers=layers: of_layers(layers), None, None)
        for what, layers in {"layers 0 to 7": range(8), "layers 4 to 7": range(4, 8)}.items()
    },
    "Probe minus SAE-Probe, layer 7, α 0.5": (lambda: difference("Probe", "SAE-Probe", 0.5), None, None),
    "Probe minus CD-Probe, layer 7, α 0.5": (lambda: difference("Probe", "CD-Probe", 0.5), None, None),
    "DM-Probe minus Probe, layer 7, α 0.5": (lambda: difference("DM-Probe", "Probe", 0.5), None, None),
    "DM-Probe minus Probe, layer 4, α 0.5": (lambda: difference("DM-Probe", "Probe", 0.5, layer=4), None, None),
    "DM-Probe minus Probe, layer 7, α 8": (lambda: difference("DM-Probe", "Probe", STRONG), None, None),
    "DM-Probe minus Probe, layer 4, α 8": (lambda: difference("DM-Probe", "Probe", STRONG, layer=4), None, None),
    "SAE, L0, block 6": (lambda: autoencoder("l0", 6), None, None),
    "SAE, L0, block 7": (lambda: autoencoder("l0", 7), None, None),
    **{
        f"SAE, {called}, block 7, {settings}": (
            lambda name=name, of=of: other_autoencoder(name, *of), None, None
        )
        for settings, of in {"λ 2": (1_500_000, 2.0), "4 million tokens": (4_000_000, 3.0)}.items()
        for called, name in {"explained variance": "explained_variance", "L0": "l0"}.items()
    },
    **{
        f"centred cosine, {what}, block {block}": (lambda block=block, what=what: cosine(what, block), None, None)
        for what in ("same position", "same last move") for block in (0, 2, 7)
    },
    **{
        f"centred cosine, same position by other last moves, block {block}": (
            lambda block=block: other_last_moves(block), None, None)
        for block in (0, 2, 7)
    },
    **{
        f"same position by other last moves minus same last move, block {block}": (
            lambda block=block: other_last_moves(block, True), None, None)
        for block in (3, 4)
    },
    **{
        f"random-init control, beyond the same last move, block {block}": (
            lambda block=block: control(block), None, None)
        for block in range(3)
    },
    **{
        f"Markov, beyond the same last move, block {block}": (lambda block=block: beyond_last_move(block), 0.1, None)
        for block in range(3)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTITIES)
def test_readmes_table_is_what_the_games_say(name: str) -> None:
    compute, least, most = QUANTITIES[name]
    expected, printed, outcome = PRINTED[name]
    value, low, high = compute()
    for number, computed in zip(INTERVAL.fullmatch(printed).groups(), (value, low, high), strict=True):
        assert float(number) == pytest.approx(computed, abs=0.6 * 0.1 ** len(number.partition(".")[2])), number
    bounds = {bound for bound in (least, most) if bound is not None}
    assert {abs(float(bound)) for bound in re.findall(r"[\d.]+", expected)} == {abs(bound) for bound in bounds}
    assert outcome == judged(low, high, least, most)


def judged(low: float, high: float, least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return "open"
    if (least is None or low >= least) and (most is None or high <= most):
        return "met"
    return "missed" if (least is not None and high < least) or (most is not None and low > most) else "not decided"


def test_the_table_has_every_quantity_and_d_rises() -> None:
    assert set(QUANTITIES) <= set(PRINTED)
    raw, centred = ([effect(block, cosine)[0] for block in BLOCKS] for cosine in ("raw", "centred"))
    assert raw == sorted(raw)
    assert centred[:4] == sorted(centred[:4])
    assert max(centred) == centred[3]
    for cosine in ("raw", "centred"):
        against_prefixes = [effect(block, cosine, "markov_prefixes")[0] for block in BLOCKS]
        assert min(against_prefixes) == against_prefixes[1]
    assert table("markov_prefixes_tests")["p"].max() == pytest.approx(1 / 1001)


def test_states_of_one_position_are_alike_by_their_last_move_first() -> None:
    rows = table("markov")
    apart, position = rows["apart"], rows["position"]
    one = [set(position[(rows["layer"] == block) & ~np.isfinite(apart)].tolist()) for block in BLOCKS]
    assert all(numbers == one[0] for numbers in one)
    assert f"Of the {len(set(position.tolist())):,} positions {len(one[0]):,} are reached by one last move only" in TEXT
    alike = [rows["centred"][(rows["layer"] == block) & ~np.isfinite(apart)].mean() / 1000 for block in BLOCKS]
    assert min(alike) > 0.98
    at_first, passes = other_last_moves(0)[0], other_last_moves(3, True)[0]
    assert f"hardly alike at block 0 ({at_first:.3f})" in TEXT
    assert f"at block 3, by {passes:.3f}" in TEXT
    assert [other_last_moves(block, True)[2] < 0 for block in BLOCKS] == [True] * 3 + [False] * 5
    values = [other_last_moves(block)[0] for block in BLOCKS]
    assert values == sorted(values)


def test_p_of_the_markov_test_is_the_least_there_is_at_every_block() -> None:
    tests = table("markov_tests")
    assert tests["at_least"].tolist() == [0] * 2 * len(BLOCKS)
    assert tests["p"] == pytest.approx(1 / (1 + tests["resamples"]))
    over_blocks, over_sites = (f"{number * tests['p'].max():.3f}" for number in (len(BLOCKS), len(BLOCKS) + 2))
    assert f"{over_blocks} after Holm's correction over the blocks, {over_sites} over all ten sites" in TEXT


@pytest.mark.parametrize(("phase", "block"), list(zip(PHASES, (0, 7, 0, 7), strict=True)))
def test_the_sites_beside_a_control_are_those_that_are_named(phase: str, block: int) -> None:
    rows = table("controls")
    for which, site in (("best", "ln_final.hook_out"), ("furthest", f"blocks.{block}.hook_resid_post")):
        assert set(rows["hook_point"][(rows["phase"] == phase) & rows[which]].tolist()) == {site}


def test_the_board_is_read_worse_where_an_origin_was_read_than_one_square_can_explain() -> None:
    """A label that differs in one square of 64 moves the accuracy by no more than that square."""
    read = []  # [phase, the model and three controls]
    for right, squares in (read_by(phase, "all") for phase in PHASES):
        read.append(right.sum(1) / squares.sum())
    origins, ends = ([shares[0] for shares in read[start::2]] for start in (0, 1))
    assert max(origins) + 100 / 64 < min(ends)
    assert f"{ends[0]:.1f} % and {ends[1]:.1f} % of the squares are read where a move ends" in TEXT
    assert f"{origins[0]:.1f} % and {origins[1]:.1f} % where an origin was read" in TEXT
    controls = [share for shares in read for share in shares[1:]]
    assert f"off the controls {min(controls):.1f} % to {max(controls):.1f} %" in TEXT
    assert f"worth {100 / 64:.1f} points at most" in TEXT


def test_first_controls_read_less_than_the_most_frequent_piece() -> None:
    embeddings, blocks = table("embeddings"), table("controls")
    most = [100 * embeddings["majority"][there].sum() / embeddings["n"][there].sum()
            for there in (embeddings["phase"] == phase for phase in PHASES)]  # fmt: skip
    assert {round(share) for share in most} == {75}
    first = blocks["furthest"] & blocks["untrained"] & (blocks["hook_point"] == "blocks.0.hook_resid_post")
    assert round(100 * blocks["correct"][first].sum() / blocks["n"][first].sum()) == 72
    assert "that control reads 72 %, less than naming each square's most frequent piece, 75 %" in TEXT
    controls = np.array([right[1:].sum(1) / n.sum() for right, n in (read_by(p, "embeddings") for p in PHASES)])
    assert f"controls that read {controls.min():.0f} to {controls.max():.0f} %" in TEXT
    scaled = embeddings["control"] == NORMALISED
    assert set(embeddings["phase"][scaled].tolist()) == {"white-origins"}
    reads = 100 * embeddings["correct"][scaled].sum() / embeddings["n"][scaled].sum()
    right, squares = read_by("white-origins", "embeddings")
    model = right[0].sum() / squares.sum()
    assert f"with `--normalize-activations` reads {reads:.1f} % at white-origins, the model {model:.1f} %" in TEXT


def test_three_controls_are_hardly_apart_and_more_games_are_worth_points() -> None:
    apart: dict[str, list[float]] = {"all": [], "4,000": []}
    for fitted, points in apart.items():
        for phase in PHASES:
            right, squares = read_by(phase, fitted)
            points.append(np.ptp(right[1:].sum(1) / squares.sum()))
    assert f"The three controls are {max(apart['all']):.2f} points apart at most, {max(apart['4,000']):.2f} of" in TEXT
    gained = [beyond_three_controls(p, "all")[0] - beyond_three_controls(p, "4,000")[0] for p in PHASES]
    assert f"from 4,000 games to 23,000 the probes gain {min(gained):.1f} to {max(gained):.1f} points on them" in TEXT
    assert len(read_by(PHASES[0], "4,000")[1]) == 940
    assert "940 test games" in TEXT


def test_probes_of_latents_lose_least_at_block_0() -> None:
    rows = table("probes")
    there = (rows["split"] == "test") & (rows["phase"] == "white-destinations")
    lost = []
    for block in BLOCKS:
        right = {
            source: rows["correct"][there & (rows["source"] == source) & (rows["layer"] == block)].item()
            for source in ("residuals", "sae-latents")
        }
        [n] = set(rows["n"][there & (rows["layer"] == block)].tolist())
        lost.append(100 * (right["residuals"] - right["sae-latents"]) / n)
    assert min(lost) == lost[0] == pytest.approx(linear_minus_latents()[0], abs=0.01)


def test_shuffled_labels_move_more_than_a_random_direction_at_layer_4() -> None:
    assert difference("Shuffled", "Random", STRONG, layer=4)[1] > 0
    assert difference("Shuffled", "None", STRONG)[1] > 0
    assert "another piece on the square moves target mass too, at layer 4 more than a random one" in TEXT


def test_edits_by_the_smaller_sae_are_of_the_same_cases() -> None:
    clean, again = edited("None", None, 4), edited("None", None, 4, "smaller")
    assert clean.keys() == again.keys()
    for game, (cases, *masses) in clean.items():
        assert again[game] == (cases, *(pytest.approx(mass, abs=0.005) for mass in masses))


def test_the_models_card_says_what_the_games_say() -> None:
    card = (ROOT / "chessreg" / "data" / "uci-model" / "README.md").read_text()
    printed = [[float(n) for n in found] for found in re.findall(r"([\d.]+) %\s+\[([\d.]+), ([\d.]+)\]", card)]
    phases = ("black-destination", "white-destination", "white-origin", "black-origin", "promotion")
    assert len(printed) == len(phases)
    for numbers, phase in zip(printed, phases, strict=True):
        assert numbers == pytest.approx(legal(phase), abs=0.1), phase
    rows = table("legal")
    assert f"of {rows['n'][rows['phase'] == 'promotion'].sum()} promotions" in card
