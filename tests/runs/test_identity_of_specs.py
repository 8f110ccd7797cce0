"""A spec keeps its hash, so that a finished run is recognised; a changed default needs a higher kind version."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from chessreg.runs.kind import find_kind, load_kinds
from chessreg.runs.spec import Settings, choose_variant, list_setting_names, list_variant_models

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
GOLDEN = json.loads((FIXTURES / "identity.json").read_text())
DEFAULTS = json.loads((FIXTURES / "defaults.json").read_text())
_spec = importlib.util.spec_from_file_location("fixtures_identity", FIXTURES / "identity.py")
assert _spec
assert _spec.loader
identity = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(identity)

each = pytest.mark.parametrize("entry", GOLDEN, ids=lambda e: f"{e['kind']}-{e['preset'] or 'given'}-{e['run_id'][:4]}")


@each
def test_a_spec_keeps_its_canonical_text_hash_and_run_id(entry: dict[str, Any]) -> None:
    now = identity.said(entry["kind"], entry["preset"], entry["given"])
    same = ("version", "canonical", "spec_hash", "run_id")
    assert {key: now[key] for key in same} == {key: entry[key] for key in same}


@each
def test_a_recorded_spec_is_read_back_as_itself(entry: dict[str, Any]) -> None:
    """`run --resume`, `reproduce` and merge build the spec from the settings that the run's row records."""
    now = identity.said(entry["kind"], None, json.loads(entry["canonical"]))
    assert (now["canonical"], now["spec_hash"]) == (entry["canonical"], entry["spec_hash"])


@pytest.mark.parametrize(("name", "source"), sorted({(e["kind"], e["source"]) for e in GOLDEN}))
def test_a_recorded_source_still_leads_to_its_kind(name: str, source: str) -> None:
    assert find_kind(source).name == name


def test_every_kind_and_every_setting_is_among_them() -> None:
    """`python tests/fixtures/identity.py` adds missing entries of SPECS in that file."""
    of: dict[str, list[dict[str, Any]]] = {}
    for entry in GOLDEN:
        of.setdefault(entry["kind"], []).append(entry)
    assert set(load_kinds()) <= set(of)
    for name, entries in of.items():
        found = find_kind(name)
        values = [found.presets.get(e["preset"] or "", {}) | e["given"] for e in entries]
        assert {choose_variant(found.spec, each) for each in values} == set(list_variant_models(found.spec)), (
            f"{name}: every variant"
        )
        missing = list_setting_names(found.spec) - {"seed", "replicate"} - set().union(*values)
        assert not missing, f"{name}: no spec sets {', '.join(sorted(missing))}"
        assert {e["preset"] for e in entries} - {None} == set(found.presets)


def test_every_setting_inside_another_is_among_them() -> None:
    """As `scale` of a kind's `intervention`: some spec of some kind sets it."""
    given: dict[type[Settings], set[str]] = {}
    for entry in GOLDEN:
        fields = {
            n: f for each in list_variant_models(find_kind(entry["kind"]).spec) for n, f in each.model_fields.items()
        }
        for name, field in fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
                given.setdefault(field.annotation, set()).update(entry["given"].get(name, {}))
    assert given
    for settings, names in given.items():
        assert set(settings.model_fields) == names, f"{settings.__name__}: a setting that no spec sets"


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_default_changes_only_with_a_higher_version(name: str) -> None:
    """The hash leaves out settings at their default, so a changed default would give old and new runs one identity."""
    now = identity.defaults_of(name)
    if now["version"] > DEFAULTS[name]["version"]:
        pytest.fail(f"{name}: run python tests/fixtures/identity.py to record the defaults of version {now['version']}")
    recorded = DEFAULTS[name]["defaults"]
    assert {path: now["defaults"].get(path, "no such setting") for path in recorded} == recorded


def test_the_default_of_every_setting_is_recorded() -> None:
    missing = {
        f"{name}.{path}"
        for name in load_kinds()
        if name in DEFAULTS
        for path in identity.defaults_of(name)["defaults"].keys() - DEFAULTS[name]["defaults"].keys()
    }
    assert not missing, "run python tests/fixtures/identity.py"


def test_the_hash_covers_only_settings_that_differ_from_their_default() -> None:
    from chessreg.experiments.legality import LegalitySpec
    from chessreg.runs.spec import get_hashed_settings

    given = {"checkpoint": "sha256:" + "c4" * 32, "dataset": "dataset:" + "d5" * 32, "every": 4}
    assert get_hashed_settings(LegalitySpec(**given, seed=0)) == given


@pytest.mark.parametrize(
    ("kind", "settings", "idle"),
    [
        ("play", {"checkpoint": "m"}, {"intervention.scale", "intervention.form", "finished_openings"}),
        ("play", {"checkpoint": "m", "policy": "legal"}, {"intervention.scale", "move_tokens", "resignation"}),
        ("play", {"checkpoint": "m", "intervention": {"vector": "v"}}, {"intervention.control_seed"}),
        ("sae", {"cache": "c"}, {"dataset", "games", "sites", "l0_search", "l0_search_tokens"}),
        ("sae", {"cache": "c", "l0": 20.0}, {"l1_coefficient"}),
        ("finetune", {"datasets": ["d"], "checkpoint": "m"}, {"n_layer", "tokenizer", "lora_rank"}),
        ("edit", {"checkpoint": "m", "probe": "p", "dataset": "d", "scales": [1.0, 2.0]}, {"scale"}),
        ("edit", {"checkpoint": "m", "probe": "p", "moves": "e4"}, {"games", "per_game"}),
        ("decoding", {"checkpoint": "m", "dataset": "d"}, {"temperature", "top_p"}),
    ],
)  # fmt: skip
def test_settings_without_an_effect_are_not_listed(kind, settings, idle):
    from chessreg.runs.kind import find_kind, list_effective_settings
    from chessreg.runs.spec import flatten_settings, parse_settings

    spec = parse_settings(find_kind(kind).spec, settings)
    recorded = spec.model_dump(mode="json")
    listed = list_effective_settings(kind, recorded)
    assert idle <= flatten_settings(recorded).keys() - listed.keys()
    assert {"seed", *settings} - {"intervention"} <= listed.keys()


def test_settings_of_a_kind_that_is_not_built_in_are_all_listed():
    from chessreg.runs.kind import list_effective_settings

    assert list_effective_settings("someone-elses", {"a": {"b": 1}, "c": None}) == {"a.b": 1, "c": None}


def test_settings_that_were_left_out_and_mean_all_are_typed_and_listed_as_all():
    from chessreg.runs.kind import find_kind, list_effective_settings
    from chessreg.runs.spec import describe_settings, parse_settings

    spec = parse_settings(find_kind("play").spec, {"checkpoint": "m", "intervention": {"vector": "v", "scale": 2.0}})
    listed = list_effective_settings("play", spec.model_dump(mode="json"))
    assert (listed["intervention.layers"], listed["book"]) == ("all", None)
    known = {each.path: each for each in describe_settings(find_kind("cache").spec)}
    assert known["layers"].shown_default == known["max_sites"].shown_default == "all"
    assert (known["layers"].parse_text("all"), known["max_sites"].parse_text("all")) == ((), None)
    edit = {each.path: each for each in describe_settings(find_kind("edit").spec)}
    assert edit["layers"].shown_default == "none", "validation chooses them"
