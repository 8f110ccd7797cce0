"""`vector`: differences of two means from a cache or from the model, probes' differences, and controls."""

from __future__ import annotations

import json

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.cache import load_cache
from chessreg.experiments.skill import SkillSettings
from chessreg.experiments.vector import Vector, VectorHow, VectorSpec, load_direction, load_vector, vector_rows

STREAM = {"checkpoint": "reference", "dataset": "sample:fit", "first_ply": 6, "last_ply": 20}


def recipe(session, name):
    return session.inputs.recipe("run:vector", name)


def made(session, spec, name, **how):
    session.run(spec, VectorHow(threads=1, **how), name=name)
    return recipe(session, name)


def test_a_vector_is_the_mean_of_the_high_minus_that_of_the_low(world_session):
    inputs = world_session.inputs
    cache = load_cache(inputs, inputs.recipe("run:cache", "reference-fit"))
    games, _ = inputs.dataset(cache.spec.dataset)
    elo = games.table(["white_elo"]).column("white_elo").to_numpy()[cache.array.game]
    rated = np.unique(cache.array.game, return_index=True)[1]
    low, high = np.quantile(elo[rated], [1 / 6, 5 / 6])
    late = cache.array.ply >= 6
    for layer in (0, 1):
        values = cache.read(layer).astype(np.float64)
        sides = values[late & (elo > high)].mean(0), values[late & (elo <= low)].mean(0)
        found = load_direction(inputs, recipe(world_session, "skill"), layer)
        np.testing.assert_allclose(found.vector, sides[0] - sides[1], atol=1e-5)
        np.testing.assert_allclose(found.high, sides[0], atol=1e-5)
        np.testing.assert_allclose(found.low, sides[1], atol=1e-5)


def test_the_difference_is_high_minus_low_and_its_norms_are_kept(world_session):
    for layer, row in vector_rows(world_session.inputs, recipe(world_session, "skill")).items():
        found = load_direction(world_session.inputs, recipe(world_session, "skill"), layer)
        np.testing.assert_allclose(found.vector, found.high - found.low, atol=1e-5)
        assert row.norm == pytest.approx(np.linalg.norm(found.vector))
        assert row.detail["norm_high"] == pytest.approx(np.linalg.norm(found.high))
        assert row.detail["norm_low"] == pytest.approx(np.linalg.norm(found.low))
        assert row.detail["games_low"] == row.detail["skill"]["games"][0] > 0
        assert row.detail["overlap"]["checkpoint"]["games"] is None  # nobody said what the twin was trained on
        assert (row.detail["positions"], row.detail["positions_summed"], row.detail["residual"]) == (
            "averaged", 1, "raw",
        )  # fmt: skip


def test_one_pass_of_the_model_gives_what_a_float32_cache_gives(world_session):
    from chessreg.experiments.cache import CacheSpec

    world_session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", dtype="float32"), name="exact")
    cached = made(world_session, VectorSpec(cache="exact", first_ply=6, last_ply=20), "from-cache")
    run = made(world_session, VectorSpec(**STREAM), "from-model", batch_games=5)
    for layer in (0, 1):
        one, other = (load_vector(world_session.inputs, r, layer) for r in (cached, run))
        np.testing.assert_allclose(one, other, atol=2e-6)
        assert np.linalg.norm(one) > 1e-3


def test_sums_over_positions_are_as_many_times_the_averages(world_session):
    whole = {**STREAM, "whole_games": True}
    run = made(world_session, VectorSpec(**whole, positions="summed"), "summed")
    averaged = made(world_session, VectorSpec(**whole), "averaged")
    row = vector_rows(world_session.inputs, run)[1]
    assert row.detail["positions_summed"] == row.detail["positions_per_game"] == 8  # dots at plies 6, 8, … 20
    for side in ("vector", "high", "low"):
        one, other = (getattr(load_direction(world_session.inputs, r, 1), side) for r in (run, averaged))
        np.testing.assert_allclose(one, 8 * other, rtol=1e-5, atol=1e-6)


def test_sums_over_games_of_unequal_length_are_refused():
    from chessreg.experiments.vectors.contrast import contrast

    sums, classes = np.ones((4, 3)), np.array([0, 0, 1, 1])
    with pytest.raises(BadInputError, match="games of 6 and of 8 positions"):
        contrast(sums, np.array([8, 8, 6, 8]), classes, "summed")
    averaged = contrast(sums * [[8], [8], [6], [8]], np.array([8, 8, 6, 8]), classes, "averaged")
    np.testing.assert_allclose(averaged.vector, 0, atol=1e-7)  # each position counts once


def test_the_first_games_in_total_or_of_each_class(world_session):
    halves = SkillSettings(bins=2)
    run = made(world_session, VectorSpec(**STREAM, skill=halves, total=25), "first-25")
    detail = vector_rows(world_session.inputs, run)[0].detail
    assert detail["games_low"] + detail["games_high"] == 25
    run = made(world_session, VectorSpec(**STREAM, skill=halves, per_class=4), "four-each")
    detail = vector_rows(world_session.inputs, run)[0].detail
    assert (detail["games_low"], detail["games_high"]) == (4, 4)


def test_a_killed_pass_goes_on_from_the_games_it_had(world_session, monkeypatch):
    from chessreg.experiments.vectors import sums
    from chessreg.models.language_model import LanguageModel

    spec = VectorSpec(**STREAM, skill=SkillSettings(bins=2), layers=(1,))
    expected = load_vector(world_session.inputs, made(world_session, spec, "undisturbed"), 1)
    monkeypatch.setattr(sums, "GROUP", 10)
    forward, seen = LanguageModel.residuals, []

    def dying(self, tokens, *given, **more):
        seen.append(len(tokens))
        if len(seen) == 3:
            raise MemoryError
        return forward(self, tokens, *given, **more)

    monkeypatch.setattr(LanguageModel, "residuals", dying)
    again = spec.model_copy(update={"replicate": 1})
    with pytest.raises(MemoryError):
        world_session.run(again)
    before = sum(seen[:2])
    assert before == 20
    world_session.run(again, name="killed")
    games = vector_rows(world_session.inputs, recipe(world_session, "killed"))[1].detail["skill"]["games"]
    assert sum(seen[3:]) == sum(games) - before
    np.testing.assert_allclose(
        load_vector(world_session.inputs, recipe(world_session, "killed"), 1), expected, atol=1e-6
    )


def test_each_layer_of_a_cascade_sees_the_earlier_vectors_added(world_session):
    import torch

    from chessreg.experiments.vectors.classed import gather
    from chessreg.games.positions import find
    from chessreg.games.tokenizers import PgnCharacters
    from chessreg.models.edits import Edit

    spec = VectorSpec(**STREAM, source="cascade", skill=SkillSettings(bins=2))
    assert spec.cascade_scale == pytest.approx(1.2)
    assert VectorSpec(**STREAM, source="cascade", positions="summed", whole_games=True).cascade_scale == 0.15
    run = made(world_session, spec, "cascade")
    plain = made(world_session, VectorSpec(**STREAM, skill=SkillSettings(bins=2)), "no-cascade")
    inputs = world_session.inputs
    first = load_vector(inputs, run, 0)
    np.testing.assert_allclose(first, load_vector(inputs, plain, 0), atol=1e-6)

    frozen = spec.model_copy(update={n: inputs.recipe(n, getattr(spec, n)) for n in ("checkpoint", "dataset")})
    games, model = gather(frozen, inputs), world_session.model("reference")
    sides = {0: [], 1: []}
    for text, k in zip(games.games.texts(games.places), games.classes, strict=True):
        characters, plies = find("dots", text)
        tokens = torch.from_numpy(PgnCharacters().encode(text).astype(np.int64))[None]
        residual = model.residuals(tokens, [1], edits=[Edit(0, torch.from_numpy(first), 1.2)])[0, 0].numpy()
        sides[int(k)].append(residual[characters[(plies >= 6) & (plies <= 20)]])
    expected = np.concatenate(sides[1]).mean(0) - np.concatenate(sides[0]).mean(0)
    np.testing.assert_allclose(load_vector(inputs, run, 1), expected, atol=2e-6)
    assert np.abs(expected - load_vector(inputs, plain, 1)).max() > 5e-5


def test_a_coefficient_on_sums_and_its_scale_on_averages_are_one_edit(world_session):
    import torch

    from chessreg.experiments.vectors.contrast import scale_of
    from chessreg.models.edits import Edit

    whole = {**STREAM, "whole_games": True}
    runs = [made(world_session, VectorSpec(**whole, positions=p), p) for p in ("summed", "averaged")]
    model, tokens = world_session.model("reference"), torch.arange(24)[None]
    logits = []
    for run in runs:
        row = vector_rows(world_session.inputs, run)[1]
        vector = torch.from_numpy(load_vector(world_session.inputs, run, 1))
        logits.append(model.logits(tokens, edits=[Edit(1, vector, scale_of(0.1, row.detail["positions_summed"]))]))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=0)
    assert (logits[0] - model.logits(tokens)).abs().max() > 1e-4


# -- controls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["random", "shuffled"])
def test_five_draws_of_a_control_differ_and_all_have_the_norm_of_the_real_vector(world_session, source):
    inputs = world_session.inputs
    for layer in (0, 1):
        real = load_vector(inputs, recipe(world_session, "skill"), layer)
        draws = [
            load_vector(
                inputs, made(world_session, VectorSpec(source=source, of="skill", seed=s), f"{source}-{s}"), layer
            )
            for s in range(5)
        ]
        for number, draw in enumerate(draws):
            assert np.linalg.norm(draw) == pytest.approx(np.linalg.norm(real), rel=1e-5)
            assert all(np.abs(draw - other).max() > 1e-3 for other in [real, *draws[:number]])
    again = made(world_session, VectorSpec(source=source, of="skill", seed=4, replicate=1), f"{source}-again")
    np.testing.assert_array_equal(load_vector(inputs, again, 1), draws[4])


def test_shuffling_deals_classes_anew_within_each_stratum():
    from chessreg.experiments.vectors.contrast import permuted

    classes = np.array([0] * 30 + [1] * 10 + [0] * 5 + [1] * 15, np.int8)
    stratum = np.array(["a"] * 40 + ["b"] * 20, object)
    dealt = permuted(classes, stratum, 7)
    assert (dealt != classes).sum() > 5
    for name in "ab":
        assert np.bincount(dealt[stratum == name]).tolist() == np.bincount(classes[stratum == name]).tolist()
    np.testing.assert_array_equal(dealt, permuted(classes, stratum, 7))


def test_shuffled_controls_of_a_streamed_vector_need_no_pass_of_their_own(world_session, monkeypatch):
    from chessreg.models.language_model import LanguageModel

    made(world_session, VectorSpec(**STREAM), "from-model")
    real = made(world_session, VectorSpec(**STREAM, replicate=1), "sums-thrown-away", keep_sums=False)
    passes = []
    forward = LanguageModel.residuals
    monkeypatch.setattr(
        LanguageModel, "residuals", lambda self, *given, **more: passes.append(1) or forward(self, *given, **more)
    )
    kept = made(world_session, VectorSpec(source="shuffled", of="from-model", seed=3), "shuffled-kept")
    assert not passes
    again = made(world_session, VectorSpec(source="shuffled", of="sums-thrown-away", seed=3), "shuffled-streamed")
    assert passes
    for layer in (0, 1):
        np.testing.assert_allclose(*(load_vector(world_session.inputs, r, layer) for r in (kept, again)), atol=1e-6)
        row = vector_rows(world_session.inputs, again)[layer]
        assert row.detail["norm_before_matching"] > 0
        assert row.detail["of"] == real


def test_vectors_without_labels_cannot_be_shuffled(world_session):
    made(world_session, VectorSpec(source="random", of="skill", seed=6), "random-6")
    with pytest.raises(BadInputError, match="no labels here"):
        world_session.run(VectorSpec(source="shuffled", of="random-6"))


def test_a_random_control_is_the_direction_that_matches_draw_for_that_seed(world_session):
    from chessreg.experiments.interventions import CONTROLS

    inputs = world_session.inputs
    run = made(world_session, VectorSpec(source="random", of="skill", seed=11), "random-11")
    real = load_vector(inputs, recipe(world_session, "skill"), 1)
    np.testing.assert_allclose(load_vector(inputs, run, 1), CONTROLS["random"](real, 1, 11), rtol=1e-6)


def test_a_control_stands_in_a_vectors_place_in_an_intervention(world_session):
    from chessreg.experiments.interventions import InterventionSettings, load

    run = made(world_session, VectorSpec(source="shuffled", of="skill", seed=2), "shuffled-2")
    inputs = world_session.inputs
    checkpoint, _ = inputs.checkpoint(inputs.recipe("checkpoint", "reference"))
    found = load(InterventionSettings(vector=run, layers=(1,), scale=-2.0), checkpoint, inputs)
    assert found.row["source"] == "shuffled:white_elo"
    np.testing.assert_array_equal(found.directions[1], load_vector(inputs, run, 1))


# -- from probes ------------------------------------------------------------------------------------------------------


def test_a_skill_probes_direction_is_its_highest_class_minus_its_lowest():
    from chessreg.experiments.vectors.contrast import class_difference

    weight = np.arange(24, dtype=np.float32).reshape(12, 1, 2) ** 1.5
    found = class_difference(weight)
    np.testing.assert_allclose(found.vector, weight[:, 0, 1] - weight[:, 0, 0])
    np.testing.assert_array_equal(found.high, weight[:, 0, 1])
    np.testing.assert_allclose(class_difference(weight, "high").vector, weight[:, 0, 1])
    np.testing.assert_allclose(class_difference(weight, "low").vector, -weight[:, 0, 0])
    with pytest.raises(BadInputError, match="no low class"):
        class_difference(weight[:, :, :1], "low")
    with pytest.raises(BadInputError, match="no one class difference"):
        class_difference(np.zeros((12, 64, 13), np.float32))


@pytest.mark.parametrize("label", ["skill", "rating"])
def test_the_vector_of_a_probe_run_has_unit_norm_unless_asked_otherwise(world_session, label):
    from chessreg.experiments.probe import ProbeSpec, load_probe

    inputs = world_session.inputs
    world_session.run(ProbeSpec(cache="reference-fit", label=label, epochs=1, first=2), name=f"{label}-probe")
    unit = made(world_session, VectorSpec(source="probe", probe=f"{label}-probe"), f"{label}-unit")
    kept = made(world_session, VectorSpec(source="probe", probe=f"{label}-probe", normalise="none"), f"{label}-kept")
    for layer in (0, 1):
        weight = load_probe(inputs, inputs.recipe("run:probe", f"{label}-probe"), layer).weight
        expected = weight[:, 0, -1] - (weight[:, 0, 0] if label == "skill" else 0)
        np.testing.assert_allclose(load_vector(inputs, kept, layer), expected, rtol=1e-5)
        found = load_vector(inputs, unit, layer)
        assert np.linalg.norm(found) == pytest.approx(1)
        np.testing.assert_allclose(found * np.linalg.norm(expected), expected, atol=1e-5)
        row = vector_rows(inputs, unit)[layer]
        assert row.source == f"probe:{label}"
        assert row.detail["norm_before_matching"] == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_one_side_of_a_skill_probe_is_a_direction_of_its_own(world_session):
    """Karvonen 2024, Appendix C: the low skill vector subtracted, or the high one added."""
    from chessreg.experiments.probe import ProbeSpec, load_probe

    world_session.run(ProbeSpec(cache="reference-fit", label="skill", epochs=1, first=2), name="sided")
    inputs = world_session.inputs
    weight = load_probe(inputs, inputs.recipe("run:probe", "sided"), 1).weight
    for side, expected in (("high", weight[:, 0, -1]), ("low", -weight[:, 0, 0])):
        spec = VectorSpec(source="probe", probe="sided", normalise="none", side=side)
        found = made(world_session, spec, f"sided-{side}")
        np.testing.assert_allclose(load_vector(inputs, found, 1), expected, rtol=1e-5)
        assert vector_rows(inputs, found)[1].detail["side"] == side
    with pytest.raises(BadInputError, match="source contrastive does not use it"):
        VectorSpec(cache="reference-fit", side="low")


def test_a_board_probe_has_no_skill_direction(world_session):
    with pytest.raises(BadInputError, match="no one class difference"):
        world_session.run(VectorSpec(source="probe", probe="reference-board"))


def test_karvonens_saved_skill_probe_gives_the_norm_and_cosine_of_its_classes(shared_data):
    """Specification 3.9: norms 3.0739 and 2.9832 of the low and the high class, cosine -0.9435, at layer 7 of 8."""
    import torch

    from chessreg.experiments.vectors.contrast import class_difference, cosine

    path = shared_data / "probes" / "karvonen-tf_lens_lichess_8layers_ckpt_no_optimizer_chess_skill_probe_layer_7.pth"
    weight = (
        torch.load(path, weights_only=True, map_location="cpu")["linear_probe"].detach().numpy()[0].reshape(512, 1, 2)
    )
    found = class_difference(weight)
    assert found.norms() == pytest.approx({"norm_low": 3.0739, "norm_high": 2.9832}, abs=1e-4)
    assert cosine(found.low, found.high) == pytest.approx(-0.9435, abs=1e-4)
    np.testing.assert_allclose(found.vector, found.high - found.low)


def test_karvonens_contrastive_vector_is_his_average_high_minus_low(shared_data):
    """Specification 5.2 and 5.3: norm 10.17241, sides 44.60 and 45.10, all of them sums over eight positions."""
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


# -- comparisons ------------------------------------------------------------------------------------------------------


def test_vectors_are_compared_with_the_others_of_their_layer(world_session):
    from chessreg.experiments.vectors import compare

    made(world_session, VectorSpec(source="random", of="skill", seed=21), "random-21")
    inputs = world_session.inputs
    found = {entry["name"]: entry for entry in compare.cosines(inputs, recipe(world_session, "skill"), 1)}
    one = load_vector(inputs, recipe(world_session, "skill"), 1).astype(float)
    other = load_vector(inputs, recipe(world_session, "random-21"), 1).astype(float)
    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert found["random-21"]["cosine"] == pytest.approx(expected, abs=1e-6)
    assert found["random-21"]["source"] == "random:contrastive:white_elo"
    by_layer = compare.of_run(inputs, recipe(world_session, "skill"), recipe(world_session, "random-21"))
    assert by_layer[1] == pytest.approx(expected, abs=1e-6)
    layers, matrix = compare.between_layers(inputs, recipe(world_session, "skill"))
    assert layers == [0, 1]
    np.testing.assert_allclose(np.diag(matrix), 1)


def test_vectors_whose_files_are_elsewhere_are_left_out(world_session, monkeypatch):
    from chessreg.experiments.vectors import compare
    from chessreg.jobs import transfer

    made(world_session, VectorSpec(source="random", of="skill", seed=22), "random-22")
    made(world_session, VectorSpec(source="random", of="skill", seed=23), "random-23")
    inputs, exists = world_session.inputs, world_session.store.exists
    rows = {name: vector_rows(inputs, recipe(world_session, name))[1].artefact for name in ("skill", "random-22")}
    monkeypatch.setattr(world_session.store, "exists", lambda digest: digest != gone and exists(digest))
    monkeypatch.setattr(transfer, "places_of", lambda database, item: iter(()))
    gone = rows["random-22"]
    found = compare.cosines(inputs, recipe(world_session, "skill"), 1)
    assert "random-23" in {entry["name"] for entry in found}
    assert "random-22" not in {entry["name"] for entry in found}
    gone = rows["skill"]
    assert compare.cosines(inputs, recipe(world_session, "skill"), 1) == []


def test_raw_and_centred_vectors_are_compared_without_their_means():
    from chessreg.experiments.vectors.contrast import cosine

    raw = np.random.default_rng(0).standard_normal(64) + 3
    assert cosine(raw, raw - raw.mean(), centre=True) == pytest.approx(1)
    assert cosine(raw, raw - raw.mean()) < 0.5


# -- settings ---------------------------------------------------------------------------------------------------------


def test_presets_are_the_papers_and_the_authors_readings(world_session):
    paper, author = (VectorSpec(cache="reference-fit", **Vector().preset(n)) for n in ("paper", "author-2024"))
    assert (paper.per_class, paper.total) == (2000, None)
    assert (author.per_class, author.total) == (None, 2000)
    for spec in (paper, author):
        assert (spec.positions, spec.first_ply, spec.last_ply, spec.whole_games) == ("summed", 50, 64, True)
        assert (spec.skill.strata, spec.skill.keep, spec.skill.bins) == ("pooled", (0, -1), 6)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "needs activations"),
        ({"checkpoint": "reference"}, "needs activations"),
        ({"cache": "a", "dataset": "b"}, "--dataset is set, but source contrastive does not use it"),
        ({"cache": "a", "of": "b"}, "--of is set"),
        ({"source": "random"}, "needs --of"),
        ({"source": "shuffled", "of": "a", "first_ply": 3}, "it takes all else from that run"),
        ({"source": "probe"}, "needs --probe"),
        ({"cache": "a", "normalise": "unit"}, "--normalise is set"),
        ({"cache": "a", "whole_games": True}, "--last-ply"),
        ({"cache": "a", "first_ply": 9, "last_ply": 8}, "no ply lies between"),
        ({"cache": "a", "cascade_scale": 0.2}, "--cascade-scale is set"),
    ],
)
def test_settings_that_would_change_nothing_or_miss_something_are_refused(settings, complaint):
    with pytest.raises(BadInputError, match=complaint):
        VectorSpec(**settings)


def test_a_recorded_spec_is_the_spec(world_session):
    for name in ("skill", made(world_session, VectorSpec(source="random", of="skill", seed=5), "random-5")):
        run = world_session.inputs.run(recipe(world_session, name))
        assert json.loads(VectorSpec(**run.spec).model_dump_json(exclude={"allow_overlap", "side"})) == run.spec


def test_no_late_position_is_told(world_session):
    with pytest.raises(BadInputError, match="ply 400"):
        world_session.run(VectorSpec(cache="reference-fit", first_ply=400))


def test_a_layer_that_is_not_there_is_told(world_session):
    for spec in (VectorSpec(cache="reference-fit", layers=(7,)), VectorSpec(source="random", of="skill", layers=(7,))):
        with pytest.raises(BadInputError, match="layer 7"):
            world_session.run(spec)


def test_the_games_behind_a_vector_are_known_also_without_a_cache(world_session):
    from chessreg.experiments.overlap import trained_on

    inputs = world_session.inputs
    run = made(world_session, VectorSpec(**STREAM), "from-model")
    control = made(world_session, VectorSpec(source="random", of="from-model", seed=1), "its-control")
    games, part = inputs.dataset(inputs.recipe("dataset", "sample:fit"))
    for reference in (run, control):
        ((_, places),), _ = trained_on(inputs, reference)
        np.testing.assert_array_equal(places, games.rows(part))


def test_games_that_the_model_was_trained_on_are_refused(world_session, monkeypatch):
    from chessreg.experiments import overlap

    games, _ = world_session.inputs.dataset(world_session.inputs.recipe("dataset", "sample"))
    monkeypatch.setattr(overlap, "trained_on", lambda inputs, recipe: ([(games, np.arange(20))], None))
    spec = VectorSpec(**STREAM, replicate=2)
    with pytest.raises(BadInputError, match="--allow-overlap"):
        world_session.run(spec)
    run = made(world_session, spec.model_copy(update={"allow_overlap": True}), "overlapping")
    shared = vector_rows(world_session.inputs, run)[0].detail["overlap"]["checkpoint"]
    assert 0 < shared["games"] < shared["of_games"]


def test_an_imported_vector_has_random_controls_but_no_labels_to_shuffle(world_session):
    from chessreg.experiments.imported_directions import ImportedVectorSpec
    from chessreg.experiments.vectors import compare

    inputs = world_session.inputs
    files = ImportedVectorSpec(files=("sample",)).files
    recipes = tuple(inputs.recipe("vector-file", file) for file in files)
    world_session.run(ImportedVectorSpec(files=recipes), name="imported")
    theirs = recipe(world_session, "imported")
    run = made(world_session, VectorSpec(source="random", of="imported", seed=1), "its-random")
    for layer, row in vector_rows(inputs, theirs).items():
        control = vector_rows(inputs, run)[layer]
        assert control.norm == pytest.approx(row.norm, rel=1e-5)
        assert control.checkpoint_id == row.checkpoint_id
        assert control.detail["model"] == row.detail["model"]
        assert "its-random" in {entry["name"] for entry in compare.cosines(inputs, theirs, layer)}
    with pytest.raises(BadInputError, match="from a file have no labels"):
        world_session.run(VectorSpec(source="shuffled", of="imported"))
