"""The plan of `--size paper` has a run with the full settings of every published number that a plan can have."""

import pytest

from chessreg.papers import find
from chessreg.papers.plan import Request, references
from chessreg.queries.published import values
from chessreg.queries.published.paper_runs import Comparison, RecordedRun, World
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import build_settings

DAVIS = Request("model", "2013-01", "2013-02", 12, 768, "paper")
TAGS = {"model": {"davis-2026:gpt"}, "2013-01": {"davis-2026:2013-01"}, "2013-02": {"davis-2026:2013-02"}}
NOT_PLANNED = {
    "joint", "color", "type",  # the author's files, which are imported
    "composition",  # of them; ours is of our own probes
    "edits-by-latents",  # its settings are lost
}  # fmt: skip


def planned(request):
    """The runs of a plan by the reference to their step, without those whose settings follow from results."""
    runs = {}
    for step in find("davis").steps(request):
        if callable(step.settings) or step.kind in ("split", "twin", "games"):
            continue
        settings = dict(step.settings)
        preset = settings.pop("preset", None)
        step_kind = find_kind(step.kind)
        spec = build_settings(step_kind.spec, settings, step_kind.preset(preset) if preset else {})
        runs[f"@{step.name}"] = RecordedRun(step_kind.name, step_kind.version, spec.model_dump(mode="json"))
    return runs


RUNS = planned(DAVIS)
DESCRIBED = next(value.described for value in values() if value.paper == "Davis 2026")


@pytest.mark.parametrize("name", [name for name in DESCRIBED.entries if name not in NOT_PLANNED])
def test_the_paper_size_of_davis_has_every_published_setting(name):
    comparison = Comparison(DESCRIBED, World(RUNS.get, lambda reference: frozenset(TAGS.get(reference, ()))))
    paper = DESCRIBED.run(name)
    by_step = {step: comparison.differences(run, paper) for step, run in RUNS.items() if run.kind == paper.kind}
    assert [] in by_step.values(), min(by_step.items(), key=lambda each: len(each[1]))


def test_the_published_code_edits_every_layer_of_the_authors_84_files():
    """Twelve layers, the first with the probe of the embeddings, times seven prefixes of every game."""
    edits = RUNS["@edits-published-code"].settings
    assert edits["layer_sets"] == [str(layer) for layer in range(12)]
    assert len(edits["layer_sets"]) * len(edits["prefixes"]) == 84
    assert RUNS[edits["embedding_probe"]].settings["hook_point"] == "blocks.*.hook_resid_pre"
    assert (edits["min_plies"], edits["keep_duplicates"], edits["dataset"]) == (0, True, "2013-02")


def test_smaller_sizes_and_one_dataset_keep_their_parts_apart():
    small = {step.name: step.settings for step in find("davis").steps(Request("m", "a", "b", 12, 768, "reference"))}
    assert "published-fit" not in small
    one = {step.name: step.settings for step in find("davis").steps(Request("m", "a", "a", 12, 768, "paper"))}
    assert one["edits-published-code"]["dataset"] == "a:test"
    assert "@published-fit"[1:] not in references(one["code-joint-0"])
