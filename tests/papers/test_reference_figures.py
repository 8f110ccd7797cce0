"""Every number in the text of docs/results/karvonen.md equals the one computed from the counts per cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from chessreg.papers.karvonen.sizes import SIZES
from tests.quick import quick_first

from ..fixtures.karvonen.clusters import OF_ONE
from ..fixtures.karvonen.figures import (
    ARMS,
    EDITS_PUBLISHED,
    FOLDER,
    GAMES,
    OF_PROBE,
    PLAIN,
    RETRIED,
    SKILLS,
    accuracy,
    beside_clean,
    beyond,
    by_game,
    fewer_legal,
    first_tries,
    interval,
    points,
    squares,
    texts,
    unpaired,
)
from ..fixtures.kept import add_stored_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "results" / "karvonen.md").read_text()).replace("−", "-")


@pytest.mark.parametrize("name", quick_first(1, ["probes", "games", "edits", "skills"]))
def test_a_slice_takes_the_place_of_its_own_rows_alone(name):
    table = pq.read_table(FOLDER / f"{name}.parquet")
    of_one = [tuple(row[column] for column in OF_ONE[name]) for row in table.to_pylist()]
    first = pa.array([each == of_one[0] for each in of_one])
    slice_ = table.filter(first).slice(1)  # again, with one row less
    both = add_stored_rows(slice_, FOLDER / f"{name}.parquet", OF_ONE[name])
    assert both.num_rows == table.num_rows - 1
    assert sorted(map(repr, both.to_pylist())) == sorted(
        map(repr, [*slice_.to_pylist(), *table.filter(pc.invert(first)).to_pylist()])
    )


def says(*parts: Any) -> bool:
    return " ".join(map(str, parts)) in PAGE


def test_the_unedited_model_scores_what_is_printed():
    assert len(PLAIN) == 400
    assert says("scores", f"{np.mean(list(PLAIN.values())):.3f}", "in 400 games")
    assert 0.2 < np.mean(list(PLAIN.values())) < 0.8


@pytest.mark.parametrize("opening", ["random:20", "standard"])
def test_one_of_nine_opponents_leaves_an_edit_room(opening):
    """The ladder: separate games, which choose the opponent."""
    ladder: dict[tuple[str, str], dict[int, float]] = {}
    for game in GAMES:
        if (game["choice"], game["source"], game["opening"], game["opening_seed"]) == (True, "none", opening, 2):
            ladder.setdefault((game["policy"], game["opponent"]), {})[game["opening_number"]] = game["points"]
    assert {len(points) for points in ladder.values()} == {40}
    assert says("the one opponent of nine against which it scores between 0.2 and 0.8")
    assert [policy for policy, _ in ladder].count("legal") == [policy for policy, _ in ladder].count("retry:5") == 9
    scores = {of: np.mean([*points.values()]) for of, points in ladder.items()}
    assert [of for of, score in scores.items() if 0.2 < score < 0.8] == [("legal", "random")]
    assert max(score for (policy, _), score in scores.items() if policy == "retry:5") <= 0.075
    assert says("the model is too weak for all nine opponents: it scores at most 0.075 against each")


@pytest.mark.parametrize(("layers", "scale", "name"), ARMS)
def test_neither_sign_changes_the_score(layers, scale, name):
    arm = points(False, "contrastive", layers, scale)
    assert arm.keys() == PLAIN.keys()
    score = f"{np.mean(list(arm.values())):.3f}"
    difference = np.array([arm[opening] - PLAIN[opening] for opening in PLAIN])
    low, high = interval(difference)
    assert low < 0 < high
    [(printed, bounds)] = re.findall(
        rf"\({name}\)(?: scores)? {score}(?: on the same openings, a difference of|,) (-?[\d.]+) \[([^\]]+)\]", PAGE
    )
    assert printed == f"{difference.mean():.3f}"
    assert [float(bound) for bound in bounds.split(", ")] == pytest.approx([low, high], abs=0.0006)


def test_nor_from_the_standard_opening():
    """Where no two games share more than the first position: games are resampled on either side."""
    plain = np.array(list(points(False, "none", opening="standard").values()))
    assert len(plain) == 400
    assert says("From the standard opening it scores", f"{plain.mean():.3f}", "in 400 games against the same mover")
    for layers, scale, _ in ARMS:
        arm = np.array(list(points(False, "contrastive", layers, scale, "standard").values()))
        assert len(arm) == 400
        rng = np.random.default_rng(0)
        low, high = np.quantile([rng.choice(arm, 400).mean() - rng.choice(plain, 400).mean() for _ in range(4000)],
                                [0.025, 0.975])  # fmt: skip
        assert low < 0 < high
        sign = "negative" if scale < 0 else "positive"
        [numbers] = re.findall(rf"the {sign} vector ([\d.]+), (-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", PAGE)
        values = [arm.mean(), arm.mean() - plain.mean(), low, high]
        assert [float(number) for number in numbers] == pytest.approx(values, abs=0.0011)


def test_strong_edits_of_either_sign_cost_points():
    scores = {scale: points(True, "contrastive", "[3,4,5,6]", scale) for scale in (-4.0, 4.0)}
    means = {scale: np.mean(list(score.values())) for scale, score in scores.items()}
    plain = points(True, "none")
    assert says("of which the unedited model takes 0.637, a scale of -4 scores 0.263, and +4 scores 0.188")
    assert means == {-4.0: pytest.approx(0.2625), 4.0: pytest.approx(0.1875)}
    assert np.mean(list(plain.values())) == pytest.approx(0.6375)
    for score in scores.values():
        assert interval(np.array([score[opening] - plain[opening] for opening in plain]))[1] < 0


@pytest.mark.parametrize("opening", ["random:20", "standard"])
@pytest.mark.parametrize("control", ["random", "shuffled"])
@pytest.mark.parametrize(("layers", "scale", "name"), ARMS)
def test_neither_sign_is_apart_from_its_controls(layers, scale, name, control, opening):
    value, low, high = beyond(layers, scale, control, opening)
    sign = "negative" if scale < 0 else "positive"
    line = rf"\| {opening.partition(':')[0]} \| {sign} \({name}\) minus {control} \| "
    [cells] = re.findall(line + r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\] \|", PAGE)
    assert [float(cell) for cell in cells] == pytest.approx([value, low, high], abs=0.0006)
    assert low < 0 < high


@pytest.mark.parametrize(("layers", "scale", "name"), OF_PROBE)
def test_nor_the_direction_of_the_skill_probe(layers, scale, name):
    [scale] = {game["scale"] for game in GAMES if (game["source"], game["policy"]) == ("probe", "legal")
               and not game["choice"] and abs(game["scale"] - scale) < 0.1}  # fmt: skip
    arm = points(False, "probe", layers, scale)
    assert len(arm) == 400
    differences = np.array([arm[opening] - PLAIN[opening] for opening in PLAIN])
    low, high = interval(differences)
    shown = [f"{np.mean([*arm.values()]):.3f}", f"{differences.mean():.3f} [{low:.3f}, {high:.3f}]"]
    for control in ("random", "shuffled"):
        value, low, high = beyond(layers, scale, control, "random:20", "probe")
        shown.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
        assert low < 0 < high
    line = f"| {name} | {' | '.join(shown)} |"
    assert says(line), line


def test_as_published_every_game_is_lost():
    games = [game for game in RETRIED if game["opponent"].startswith("stockfish:")]
    ours = [game for game in games if game["source"] in ("contrastive", "probe")]
    unedited = [game for game in games if game["source"] == "none"]
    controls = [game for game in games if game["source"] in ("random", "shuffled")]
    assert len(ours) + len(unedited) + len(controls) == len(games)
    assert not any(game["points"] for game in (*ours, *unedited))
    assert [game["points"] for game in controls if game["points"]] == [1, 1]
    assert says(f"It loses all {len(unedited):,} unedited and {len(ours):,} edited games, and all but two of the")
    assert says(f"all but two of the {len(controls):,} of controls")
    illegal = np.mean([game["termination"] == "forfeit_illegal" for game in unedited])
    assert says(f"{100 * illegal:.0f} % of the unedited ones because it found no legal move")


@pytest.mark.parametrize("opening", quick_first(1, ["standard", "random:20"]))
@pytest.mark.parametrize(("name", "source", "layers", "scale"), quick_first(2, EDITS_PUBLISHED))
def test_first_tries_that_published_edits_leave_legal(opening, name, source, layers, scale):
    [plain], [arm] = first_tries(opening, "none"), first_tries(opening, source, layers, scale)
    controls = {control: first_tries(opening, control, layers, scale) for control in ("random", "shuffled")}
    assert {len(games) for drawn in controls.values() for games in drawn} == {80}
    assert {len(drawn) for drawn in controls.values()} == {5}
    assert len(arm) == 400
    columns = [f"{100 * arm[:, 1].sum() / arm[:, 2].sum():.1f}", fewer_legal(opening, arm, [plain])]
    columns += [fewer_legal(opening, arm, drawn) for drawn in controls.values()]
    line = f"| {opening.partition(':')[0]} | {name} | {' | '.join(columns)} |"
    assert says(line), line


TUNED = [
    ("capture", "standard", "Table 3, negative", "contrastive", -0.8),
    ("capture", "standard", "Table 3, positive", "contrastive", 0.8),
    ("random", "random:20", "Table 3, negative", "contrastive", -0.8),
    ("random", "random:20", "Table 3, positive", "contrastive", 0.8),
    ("random", "random:20", "Table 7, negative", "probe", -21.423),
    ("random", "random:20", "Table 7, positive", "probe", 21.423),
]


@pytest.mark.parametrize(("opponent", "opening", "name", "source", "scale"), quick_first(2, TUNED))
def test_tuned_edits_of_a_model_that_writes_its_moves(opponent, opening, name, source, scale):
    def scores(*of: Any) -> dict[tuple[int, int], float]:
        columns = ("opponent", "opening", "source", "layers", "scale")
        mine = [game for game in RETRIED if tuple(game[column] for column in columns) == (opponent, opening, *of)]
        assert len(mine) == 400
        return {(game["draw"], game["opening_number"]): game["points"] for game in mine}

    [scale] = {game["scale"] for game in RETRIED if game["layers"] == "[5,6]" and game["source"] == source
               and abs(game["scale"] - scale) < 0.001}  # fmt: skip
    arm, plain = scores(source, "[5,6]", scale), scores("none", None, None)
    pairs = np.array([arm[of] - plain[of] for of in arm]) if opening != "standard" else None
    low, high = interval(pairs) if pairs is not None else unpaired(arm, plain)
    shown = [f"{np.mean([*arm.values()]):.3f}"]
    shown += [f"{np.mean([*arm.values()]) - np.mean([*plain.values()]):.3f} [{low:.3f}, {high:.3f}]"]
    shown += [f"{np.mean([*scores(control, '[5,6]', scale).values()]):.3f}" for control in ("random", "shuffled")]
    [legal] = first_tries(opening, source, "[5,6]", scale, opponent)
    shown += [f"{100 * legal[:, 1].sum() / legal[:, 2].sum():.1f}"]
    for control in ("random", "shuffled"):
        shown += [fewer_legal(opening, legal, first_tries(opening, control, "[5,6]", scale, opponent))]
    line = f"| {opening.partition(':')[0]} | {name} | {' | '.join(shown)} |"
    assert says(line), line
    assert low < 0 < high
    assert says("No score is shown to differ from the unedited one")
    ended = [game["termination"] for game in RETRIED if game["opponent"] == opponent and game["source"] == "none"]
    assert len(ended) == 400
    assert says(f"{ended.count('forfeit_illegal')} of 400")


def test_level_0_is_worth_more_with_more_nodes():
    scores = {}
    for nodes in ("1000", "10000", "100000"):
        found = [game["points"] for game in GAMES
                 if (game["policy"], game["opponent"]) == ("engine", f"stockfish:0@nodes={nodes}")]  # fmt: skip
        assert len(found) == 60
        scores[nodes] = np.array(found), interval(np.array(found))
    (one, _), *others = scores.values()
    assert says(f"scores {one.mean():.2f} in 60 games against itself")
    for against, (low, high) in others:
        assert says(f"{against.mean():.2f} [{low:.2f}, {high:.2f}]")
        assert high < 0.5


def test_the_earlier_runs_vector_does_what_shuffled_labels_do():
    tables = json.loads((FOLDER / "tables.json").read_text())["elo by intervention"]
    arms = {
        arm["opponent"]: arm for arm in tables
        if (arm["intervention"], arm["policy"]) == ("contrastive:white_elo L3-6 x-4", "legal")
    }  # fmt: skip
    assert {arm["n"] for arm in arms.values()} == {60}
    random, capture = arms["random"], arms["capture"]
    ends = ", ".join(f"{-random[f'minus_shuffled_{end}']:.3f}" for end in ("high", "low"))
    assert says("took", f"{-random['minus_random']:.3f}", "more than the random direction, but")
    assert says("but", f"{-random['minus_shuffled']:.3f}", f"[{ends}]", "more than that of shuffled labels")
    assert capture["minus_random"] == capture["minus_shuffled"]
    assert says("the same vector gained", f"{capture['minus_random']:.3f}", "over both")
    [plain] = [
        arm for arm in tables if arm["n"] > 40 and
        (arm["intervention"], arm["opponent"], arm["policy"]) == ("none", "capture", "legal")
    ]  # fmt: skip
    assert says("of which the model takes", f"{plain['score']:.3f}", "of the points")


def test_board_probes_read_what_is_printed():
    [layer], ours, games = accuracy(False)
    [layer_of_control], controls, games_of_control = accuracy(True)
    _, [paper], _ = accuracy(False, published=True)
    assert games.keys() == games_of_control.keys()
    assert len(ours) == 3
    assert max(ours) - min(ours) < 0.05
    assert says(
        "Board probes of three seeds read", f"{np.mean(ours):.1f}", f"% of the squares of test games at layer {layer},"
    )
    beyond = np.array([games[game] / len(ours) - games_of_control[game] / len(controls) for game in games])
    low, high = 100 * by_game(np.stack([beyond[:, 0], [every / len(ours) for _, every in games.values()]], 1))
    points = f"{np.mean(ours) - np.mean(controls):.2f} [{low:.2f}, {high:.2f}] points more than those of"
    assert says(f"layer {layer},", points, f"a random-init control at layer {layer_of_control}. The goal was 8: missed")
    assert high < 8
    assert paper < min(controls)
    assert says("paper's settings they read", f"{paper:.1f} %, less than the {np.mean(controls):.1f} % of that control")


@pytest.mark.parametrize(
    ("name", "thirds", "fit"),
    quick_first(2, [
        ("all 33 moves", (0, 1, 2), {}),
        ("moves 1-11", (0,), {}),
        ("moves 12-22", (1,), {}),
        ("moves 1-22", (0, 1), {}),
        ("moves 23-33", (2,), {}),
        ("all, fitted on half of the games", (0, 1, 2), {"held_out": 0.55}),
        ("all, fitted in 15 epochs, not 5", (0, 1, 2), {"epochs": 15}),
        ("moves 23-33, fitted on them alone", (2,), {"first_ply": 44}),
    ]),
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_why_board_probes_miss_their_goal(name, thirds, fit):
    model, control = (squares(untrained, thirds, **fit) for untrained in (False, True))
    beyond = np.stack([model[:, 0] - control[:, 0], model[:, 1]], 1)
    shares = [100 * np.divide(*read.sum(0)) for read in (model, control, beyond)]
    low, high = 100 * by_game(beyond)
    assert says(f"| {name} | {shares[0]:.1f} | {shares[1]:.1f} | {shares[2]:.2f} [{low:.2f}, {high:.2f}] |")


def test_neither_more_games_nor_more_epochs_are_why():
    def beyond(**fit: float) -> float:
        model, control = (squares(untrained, (0, 1, 2), **fit).sum(0) for untrained in (False, True))
        return float(100 * (model[0] - control[0]) / model[1])

    half, thrice = beyond(held_out=0.55) - beyond(), beyond(epochs=15) - beyond()
    assert says(f"with half of the games the difference is {half:.2f} more, with thrice the epochs {-thrice:.2f} less.")
    late, before = ([squares(untrained, (third,))[:, 0].sum() for untrained in (False, True)] for third in (2, 1))
    assert late[0] < before[0]  # of the model
    assert late[1] > before[1]  # of its control


@pytest.mark.parametrize(
    ("name", "probe", "untrained"),
    quick_first(2, [
        ("within each source and time control, as the vectors", "skill, within", False),
        ("the same, of a random-init control", "skill, within", True),
        ("the same, labels shuffled (five draws)", "skill-shuffled, within", False),
        ("over all of them, classes of equal size", "skill, balanced", False),
        ("over all of them", "skill, pooled", False),
        ("over all of them, whole games (the paper's)", "skill, pooled, whole games", False),
    ]),
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_where_games_come_from_is_most_of_what_pooled_probes_of_skill_read(name, probe, untrained):
    """A game is the unit of resampling, with all probes (seeds or draws) that read it."""
    tested = [row for row in SKILLS if (row["probe"], row["untrained"], row["played"]) == (probe, untrained, False)]
    _, place = np.unique([row["game"] for row in tested], return_inverse=True)
    columns = np.array([[row["n"], row["correct"], row["n"] * row["source"]] for row in tested], np.float64)
    every, right, source = (np.bincount(place, column) for column in columns.T)
    assert right.sum() > source.sum()
    low, high = 100 * by_game(np.stack([right - source, every], 1))
    shares = [100 * part.sum() / every.sum() for part in (right, source, right - source)]
    line = f"| {name} | {shares[0]:.1f} | {shares[1]:.1f} | {shares[2]:.1f} [{low:.1f}, {high:.1f}] |"
    own = [row for row in SKILLS if (row["probe"], row["untrained"], row["played"]) == (probe, untrained, True)]
    if own:
        [run] = {row["run"] for row in own}
        theirs = [row["lowest"] for row in tested if row["run"] == run]
        lowest = np.array([row["lowest"] for row in own], np.float64)
        assert len(lowest) == 399
        ends = 100 * by_game(np.stack([lowest, np.ones(len(lowest))], 1))
        line += f" {100 * np.mean(theirs):.1f} | {100 * lowest.mean():.1f} [{ends[0]:.1f}, {ends[1]:.1f}] |"
    else:
        line += " | |"
    assert says(line), line


def test_how_many_games_a_class_of_skill_has():
    games = round(0.9 * SIZES["reference"].fit_games)
    assert not SIZES["reference"].skill_fit_games  # those of the board
    assert says(f"the {games:,} games that probes are fitted on, at most {-(-games // 6)} games each")
    assert SIZES["paper"].skill_fit_games * 0.9 / 6 >= 3400
    assert says(f"The 3,400 of a class that the paper has would take {6 * 3400:,} games")


def test_one_draw_of_shuffled_labels_reads_what_the_labels_do():
    shares: dict[str, list[int]] = {}
    for row in SKILLS:
        if row["probe"] == "skill-shuffled, within":
            share = shares.setdefault(row["run"], [0, 0])
            share[0] += row["correct"]
            share[1] += row["n"]
    best, *others = sorted((100 * right / every for right, every in shares.values()), reverse=True)
    assert says(f"One of the five draws reads {best:.1f}, the others {min(others):.1f} to {max(others):.1f}")


@pytest.mark.parametrize("opponent", sorted({game["opponent"] for game in GAMES if game["choice"]} - {"random"}))
def test_eight_opponents_leave_no_room(opponent):
    score = np.mean([
        game["points"] for game in GAMES
        if (game["opponent"], game["source"], game["opening"]) == (opponent, "none", "random:20")
        and game["policy"] == "legal"
    ])  # fmt: skip
    assert says("eight of nine, against whom the model scores at most 0.125")
    assert score <= 0.125


@pytest.mark.parametrize(
    ("name", "mask", "published"),
    [
        ("last", "last", False),
        ("last, as published", "last", True),
        ("all", "all", False),
        ("all, as published", "all", True),
    ],
)
def test_a_board_edit_beside_its_controls(name, mask, published):
    edit = texts("edit", mask, published)
    for condition in ("edit", "clean", "random", "shuffled", "wrong-layer", "sham"):
        these = texts(condition, mask, published)
        assert (these[:, 2] == edit[:, 2]).all()
        modified, original = (100 * these[:, column].sum() / these[:, 2].sum() for column in (0, 1))
        beyond = "" if condition == "edit" else beside_clean(edit, these)
        line = f"| {name} | {condition} | {modified:.1f} | {beyond} | {original:.1f} |".replace("|  |", "| |")
        assert says(line), line


@pytest.mark.parametrize(
    ("name", "setting", "scale"),
    [("C: the direction of the empty square is also added", "blank", 1.5)]
    + [("D: pushed until the probe's reading is −10", "target", -10.0)]
    + [(f"D: scale {scale:g}", "scales", scale) for scale in (1.5, 12.0, 50.0, 100.0)]
    + [("D: the best of these four for each state", "scales", None)],
)
def test_edits_as_the_appendices_have_them(name, setting, scale):
    clean = texts("clean", "last", True, setting)
    edit = texts("edit" if scale else "best", "last", True, setting, scale=scale)
    original = f"{100 * edit[:, 1].sum() / edit[:, 2].sum():.1f}" if scale else ""
    line = f"| {name} | {100 * edit[:, 0].sum() / edit[:, 2].sum():.1f} | {beside_clean(edit, clean)} | {original} |"
    assert says(line.replace("|  |", "| |").replace("−", "-")), line


def test_no_single_layer_at_the_published_scale_is_noticed():
    clean = texts("clean", "last", True, "each layer")
    for layer in range(8):
        edit = texts("edit", "last", True, "each layer", layers=f"[{layer}]", scale=1.5)
        assert abs(100 * (edit - clean)[:, :2].sum(0) / clean[:, 2].sum()).max() < 0.1
    assert says("each of a single layer changes no more than 0.1 points")


def test_what_a_board_edit_is_worth():
    """Points that it and each control win on the board without the piece, and lose on the real one."""

    def worth(condition: str, mask: str) -> np.ndarray:
        these, clean = (texts(each, mask, False).sum(0) for each in (condition, "clean"))
        return 100 * (these[:2] / these[2] - clean[:2] / clean[2])

    at_last, at_all = (worth("edit", mask) for mask in ("last", "all"))
    best = max(
        worth(condition, mask)[0]
        for condition in ("random", "shuffled", "wrong-layer", "sham")
        for mask in ("last", "all")
    )
    assert says(
        f"makes {at_last[0]:.0f} texts of a hundred more legal on the board that it aims at, {at_all[0]:.0f} if it is"
    )
    assert says(f"The best of the controls is worth {best:.0f}. On the real board it takes away {-at_last[1]:.0f} and")
    others = [-worth("shuffled", mask)[1] for mask in ("last", "all")]
    assert says(
        f"and {-at_all[1]:.0f}, as does a direction for another piece there ({others[0]:.0f} and {others[1]:.0f})"
    )
