"""The plan of `--size paper` has a run with the full settings of every published number that a plan can have."""

from functools import cache

import pytest

from chessreg.papers import find_paper
from chessreg.papers.plan import Request, list_step_references
from chessreg.queries.published import list_published_values
from chessreg.queries.published.paper_runs import PaperComparison, RecordedRun, World
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import build_settings

DAVIS = Request("model", "2013-01", "2013-02", 12, 768, "paper")
GAMES = {"train": {"karvonen-2024:lichess"}, "test:test": {"karvonen-2024:lichess"}}
TAGS = {
    "davis": {"model": {"davis-2026:gpt"}, "2013-01": {"davis-2026:2013-01"}, "2013-02": {"davis-2026:2013-02"}},
    **{
        f"karvonen-{layers}": {
            "model": {f"karvonen-2024:{layers}-layer"}, "@twin-0": {f"untrained:karvonen-2024:{layers}-layer"}, **GAMES
        }
        for layers in (8, 16)
    },
}  # fmt: skip
REQUESTS = {
    "davis": ("Davis 2026", DAVIS),
    **{
        f"karvonen-{layers}": ("Karvonen 2024", Request("model", "train", "test", layers, 512, "paper"))
        for layers in (8, 16)
    },
}
NOT_PLANNED = {
    "joint", "color", "type",  # the author's files, which are imported
    "composition",  # of them; ours is of our own probes
    "edits-by-latents",  # its settings are lost
    "levels-8", "levels-16",  # an earlier version of Figure 2, of fewer games
    "unique-games-8",  # ours are the games of other matches
    "skill-sweep-8", "skill-sweep-16",  # its settings follow from results
}  # fmt: skip


def planned(request, paper="davis"):
    """The runs of a plan by the reference to their step, without those whose settings follow from results."""
    runs = {}
    for step in find_paper(paper).steps(request):
        if callable(step.settings) or step.kind in ("split", "twin", "games", "played-games"):
            continue
        settings = dict(step.settings)
        preset = settings.pop("preset", None)
        step_kind = find_kind(step.kind)
        spec = build_settings(step_kind.spec, settings, step_kind.preset(preset) if preset else {})
        runs[f"@{step.name}"] = RecordedRun(step_kind.name, step_kind.version, spec.model_dump(mode="json"))
    return runs


@cache
def runs_of(name):
    """The planned runs of one of REQUESTS."""
    return planned(REQUESTS[name][1], name.partition("-")[0])


DESCRIBED = {value.paper: value.described_runs for value in list_published_values()}


def named():
    """(plan, run of the paper, changes of its settings) behind every number that is not lost, once."""
    found = {}
    for name, (paper, request) in REQUESTS.items():
        other = {8: "16", 16: "8"}.get(request.layers, "none")
        for value in list_published_values():
            for run in value.runs if value.paper == paper and not value.is_lost else ():
                if run not in NOT_PLANNED and other not in run.split("-"):
                    found.setdefault((name, run, str(value.changes)), value.changes)
    return [pytest.param(*key[:2], changes, id="-".join(key)) for key, changes in found.items()]


@pytest.mark.parametrize(("name", "run", "changes"), named())
def test_the_paper_size_has_the_settings_of_every_published_number(name, run, changes):
    described, runs = DESCRIBED[REQUESTS[name][0]], runs_of(name)
    comparison = PaperComparison(described, World(runs.get, lambda reference: frozenset(TAGS[name].get(reference, ()))))
    paper = described.run(run, changes)
    by_step = {step: comparison.list_differences(ours, paper) for step, ours in runs.items() if ours.kind == paper.kind}
    assert [] in by_step.values(), min(by_step.items(), key=lambda each: len(each[1]))


def test_the_published_code_edits_every_layer_of_the_authors_84_files():
    """Twelve layers, the first with the probe of the embeddings, times seven prefixes of every game."""
    runs = runs_of("davis")
    edits = runs["@edits-published-code"].settings
    assert edits["layer_sets"] == [str(layer) for layer in range(12)]
    assert len(edits["layer_sets"]) * len(edits["prefixes"]) == 84
    assert runs[edits["embedding_probe"]].settings["hook_point"] == "blocks.*.hook_resid_pre"
    assert (edits["min_plies"], edits["keep_duplicates"], edits["dataset"]) == (0, True, "2013-02")


def test_smaller_sizes_and_one_dataset_keep_their_parts_apart():
    small = {
        step.name: step.settings for step in find_paper("davis").steps(Request("m", "a", "b", 12, 768, "reference"))
    }
    assert "published-fit" not in small
    one = {step.name: step.settings for step in find_paper("davis").steps(Request("m", "a", "a", 12, 768, "paper"))}
    assert one["edits-published-code"]["dataset"] == "a:test"
    assert "@published-fit"[1:] not in list_step_references(one["code-joint-0"])


def test_every_number_that_is_not_lost_names_the_papers_runs_behind_it():
    """No other condition on settings exists: settings missing from a description have their default."""
    without = {
        (value.paper, value.table, value.row)
        for value in list_published_values()
        if not (value.runs or value.is_lost or value.setting or "(false)" in value.role)
    }
    assert without == set()
