"""`probe-composition`: Davis's published weights give the numbers measured on them; ours go through the same kind."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.imported.directions import ImportedProbe, build_import_spec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe_composition import CompositionSpec, ProbeComposition, compose_directions
from chessreg.games.datasets.labels import get_label
from chessreg.queries import run_query
from chessreg.queries.published import compare_with_published
from chessreg.runs.fitted import FittedProbe, make_class_directions


def fitted(name: str, weight: np.ndarray) -> FittedProbe:
    return FittedProbe(weight.astype(np.float32), "blocks.0.hook_resid_post", 0, name, False)


def additive(noise: float = 0.0):
    """Probes whose joint directions are the sum of color and type, and noise of that size."""
    random = np.random.default_rng(0)
    color, kinds = random.standard_normal((96, 64, 3)), random.standard_normal((96, 64, 7))
    names = get_label("piece").classes
    joint = np.stack(
        [
            color[..., 1] + kinds[..., 6]
            if name == "."
            else color[..., 2 if name.isupper() else 0] + kinds[..., "PNBRQK".index(name.upper())]
            for name in names
        ],
        -1,
    )
    joint = joint + noise * random.standard_normal(joint.shape)
    return fitted("piece", joint), [fitted("color", color), fitted("type", kinds)]


def test_sums_are_found_and_controls_are_not():
    joint, parts = additive()
    for probes in (parts, parts[::-1]):
        made = compose_directions(joint, probes)
        np.testing.assert_allclose(made.cosine, 1, atol=1e-6)
        np.testing.assert_allclose(made.empty, 1, atol=1e-6)
    assert (np.array(get_label("piece").classes)[made.nearest] == list("pnbrqkPNBRQK")).all()
    assert {name: round(float(values.mean()), 1) for name, values in made.controls.items()} == {
        "wrong_color": 0.5, "wrong_type": 0.5, "color_alone": 0.7, "type_alone": 0.7,
    }  # fmt: skip
    noisy = compose_directions(*additive(2.0))
    assert 0.4 < noisy.cosine.mean() < 0.7
    alone = compose_directions(joint, [])
    assert alone.empty is None
    assert alone.cosine.mean() > 0.9


def test_a_class_direction_does_not_know_what_is_added_to_all_classes():
    joint, _ = additive()
    shifted = joint.weight + np.random.default_rng(1).standard_normal((96, 64, 1)).astype(np.float32)
    for direction in ("class-centred", "empty-minus-piece"):
        one, other = (make_class_directions(weight, direction, 6) for weight in (joint.weight, shifted))
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert make_class_directions(shifted, "raw", 6) is shifted
    assert not make_class_directions(shifted, "empty-minus-piece", 6)[..., 6].any()
    empty = compose_directions(joint, [], "empty-minus-piece")
    assert (empty.nearest != 6).all()  # a direction of length 0 is never the nearest


@pytest.mark.slow
def test_davis_weights_give_the_numbers_measured_on_them(session, shared_data):
    """Cosines and retrieval of Davis's published probes."""
    for name, part in (("color", "to_color"), ("type", "to_piece"), ("joint", "to_piece_by_color")):
        file = shared_data / "probes" / f"davis-{part}-layer-07-phase-0.safetensors"
        session.run(build_import_spec(ImportedProbe, [file], session.inputs), name=name)
    assert session.probe("joint", 6).weight.shape == (768, 64, 13)
    session.run(CompositionSpec(joint_probe="joint", color_probe="color", type_probe="type"))
    inner, everywhere = run_query(session.database, "probe composition").rows
    assert (inner["n"], everywhere["n"]) == (736, 768)
    assert (inner["cosine"], inner["retrieval"]) == pytest.approx((0.6906, 93.07), abs=5e-3)
    assert (everywhere["cosine"], everywhere["retrieval"]) == pytest.approx((0.6761, 89.45), abs=5e-3)
    controls = ("wrong_color", "wrong_type", "color_alone", "type_alone", "empty")
    assert [round(inner[name], 3) for name in controls] == [0.241, 0.27, 0.425, 0.608, 0.935]
    assert [round(everywhere[name], 3) for name in controls] == [0.245, 0.258, 0.407, 0.609, 0.935]
    for row in (inner, everywhere):  # no empty square is missed
        assert row["retrieval_of_13"] == pytest.approx((row["retrieval"] * row["n"] + 100 * 64) / (row["n"] + 64))
    assert (inner["residual_index"], inner["positions"]) == (7, "white-origins")
    published = compare_with_published(session.database, run_query(session.database, "probe composition")).rows
    same = [r for r in published if r["row"].startswith("layer 7, phase 0")]
    assert [(r["comparison"], abs(r["difference"]) < 1e-4) for r in same] == [("comparable", True)] * 4
    pooled = [r for r in published if r["ours"] is not None and r not in same]
    assert not pooled


def test_our_probes_are_composed_and_shown_as_boards(world_session):
    for name in ("color", "type"):
        world_session.run(ProbeSpec(cache="reference-fit", label=name, epochs=1), name=name)
    report = world_session.run(CompositionSpec(joint_probe="reference-board", color_probe="color", type_probe="type"))
    rows = run_query(world_session.database, "probe composition").rows
    assert [(r["residual_index"], r["pawns"], r["checkpoint"]) for r in rows] == [
        (index, pawns, "reference") for index in (1, 2) for pawns in ("ranks 2-7", "everywhere")
    ]
    frames = ProbeComposition().board_views({"run_id": report.run_id, "unit": 0}, world_session.inputs)
    assert len(frames) == 13
    assert frames[0].squares == "p" * 64
    assert frames[0].title.startswith("p at dots, layer 0: cosine of color plus type ")
    for settings, why in (
        ({"color_probe": "color"}, "--color-probe and --type-probe must be given together"),
        ({"color_probe": "type", "type_probe": "type"}, r"--color-probe reads type \(7 classes\), not color"),
        ({"layers": (5,)}, "layer 5 is not in each of the probes"),
    ):
        with pytest.raises(BadInputError, match=why):
            world_session.run(CompositionSpec(joint_probe="reference-board", **settings))


def test_probes_of_another_phase_or_model_are_refused(session, tmp_path):
    from safetensors.numpy import save_file

    random = np.random.default_rng(2)
    for name, classes, place in (
        ("joint", 13, "to_piece_by_color/layer-01/phase-0"),
        ("color", 3, "to_color/layer-01/phase-1"),
        ("type", 7, "to_piece/layer-01/phase-0"),
        ("final", 7, "to_piece/layer-12/phase-0"),
    ):
        path = tmp_path / place / "model.safetensors"
        path.parent.mkdir(parents=True)
        shape = (classes, 8)
        save_file({f"submodules.{s}.weight": random.standard_normal(shape).astype(np.float32) for s in range(64)}, path)
        session.run(build_import_spec(ImportedProbe, [path], session.inputs), name=name)
    for settings, why in (
        (
            {"color_probe": "color", "type_probe": "type"},
            r"--color-probe differs from --joint-probe in its tokens .*white-destinations, not white-origins",
        ),
        ({"color_probe": "joint", "type_probe": "type"}, "--color-probe reads piece"),
    ):
        with pytest.raises(BadInputError, match=why):
            session.run(CompositionSpec(joint_probe="joint", **settings))
