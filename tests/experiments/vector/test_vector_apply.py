"""Accuracy along a vector's direction: the counts, against plain arithmetic, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.settings.skill import SkillSettings, load_skill_classes
from chessreg.experiments.vector_apply import VectorApplySpec, compute_thresholds
from chessreg.registry import tables
from chessreg.runs.activations import load_cache
from chessreg.runs.fitted import load_vector
from tests.specs import vector_spec

from .runs import made, recipe

HALVES = SkillSettings(bins=2)


def test_the_middle_is_that_of_the_other_half():
    along = np.array([0.0, 1.0, 4.0, 7.0, 2.0, 3.0, 6.0, 9.0])
    strong = np.array([False, False, True, True, False, False, True, True])
    fold = np.arange(8) % 2
    assert compute_thresholds(along, strong, fold)[:2].tolist() == [(8 + 2) / 2, (5 + 1) / 2]


def test_games_are_told_apart_by_their_projection(world_session):
    inputs = world_session.inputs
    spec = VectorApplySpec(vector="skill", cache="reference-test", first_ply=4, skill=HALVES, allow_overlap=True)
    report = world_session.run(spec, name="along")
    cache = load_cache(inputs, inputs.reference("run:cache", "reference-test"))
    with world_session.database.read() as sql:
        scores = sql.scalars(select(tables.Score).where(tables.Score.run_id == report.run_id)).all()
        scored = {(row.layer, row.item): (row.correct, row.detail) for row in scores}
    game, ply = cache.array.game, cache.array.ply
    places = np.unique(game[ply >= 4])
    classes = load_skill_classes(inputs, cache.dataset, places, HALVES, 0).classes
    kept = np.flatnonzero(classes >= 0)
    assert len(scored) == report.units * len(kept)
    vector = load_vector(inputs, recipe(world_session, "skill"), 1).astype(float)
    values = cache.values(1, slice(0, len(game))).astype(float) @ (vector / np.linalg.norm(vector))
    along = np.array([values[(game == place) & (ply >= 4)].mean() for place in places[kept]])
    strong = classes[kept] == 1
    for number, place in enumerate(places[kept]):
        others = np.arange(len(kept)) % 2 != number % 2
        middle = (along[others & strong].mean() + along[others & ~strong].mean()) / 2
        correct, detail = scored[1, place]
        assert detail["projection"] == pytest.approx(along[number], rel=1e-4, abs=1e-6)
        assert detail["game_class"] == strong[number]
        assert correct == ((along[number] > middle) == strong[number])
    rows = {row["layer"]: row for row in world_session.query("accuracy along vectors", run="along").rows}
    right = sum(correct for (layer, _), (correct, _) in scored.items() if layer == 1)
    assert rows[1]["accuracy"] == pytest.approx(100 * right / len(kept))
    assert rows[1]["majority"] == pytest.approx(100 * max(strong.mean(), 1 - strong.mean()))
    assert (rows[1]["n_games"], rows[1]["vector"], rows[1]["strata"]) == (len(kept), "skill", "within")


def test_controls_are_looked_along_too_and_name_what_they_stand_for(world_session):
    made(world_session, vector_spec(source="random", of="skill", seed=31), "random-31")
    spec = VectorApplySpec(vector="random-31", cache="reference-test", first_ply=4, skill=HALVES, allow_overlap=True)
    world_session.run(spec, name="along-random")
    [*rows] = world_session.query("accuracy along vectors", run="along-random").rows
    assert {(row["stands_for"], row["source"].partition(":")[0]) for row in rows} == {("skill", "random")}


def test_what_cannot_be_looked_along_is_refused(world_session):
    with pytest.raises(BadInputError, match="layer 7 needs both"):
        world_session.run(VectorApplySpec(vector="skill", cache="reference-test", layers=(7,)))
    with pytest.raises(BadInputError, match="that the vector was made from"):
        world_session.run(VectorApplySpec(vector="skill", cache="reference-fit", first_ply=4, skill=HALVES))
    with pytest.raises(BadInputError, match="no cached site has ply 9000 or a later one"):
        world_session.run(VectorApplySpec(vector="skill", cache="reference-test", first_ply=9000, allow_overlap=True))
