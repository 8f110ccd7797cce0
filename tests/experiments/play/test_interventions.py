"""Interventions as settings of a match: directions, controls, their row, and their effect on play."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.entities.game import describe_intervention
from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import tables
from chessreg.steering import interventions
from chessreg.steering.interventions import InterventionSettings


def load(session, **settings):
    """The intervention of these settings on the bigram model."""
    inputs = session.inputs
    checkpoint, _ = inputs.checkpoint(inputs.reference("checkpoint", "bigram"))
    recipe = inputs.reference("run:vector", settings.pop("vector"))
    return interventions.load_intervention(InterventionSettings(vector=recipe, **settings), checkpoint, inputs)


def test_without_a_vector_there_is_no_intervention(session):
    inputs = session.inputs
    checkpoint, _ = inputs.checkpoint(inputs.reference("checkpoint", "bigram"))
    assert interventions.load_intervention(InterventionSettings(), checkpoint, inputs) is None


def test_the_scale_multiplies_the_vector_as_it_is(session, make_vectors, model):
    found = load(session, vector=make_vectors(), scale=-0.5)
    (edit,) = found.build_edits()
    wanted = -0.5 * np.arange(3, 35, dtype=np.float32)
    assert edit.delta(model.network.wte.weight).numpy().reshape(-1) == pytest.approx(wanted)
    assert (edit.layer, edit.token_mask) == (0, "all")


def test_all_layers_of_the_vector_run_are_used_unless_some_are_named(session, make_vectors):
    vectors = make_vectors(layers=(0, 1, 2))
    assert list(load(session, vector=vectors).directions) == [0, 1, 2]
    assert list(load(session, vector=vectors, layers=(2, 0)).directions) == [0, 2]
    with pytest.raises(NotFoundError, match="no layer 5") as error:
        load(session, vector=vectors, layers=(5,))
    assert "0, 1, 2" in error.value.hint


def test_the_random_control_has_the_norm_and_not_the_direction(session, make_vectors):
    vectors = make_vectors(layers=(0, 1))
    real = load(session, vector=vectors).directions
    drawn = [load(session, vector=vectors, control="random", control_seed=seed).directions for seed in (0, 0, 1)]
    for layer in (0, 1):
        assert np.linalg.norm(drawn[0][layer]) == pytest.approx(np.linalg.norm(real[layer]), rel=1e-5)
        assert np.array_equal(drawn[0][layer], drawn[1][layer])
        for other in (real[layer], drawn[2][layer], drawn[0][1 - layer]):
            cosine = drawn[0][layer] @ other / np.linalg.norm(drawn[0][layer]) / np.linalg.norm(other)
            assert abs(cosine) < 0.7
        assert drawn[0][layer].dtype == np.float32


def test_the_id_follows_from_all_that_matters(session, make_vectors):
    vectors = make_vectors(layers=(0, 1))
    base = load(session, vector=vectors)
    assert load(session, vector=vectors, layers=(1, 0)).id == base.id  # meaning of no given layers
    others = [{"scale": 2.0}, {"layers": (0,)}, {"token_mask": "last"}, {"control": "random"}]
    others.append({"control": "random", "control_seed": 1})
    assert len({base.id, *(load(session, vector=vectors, **settings).id for settings in others)}) == 6


def test_the_row_says_what_was_done(session, make_vectors):
    vectors = make_vectors(layers=(0, 1))
    row = load(session, vector=vectors, scale=0.8, layers=(1,)).row
    assert row["source"] == "contrastive:white_elo"
    assert (row["layers"], row["scale"], row["token_mask"]) == ([1], 0.8, "all")
    assert row["input_references"] == [session.inputs.reference("run:vector", vectors)]
    control = load(session, vector=vectors, control="random", control_seed=3).row
    assert (control["source"], control["detail"]["control_seed"]) == ("random", 3)
    assert describe_intervention(tables.Intervention(**row)) == "contrastive:white_elo x 0.8 at layer 1"


@pytest.mark.parametrize(
    "settings",
    [
        {"scale": 2.0},
        {"layers": (1,)},
        {"control": "random"},
        {"vector": "x", "scale": 0.0},
        {"vector": "x", "control": "shuffled"},
        {"vector": "x", "control_seed": 1},
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings):
    with pytest.raises((BadInputError, NotFoundError)):
        InterventionSettings(**settings)


def test_a_control_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="'random' is registered"):
        interventions.CONTROLS.named("random")(lambda direction, layer, seed: direction)


def test_a_vector_of_another_checkpoint_is_refused(session, make_vectors, tmp_path):
    from chessreg.entities.checkpoint import register_random_init_control

    register_random_init_control(session.database, session.store, "bigram", name="twin")
    with pytest.raises(BadInputError, match="another checkpoint"):
        load(session, vector=make_vectors(checkpoint="twin"))


def test_an_arm_with_an_intervention_is_recorded_beside_the_plain_one(session, play, make_vectors):
    settings = {"games": 4, "policy": "legal", "opening": "random:4", "move_limit": 4}
    plain = play(**settings).run_id
    edited = play(**settings, intervention={"vector": make_vectors(), "scale": 0.2}).run_id
    with session.database.read() as sql:
        (row,) = sql.scalars(select(tables.Intervention)).all()
        matches = {m.run_id: m.intervention_id for m in sql.scalars(select(tables.Match))}
        assert matches == {plain: None, edited: row.id}
        names = set(sql.scalars(select(tables.RunInput.name).where(tables.RunInput.run_id == edited)))
        assert names == {"checkpoint", "vector layer 0"}
        moves = {
            run: list(sql.scalars(select(tables.Game.moves).where(tables.Game.run_id == run).order_by("unit")))
            for run in (plain, edited)
        }
    assert [m[:8] for m in moves[plain]] == [m[:8] for m in moves[edited]]
    assert moves[plain] != moves[edited]


def test_a_missing_layer_is_told_before_anything_is_recorded(session, play, make_vectors):
    vectors = make_vectors()
    with pytest.raises(NotFoundError, match="no layer 1"):
        play(games=1, intervention={"vector": vectors, "layers": (1,)})
    with session.database.read() as sql:
        assert sql.scalars(select(tables.Run.kind)).all() == ["vector"]
