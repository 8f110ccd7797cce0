"""The kind `play`: the rows that a match leaves in the registry."""

from __future__ import annotations

import gc

import chess
import numpy as np
import pytest
from sqlalchemy import func, select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.play import Play, PlaySpec
from chessreg.games.boards.moves import replay_boards, unpack_moves
from chessreg.games.boards.openings import make_openings, parse_opening
from chessreg.models.slot_cache import SlotCache
from chessreg.registry import tables
from chessreg.runs.kind import find_kind


def rows(session, table, **where):
    with session.database.read() as sql:
        found = sql.scalars(select(table).filter_by(**where).order_by(*table.__table__.primary_key)).all()
        sql.expunge_all()
    return found


def count(session, table):
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table))


def test_a_match_leaves_its_protocol_its_games_and_their_illegal_tries(session, play):
    report = play(games=12, policy="retry:3", temperatures=(0.9,), opening="random:4", move_limit=6)
    assert (report.state, report.units) == ("complete", 12)
    (match,) = rows(session, tables.Match)
    assert (match.run_id, match.number, match.player, match.color) == (report.run_id, 0, "bigram", "white")
    assert (match.opponent, match.level, match.limit) == ("random", None, None)
    assert (match.opening, match.opening_seed, match.policy) == ("random:4", 0, "retry:3")
    assert (match.planned, match.move_limit, match.intervention_id) == (12, 6, None)
    assert match.detail["temperatures"] == [0.9, 0.9, 0.9]
    (engine,) = rows(session, tables.Engine)
    assert (engine.id, engine.name, engine.binary_sha256) == (match.engine_id, "random", None)
    games = rows(session, tables.Game)
    assert [game.unit for game in games] == list(range(12))
    illegal = rows(session, tables.IllegalAttempt)
    for game in games:
        opening = make_openings(parse_opening("random:4"), 0, [game.unit])[0]
        moves = [move.uci() for move in unpack_moves(game.moves)]
        assert tuple(moves[:4]) == opening.moves
        assert (game.opening_number, game.opening_plies, game.plies) == (game.unit, 4, len(moves))
        tries = np.frombuffer(game.tries, np.uint8)
        assert len(tries) == game.turns
        forfeit = game.termination == "forfeit_illegal"
        assert game.first_try_legal == sum(tries == 1)
        own = [row for row in illegal if row.unit == game.unit]
        assert len(own) == (tries - 1).sum() + forfeit
        assert forfeit == (game.result == "0-1" and tries[-1] == 3 and any(row.ply == game.plies for row in own))
    assert {game.termination for game in games} >= {"forfeit_illegal"}
    assert any(game.turns > 1 for game in games)


@pytest.mark.slow
def test_a_match_that_is_over_keeps_no_keys_and_values(session, play):
    """By their references alone: a garbage collector may not come by for hours."""
    gc.collect()
    gc.disable()
    try:
        play(games=3, policy="legal", move_tokens=0, move_limit=3)
        kept = [each for each in gc.get_objects() if isinstance(each, SlotCache)]
    finally:
        gc.enable()
    assert kept == []


def test_two_arms_have_the_same_openings_and_the_opening_seed_changes_them(session, play):
    runs = [
        play(games=4, policy="legal", opening="random:6", move_limit=2, seed=seed, opening_seed=opening_seed).run_id
        for seed, opening_seed in ((0, 0), (1, 0), (0, 1))
    ]
    opened = [[game.moves[:12] for game in rows(session, tables.Game, run_id=run)] for run in runs]
    played = [[game.moves for game in rows(session, tables.Game, run_id=run)] for run in runs]
    assert opened[0] == opened[1]
    assert played[0] != played[1]
    assert not set(opened[0]) & set(opened[2])


def test_a_replicate_has_the_openings_and_other_games(session, play):
    first, anew = (play(games=3, policy="legal", opening="random:6", move_limit=4, replicate=n).run_id for n in (0, 1))
    games = [rows(session, tables.Game, run_id=run) for run in (first, anew)]
    assert [g.moves[:12] for g in games[0]] == [g.moves[:12] for g in games[1]]
    assert [g.moves for g in games[0]] != [g.moves for g in games[1]]


def test_how_settings_change_neither_the_run_nor_its_games(session, play, tmp_path, checkpoint_folder):
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.session import open_session

    settings = {"games": 9, "policy": "retry:6", "opening": "random:2", "move_limit": 5, "color": "black"}
    one = play({"parallel_games": 1}, **settings)
    again = play({"parallel_games": 8}, **settings)
    assert again.attempt_id is None  # the same spec, done already
    with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
        import_checkpoint(other.database, other.store, checkpoint_folder, name="bigram")
        spec = PlaySpec(checkpoint="bigram", opponent="random", adjudication="none", **settings)
        report = other.run(spec, find_kind("play").options(parallel_games=8, device="cpu", threads=1))
        assert report.run_id == one.run_id
        theirs = [(g.moves, g.tries, g.result, g.termination) for g in rows(other, tables.Game)]
        texts = [(t.unit, t.ply, t.number, t.text) for t in rows(other, tables.IllegalAttempt)]
    assert theirs == [(g.moves, g.tries, g.result, g.termination) for g in rows(session, tables.Game)]
    assert texts == [(t.unit, t.ply, t.number, t.text) for t in rows(session, tables.IllegalAttempt)]


@pytest.mark.parametrize("color", ["white", "black"])
def test_legal_games_are_legal_and_know_the_legal_mass(session, play, color):
    play(games=4, policy="legal", color=color, move_limit=4)
    assert count(session, tables.IllegalAttempt) == 0
    for game in rows(session, tables.Game):
        assert sum(1 for _ in replay_boards(game.moves)) == game.plies + 1
        board = chess.Board()
        for move in unpack_moves(game.moves):
            assert move in board.legal_moves
            board.push(move)
        assert (game.result, game.termination, game.adjudication_cp) == ("*", "move_limit", None)
        assert game.turns == game.first_try_legal == 4
        assert 0 < game.detail["legal_mass"] < 1


def test_a_dry_run_plans_games_and_records_nothing(session):
    inputs = session.inputs
    spec = PlaySpec(
        checkpoint=inputs.reference("checkpoint", "bigram"), opponent="random", adjudication="none", games=7
    )
    found = find_kind("play")
    assert found.units(spec, inputs) == 7
    estimate = found.estimate(spec, inputs)
    assert estimate.rows == {"game": 7}
    assert estimate.bytes > 0
    assert count(session, tables.Run) == 0


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_spelled_in_one_way():
    spec = PlaySpec(checkpoint="x", opponent="Stockfish:0")
    assert spec.opponent == "stockfish:0@nodes=100000"
    assert spec.temperatures == (0.001, 0.201, 0.401, 0.5, 0.5)
    assert PlaySpec(checkpoint="x", policy="legal").temperatures == (1.0,)
    assert PlaySpec(**spec.model_dump(mode="json")) == spec
    book = PlaySpec(checkpoint="x", opening="book:lines.tsv")
    assert (book.opening, book.book) == ("book", "lines.tsv")
    assert PlaySpec(**book.model_dump(mode="json")) == book


@pytest.mark.parametrize(
    "settings",
    [
        {"opponent": "stockfish:21"},
        {"opponent": "deep blue"},
        {"opening": "random:0"},
        {"opening": "book"},
        {"policy": "greedy"},
        {"policy": "retry:3", "temperatures": (1, 2)},
        {"temperatures": (-1,)},
        {"adjudication": "later"},
        {"book": "lines.tsv"},
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings):
    with pytest.raises((BadInputError, NotFoundError)):
        PlaySpec(checkpoint="x", **settings)


@pytest.mark.parametrize("settings", [{"opponent": "stockfish:0@nodes=1"}, {"adjudication": "nodes=100"}])
def test_without_stockfish_nothing_is_recorded(session, play, monkeypatch, settings):
    monkeypatch.setenv("CHESSREG_STOCKFISH", "no-such-engine")
    with pytest.raises(NotFoundError) as error:
        play(games=2, **settings)
    assert "stockfish" in error.value.hint
    assert count(session, tables.Run) == 0
    assert count(session, tables.Attempt) == 0


def test_a_run_is_not_continued_against_another_engine(session, play):
    report = play(games=2, policy="legal", move_limit=2)
    with session.database.write() as sql:
        other = tables.Engine(id=report.run_id, name="random", version="0", binary_sha256=None, options={})
        sql.add(other)
        sql.flush()
        sql.get_one(tables.Match, (report.run_id, 0)).engine_id = other.id
        sql.delete(sql.get_one(tables.Game, (report.run_id, 1)))
        sql.query(tables.UnitRange).filter_by(run_id=report.run_id, start=1).delete()
    with pytest.raises(BadInputError, match="against random 0"):
        play(games=2, policy="legal", move_limit=2)


def test_a_book_of_openings_is_named_by_its_content(session, play, tmp_path):
    path = tmp_path / "lines.tsv"
    path.write_text("name\tpgn\nItalian\t1. e4 e5 2. Nf3 Nc6 3. Bc4\nDutch\t1. d4 f5\n")
    digest = session.store.add(path, "book").digest
    report = play(games=4, policy="legal", opening="book", book=f"sha256:{digest}", move_limit=2)
    (match,) = rows(session, tables.Match)
    assert match.opening == f"book:{digest[:32]}"
    (book,) = rows(session, tables.OpeningBook)
    assert (book.digest, book.source, book.format, book.openings) == (digest, "lines.tsv", "tsv", 2)
    games = rows(session, tables.Game, run_id=report.run_id)
    assert sorted(game.opening_plies for game in games) == [2, 2, 5, 5]
    assert [digest] == [row.digest for row in rows(session, tables.RunInput) if row.name == "book"]


# -- boards -----------------------------------------------------------------------------------------------------------


def test_frames_show_every_ply_with_the_illegal_tries(session, play):
    report = play(games=8, policy="retry:3", temperatures=(0.9,), opening="random:2", move_limit=6)
    tried = rows(session, tables.IllegalAttempt)
    game = rows(session, tables.Game, unit=tried[0].unit)[0]
    frames = find_kind("play").board_views({"run_id": report.run_id, "unit": game.unit}, session.inputs)
    assert len(frames) == game.plies + 1
    assert [frame.fen for frame in frames] == [board.board_fen() for board in replay_boards(game.moves)]
    place = min(tried[0].ply + 1, game.plies)
    assert any(tried[0].text in line for line in frames[place].caption)
    assert "opening" in frames[1].caption
    assert any(game.termination.replace("_", " ") in line for line in frames[-1].caption)
    assert frames == find_kind("play").board_views({"run_id": report.run_id.hex, "unit": game.unit}, session.inputs)


def test_frames_of_a_game_that_is_not_there(session, play):
    report = play(games=1, policy="legal", move_limit=1)
    with pytest.raises(NotFoundError, match="no game 5"):
        find_kind("play").board_views({"run_id": report.run_id, "unit": 5}, session.inputs)


def test_a_game_that_has_no_pair_is_told(session):
    def remarks(games: int) -> str:
        model = session.inputs.reference("checkpoint", "bigram")
        spec = PlaySpec(checkpoint=model, opponent="random", adjudication="none", color="both", games=games)
        return " ".join(Play().estimate(spec, session.inputs).remarks)

    assert "the last opening is played with White alone" in remarks(3)
    assert "White alone" not in remarks(4)
