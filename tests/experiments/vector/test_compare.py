"""Cosines of vectors with others of their layer, and between layers."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.runs.fitted import load_vector, read_vector_rows
from tests.specs import vector_spec

from .runs import made, recipe


def test_vectors_are_compared_with_the_others_of_their_layer(world_session):
    from chessreg.entities import vector as vectors

    made(world_session, vector_spec(source="random", of="skill", seed=21), "random-21")
    inputs = world_session.inputs
    found = {entry["name"]: entry for entry in vectors.list_cosines(inputs, recipe(world_session, "skill"), 1)}
    one = load_vector(inputs, recipe(world_session, "skill"), 1).astype(float)
    other = load_vector(inputs, recipe(world_session, "random-21"), 1).astype(float)
    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert found["random-21"]["cosine"] == pytest.approx(expected, abs=1e-6)
    assert found["random-21"]["source"] == "random:contrastive:white_elo"
    by_layer = vectors.compare_vector_runs(inputs, recipe(world_session, "skill"), recipe(world_session, "random-21"))
    assert by_layer[1] == pytest.approx(expected, abs=1e-6)


def test_vectors_whose_files_are_elsewhere_are_left_out(world_session, monkeypatch):
    from chessreg.entities import vector as vectors
    from chessreg.runs import transfer

    made(world_session, vector_spec(source="random", of="skill", seed=22), "random-22")
    made(world_session, vector_spec(source="random", of="skill", seed=23), "random-23")
    inputs, exists = world_session.inputs, world_session.store.exists
    rows = {name: read_vector_rows(inputs, recipe(world_session, name))[1].artifact for name in ("skill", "random-22")}
    monkeypatch.setattr(world_session.store, "exists", lambda digest: digest != gone and exists(digest))
    monkeypatch.setattr(transfer, "iter_places", lambda database, item, refused: iter(()))
    gone = rows["random-22"]
    found = vectors.list_cosines(inputs, recipe(world_session, "skill"), 1)
    assert "random-23" in {entry["name"] for entry in found}
    assert "random-22" not in {entry["name"] for entry in found}
    gone = rows["skill"]
    assert vectors.list_cosines(inputs, recipe(world_session, "skill"), 1) == []


def test_raw_and_centred_vectors_are_compared_without_their_means():
    from chessreg.runs.fitted import compute_cosine_similarity

    raw = np.random.default_rng(0).standard_normal(64) + 3
    assert compute_cosine_similarity(raw, raw - raw.mean(), centre=True) == pytest.approx(1)
    assert compute_cosine_similarity(raw, raw - raw.mean()) < 0.5
