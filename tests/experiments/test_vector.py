"""`vector`: the difference of two means, and a control whose labels are permuted."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.cache import load_cache
from chessreg.experiments.vector import VectorSpec, load_vector


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
        expected = values[late & (elo >= high)].mean(0) - values[late & (elo <= low)].mean(0)
        found = load_vector(inputs, inputs.recipe("run:vector", "skill"), layer)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_shuffled_labels_give_another_vector_and_the_same_seed_the_same(world_session):
    inputs = world_session.inputs
    spec = VectorSpec(cache="reference-fit", first_ply=6, source="shuffled", layers=(1,))
    world_session.run(spec, name="shuffled")
    world_session.run(spec.model_copy(update={"replicate": 1}), name="shuffled-again")
    real, *controls = (
        load_vector(inputs, inputs.recipe("run:vector", n), 1) for n in ("skill", "shuffled", "shuffled-again")
    )
    np.testing.assert_array_equal(controls[0], controls[1])
    assert np.linalg.norm(real - controls[0]) > 0.1 * np.linalg.norm(real)


def test_no_late_position_is_told(world_session):
    with pytest.raises(BadInputError, match="ply 400"):
        world_session.run(VectorSpec(cache="reference-fit", first_ply=400))
