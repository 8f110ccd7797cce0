"""Random and shuffled-label controls of a vector: of its norm, one for each seed."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.runs.fitted import load_vector, read_vector_rows
from tests.specs import vector_spec

from .runs import STREAM, made, recipe


@pytest.mark.parametrize("source", ["random", "shuffled"])
def test_five_draws_of_a_control_differ_and_all_have_the_norm_of_the_real_vector(world_session, source):
    inputs = world_session.inputs
    for layer in (0, 1):
        real = load_vector(inputs, recipe(world_session, "skill"), layer)
        draws = [
            load_vector(
                inputs, made(world_session, vector_spec(source=source, of="skill", seed=s), f"{source}-{s}"), layer
            )
            for s in range(5)
        ]
        for number, draw in enumerate(draws):
            assert np.linalg.norm(draw) == pytest.approx(np.linalg.norm(real), rel=1e-5)
            assert all(np.abs(draw - other).max() > 1e-3 for other in [real, *draws[:number]])
    again = made(world_session, vector_spec(source=source, of="skill", seed=4, replicate=1), f"{source}-again")
    np.testing.assert_array_equal(load_vector(inputs, again, 1), draws[4])


def test_shuffling_deals_classes_anew_within_each_stratum():
    from chessreg.experiments.settings.skill import permute_classes

    classes = np.array([0] * 30 + [1] * 10 + [0] * 5 + [1] * 15, np.int8)
    stratum = np.array(["a"] * 40 + ["b"] * 20, object)
    dealt = permute_classes(classes, stratum, 7)
    assert (dealt != classes).sum() > 5
    for name in "ab":
        assert np.bincount(dealt[stratum == name]).tolist() == np.bincount(classes[stratum == name]).tolist()
    np.testing.assert_array_equal(dealt, permute_classes(classes, stratum, 7))


def test_shuffled_controls_of_a_streamed_vector_need_no_pass_of_their_own(world_session, monkeypatch):
    from chessreg.models.language_model import LanguageModel

    made(world_session, vector_spec(**STREAM), "from-model")
    real = made(world_session, vector_spec(**STREAM, replicate=1), "sums-thrown-away", keep_sums=False)
    passes = []
    forward = LanguageModel.residuals
    monkeypatch.setattr(
        LanguageModel, "residuals", lambda self, *given, **more: passes.append(1) or forward(self, *given, **more)
    )
    kept = made(world_session, vector_spec(source="shuffled", of="from-model", seed=3), "shuffled-kept")
    assert not passes
    again = made(world_session, vector_spec(source="shuffled", of="sums-thrown-away", seed=3), "shuffled-streamed")
    assert passes
    for layer in (0, 1):
        np.testing.assert_allclose(*(load_vector(world_session.inputs, r, layer) for r in (kept, again)), atol=1e-6)
        row = read_vector_rows(world_session.inputs, again)[layer]
        assert row.detail["norm_before_matching"] > 0
        assert row.detail["of"] == real


def test_vectors_without_labels_cannot_be_shuffled(world_session):
    made(world_session, vector_spec(source="random", of="skill", seed=6), "random-6")
    with pytest.raises(BadInputError, match="no labels to shuffle"):
        world_session.run(vector_spec(source="shuffled", of="random-6"))


@pytest.mark.slow
def test_the_shuffled_control_of_a_probes_vector_is_of_a_probe_of_shuffled_labels(world_session):
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.runs.fitted import load_probe
    from chessreg.steering.directions import compute_class_difference

    settings = {"cache": "reference-fit", "label": "skill", "epochs": 1, "skip_sites": 2}
    for draw in (None, 1, 2):
        world_session.run(ProbeSpec(**settings, shuffled_label_control=draw), name=f"dealt-{draw}")
    world_session.run(ProbeSpec(**{**settings, "epochs": 2}, shuffled_label_control=1), name="dealt-otherwise")
    inputs = world_session.inputs
    made(world_session, vector_spec(source="probe", probe="dealt-None", side="high"), "of-probe")
    controls = [
        made(
            world_session,
            vector_spec(source="shuffled-probe", of="of-probe", probe=f"dealt-{draw}", seed=draw),
            f"of-{draw}",
        )
        for draw in (1, 2)
    ]
    for draw, control in enumerate(controls, 1):
        row = read_vector_rows(inputs, control)[1]
        assert (row.source, row.detail["seed"], row.detail["side"]) == ("shuffled:probe:skill", draw, "high")
        weight = load_probe(inputs, inputs.reference("run:probe", f"dealt-{draw}"), 1).weight
        wanted = compute_class_difference(weight, "high").vector
        np.testing.assert_allclose(load_vector(inputs, control, 1), wanted / np.linalg.norm(wanted), atol=1e-6)
    assert np.abs(load_vector(inputs, controls[0], 1) - load_vector(inputs, controls[1], 1)).max() > 1e-3
    shown = world_session.query("vectors by layer", run=[controls[1].removeprefix("run:")[:12]]).rows
    assert {(row["source"], row["seed"]) for row in shown} == {("shuffled:probe:skill", 2)}
    made(world_session, vector_spec(source="random", of="skill", seed=40), "controls-of-nothing")
    for wrong, probe, message in (
        ("of-probe", "dealt-None", "not fitted to shuffled labels"),
        ("of-probe", "dealt-otherwise", "epochs is 2, theirs 1"),
        ("skill", "dealt-1", "without a probe"),
        ("controls-of-nothing", "dealt-1", "no labels to shuffle"),
    ):
        with pytest.raises(BadInputError, match=message):
            world_session.run(vector_spec(source="shuffled-probe", of=wrong, probe=probe))
    with pytest.raises(BadInputError, match="needs a probe fitted to shuffled labels"):
        world_session.run(vector_spec(source="shuffled", of="of-probe"))


def test_a_random_control_is_the_direction_that_matches_draw_for_that_seed(world_session):
    from chessreg.steering.interventions import CONTROLS

    inputs = world_session.inputs
    run = made(world_session, vector_spec(source="random", of="skill", seed=11), "random-11")
    real = load_vector(inputs, recipe(world_session, "skill"), 1)
    np.testing.assert_allclose(load_vector(inputs, run, 1), CONTROLS["random"](real, 1, 11), rtol=1e-6)


def test_a_control_stands_in_a_vectors_place_in_an_intervention(world_session):
    from chessreg.steering.interventions import InterventionSettings, load_intervention

    run = made(world_session, vector_spec(source="shuffled", of="skill", seed=2), "shuffled-2")
    inputs = world_session.inputs
    checkpoint, _ = inputs.checkpoint(inputs.reference("checkpoint", "reference"))
    found = load_intervention(InterventionSettings(vector=run, layers=(1,), scale=-2.0), checkpoint, inputs)
    assert found.row["source"] == "shuffled:white_elo"
    np.testing.assert_array_equal(found.directions[1], load_vector(inputs, run, 1))


def test_an_imported_vector_has_random_controls_but_no_labels_to_shuffle(world_session):
    from chessreg.entities import vector as vectors
    from chessreg.experiments.imported.specs import ImportedVectorSpec

    inputs = world_session.inputs
    files = ImportedVectorSpec(files=("sample",)).files
    recipes = tuple(inputs.reference("vector-file", file) for file in files)
    world_session.run(ImportedVectorSpec(files=recipes), name="imported")
    theirs = recipe(world_session, "imported")
    run = made(world_session, vector_spec(source="random", of="imported", seed=1), "its-random")
    for layer, row in read_vector_rows(inputs, theirs).items():
        control = read_vector_rows(inputs, run)[layer]
        assert control.norm == pytest.approx(row.norm, rel=1e-5)
        assert control.checkpoint_id == row.checkpoint_id
        assert control.detail["model"] == row.detail["model"]
        assert "its-random" in {entry["name"] for entry in vectors.list_cosines(inputs, theirs, layer)}
    with pytest.raises(BadInputError, match="no labels to shuffle for vectors from a file"):
        world_session.run(vector_spec(source="shuffled", of="imported"))
