"""Leakage: whole games, openings and positions that an evaluation shares with training games, against sets of FENs."""

from __future__ import annotations

import chess
import numpy as np
import pytest
from sqlalchemy import update

from chessreg.errors import BadInputError
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.overlap import EvaluatedGames
from chessreg.games.boards.moves import HashSet, hash_positions, unpack_moves
from chessreg.registry import tables
from tests.replays import replay_texts


def states(packed: bytes) -> list[str]:
    """Piece placement and side to move after 0, 1, … plies."""
    board = chess.Board()
    found = [" ".join(board.fen().split()[:2])]
    for move in unpack_moves(packed):
        board.push(move)
        found.append(" ".join(board.fen().split()[:2]))
    return found


def test_hashes_tell_positions_apart_as_fens_do(world_session):
    games = world_session.dataset("sample")
    packed = games.moves(np.arange(len(games)))
    boards, offsets = replay_texts(games.texts(np.arange(len(games))))
    hashes = hash_positions(boards, overlap.number_plies(offsets))
    fens = [fen for moves in packed for fen in states(moves)]
    assert len(fens) == len(hashes)
    assert len(set(zip(fens, hashes.tolist(), strict=True))) == len(set(fens)) == len(np.unique(hashes))


def test_a_hash_set_answers_as_a_set_does():
    random = np.random.default_rng(0)
    values = random.integers(0, 2**64, 3000, np.uint64)
    found = HashSet(values[:1000])
    assert found.contains(values).tolist() == [True] * 1000 + [False] * 2000
    assert (found.sorted_hashes[found.places(values[:1000])] == values[:1000]).all()
    assert not HashSet(np.zeros(0, np.uint64)).contains(values).any()


def trained(session, *recipes: str) -> str:
    """The reference checkpoint's recipe, after recording its training data."""
    with session.database.write() as sql:
        sql.execute(update(tables.Checkpoint).values(training_datasets=list(recipes)))
    return session.inputs.reference("checkpoint", "reference")


@pytest.fixture
def forget(world_session):
    """The checkpoint's training games are unknown again afterwards."""
    yield
    with world_session.database.write() as sql:
        sql.execute(update(tables.Checkpoint).values(training_datasets=None))


@pytest.mark.usefixtures("forget")
def test_counts_equal_those_of_sets_of_fens(world_session):
    inputs = world_session.inputs
    recipe = trained(world_session, inputs.reference("dataset", "sample:fit"))
    games, part = inputs.dataset(inputs.reference("dataset", "sample:fit"))
    fit = games.rows(part)
    other = np.setdiff1d(np.arange(len(games)), fit)
    places = np.concatenate([fit[:3], other[:10]])
    found = overlap.measure_overlap(inputs, recipe, EvaluatedGames.from_items(games, places))
    old = {fen for moves in games.moves(fit) for fen in states(moves)}
    new = {fen for moves in games.moves(places) for fen in states(moves)}
    openings = {moves[:40] for moves in games.moves(fit)}
    assert (found.games, found.of_games, found.train_games) == (3, 13, len(fit))
    assert found.openings == sum(moves[:40] in openings for moves in games.moves(places)) >= 3
    assert (found.positions, found.of_positions) == (len(old & new), len(new))
    with pytest.raises(BadInputError, match="3 of the 13 games"):
        overlap.refuse_overlap(inputs, recipe, games, places, allow=False)
    overlap.refuse_overlap(inputs, recipe, games, places, allow=True)
    overlap.refuse_overlap(inputs, recipe, games, other, allow=False)


@pytest.mark.usefixtures("forget")
def test_only_positions_looked_at_are_compared(world_session):
    inputs = world_session.inputs
    recipe = trained(world_session, inputs.reference("dataset", "sample:fit"))
    games, part = inputs.dataset(inputs.reference("dataset", "sample:test"))
    places = games.rows(part)[:4]
    item, ply = np.repeat(places, 2), np.tile([0, 30], 4)
    found = overlap.measure_overlap(inputs, recipe, EvaluatedGames.from_items(games, places, item, ply))
    assert (found.positions, found.of_positions) == (1, 5)  # all share the initial position


def test_what_is_not_known_is_said_to_be_unknown(world_session):
    inputs = world_session.inputs
    games = world_session.dataset("sample")
    mine = EvaluatedGames.from_items(games, np.arange(3))
    found = overlap.measure_overlap(inputs, inputs.reference("checkpoint", "reference"), mine)
    assert (found.games, found.positions, found.of_games) == (None, None, 3)
    assert "unknown" in str(found)


@pytest.mark.usefixtures("forget")
def test_training_games_that_are_elsewhere_are_unknown(world_session):
    found = overlap.measure_overlap(
        world_session.inputs,
        trained(world_session, "dataset:" + "0" * 64),
        EvaluatedGames.from_items(world_session.dataset("sample"), np.arange(1)),
    )
    assert found.games is None
    assert "not in this registry" in (found.why_unknown or "")


def test_a_probe_and_a_cache_lead_to_the_same_games(world_session):
    inputs = world_session.inputs
    games = world_session.dataset("sample")
    cached, _ = overlap.load_training_items(inputs, inputs.reference("run:cache", "reference-fit"))
    probed, _ = overlap.load_training_items(inputs, inputs.reference("run:probe", "reference-board"))
    assert cached is not None
    assert probed is not None
    assert cached[0][1].tolist() == probed[0][1].tolist()
    found = overlap.measure_overlap(
        inputs, inputs.reference("run:vector", "skill"), EvaluatedGames.from_items(games, cached[0][1][:2])
    )
    assert (found.games, found.of_games) == (2, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("forget")
def test_probe_edit_and_vector_tables_say_what_was_trained_on(world_session):
    """Games of `fit`, evaluated with a model and probes that were made from them; and a model of no known games."""
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.edit import EditSpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.queries import run_sql
    from tests.specs import vector_spec

    session, fit = world_session, world_session.inputs.reference("dataset", "sample:fit")
    probe = {"cache": "reference-fit", "test_cache": "reference-test", "epochs": 1}
    session.run(ProbeSpec(**probe, seed=8), name="of-unknown")
    trained(session, fit)
    session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", games=6, max_sites=16), name="six")
    session.run(ProbeSpec(**probe | {"test_cache": "six"}, seed=9, allow_overlap=True), name="of-known")
    session.run(EditSpec(
        checkpoint="reference", probe="reference-board", dataset="sample:fit", games=3, per_game=1, samples=0,
        random_controls=0, shuffled_label_controls=0, allow_overlap=True,
    ), name="edited")  # fmt: skip
    session.run(
        vector_spec(source="contrastive", cache="reference-fit", first_ply=6, seed=9, allow_overlap=True),
        name="directed",
    )
    session.run(vector_spec(source="random", of="directed", seed=2), name="drawn")

    def said(title, run):
        return {row["overlap"] for row in session.query(title, run=run).rows}

    by_split = {row["split"]: row for row in session.query("probe accuracy by layer", run="of-known").rows}
    test = by_split["test"]
    assert test["overlap_model_games"] == test["n_games"] + by_split["validation"]["n_games"]  # all are of `fit`
    assert 0 < test["overlap_probe_games"] <= test["n_games"] == 6  # without the games that the probe held out
    for title in ("probe accuracy by layer", "best probe layers"):
        assert said(title, "of-unknown") == {"model unknown, probe 0"}
    # This model writes no legal move: the table of edits has no row, but it has its column.
    edited = "SELECT overlap FROM shared_games JOIN runs USING (run_id) WHERE run = 'edited'"
    assert run_sql(session.database, edited).rows == [{"overlap": "model 3, probe 3"}]
    assert "overlap" in session.query("board intervention legality").columns
    [of_drawn] = said("vectors by layer", "drawn")
    [directed, *_] = session.query("vectors by layer", run="directed").rows
    assert of_drawn == directed["overlap"] == f"model {directed['games_low'] + directed['games_high']}"
    assert said("vectors by layer", "skill") == {"model unknown"}
    [drawn, *_] = session.query("vectors by layer", run="drawn").rows
    assert (drawn["source"], drawn["stands_for"], drawn["seed"]) == ("random:contrastive:white_elo", "directed", 2)
