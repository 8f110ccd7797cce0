"""Karvonen's paper as a list of specs: complete, in order, and with settings that its kinds know."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from chessreg.errors import NotFoundError
from chessreg.papers import find_paper, list_papers, plan
from chessreg.papers.cost import estimate_step_seconds
from chessreg.papers.karvonen import SLICES
from chessreg.papers.karvonen.edits import list_layer_sets
from chessreg.papers.karvonen.matches import find_even_rung, list_skill_layers
from chessreg.papers.karvonen.sizes import SIZES as SIZES_OF
from chessreg.papers.plan import SIZE_NAMES, Request, order_steps, replace_references
from chessreg.papers.work import PREPARATIONS
from chessreg.queries.catalogue import find_entry as find_query
from chessreg.queries.catalogue import find_plot
from chessreg.queries.published import list_published_values
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from tests.quick import quick_first


@pytest.mark.parametrize("size", SIZE_NAMES)
@pytest.mark.parametrize("layers", quick_first(1, [8, 1, 2, 16]))
def test_every_step_has_what_it_needs_and_settings_that_its_kind_takes(size, layers):
    steps = order_steps(find_paper("karvonen").steps(Request("model", "train", "test", layers, 64, size)))
    reference = f"run:{'a' * 64}"
    for step in steps:
        if step.kind in PREPARATIONS or callable(step.settings):
            continue
        found = find_kind(step.kind)
        values = dict(replace_references(step.settings, dict.fromkeys(step.needs, reference)))
        preset = found.preset(values.pop("preset")) if "preset" in values else {}
        assert parse_settings(found.spec, preset | values)


def test_the_reference_size_has_what_the_headlines_need():
    steps = {s.name: s for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, "reference"))}
    fit, probe = steps["model-fit"].settings, steps["model-board-0"].settings
    assert fit["games"] * (1 - find_kind("probe").spec(cache="run:" + "a" * 64).validation) >= 5_000
    assert steps["model-test"].settings["games"] == 5_000
    assert probe["epochs"] == 5
    assert sum(name.startswith("model-board-") for name in steps) >= 3
    assert sum(step.kind == "twin" for step in steps.values()) >= 3
    assert steps["edits-all"].units >= 2000 / 0.7  # illegal greedy texts and king moves leave states out
    assert {steps[f"arm-{p}-{o}-none"].units for p in ("retry", "legal") for o in ("standard", "random")} == {400}


def test_slices_of_two_core_hours_are_the_whole_reference_size():
    paper = find_paper("karvonen")
    steps = order_steps(paper.steps(Request("model", "train", "test", 8, 192, "reference")))
    done: dict[str, float] = {}
    for name in SLICES:
        costs = {
            s.name: estimate_step_seconds(s, 90e9) or 0.0
            for s in plan.select_steps(paper, steps, [name])
            if s.name not in done
        }
        assert costs, f"{name} has nothing of its own"
        assert sum(costs.values()) < 2 * 3600, name
        done |= costs
    assert done.keys() == {step.name for step in steps}
    priced = {step.kind for step in steps if done[step.name]}
    assert priced == {"cache", "edit", "engine-match", "legality", "move-quality", "play", "probe"}


@pytest.mark.parametrize("arm", ["positive", "negative", "positive-of-probe", "negative-of-probe"])
@pytest.mark.parametrize(("size", "policy"), [("reference", "legal"), ("reference", "retry"), ("paper", "retry")])
def test_an_edit_of_skill_of_either_sign_plays_beside_five_draws_of_each_control(arm, size, policy):
    steps = {s.name: s for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, size))}
    for source in ("random", "shuffled"):
        plays = [s for name, s in steps.items() if name.startswith(f"arm-{policy}-random-{arm}-{source}-")]
        assert len(plays) == 5
        assert sum(step.units for step in plays) >= 400
        vectors = {next(n for n in step.needs if n.startswith(source)) for step in plays}
        real = "skill-of-probe" if arm.endswith("probe") else "skill"
        assert {steps[name].settings["of"] for name in vectors} == {f"@{real}"}
        assert {steps[name].settings["seed"] for name in vectors} == {1, 2, 3, 4, 5}
        if (source, real) == ("shuffled", "skill-of-probe"):
            check_shuffled(steps, vectors, "model-skill-0")


def check_shuffled(steps, vectors, real):
    """Each vector is of a separate probe, which differs from the real one in the draw of its labels alone."""
    probes = {steps[name].settings["probe"].removeprefix("@") for name in vectors}
    assert {steps[name].settings["shuffled_label_control"] for name in probes} == {
        steps[name].settings["seed"] for name in vectors
    }
    for name in probes:
        assert {k: v for k, v in steps[name].settings.items() if k != "shuffled_label_control"} == steps[real].settings


@pytest.mark.parametrize("size", ["reference", "paper"])
@pytest.mark.parametrize(("table", "vector"), [(3, "skill-paper"), (7, "skill-of-probe-paper")])
def test_the_papers_own_edits_of_skill_play_level_0_beside_five_draws_of_each_control(table, vector, size):
    steps = {s.name: s for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, size))}
    arms = [name for name in steps if name.startswith(f"table-{table}-") and not name.endswith("none")]
    assert len(arms) == (8 if size == "paper" else 4)  # either opening and sign; all of the paper: both readings
    for arm in arms:
        real = steps[arm].settings
        for source in ("random", "shuffled"):
            plays = [steps[f"{source}-{draw}-{arm}"] for draw in (1, 2, 3, 4, 5)]
            assert sum(step.units for step in plays) >= 400
            for step in plays:
                own = {**real["intervention"], "vector": step.settings["intervention"]["vector"]}
                assert step.settings == {**real, "games": step.units, "intervention": own}
            vectors = {step.settings["intervention"]["vector"].removeprefix("@") for step in plays}
            assert {steps[name].settings["of"] for name in vectors} == {f"@{vector}"}
            if (source, table) == ("shuffled", 7):
                check_shuffled(steps, vectors, "model-skill-paper")


@pytest.mark.parametrize("side", ["high", "low"])
def test_one_sided_directions_of_appendix_c_play_beside_five_draws_of_each_control(side):
    steps = {s.name: s for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, "paper"))}
    arms = [name for name in steps if name.startswith(f"appendix-c-{side}-")]
    assert arms
    for arm in arms:
        for source in ("random", "shuffled"):
            plays = [steps[f"{source}-{draw}-{arm}"] for draw in (1, 2, 3, 4, 5)]
            vectors = {step.settings["intervention"]["vector"].removeprefix("@") for step in plays}
            assert {steps[name].settings["of"] for name in vectors} == {f"@skill-of-probe-{side}"}
            if source == "shuffled":
                check_shuffled(steps, vectors, "model-skill-paper")
    small = {s.name for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, "reference"))}
    assert not [name for name in small if name.endswith(f"-of-skill-of-probe-{side}")]


def test_weak_models_find_a_rung_at_the_papers_move_limit():
    for size in ("reference", "paper"):
        assert {"random", "capture", "stockfish:-1+random=0.4", "stockfish:-1"} <= set(SIZES_OF[size].rungs)
        steps = find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, size))
        ladder = [s for s in steps if s.name.startswith("ladder-")]
        assert {s.settings.get("move_limit") for s in ladder} == {90}
        assert {s.settings["opponent"] for s in ladder} == set(SIZES_OF[size].rungs)


class Played:
    """The results of a paper: a score and a share of legal moves for each step's match, and vectors of length 2."""

    def __init__(self, results):
        self.results, self.references, self.session = results, defaultdict(lambda: "run:x"), None

    def query(self, title, step):
        score, legal = self.results.get(step, (0.5, 90.0))
        return SimpleNamespace(rows=[{"score": score, "first_try_legal": legal}])


def chosen(results, which="negative"):
    [step] = [s for s in find_paper("karvonen").steps(Request("m", "d", "e", 8, 64, "reference"))
              if s.name == f"arm-retry-random-{which}"]  # fmt: skip
    found = step.settings(Played(results))["intervention"]
    return found["layers"], found["scale"]


def every_lost():
    return {f"sweep-retry-negative-{n}-{s}": (0.0, 90.0) for n in (0, 1) for s in ("0.8", "2", "4")}


def test_the_sweep_chooses_no_edit_at_the_floor_nor_one_that_writes_illegal_moves():
    """Layers 5-6 and 3-6 at 0.8, 2 and 4. The unedited model writes 90 % legal moves, so an edit must write 88 %."""
    lost = {"sweep-retry-negative-1-4": (0.0, 89.0)}
    broken = {"sweep-retry-negative-1-2": (0.1, 87.0)}
    whole = {"sweep-retry-negative-0-4": (0.2, 88.0)}
    assert chosen(lost | broken | whole) == ((5, 6), -4.0)
    assert chosen(lost | broken | {"sweep-retry-negative-0-4": (0.6, 88.0)}) == ((5, 6), -0.8)  # ties: the least edit
    papers_own = (2, 3, 4, 5, 6), pytest.approx(-1.6)  # layers 3-7, -0.2 of sums over 8
    assert chosen(every_lost()) == papers_own
    assert chosen({"sweep-retry-none": (0.5, 99.8), "sweep-retry-positive-1-4": (0.9, 98.1)}, "positive") == (
        (3, 4, 5, 6), 4.0,
    )  # fmt: skip


def test_a_match_of_which_no_game_counts_is_no_match_without_points():
    empty = {f"sweep-retry-positive-0-{scale}": (None, None) for scale in ("0.8", "2")}
    assert chosen(empty | {"sweep-retry-positive-1-2": (0.6, 89.0)}, "positive") == ((3, 4, 5, 6), 2.0)
    unedited = {"sweep-retry-none": (None, None), "sweep-retry-negative-0-4": (0.4, 97.9)}
    assert chosen(unedited) == chosen(every_lost())  # held to the paper's own 98 %, and so the paper's own edit
    assert find_even_rung([None, 0.95]) == 1
    assert find_even_rung([None, None]) == 0


@pytest.mark.parametrize("size", ["reference", "paper"])
def test_what_may_be_why_skill_shows_no_effect_is_measured(size):
    """Probes of classes within each source, balanced and pooled, each asked about the model's own games; the unedited
    model against every opponent."""
    steps = {s.name: s for s in find_paper("karvonen").steps(Request("model", "train", "test", 8, 192, size))}
    real = steps["model-skill-0"].settings
    for strata in ("balanced", "pooled"):
        assert steps[f"model-skill-{strata}"].settings == {**real, "skill": {"strata": strata}}
        asked = steps[f"played-skill-{strata}"].settings
        assert asked == {"probe": f"@model-skill-{strata}", "cache": "@played-cache"}
    assert find_kind("probe").spec(cache="run:" + "a" * 64).skill.strata == "within"
    unedited = [s for s in steps.values() if s.kind == "play" and s.name.endswith("-none") and not s.choice]
    assert len(unedited) == 6  # level 0 and a suitable rung, from either opening, by either rule
    assert "causes of no skill effect" in {sheet.query for sheet in find_paper("karvonen").sheets}


@pytest.mark.parametrize("sae", [None, "features"])
def test_tuned_board_edits_have_an_encode_decode_control_where_saes_are_given(sae):
    steps = find_paper("karvonen").steps(Request("m", "d", "e", 8, 64, "reference", sae))
    [edits] = [step for step in steps if step.name == "edits-all"]
    tried = SimpleNamespace(rows=[{"condition": "edit", "modified": 50.0, "layers": [3, 4], "scale": 12.0}])
    settings = edits.settings(SimpleNamespace(query=lambda *asked: tried, references=defaultdict(lambda: "run:x")))
    assert settings.get("sae") == sae
    assert (settings["sham_control"], settings["layers"]) == (True, (3, 4))
    assert edits.rows["trial"] == edits.units * 6 * (6 if sae is None else 7)


def test_one_dataset_is_cut_in_three_and_two_are_kept_apart():
    def parts(fit, test):
        [split] = [
            s for s in find_paper("karvonen").steps(Request("m", fit, test, 8, 64, "small")) if s.kind == "split"
        ]
        return split.settings

    assert parts("d", "d") == {"dataset": "d", "parts": "fit=0.5,validation=0.1,test=0.4", "seed": 0}
    assert parts("d", "e") == {"dataset": "e", "parts": "validation=0.1,test=0.9", "seed": 0}


def test_every_sheet_asks_a_query_and_draws_plots_that_there_are():
    for paper in list_papers().values():
        assert len({sheet.file for sheet in paper.sheets}) == len(paper.sheets)
        for sheet in paper.sheets:
            assert find_query(sheet.query).title == sheet.query
            for title in sheet.plots:
                assert find_plot(title)[0].title == sheet.query
            assert set(sheet.tables) <= {value.table for value in list_published_values() if value.query == sheet.query}
        steps = {step.name for step in paper.steps(Request("model", "train", "test", 8, 64, "small"))}
        assert {name for picture in paper.pictures for name in picture.after} <= steps


def test_layers_that_are_tried():
    assert list_layer_sets(8) == ("0", "1", "2", "3", "4", "5", "6", "7", "3-6")
    assert list_layer_sets(16)[15:] == ("15", "7-14", "5+7+9+11+13", "4+6+8+10+12")
    assert list_skill_layers(8) == [(5, 6), (3, 4, 5, 6)]
    assert list_skill_layers(16) == [(10, 11, 12, 13, 14), (7, 8, 9, 10, 11, 12, 13, 14)]
    assert list_skill_layers(1) == [(0,)]


def test_the_rung_nearest_to_half_of_the_points_is_taken():
    assert find_even_rung([1.0, 0.85, 0.3, 0.0]) == 2
    assert find_even_rung([0.0, 0.0]) == 0


def test_a_paper_that_there_is_not_is_told_with_those_that_there_are():
    with pytest.raises(NotFoundError) as caught:
        find_paper("karvonnen")
    assert caught.value.hint == "did you mean karvonen?"


def test_runs_that_choose_settings_are_kept_apart_from_results():
    steps = find_paper("karvonen").steps(Request("m", "d", "e", 8, 64, "reference"))
    choosing = {step.name.partition("-")[0] for step in steps if step.choice}
    assert choosing == {"ladder", "sweep", "edit"}
    assert not any(step.choice for step in steps if step.name.startswith(("arm-", "edits-", "level-")))
    assert {sheet.file for sheet in find_paper("karvonen").sheets if sheet.choices} == {
        "frontier", "ladder", "table-6", "table-6-skill"
    }  # fmt: skip
