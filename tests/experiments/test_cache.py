"""`cache`: the stored values are the residual stream at the chosen characters, for any batch size, once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.runs import inputs
from chessreg.runs.activations import load_cache
from store.errors import CorruptError


def cached(session, **settings):
    spec = CacheSpec(**{"checkpoint": "reference", "dataset": "sample:fit", "dtype": "float32"} | settings)
    report = session.run(spec)
    return load_cache(session.inputs, f"run:{session_hash(session, report)}")


def session_hash(session, report) -> str:
    from chessreg.registry import tables

    with session.database.read() as sql:
        return sql.get_one(tables.Run, report.run_id).spec_hash


def test_rows_equal_a_forward_pass_of_each_game_alone(world_session):
    found = cached(world_session, games=5, max_sites=12)
    model, encode = world_session.model("reference"), get_encoding("pgn-char-32").encode
    games, _ = world_session.inputs.dataset(found.dataset)
    assert found.layers == [0, 1]
    for item in np.unique(found.array.game):
        text = games.texts(np.array([item]))[0]
        at = np.flatnonzero(found.array.game == item)
        assert found.array.token[at].tolist() == [i for i, c in enumerate(text) if c == "."][:12]
        assert found.array.ply[at].tolist() == list(range(0, 2 * len(at), 2))
        tokens = torch.from_numpy(encode(text).astype(np.int64))[None]
        alone = model.residuals(tokens, [0, 1])
        for layer in (0, 1):
            expected = alone[layer][0, found.array.token[at]].numpy()
            np.testing.assert_allclose(found.values(layer, at), expected, atol=1e-4)


def test_small_types_hold_the_same_numbers_rounded(world_session):
    exact = cached(world_session, games=4).values(1)
    for dtype, step in (("float16", 2e-3), ("bfloat16", 1e-2)):
        rounded = cached(world_session, games=4, dtype=dtype).values(1)
        np.testing.assert_allclose(rounded, exact, rtol=step, atol=1e-3)


def test_groups_and_batches_do_not_change_what_is_read(world_session):
    one = cached(world_session, games=7, replicate=1)
    spec = CacheSpec(checkpoint="reference", dataset="sample:fit", dtype="float32", games=7, replicate=2)
    report = world_session.run(spec, CacheOptions(batch_games=2, group_games=3))
    other = load_cache(world_session.inputs, f"run:{session_hash(world_session, report)}")
    assert len(other.groups) == 3
    assert one.array.game.tolist() != other.array.game.tolist()  # stored in another order
    for mine, its in zip(one.read(0), other.read(0), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-4)


def test_rows_are_read_with_their_game_token_and_ply_by_game_and_token(world_session):
    found = cached(world_session, games=6, replicate=4)
    games, part = world_session.inputs.dataset(found.dataset)
    read = found.read(1)
    assert part is not None
    assert set(read.game.tolist()) <= set(games.rows(part).tolist())
    assert list(zip(read.game, read.token, strict=True)) == sorted(zip(read.game, read.token, strict=True))
    for game in np.unique(read.game):
        dots = [place for place, sign in enumerate(games.texts(np.array([game]))[0]) if sign == "."]
        assert read.token[read.game == game].tolist() == dots
        assert read.ply[read.game == game].tolist() == list(range(0, 2 * len(dots), 2))
    stored = list(zip(found.array.game.tolist(), found.array.token.tolist(), strict=True))
    at = [stored.index(key) for key in zip(read.game.tolist(), read.token.tolist(), strict=True)]
    np.testing.assert_array_equal(read.residual, found.values(1)[at])
    some = found.read(1, [5, 0])
    assert (some.game.tolist(), some.token.tolist()) == ([stored[5][0], stored[0][0]], [stored[5][1], stored[0][1]])
    np.testing.assert_array_equal(some.residual, found.values(1)[[5, 0]])


def test_a_layer_that_the_model_lacks_is_refused(world_session):
    with pytest.raises(BadInputError, match="layer 7"):
        cached(world_session, layers=(0, 7))


def test_games_that_are_too_short_are_told_by_the_name_of_their_dataset(world_session):
    with pytest.raises(BadInputError, match="no game of sample:test has 500 plies"):
        world_session.run(CacheSpec(checkpoint="reference", dataset="sample:test", min_plies=500))


def test_weights_that_are_not_what_was_published_are_refused(world_session, monkeypatch):
    monkeypatch.setattr(inputs, "_VERIFIED_FILES", set())
    reference = world_session.inputs.reference("checkpoint", "reference")
    located = world_session.inputs.artifact("checkpoint", reference)
    path = located.path / "model.safetensors"
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setattr(inputs, "_VERIFIED_FILES", set())
    try:
        with pytest.raises(CorruptError, match="safetensors has changed since publication"):
            world_session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", games=2, max_sites=3, seed=99))
    finally:
        path.write_bytes(whole)


def test_an_attempt_records_with_how_many_threads_it_computed(world_session):
    """By default it uses all allowed threads, and records the number instead of 0."""
    from sqlalchemy import select

    from chessreg.models.devices import count_usable_cores
    from chessreg.registry import tables

    for replicate, threads in ((7, 0), (8, 1)):
        spec = CacheSpec(checkpoint="reference", dataset="sample:fit", games=2, replicate=replicate)
        report = world_session.run(spec, CacheOptions(threads=threads))
        with world_session.database.read() as sql:
            attempt = sql.scalars(select(tables.Attempt).where(tables.Attempt.run_id == report.run_id)).one()
        assert (attempt.execution_options["threads"], attempt.execution_options["used_threads"]) == (
            threads,
            [threads or count_usable_cores()],
        )
