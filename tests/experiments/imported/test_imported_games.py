"""Third-party games as rows of the registry: players, arms, unknowns, and the tables in which they appear."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.imported.aggregates import ImportedAggregatesSpec
from chessreg.experiments.imported.curves import ImportedCurvesSpec
from chessreg.experiments.imported.file import load_import_report, locate_sample
from chessreg.experiments.imported.players import derive_external_id, name_externals, simplify_name
from chessreg.experiments.imported.specs import ImportedGamesSpec
from chessreg.experiments.imported.sweep import ImportedSweepSpec
from chessreg.experiments.rating import RatingSpec
from chessreg.experiments.rating.pool import load_rating_pool
from chessreg.registry import names, tables
from chessreg.session import Session, open_session


@pytest.fixture
def session(tmp_path: Path):
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


def rows(session: Session, table, run_id):
    with session.database.read() as sql:
        found = sql.scalars(select(table).where(table.run_id == run_id).order_by(*table.__table__.primary_key)).all()
        sql.expunge_all()
    return found


def test_the_sample_becomes_games_of_two_arms_with_what_is_unknown_left_open(session):
    report = session.run(ImportedGamesSpec(file="sample"), name="sample")
    games, matches = rows(session, tables.Game, report.run_id), rows(session, tables.Match, report.run_id)
    assert [(m.player, m.opponent, m.level, m.limit, m.color, m.policy, m.move_limit, m.planned) for m in matches] == [
        ("sample-model.pt", "stockfish:0@time=0.1", 0, "time=0.1", "white", "retry:5", 90, 3),
        ("sample-model.pt", "stockfish:1@time=0.1", 1, "time=0.1", "white", "retry:5", 90, 3),
    ]
    assert {m.checkpoint_id for m in matches} == {derive_external_id("sample-model.pt")}
    ends = [(g.match, g.result, g.termination, g.turns, g.first_try_legal) for g in games]
    assert ends == [
        (0, "1-0", "checkmate", 4, 4),
        (0, "0-1", "checkmate", 2, 2),
        (0, "1/2-1/2", "stalemate", 10, 10),
        (1, "0-1", "forfeit_illegal", 8, 7),
        (1, "1-0", "checkmate", 14, 14),
        (1, "*", "move_limit", 90, 88),
    ]
    assert [g.tries for g in games] == [bytes([1] * 4), bytes([1] * 2), bytes([1] * 10), None, bytes([1] * 14), None]
    assert {g.adjudication_cp for g in games} == {None}
    assert (games[0].detail["white_score_given"], games[2].detail["white_score_given"]) == ("1", "1/2")
    found = load_import_report(session.inputs, report.run_id)
    assert (found["rows"], found["games"], [o["code"] for o in found["oddities"]]) == (6, 6, ["not adjudicated"])
    with session.database.read() as sql:
        model = sql.get_one(tables.Checkpoint, derive_external_id("sample-model.pt"))
        assert (model.artifact, model.parameters, model.tokenizer, model.source_format) == (
            None,
            None,
            None,
            "external",
        )
        [engine] = sql.scalars(select(tables.Engine)).all()
        assert (engine.name, engine.version, engine.binary_sha256) == ("Stockfish", "unknown", None)


def test_the_same_bytes_under_another_name_are_recognised_and_other_settings_refused(session, tmp_path):
    first = session.run(ImportedGamesSpec(file="sample"), name="sample")
    copy = tmp_path / "copy.csv"
    copy.write_bytes(locate_sample("sample-results.csv").read_bytes())
    again = session.run(ImportedGamesSpec(file=str(copy)))
    assert (again.run_id, again.attempt_id) == (first.run_id, None)
    with pytest.raises(BadInputError, match="these bytes are already in run sample"):
        session.run(ImportedGamesSpec(file=str(copy), engine_version="16"))
    with session.database.write() as sql:
        names.add_annotation(sql, "run", first.run_id, "archive")
    other = session.run(ImportedGamesSpec(file=str(copy), engine_version="16"))
    assert other.run_id != first.run_id
    with session.database.read() as sql:
        assert sorted(sql.scalars(select(tables.Engine.version))) == ["16", "unknown"]


def test_an_external_model_has_a_name_and_no_weights(session):
    report = session.run(ImportedGamesSpec(file="sample", rename=("sample-model.pt=org/model:abc",)))
    row = session.query("elo by intervention").rows[0]
    assert row["checkpoint"] == "org/model:abc"
    name_externals(session.database, report.run_id)
    assert session.query("elo by intervention").rows[0]["checkpoint"] == simplify_name("org/model:abc") == "org-model"
    with pytest.raises(BadInputError, match="external model: its games are recorded, its weights are not"):
        session.inputs.reference("checkpoint", "org-model")


def test_external_models_are_passed_over_where_weights_are_compared(session):
    from chessreg.entities.checkpoint import find_checkpoint_content

    session.run(ImportedGamesSpec(file="sample"))
    assert find_checkpoint_content(session.database, session.store, "ab" * 32) is None


@pytest.mark.skipif(shutil.which("stockfish", path="/usr/games:/usr/bin") is None, reason="Stockfish is not installed")
def test_stopped_games_are_evaluated_when_asked_for(session):
    report = session.run(ImportedGamesSpec(file="sample", adjudication="nodes=2000"))
    games, [match, _] = rows(session, tables.Game, report.run_id), rows(session, tables.Match, report.run_id)
    assert [g.adjudication_cp is not None for g in games] == [False] * 5 + [True]
    with session.database.read() as sql:
        evaluator = sql.get_one(tables.Engine, UUID(match.detail["evaluator_engine_ids"][0]))
    assert (evaluator.name, len(evaluator.binary_sha256)) == ("Stockfish", 64)
    table = session.query("elo by intervention").rows
    assert [(r["unscored"], r["adjudicated"]) for r in table] == [(0, 0), (0, 1)]


def test_games_can_be_those_of_a_checkpoint_that_is_here(world_session, tmp_path):
    checkpoint = world_session.id("checkpoint", "reference")
    file = tmp_path / "own.csv"
    file.write_text(locate_sample("sample-results.csv").read_text().replace("sample-model.pt", "own.pt"))
    report = world_session.run(ImportedGamesSpec(file=str(file), checkpoint="reference"))
    assert {m.checkpoint_id for m in rows(world_session, tables.Match, report.run_id)} == {checkpoint}
    file.write_text(file.read_text().replace("own.pt", "two.pt", 1) + "\n")
    with pytest.raises(BadInputError, match="can be only one player, but the file has 2 models"):
        world_session.run(ImportedGamesSpec(file=str(file), checkpoint="reference"))
    with pytest.raises(BadInputError, match="player 'nobody' is not in the file"):
        world_session.run(ImportedGamesSpec(file=str(file), players=("nobody",)))


def test_a_sweep_and_a_log_can_be_those_of_a_checkpoint_that_is_here(world_session, tmp_path):
    (tmp_path / "sweep.csv").write_text("0,1,2,3\n")
    (tmp_path / "train.log").write_text("iter 5: loss 2.5, time 3ms\n")
    own = world_session.id("checkpoint", "reference")
    sweep = world_session.run(ImportedSweepSpec(file=str(tmp_path / "sweep.csv"), checkpoint="reference"))
    [match] = rows(world_session, tables.Match, sweep.run_id)
    assert (match.checkpoint_id, match.player, match.opponent) == (own, "reference", "stockfish:0@unknown")
    log = world_session.run(ImportedCurvesSpec(file=str(tmp_path / "train.log"), checkpoint="reference"))
    [row] = world_session.query("training curves", run=log.run_id.hex).rows
    assert (row["checkpoint"], row["step"], row["value"], row["origin"]) == ("reference", 5, 2.5, "imported")
    with pytest.raises(BadInputError, match="give --players NAME, or --checkpoint"):
        ImportedSweepSpec(file=str(tmp_path / "sweep.csv"), checkpoint="reference", players=("other",))


def test_a_tournament_is_seen_from_the_player_that_is_asked_for(session, tmp_path):
    file = tmp_path / "event.pgn"
    game = '[White "{}"]\n[Black "{}"]\n[WhiteElo "{}"]\n[BlackElo "{}"]\n[Result "{}"]\n\n{}\n\n'
    mate, quick = "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0", "1. f3 e5 2. g4 Qh4# 0-1"
    draw = "1. d4 d5 1/2-1/2"
    file.write_text(
        game.format("A", "B", 1500, 1600, "1-0", mate)
        + game.format("B", "A", 1600, 1500, "0-1", quick)
        + game.format("C", "A", 1700, 1500, "1/2-1/2", draw)
        + game.format("A", "C", 1500, 1700, "0-1", quick)
    )
    report = session.run(ImportedGamesSpec(file=str(file), players=("A",)), name="event")
    arms = [(m.player, m.opponent, m.color, m.planned) for m in rows(session, tables.Match, report.run_id)]
    assert arms == [("A", "B", "white", 1), ("A", "B", "black", 1), ("A", "C", "black", 1), ("A", "C", "white", 1)]
    assert {m.checkpoint_id for m in rows(session, tables.Match, report.run_id)} == {derive_external_id("A")}
    session.run(RatingSpec(runs=("event",), anchors="headers", resamples=50), name="elo")
    table = {row["player"]: row for row in session.query("ratings").rows}
    assert (table["B"]["rating"], table["C"]["rating"], table["B"]["anchor"]) == (1600, 1700, "headers")
    assert (table["A"]["w"], table["A"]["d"], table["A"]["l"]) == (2, 1, 1)
    assert 1650 < table["A"]["rating"] < 1800
    with pytest.raises(BadInputError, match="every player's rating is known"):
        session.run(RatingSpec(runs=("event",), anchor=("A=1500", "B=1500", "C=1500"), resamples=50))


def test_illegal_moves_of_a_tournament_are_forfeits_of_their_player(session, tmp_path):
    file = tmp_path / "match.pgn"
    game = '[White "{}"]\n[Black "{}"]\n[Result "{}"]\n[Termination "{}"]\n\n{}\n\n'
    file.write_text(
        "; made by a tournament program\n"
        + game.format("Model", "Engine", "0-1", "illegal move", "1. e4 e5 {White makes an illegal move: e1e3} 0-1")
        + game.format("Model", "Engine", "0-1", "normal", "1. d4 d5 2. Ke3 0-1")
        + game.format("Engine", "Model", "0-1", "illegal move", "1. c4 c5 {White makes an illegal move: 0000} 0-1")
        + game.format("Engine", "Model", "1-0", "abandoned", "1. b3 b6 2. Bb2 {Black disconnects} 1-0")
    )
    report = session.run(ImportedGamesSpec(file=str(file), players=("Model",)), name="match")
    games = rows(session, tables.Game, report.run_id)
    endings = ["forfeit_illegal", "forfeit_illegal", "opponent_forfeit", "abandoned"]
    assert [game.termination for game in games] == endings
    assert [game.turns for game in games] == [2, 2, 1, 2]
    tries = [(row.unit, row.ply, row.text) for row in rows(session, tables.IllegalAttempt, report.run_id)]
    assert tries == [(0, 2, "e1e3"), (1, 2, "Ke3")]  # moves of the player
    table = session.query("games by termination").rows
    counts = {(row["color"], row["termination"]): (row["w"], row["d"], row["l"]) for row in table}
    assert counts == {
        ("white", "forfeit_illegal"): (0, 0, 2),
        ("black", "opponent_forfeit"): (1, 0, 0),
        ("black", "abandoned"): (0, 0, 1),
    }


def test_a_file_without_a_game_to_import_is_refused_and_not_stored(session, tmp_path):
    file = tmp_path / "book.pgn"
    file.write_text('[FEN "4k3/8/8/8/8/8/8/4K2R w K - 0 1"]\n[Result "1-0"]\n\n1. O-O 1-0\n')
    with pytest.raises(BadInputError, match=r"book\.pgn has 1 games, of which none can be imported: it starts from"):
        session.run(ImportedGamesSpec(file=str(file)))
    assert not list((tmp_path / "store" / "artifacts").iterdir())


def test_openings_that_the_settings_tell_are_nobodys_turns(session):
    report = session.run(ImportedGamesSpec(file="sample", opening="random:4"))
    games = rows(session, tables.Game, report.run_id)
    assert [(g.opening_plies, g.turns, g.first_try_legal) for g in games][:4] == [
        (4, 2, 2),
        (4, 0, 0),
        (4, 8, 8),
        (4, 6, None),
    ]


def test_games_that_began_randomly_are_of_their_own_file_alone_where_ratings_are_resampled(session, tmp_path):
    """Row n of one file began with other random plies than row n of another, and than opening n of ours."""
    with_note = tmp_path / "more.csv"
    with_note.write_bytes(locate_sample("sample-results.csv").read_bytes() + b"\n")
    for name, file in (("one", "sample"), ("other", str(with_note))):
        session.run(ImportedGamesSpec(file=file, opening="random:20"), name=name)
    spec = RatingSpec(runs=tuple(session.inputs.reference("run", name) for name in ("one", "other")), resamples=20)
    pool = load_rating_pool(spec, session.inputs).pool
    assert len(set(pool.cluster.tolist())) == len(pool.cluster) == 10


def test_aggregates_become_arms_with_their_interventions(session):
    report = session.run(ImportedAggregatesSpec(file="sample"))
    points = rows(session, tables.MetricPoint, report.run_id)
    assert {p.name: p.value for p in points if p.unit == 1} == {
        "mean_score_nodraws_excl_sf-1": 0.25,
        "n": 400,
        "percent_without_forfeit": 93.5,
        "low": 0.21,
        "high": 0.29,
    }
    assert {p.name for p in points if p.unit == 3} == {"pct_games_without_illegal_forfeit", "low", "high"}
    table = session.query("imported interventions").rows
    assert [(r["intervention"], r["opening"], r["value"], r["n"]) for r in table] == [
        ("contrastive:skill L5 x0.3", "random:20", 0.25, 400),
        ("probe:skill L6 x0.5", "random:20", 0.2, 400),
        ("none", "random:20", 0.1, 1000),
        ("contrastive:skill L5 x0.3", "standard", 94.0, None),
    ]
    assert [None if r["delta"] is None else round(r["delta"], 6) for r in table] == [0.15, 0.1, None, None]
    with session.database.read() as sql:
        assert sql.get_one(tables.Checkpoint, derive_external_id("sample_8layers")).layers == 8


GOLDEN = {  # by level: wins, draws, losses, score; then the author's own mean, draws dropped
    0: (16, 0, 0, 1.0, 1.0), 1: (13, 0, 2, 0.8667, 0.866667), 2: (10, 0, 5, 0.6667, 0.666667),
    3: (6, 2, 7, 0.4667, 0.461538), 4: (5, 1, 9, 0.3667, 0.357143), 5: (5, 1, 9, 0.3667, 0.357143),
    6: (4, 0, 11, 0.2667, 0.266667), 7: (0, 2, 13, 0.0667, 0.0), 8: (0, 0, 15, 0.0, 0.0), 9: (1, 1, 13, 0.1, 0.071429),
}  # fmt: skip


@pytest.mark.slow
def test_the_published_games_have_the_published_scores(session, shared_data):
    """The published games have the published scores, by level."""
    report = session.run(ImportedGamesSpec(file=str(shared_data / "results" / "chess_gpt_eval-games.csv")))
    name_externals(session.database, report.run_id)
    for scoring, place in (("paper", 3), ("author-2024", 4)):
        table = session.query("elo by intervention", scoring=scoring).rows
        instruct = {r["level"]: r for r in table if r["checkpoint"] == "gpt-3.5-turbo-instruct" and r["engine"]}
        assert {level: round(r["score"], 6) for level, r in instruct.items()} == {
            level: pytest.approx(golden[place], abs=5e-5) for level, golden in GOLDEN.items()
        }
    paper = session.query("elo by intervention").rows
    wins = {(r["checkpoint"], r["opponent"]): (r["w"], r["d"], r["l"], r["n"]) for r in paper}
    for level, (won, drawn, lost, *_) in GOLDEN.items():
        assert wins["gpt-3.5-turbo-instruct", f"stockfish:{level}@unknown"] == (won, drawn, lost, won + drawn + lost)
    assert wins["gpt-3.5-turbo-instruct", "gpt-4"] == (16, 0, 0, 16)
    assert wins["gpt-4", "gpt-3.5-turbo-instruct"] == (3, 0, 12, 15)
    assert wins["stockfish:20@unknown", "stockfish:20@unknown"] == (0, 3, 0, 3)
    for model in ("gpt-3.5-turbo", "babbage", "davinci", "replicate-meta-llama-2-7b", "replicate-meta-llama-2-70b"):
        assert [wins[model, f"stockfish:{level}@unknown"] for level in range(5)] == [(0, 0, 5, 5)] * 5


@pytest.mark.slow
def test_engine_against_engine_keeps_times_apart(session, shared_data):
    """Results match the games, and the times of both engines are stored separately."""
    file = shared_data / "results" / "chess_gpt_eval-stockfish-testing.csv"
    session.run(ImportedGamesSpec(file=str(file)))
    score = {(r["checkpoint"], r["opponent"]): (r["n"], round(r["score"], 3)) for r in session.query("elo").rows}
    assert score["stockfish:0@time=0.01", "stockfish:0@time=0.1"] == (30, 0.633)
    assert score["stockfish:0@time=0.1", "stockfish:0@time=0.1"] == (15, 0.533)
    assert score["stockfish:8@time=0.1", "stockfish:7@time=0.1"][1] == 0.833
    assert score["stockfish:20@time=0.1", "stockfish:19@time=0.1"][1] == 0.9
    assert sum(n for n, _ in score.values()) == 555


@pytest.mark.slow
def test_karvonens_model_stands_beside_ours(session, shared_data):
    """Its 1,258 games in `elo by intervention` and in a rating table, with its tries and illegal texts."""
    file = shared_data / "results" / "karvonen-16layers-vs-stockfish.csv"
    spec = ImportedGamesSpec(file=str(file), rename=("adam_lichess_16layers.pt=lichess_16layers",))
    report = session.run(spec, name="k16")
    table = session.query("elo by intervention", checkpoint=derive_external_id("lichess_16layers").hex).rows
    assert [(r["level"], r["n"]) for r in table[:2]] == [(0, 361), (1, 75)]
    assert sum(r["n"] for r in table) == 1258
    assert sum(r["unscored"] for r in table) == 83
    assert 99.7 < table[0]["first_try_legal"] < 99.9  # the paper: 99.8 %
    illegal = rows(session, tables.IllegalAttempt, report.run_id)
    assert len(illegal) == sum(g.detail["white_illegal_tries"] for g in rows(session, tables.Game, report.run_id))
    session.run(RatingSpec(runs=("k16",), resamples=200), name="elo")
    [rating] = [r for r in session.query("ratings").rows if r["anchor"] is None]
    assert (rating["player"], rating["games"], rating["unscored"]) == ("lichess_16layers", 1175, 83)
    assert rating["rating_low"] < rating["rating"] < rating["rating_high"]
    assert rating["rating"] == pytest.approx(1415, abs=5)
