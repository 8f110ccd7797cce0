"""Full settings of the papers' runs: each is compared with ours, and every difference is named."""

import re
from dataclasses import replace

import pytest

from chessreg.errors import ChessregError
from chessreg.queries.published import add_differences, list_published_values
from chessreg.queries.published.paper_runs import PaperComparison, PaperRuns, RecordedRun, World

PAPERS = {value.paper: value.described_runs for value in list_published_values()}
DESCRIBED = {(paper, name): described for paper, described in PAPERS.items() for name in described.entries}
EDITS, PROBE, CACHE = "run:" + "e" * 64, "run:" + "b" * 64, "run:" + "c" * 64
MODEL, GAMES = "sha256:" + "1" * 64, "dataset:" + "2" * 64
TAGS = {MODEL: {"paper:gpt"}, GAMES: {"paper:games"}}
DOCUMENT = {
    "paper": "A paper",
    "run": {
        "cache": {
            "kind": "cache",
            "settings": {"checkpoint": "tag:paper:gpt", "dataset": "tag:paper:games", "last_sites": 5},
            "free": {"dtype": "not stated"},
        },
        "probe": {
            "kind": "probe",
            "preset": "davis-published-code",
            "settings": {"cache": "run:cache", "phase": 0, "skill": {"strata": "within"}},
            "shown": {"layers": "layer"},
        },
    },
}


def world(runs, tags=TAGS):
    return World(runs.get, lambda reference: frozenset(tags.get(reference, ())))


def fitted(described=None, **changes):
    """A run of the probe above, with other values of some settings."""
    described = described or PaperRuns([DOCUMENT])
    return RecordedRun(
        "probe", described.run("probe").version, {**described.run("probe").settings, "cache": CACHE} | changes
    )


def cached(**changes):
    settings = {**PaperRuns([DOCUMENT]).run("cache").settings, "checkpoint": MODEL, "dataset": GAMES}
    return RecordedRun("cache", 1, settings | changes)


def differences(ours, cache=None, tags=TAGS):
    described = PaperRuns([DOCUMENT])
    comparison = PaperComparison(described, world({CACHE: cache or cached()}, tags))
    return comparison.list_differences(ours, described.run("probe"))


def test_a_run_with_the_papers_settings_differs_in_nothing():
    assert differences(fitted()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epochs": 3}, "epochs 3, the paper's 15"),
        ({"split": "game"}, "split game, the paper's row"),
        ({"seed": 7}, "seed 7, the paper's 42"),
        ({"phase": None}, "phase none, the paper's 0"),
        ({"min_positions": 5}, "min_positions 5, the paper's none"),
        ({"normalize_activations": True}, "normalize_activations yes, the paper's no"),
        ({"test_cache": CACHE}, f"test_cache {CACHE}, the paper's none"),
        ({"cache": None}, "cache none, the paper has one"),
        ({"cache": PROBE}, "cache: not made by a run of this registry"),
        ({"another": 1}, "another 1, the paper's unknown"),
        ({"layers": [3], "replicate": 4}, None),
    ],
)
def test_each_other_setting_is_named(changes, text):
    assert differences(fitted(**changes)) == ([text] if text else [])


def test_nested_settings_are_compared_one_by_one():
    skill = dict(fitted().settings["skill"])
    assert skill["strata"] == "within"
    assert differences(fitted(skill={**skill, "strata": "pooled"})) == ["skill.strata pooled, the paper's within"]


@pytest.mark.parametrize(
    ("changes", "tags", "text"),
    [
        ({"last_sites": None}, TAGS, "cache: last_sites none, the paper's 5"),
        ({"dtype": "float32"}, TAGS, None),
        ({}, {GAMES: {"paper:games"}}, "cache: checkpoint: not the paper's (no tag paper:gpt)"),
        ({"dataset": f"{GAMES}[0,0.0,0.5]"}, TAGS, "cache: dataset is a part of paper:games, the paper's is all of it"),
    ],
)
def test_inputs_are_compared_with_all_their_settings(changes, tags, text):
    assert differences(fitted(), cached(**changes), tags) == ([text] if text else [])


def test_another_kind_or_version_is_named():
    described = PaperRuns([DOCUMENT])
    comparison, probe = PaperComparison(described, world({CACHE: cached()})), described.run("probe")
    other = RecordedRun("imported-probe", 1, {})
    assert comparison.list_differences(other, probe) == ["made by imported-probe, the paper's number by probe"]
    older = RecordedRun("probe", probe.version - 1, fitted().settings)
    assert comparison.list_differences(older, probe) == [
        f"made by version {probe.version - 1} of probe, not {probe.version}"
    ]


def test_a_setting_that_an_earlier_run_lacks_has_its_default():
    settings = {name: value for name, value in fitted().settings.items() if name not in ("allow_overlap", "epochs")}
    [text] = differences(RecordedRun("probe", fitted().version, settings))
    assert text == "epochs 5, the paper's 15"  # the preset's 15 is not the default


def test_parts_controls_and_files_are_selected_by_their_words():
    document = {
        "paper": "A paper",
        "files": {"probes": ["3" * 64, "4" * 64]},
        "run": {
            "part": {"kind": "cache", "settings": {"checkpoint": "untrained:paper:gpt", "dataset": "part:paper:games"}},
            "files": {"kind": "imported-probe", "settings": {"files": ["files:probes"]}},
        },
    }
    described = PaperRuns([document])
    described.check()
    tags = {MODEL: {"untrained:paper:gpt"}, GAMES: {"paper:games"}}
    ours = cached(dataset=f"{GAMES}[0,0.0,0.5]", last_sites=None)
    assert PaperComparison(described, world({}, tags)).list_differences(ours, described.run("part")) == []
    assert PaperComparison(described, world({})).list_differences(ours, described.run("part")) == [
        "checkpoint: not the random-init control of paper:gpt"
    ]
    files = described.run("files")
    for digests, expected in (("34", []), ("35", ["files: not the paper's file"])):
        settings = {**files.settings, "files": [f"sha256:{digit * 64}" for digit in digests]}
        ours = RecordedRun("imported-probe", files.version, settings)
        assert PaperComparison(described, world({})).list_differences(ours, files) == expected


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"kind": "cache", "settings": {"checkpoint": "tag:a", "dataset": "tag:b", "layer": 1}}, "layer"),
        ({"kind": "cache", "settings": {"checkpoint": "tag:a"}}, "--dataset: field required"),
        (
            {"kind": "cache", "settings": {"checkpoint": "tag:a", "dataset": "tag:b"}, "free": {"layer": ""}},
            "lists layer",
        ),
        ({"kind": "probe", "settings": {"cache": "run:none"}}, "names run:none, which no file describes"),
        ({"kind": "probe", "settings": {"cache": "files:none"}}, "names files:none, which no file describes"),
        ({"kind": "cache", "other": 1}, "unknown keys: other"),
    ],
)
def test_a_description_that_is_wrong_is_refused(entry, words):
    with pytest.raises(ChessregError, match=words):
        PaperRuns([{"paper": "A paper", "run": {"one": entry}}]).check()


def test_two_files_of_a_paper_describe_a_run_once():
    document = {"paper": "A paper", "run": {"one": {"kind": "cache"}}}
    other = {"paper": "A paper", "run": {"one": {"kind": "probe"}}}
    with pytest.raises(ChessregError, match="two files of A paper describe run one"):
        PaperRuns([document, other])


# -- the papers' own descriptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_description_can_be_read(paper):
    PAPERS[paper].check()


@pytest.mark.parametrize(("paper", "name"), DESCRIBED)
def test_every_setting_is_compared_unless_the_file_says_why_not(paper, name):
    """Change one setting after the other: none can be forgotten."""
    described = DESCRIBED[paper, name]
    run = described.run(name)
    accepted = Accepting(described, world({}))
    assert accepted.list_differences(RecordedRun(run.kind, run.version, run.settings), run) == []
    for setting in run.settings:
        other = RecordedRun(run.kind, run.version, {**run.settings, setting: "another value"})
        is_compared = setting not in run.free and setting not in run.shown_settings
        assert bool(accepted.list_differences(other, run)) == is_compared, setting
    assert all(why.strip() for why in run.free.values())


class Accepting(PaperComparison):
    """Takes the words that select an input for that input."""

    def compare_references(self, setting, ours, wanted):
        return [] if ours == wanted else [f"{setting} differs"]


@pytest.mark.parametrize(
    "value",
    [v for v in list_published_values() if v.runs and not v.is_lost],
    ids=lambda v: f"{v.table}-{v.row}-{v.column}"[:60],
)
def test_settings_that_a_column_shows_have_a_condition_on_it(value):
    for run in value.paper_runs:
        for column in set(run.shown_settings.values()) - value.columns:
            assert re.search(rf"\b{column}\b", value.role), f"{value.table}, {value.row}: {column} of {run.name}"


@pytest.mark.parametrize(
    ("runs", "reasons", "not_stated"),
    [
        ([], "no run of this registry is behind the row", None),
        ([fitted()], "", None),
        ([fitted(), fitted(epochs=2)], "epochs 2, the paper's 15", None),
        ([RecordedRun("probe", 1, {})], "cache: not made by a run of this registry", None),
    ],
)
def test_every_run_behind_a_row_is_compared(runs, reasons, not_stated):
    described = PaperRuns([DOCUMENT])
    value = replace(list_published_values()[0], runs=("probe",), changes={}, described_runs=described, setting=False)
    row = {"reasons": ""}
    add_differences(row, runs, value, PaperComparison(described, world({CACHE: cached()})))
    assert reasons in row["reasons"]
    assert bool(row["reasons"]) == bool(reasons)
    assert row["not_stated"] == not_stated
