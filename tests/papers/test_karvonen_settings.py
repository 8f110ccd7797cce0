"""The plan of Karvonen's paper against the paper: each value here is typed from its Tables 2, 3, 4, 6, 7 and 8 and from
Appendices C, D and E, with 0-based layers."""

import pytest

from chessreg.papers import find_paper
from chessreg.papers.plan import Request
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from tests.quick import quick_first

FROM_1_ALONE = (("from-1", (3, 4, 5, 6)),)
BOARD = {  # Table 6
    8: ("4-7", 1.5, FROM_1_ALONE),
    16: ("range(5,15,2)", 2.0, (("from-0", (5, 7, 9, 11, 13)), ("from-1", (4, 6, 8, 10, 12)))),
}
SKILL = {  # (layers of the model, table of the games): (goal, way to count, layers, scale, label)
    (8, 3): (
        ("positive", "from-1", (3, 4, 5, 6), 0.1, "4-7"),
        ("positive", "from-0", (4, 5, 6), 0.1, "4-7"),
        ("negative", "from-1", (2, 3, 4, 5, 6), -0.2, "3-7"),
        ("negative", "from-0", (3, 4, 5, 6), -0.2, "3-7"),
    ),
    (16, 3): (
        ("positive", "from-1", (10, 11, 12, 13, 14), 0.1, "11-15"),
        ("positive", "from-0", (11, 12, 13, 14), 0.1, "11-15"),
        ("negative", "from-1", (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), -0.1, "1-15"),
        ("negative", "from-0", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), -0.1, "1-15"),
    ),
    (8, 7): (
        ("positive", "from-1", (4, 5, 6), 0.6, "5-7"),
        ("positive", "from-0", (5, 6), 0.6, "5-7"),
        ("negative", "from-1", (4, 5, 6), -1.2, "5-7"),
        ("negative", "from-0", (5, 6), -1.2, "5-7"),
    ),
    (16, 7): (
        ("positive", "from-1", (12, 13, 14), 2.5, "13-15"),
        ("positive", "from-0", (13, 14), 2.5, "13-15"),
        ("negative", "from-1", (6, 7, 8, 9, 10, 11, 12, 13, 14), -1.1, "7-15"),
        ("negative", "from-0", (7, 8, 9, 10, 11, 12, 13, 14), -1.1, "7-15"),
    ),
}
TUNED = ("ladder-", "sweep-", "arm-", "edit-sweep-", "edits-", "quality-", "level-", "engines-", "shuffled-", "random-")


def planned(layers, size="paper"):
    """name → (step, spec) of every step whose settings are fixed; references are placeholders."""
    found = {}
    for step in find_paper("karvonen").steps(Request("model", "train", "test", layers, 512, size)):
        if callable(step.settings) or step.kind in ("twin", "split", "played-games"):
            continue
        values = dict(step.settings)
        preset = find_kind(step.kind).preset(values.pop("preset")) if "preset" in values else {}
        found[step.name] = step, parse_settings(find_kind(step.kind).spec, preset | values)
    return found


def names(found, start):
    return {name for name in found if name.startswith(start)}


@pytest.mark.parametrize("layers", [8, 16])
def test_tables_2_and_6_edit_5000_states_at_the_papers_layers_and_scale(layers):
    label, scale, readings = BOARD[layers]
    steps = planned(layers)
    assert names(steps, "table-2-") == {f"table-2-{m}-{c}" for m in ("last", "all") for c, _ in readings}
    for mask in ("last", "all"):
        for counted, chosen in readings:
            step, spec = steps[f"table-2-{mask}-{counted}"]
            assert (spec.layers, spec.layers_label, spec.scale, spec.token_mask) == (chosen, label, scale, mask)
            assert (spec.scale_rule, spec.piece, spec.blank) == ("single_scale", 1.0, 0.0)
            assert (spec.samples, spec.temperature, spec.max_tokens, spec.king) == (5, 1.0, 7, "skip")
            assert (spec.probe, spec.dataset, spec.last_move) == ("@model-board-paper", "test:test", 30)
            assert step.units >= 5000 / 0.7  # illegal greedy texts and moves of the king leave states out
            assert spec.random_controls >= 1
            assert spec.shuffled_label_controls >= 1


@pytest.mark.parametrize("layers", [8, 16])
def test_table_8_edits_every_layer_alone(layers):
    steps = planned(layers)
    assert names(steps, "table-8-") == {"table-8-last", "table-8-all"}
    for mask in ("last", "all"):
        step, spec = steps[f"table-8-{mask}"]
        assert spec.layer_sets == tuple(str(layer) for layer in range(layers))
        assert (spec.scales, spec.token_mask, step.choice) == ((BOARD[layers][1],), mask, False)


@pytest.mark.parametrize("layers", [8, 16])
def test_appendices_c_and_d_edit_boards_in_the_other_ways(layers):
    _, scale, readings = BOARD[layers]
    steps = planned(layers)
    for mask in ("last", "all"):
        for counted, chosen in readings:
            end = f"{mask}-{counted}"
            _, blank = steps[f"appendix-c-blank-{end}"]
            assert (blank.piece, blank.blank, blank.layers, blank.scale) == (1.0, 1.0, chosen, scale)
            _, target = steps[f"appendix-d-target-{end}"]
            assert (target.scale_rule, target.scale, target.layers) == ("single_target", -10.0, chosen)
            _, best = steps[f"appendix-d-scales-{end}"]
            assert (best.layers, best.token_mask) == (chosen, mask)
            assert len(best.scales) >= 5
            assert scale in best.scales
    assert len(names(steps, "appendix-d-")) == 4 * len(readings)


@pytest.mark.parametrize("layers", [8, 16])
@pytest.mark.parametrize("opening", quick_first(1, ["standard", "random"]))
@pytest.mark.parametrize("table", [3, 7])
def test_tables_3_and_7_are_5000_games_against_level_0_at_the_papers_layers_and_scales(layers, opening, table):
    steps = planned(layers)
    vector = {3: "@skill-paper", 7: "@skill-of-probe-paper"}[table]
    wanted = {f"table-{table}-{opening}-{goal}-{counted}" for goal, counted, *_ in SKILL[layers, table]}
    assert names(steps, f"table-{table}-{opening}") == wanted | ({f"table-3-{opening}-none"} if table == 3 else set())
    for goal, counted, chosen, scale, label in SKILL[layers, table]:
        _, spec = steps[f"table-{table}-{opening}-{goal}-{counted}"]
        edit = spec.intervention
        assert (edit.vector, edit.layers, edit.scale, edit.layers_label) == (vector, chosen, scale, label)
        assert (edit.token_mask, edit.control) == ("all", "none")
        match(spec, opening)
    _, plain = steps[f"table-3-{opening}-none"]
    assert not plain.intervention.active
    match(plain, opening)


def match(spec, opening):
    assert (spec.opponent, spec.games, spec.policy) == ("stockfish:0@nodes=100000", 5000, "retry:5")
    assert spec.opening == {"standard": "standard", "random": "random:20"}[opening]
    assert spec.temperatures == (0.001, 0.201, 0.401, 0.5, 0.5)
    assert (spec.color, spec.move_limit, spec.adjudication) == ("white", 90, "nodes=100000")


@pytest.mark.parametrize("layers", [8, 16])
def test_appendix_c_adds_the_high_class_or_takes_off_the_low_one(layers):
    steps = planned(layers)
    for side in ("high", "low"):
        assert steps[f"skill-of-probe-{side}"][1].side == side
        for goal, counted, chosen, scale, _ in SKILL[layers, 7]:
            edit = steps[f"appendix-c-{side}-random-{goal}-{counted}"][1].intervention
            assert (edit.vector, edit.layers, edit.scale) == (f"@skill-of-probe-{side}", chosen, scale)


def test_vectors_are_sums_over_eight_positions_of_2000_games_of_either_class():
    _, spec = planned(8)["skill-paper"]
    assert (spec.source, spec.reduction) == ("contrastive", "summed")
    assert (spec.first_ply, spec.last_ply, spec.whole_games, spec.per_class) == (50, 64, True, 2000)  # dots 25 to 32
    assert spec.skill.keep == (0, -1)
    _, probed = planned(8)["skill-of-probe-paper"]
    assert (probed.source, probed.probe, probed.side, probed.direction_norm) == (
        "probe", "@model-skill-paper", "both", "unit",
    )  # fmt: skip


def test_probes_are_fitted_as_in_table_4_on_10000_games_beside_ours():
    steps = planned(8)
    for name in ("model-board-paper", "model-skill-paper", "twin-0-board-paper", "twin-0-skill-paper"):
        _, spec = steps[name]
        assert (spec.learning_rate, spec.weight_decay, spec.beta1, spec.beta2) == (0.001, 0.01, 0.9, 0.99)
        assert (spec.epochs, spec.batch_games, spec.schedule, spec.normalize_activations) == (5, 2, "constant", False)
        assert name.replace("paper", "0") in steps
    for cache, classed in (("model-fit", 1), ("model-fit-skill", 1 / 3)):  # two of six bins are classed
        games = steps[cache][1].games * classed
        assert games - round(0.1 * games) == pytest.approx(10_000, rel=0.01)
        assert steps[cache.replace("fit", "test")][1].games * classed == pytest.approx(10_000, rel=0.01)
    assert (steps["model-skill-paper"][1].skip_sites, steps["model-skill-paper"][1].max_sites) == (25, 33)


def test_black_has_probes_of_his_own():
    steps = planned(8)
    for part in ("fit", "test"):
        assert steps[f"model-{part}-black"][1].sites == "black-turns"
    for name in ("model-board-black", "model-board-black-paper"):
        assert steps[name][1].cache == "@model-fit-black"
        assert steps[name][1].test_cache == "@model-test-black"


def test_figure_2_appendix_e_and_section_4_3():
    steps = planned(8)
    levels = [steps[f"level-{n}"][1] for n in range(10)]
    assert [spec.opponent for spec in levels] == [f"stockfish:{n}@time=0.1" for n in range(10)]
    assert {spec.games for spec in levels} == {1000}
    engines = [steps[f"engines-{n}"][1] for n in range(3)]
    assert [spec.opponent for spec in engines] == [f"stockfish:0@time={s}" for s in ("0.1", "1", "10")]
    assert {(spec.player, spec.games) for spec in engines} == {("stockfish:0@time=0.1", 1000)}
    assert steps["played-cache"][1].games == 4000
    assert steps["played-skill-paper"][1].probe == "@model-skill-paper"


@pytest.mark.parametrize("layers", [8, 16])
@pytest.mark.parametrize("size", quick_first(1, ["small", "reference"]))
def test_a_smaller_size_does_a_part_of_the_same_list(size, layers):
    whole, part = planned(layers), planned(layers, size)
    published = {name for name in part if not name.startswith(TUNED)}
    assert published <= set(whole)
    for name in published:
        if part[name][0].kind == "edit" and not name.startswith("appendix-d-scales"):
            amounts = {"games", "per_game", "min_plies"}
            assert part[name][1].model_dump(exclude=amounts) == whole[name][1].model_dump(exclude=amounts)
        if part[name][0].kind == "play":
            assert part[name][1].intervention == whole[name][1].intervention
    for needed in ("table-2-last-", "table-2-all-", "table-8-", "appendix-d-target-", "table-3-random-negative-"):
        assert names(part, needed)


@pytest.mark.parametrize("layers", quick_first(2, [2, 12, 1, 3, 4, 6, 24]))
def test_a_model_of_another_depth_is_edited_at_the_same_share_of_it(layers):
    for _, spec in planned(layers).values():
        chosen = getattr(getattr(spec, "intervention", spec), "layers", ())
        assert all(0 <= layer < layers for layer in chosen)
        assert getattr(spec, "layers_label", "") == ""
    steps = planned(4)
    assert steps["table-2-last-from-1"][1].layers == (1, 2, 3)
