"""`vector`: differences of two means from a cache or from the model, and its settings."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.experiments.vector import Vector, VectorSpec
from chessreg.runs.activations import load_cache
from chessreg.runs.fitted import load_direction, load_vector, read_vector_rows
from chessreg.runs.spec import build_settings
from tests.specs import vector_spec

from .vector.runs import STREAM, made, recipe


def test_a_vector_is_the_mean_of_the_high_minus_that_of_the_low(world_session):
    inputs = world_session.inputs
    cache = load_cache(inputs, inputs.reference("run:cache", "reference-fit"))
    games, _ = inputs.dataset(cache.dataset)
    elo = games.table(["white_elo"]).column("white_elo").to_numpy()[cache.array.game]
    rated = np.unique(cache.array.game, return_index=True)[1]
    low, high = np.quantile(elo[rated], [1 / 6, 5 / 6])
    late = cache.array.ply >= 6
    for layer in (0, 1):
        values = cache.values(layer).astype(np.float64)
        sides = values[late & (elo > high)].mean(0), values[late & (elo <= low)].mean(0)
        found = load_direction(inputs, recipe(world_session, "skill"), layer)
        np.testing.assert_allclose(found.vector, sides[0] - sides[1], atol=1e-5)
        np.testing.assert_allclose(found.high, sides[0], atol=1e-5)
        np.testing.assert_allclose(found.low, sides[1], atol=1e-5)


def test_the_difference_is_high_minus_low_and_its_norms_are_kept(world_session):
    for layer, row in read_vector_rows(world_session.inputs, recipe(world_session, "skill")).items():
        found = load_direction(world_session.inputs, recipe(world_session, "skill"), layer)
        np.testing.assert_allclose(found.vector, found.high - found.low, atol=1e-5)
        assert row.norm == pytest.approx(np.linalg.norm(found.vector))
        assert row.detail["norm_high"] == pytest.approx(np.linalg.norm(found.high))
        assert row.detail["norm_low"] == pytest.approx(np.linalg.norm(found.low))
        assert row.detail["games_low"] == row.detail["skill"]["games"][0] > 0
        assert row.detail["overlap"]["checkpoint"]["games"] is None  # the twin's training data are not recorded
        assert (row.detail["positions"], row.detail["positions_summed"], row.detail["residual"]) == (
            "averaged", 1, "raw",
        )  # fmt: skip


def test_one_pass_of_the_model_gives_what_a_float32_cache_gives(world_session):
    from chessreg.experiments.cache import CacheSpec

    world_session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", dtype="float32"), name="exact")
    cached = made(
        world_session, vector_spec(source="contrastive", cache="exact", first_ply=6, last_ply=20), "from-cache"
    )
    run = made(world_session, vector_spec(**STREAM), "from-model", batch_games=5)
    for layer in (0, 1):
        one, other = (load_vector(world_session.inputs, r, layer) for r in (cached, run))
        np.testing.assert_allclose(one, other, atol=2e-6)
        assert np.linalg.norm(one) > 1e-3


def test_sums_over_positions_are_as_many_times_the_averages(world_session):
    whole = {**STREAM, "whole_games": True}
    run = made(world_session, vector_spec(**whole, reduction="summed"), "summed")
    averaged = made(world_session, vector_spec(**whole), "averaged")
    row = read_vector_rows(world_session.inputs, run)[1]
    assert row.detail["positions_summed"] == row.detail["positions_per_game"] == 8  # dots at plies 6, 8, … 20
    for side in ("vector", "high", "low"):
        one, other = (getattr(load_direction(world_session.inputs, r, 1), side) for r in (run, averaged))
        np.testing.assert_allclose(one, 8 * other, rtol=1e-5, atol=1e-6)


def test_sums_over_games_of_unequal_length_are_refused():
    from chessreg.experiments.vector.contrast import compute_contrast

    sums, classes = np.ones((4, 3)), np.array([0, 0, 1, 1])
    with pytest.raises(BadInputError, match="games have from 6 to 8 positions"):
        compute_contrast(sums, np.array([8, 8, 6, 8]), classes, "summed")
    averaged = compute_contrast(sums * [[8], [8], [6], [8]], np.array([8, 8, 6, 8]), classes, "averaged")
    np.testing.assert_allclose(averaged.vector, 0, atol=1e-7)  # each position counts once


def test_the_first_games_in_total_or_of_each_class(world_session):
    halves = SkillSettings(bins=2)
    run = made(world_session, vector_spec(**STREAM, skill=halves, total=25), "first-25")
    detail = read_vector_rows(world_session.inputs, run)[0].detail
    assert detail["games_low"] + detail["games_high"] == 25
    run = made(world_session, vector_spec(**STREAM, skill=halves, per_class=4), "four-each")
    detail = read_vector_rows(world_session.inputs, run)[0].detail
    assert (detail["games_low"], detail["games_high"]) == (4, 4)


def test_a_killed_pass_goes_on_from_the_games_it_had(world_session, monkeypatch):
    from chessreg.experiments.vector import sums
    from chessreg.models.language_model import LanguageModel

    spec = vector_spec(**STREAM, skill=SkillSettings(bins=2), layers=(1,))
    expected = load_vector(world_session.inputs, made(world_session, spec, "undisturbed"), 1)
    monkeypatch.setattr(sums, "GROUP_GAMES", 10)
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
    games = read_vector_rows(world_session.inputs, recipe(world_session, "killed"))[1].detail["skill"]["games"]
    assert sum(seen[3:]) == sum(games) - before
    np.testing.assert_allclose(
        load_vector(world_session.inputs, recipe(world_session, "killed"), 1), expected, atol=1e-6
    )


def test_each_layer_of_a_cascade_sees_the_earlier_vectors_added(world_session):
    import torch

    from chessreg.encodings.pgn_char import PgnChar
    from chessreg.experiments.vector.contrast import gather_games
    from chessreg.models.edits import ResidualEdit

    spec = vector_spec(**STREAM | {"source": "cascade-uncached"}, skill=SkillSettings(bins=2))
    assert spec.cascade_scale == pytest.approx(1.2)
    assert (
        vector_spec(**STREAM | {"source": "cascade-uncached"}, reduction="summed", whole_games=True).cascade_scale
        == 0.15
    )
    run = made(world_session, spec, "cascade")
    plain = made(world_session, vector_spec(**STREAM, skill=SkillSettings(bins=2)), "no-cascade")
    inputs = world_session.inputs
    first = load_vector(inputs, run, 0)
    np.testing.assert_allclose(first, load_vector(inputs, plain, 0), atol=1e-6)

    frozen = spec.model_copy(update={n: inputs.reference(n, getattr(spec, n)) for n in ("checkpoint", "dataset")})
    games, model = gather_games(frozen, inputs), world_session.model("reference")
    sides = {0: [], 1: []}
    for text, k in zip(games.games.texts(games.places), games.classes, strict=True):
        encoded = PgnChar().texts([text])
        sites = PgnChar().sites("dots", encoded)
        characters, plies = sites.token, sites.ply
        tokens = torch.from_numpy(encoded.ids.astype(np.int64))[None]
        residual = model.residuals(tokens, [1], edits=[ResidualEdit(0, torch.from_numpy(first), 1.2)])[0, 0].numpy()
        sides[int(k)].append(residual[characters[(plies >= 6) & (plies <= 20)]])
    expected = np.concatenate(sides[1]).mean(0) - np.concatenate(sides[0]).mean(0)
    np.testing.assert_allclose(load_vector(inputs, run, 1), expected, atol=2e-6)
    assert np.abs(expected - load_vector(inputs, plain, 1)).max() > 5e-5


def test_a_coefficient_on_sums_and_its_scale_on_averages_are_one_edit(world_session):
    import torch

    from chessreg.experiments.vector.spec import convert_coefficient
    from chessreg.models.edits import ResidualEdit

    whole = {**STREAM, "whole_games": True}
    runs = [made(world_session, vector_spec(**whole, reduction=p), p) for p in ("summed", "averaged")]
    model, tokens = world_session.model("reference"), torch.arange(24)[None]
    logits = []
    for run in runs:
        row = read_vector_rows(world_session.inputs, run)[1]
        vector = torch.from_numpy(load_vector(world_session.inputs, run, 1))
        logits.append(
            model.logits(
                tokens, edits=[ResidualEdit(1, vector, convert_coefficient(0.1, row.detail["positions_summed"]))]
            )
        )
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=0)
    assert (logits[0] - model.logits(tokens)).abs().max() > 1e-4


# -- settings ---------------------------------------------------------------------------------------------------------


def test_presets_are_the_papers_and_the_authors_readings(world_session):
    paper, author = (
        vector_spec(source="contrastive", cache="reference-fit", **Vector().preset(n)) for n in ("paper", "author-2024")
    )
    assert (paper.per_class, paper.total) == (2000, None)
    assert (author.per_class, author.total) == (None, 2000)
    for spec in (paper, author):
        assert (spec.reduction, spec.first_ply, spec.last_ply, spec.whole_games) == ("summed", 50, 64, True)
        assert (spec.skill.strata, spec.skill.keep, spec.skill.bins) == ("pooled", (0, -1), 6)


CACHED = {"source": "contrastive", "cache": "a"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "--source: one of contrastive, contrastive-uncached"),
        ({"source": "conflict"}, "--source: one of contrastive, contrastive-uncached"),
        ({"source": "contrastive"}, "--cache: field required"),
        ({"source": "contrastive-uncached", "checkpoint": "reference"}, "--dataset: field required"),
        ({**CACHED, "dataset": "b"}, "--dataset belongs to --source contrastive-uncached or cascade-uncached, not to"),
        ({**CACHED, "of": "b"}, "--of belongs to --source random or shuffled or shuffled-probe"),
        ({"source": "random"}, "--of: field required"),
        ({"source": "shuffled", "of": "a", "first_ply": 3}, "--first-ply belongs to --source"),
        ({"source": "probe"}, "--probe: field required"),
        ({"source": "board", "probe": "a"}, "--board: field required"),
        ({**CACHED, "direction_norm": "unit"}, "--direction-norm belongs to --source probe or board"),
        ({**CACHED, "whole_games": True}, "--last-ply"),
        ({**CACHED, "first_ply": 9, "last_ply": 8}, "no ply is between"),
        ({**CACHED, "cascade_scale": 0.2}, "--cascade-scale belongs to --source cascade or cascade-uncached"),
    ],
)
def test_settings_that_would_change_nothing_or_miss_something_are_refused(settings, complaint):
    with pytest.raises(BadInputError, match=complaint) as caught:
        build_settings(VectorSpec, settings)
    assert "\n" not in str(caught.value)


def test_a_recorded_spec_is_the_spec(world_session):
    for name in ("skill", made(world_session, vector_spec(source="random", of="skill", seed=5), "random-5")):
        run = world_session.inputs.run(recipe(world_session, name))
        assert vector_spec(**run.spec).model_dump(mode="json") == run.spec


def test_no_late_position_is_told(world_session):
    with pytest.raises(BadInputError, match="ply 400"):
        world_session.run(vector_spec(source="contrastive", cache="reference-fit", first_ply=400))


def test_a_layer_that_is_not_there_is_told(world_session):
    for spec in (
        vector_spec(source="contrastive", cache="reference-fit", layers=(7,)),
        vector_spec(source="random", of="skill", layers=(7,)),
    ):
        with pytest.raises(BadInputError, match="layer 7"):
            world_session.run(spec)


def test_the_games_behind_a_vector_are_known_also_without_a_cache(world_session):
    from chessreg.experiments.settings.overlap import load_training_items

    inputs = world_session.inputs
    run = made(world_session, vector_spec(**STREAM), "from-model")
    control = made(world_session, vector_spec(source="random", of="from-model", seed=1), "its-control")
    games, part = inputs.dataset(inputs.reference("dataset", "sample:fit"))
    for reference in (run, control):
        ((_, places),), _ = load_training_items(inputs, reference)
        np.testing.assert_array_equal(places, games.rows(part))


def test_games_that_the_model_was_trained_on_are_refused(world_session, monkeypatch):
    from chessreg.experiments.settings import overlap

    games, _ = world_session.inputs.dataset(world_session.inputs.reference("dataset", "sample"))
    monkeypatch.setattr(overlap, "load_training_items", lambda inputs, recipe: ([(games, np.arange(20))], None))
    spec = vector_spec(**STREAM, replicate=2)
    with pytest.raises(BadInputError, match="--allow-overlap"):
        world_session.run(spec)
    run = made(world_session, spec.model_copy(update={"allow_overlap": True}), "overlapping")
    shared = read_vector_rows(world_session.inputs, run)[0].detail["overlap"]["checkpoint"]
    assert 0 < shared["games"] < shared["of_games"]
