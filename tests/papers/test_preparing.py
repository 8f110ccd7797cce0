"""The inputs of a paper that are not runs: the games of a play run as a dataset, once."""

import pytest
from sqlalchemy import select

from chessreg.games.boards.moves import unpack_moves
from chessreg.papers.work import PREPARATIONS
from chessreg.registry import tables


@pytest.fixture
def played(session):
    """Two games of an engine match from random openings: the output of a play run, without a model."""
    from chessreg.experiments.engine_match import EngineMatchSpec

    spec = EngineMatchSpec(
        player="capture", opponent="random", games=2, opening="random:6", move_limit=4, adjudication="none"
    )
    report = session.run(spec)
    with session.database.read() as sql:
        return sql.get_one(tables.Run, report.run_id)


def test_played_games_become_a_dataset_with_their_openings_once(session, played):
    settings = {"play": f"run:{played.spec_hash}", "name": "random openings"}
    made, make = PREPARATIONS["played-games"]
    assert made(session, settings) is None
    reference = make(session, settings)
    assert made(session, settings) == reference
    games, part = session.inputs.dataset(reference)
    assert (len(games.hashes), part) == (2, None)
    with session.database.read() as sql:
        stored = sql.scalars(select(tables.Game).order_by(tables.Game.unit)).all()
        assert [unpack_moves(packed) for packed in games.moves([0, 1])] == [unpack_moves(game.moves) for game in stored]
        [dataset] = sql.scalars(select(tables.Dataset))
        assert dataset.report["played"] == {"run": played.id.hex}
        assert dataset.source == f"random openings {played.spec_hash[:12]}.pgn"
    assert make(session, settings) == reference
