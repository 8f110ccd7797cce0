"""Every number of docs/results/davis.md equals the one computed from the committed sums per game."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.quick import quick_first

from ..fixtures.davis.figures import (
    BLOCKS,
    NORMALISED,
    PHASES,
    QUANTITIES,
    STRONG,
    beyond_three_controls,
    difference,
    edited,
    effect,
    judged,
    legal,
    linear_minus_latents,
    other_last_moves,
    read_by,
    table,
)  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (.+?) \|$", re.MULTILINE)
INTERVAL = re.compile(r"(-?[\d.]+)(?: \[(-?[\d.]+), (-?[\d.]+)\])?")
PAGE = (ROOT / "docs" / "results" / "davis.md").read_text().replace("−", "-")
TEXT = re.sub(r"\s+", " ", PAGE)
PRINTED = {
    cells[0]: cells[1:] for cells in (row.split(" | ") for row in ROW.findall(PAGE.partition("## Full tables")[2]))
}


@pytest.mark.parametrize("name", quick_first(30, QUANTITIES))
def test_a_row_is_what_the_games_say(name: str) -> None:
    compute, least, most = QUANTITIES[name]
    has_bounds = least is not None or most is not None
    if has_bounds:
        expected, printed, outcome = PRINTED[name]
    else:
        *_, printed = PRINTED[name]  # some have the question that they answer
        expected = outcome = ""
    value, low, high = compute()
    for number, computed in zip(INTERVAL.fullmatch(printed).groups(), (value, low, high), strict=True):
        assert float(number) == pytest.approx(computed, abs=0.6 * 0.1 ** len(number.partition(".")[2])), number
    bounds = {bound for bound in (least, most) if bound is not None}
    assert {abs(float(bound)) for bound in re.findall(r"[\d.]+", expected)} == {abs(bound) for bound in bounds}
    assert outcome == (judged(low, high, least, most) if has_bounds else "")


def test_the_table_has_every_quantity_and_d_rises() -> None:
    assert set(PRINTED) - {"quantity", "---"} == set(QUANTITIES)
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
    assert f"From 4,000 games to 23,000 the probes gain {min(gained):.1f} to {max(gained):.1f} points on them" in TEXT
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
