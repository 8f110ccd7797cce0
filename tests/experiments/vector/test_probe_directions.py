"""Vectors that are differences of a probe's classes, Karvonen's saved ones among them."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from chessreg.errors import BadInputError
from chessreg.runs.fitted import load_vector, read_vector_rows
from tests.specs import vector_spec

from .runs import made


def test_a_skill_probes_direction_is_its_highest_class_minus_its_lowest():
    from chessreg.steering.directions import compute_class_difference

    weight = np.arange(24, dtype=np.float32).reshape(12, 1, 2) ** 1.5
    found = compute_class_difference(weight)
    np.testing.assert_allclose(found.vector, weight[:, 0, 1] - weight[:, 0, 0])
    np.testing.assert_array_equal(found.high, weight[:, 0, 1])
    np.testing.assert_allclose(compute_class_difference(weight, "high").vector, weight[:, 0, 1])
    np.testing.assert_allclose(compute_class_difference(weight, "low").vector, -weight[:, 0, 0])
    with pytest.raises(BadInputError, match="no low class"):
        compute_class_difference(weight[:, :, :1], "low")
    with pytest.raises(BadInputError, match="does not have a single class difference"):
        compute_class_difference(np.zeros((12, 64, 13), np.float32))


@pytest.mark.parametrize("label", ["skill", "rating"])
def test_the_vector_of_a_probe_run_has_unit_norm_unless_asked_otherwise(world_session, label):
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.runs.fitted import load_probe

    inputs = world_session.inputs
    world_session.run(ProbeSpec(cache="reference-fit", label=label, epochs=1, skip_sites=2), name=f"{label}-probe")
    unit = made(world_session, vector_spec(source="probe", probe=f"{label}-probe"), f"{label}-unit")
    spec = vector_spec(source="probe", probe=f"{label}-probe", direction_norm="none")
    kept = made(world_session, spec, f"{label}-kept")
    for layer in (0, 1):
        weight = load_probe(inputs, inputs.reference("run:probe", f"{label}-probe"), layer).weight
        expected = weight[:, 0, -1] - (weight[:, 0, 0] if label == "skill" else 0)
        np.testing.assert_allclose(load_vector(inputs, kept, layer), expected, rtol=1e-5)
        found = load_vector(inputs, unit, layer)
        assert np.linalg.norm(found) == pytest.approx(1)
        np.testing.assert_allclose(found * np.linalg.norm(expected), expected, atol=1e-5)
        row = read_vector_rows(inputs, unit)[layer]
        assert row.source == f"probe:{label}"
        assert row.detail["norm_before_matching"] == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_one_side_of_a_skill_probe_is_a_direction_of_its_own(world_session):
    """Karvonen 2024, Appendix C: the low skill vector subtracted, or the high one added."""
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.runs.fitted import load_probe

    world_session.run(ProbeSpec(cache="reference-fit", label="skill", epochs=1, skip_sites=2), name="sided")
    inputs = world_session.inputs
    weight = load_probe(inputs, inputs.reference("run:probe", "sided"), 1).weight
    for side, expected in (("high", weight[:, 0, -1]), ("low", -weight[:, 0, 0])):
        spec = vector_spec(source="probe", probe="sided", direction_norm="none", side=side)
        found = made(world_session, spec, f"sided-{side}")
        np.testing.assert_allclose(load_vector(inputs, found, 1), expected, rtol=1e-5)
        assert read_vector_rows(inputs, found)[1].detail["side"] == side
    with pytest.raises(BadInputError, match="--side belongs to --source probe"):
        vector_spec(source="contrastive", cache="reference-fit", side="low")


def test_a_board_probes_direction_raises_what_it_shall_read_and_no_other_square(world_session):
    from chessreg.games.datasets.labels import PIECE_CLASSES
    from chessreg.runs.fitted import load_probe

    with pytest.raises(BadInputError, match="does not have a single class difference"):
        world_session.run(vector_spec(source="probe", probe="reference-board"))
    inputs = world_session.inputs
    spec = vector_spec(source="board", probe="reference-board", board="e5=p d1=.", direction_norm="none")
    assert spec.board == "d1=. e5=p"
    found = made(world_session, spec, "other-board")
    for layer, row in read_vector_rows(inputs, found).items():
        weight = load_probe(inputs, inputs.reference("run:probe", "reference-board"), layer).weight.astype(np.float64)
        d1, e5 = weight[:, 3], weight[:, 36]
        expected = d1[:, 6] - d1.mean(1) + e5[:, PIECE_CLASSES.index("p")] - e5.mean(1)
        np.testing.assert_allclose(load_vector(inputs, found, layer), expected, rtol=1e-4, atol=1e-6)
        assert (row.source, row.detail["board"]) == ("probe:d1=. e5=p", "d1=. e5=p")


def test_what_a_board_direction_cannot_be_made_of_is_refused(world_session):
    from chessreg.experiments.probe import ProbeSpec

    world_session.run(ProbeSpec(cache="reference-fit", label="color", epochs=1, layers=(0,)), name="colors")
    with pytest.raises(BadInputError, match="predicts color"):
        world_session.run(vector_spec(source="board", probe="colors", board="d1=."))
    for given, reason in (
        ({"board": "d1=x"}, "not a change of a board"),
        ({"board": "d1=. d1=q"}, "names d1 twice"),
        ({"board": "d1=.", "side": "low"}, "--side belongs to --source probe, not to board"),
        ({"board": " "}, "changes no square"),
    ):
        with pytest.raises((BadInputError, ValidationError), match=reason):
            vector_spec(source="board", probe="reference-board", **given)
    with pytest.raises(BadInputError, match="--board belongs to --source board"):
        vector_spec(source="contrastive", cache="reference-fit", board="d1=.")


def test_karvonens_saved_skill_probe_gives_the_norm_and_cosine_of_its_classes(shared_data):
    """Norms 3.0739 and 2.9832 of the low and the high class, cosine -0.9435, at layer 7 of 8."""
    import torch

    from chessreg.runs.fitted import compute_cosine_similarity
    from chessreg.steering.directions import compute_class_difference

    path = shared_data / "probes" / "karvonen-tf_lens_lichess_8layers_ckpt_no_optimizer_chess_skill_probe_layer_7.pth"
    weight = (
        torch.load(path, weights_only=True, map_location="cpu")["linear_probe"].detach().numpy()[0].reshape(512, 1, 2)
    )
    found = compute_class_difference(weight)
    assert found.compute_side_norms() == pytest.approx({"norm_low": 3.0739, "norm_high": 2.9832}, abs=1e-4)
    assert compute_cosine_similarity(found.low, found.high) == pytest.approx(-0.9435, abs=1e-4)
    np.testing.assert_allclose(found.vector, found.high - found.low)


def test_karvonens_contrastive_vector_is_his_average_high_minus_low(shared_data):
    """Norm 10.17241, sides 44.60 and 45.10, all of them sums over eight positions."""
    import torch

    path = shared_data / "probes" / "karvonen-lichess_train_layer_12_pos_start_25_activations.pt"
    stored = torch.load(path, weights_only=True, map_location="cpu")
    high, low, vector = (
        stored[key].numpy()
        for key in ("average_high_elo_activation", "average_low_elo_activation", "difference_vector")
    )
    np.testing.assert_allclose(vector, high - low, atol=1e-5)
    assert [np.linalg.norm(v) for v in (vector, high, low)] == pytest.approx([10.17241, 44.60, 45.10], abs=0.005)
    assert vector[:3].tolist() == pytest.approx([0.929744, 0.504792, 0.014725], abs=1e-6)
