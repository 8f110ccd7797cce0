"""The protocol of a match: presets, cropping, starts of games, and when and where they are evaluated."""

from __future__ import annotations

import chess
import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.matches import MatchRules, PlayedGame
from chessreg.experiments.play import Cores, PlayOptions, PlaySpec
from chessreg.experiments.play.arena import Arena, ModelPlayer
from chessreg.games.boards.openings import Opening, make_openings, parse_opening
from chessreg.games.engines.opponents import parse_engine
from chessreg.games.engines.pool import EnginePool, count_free_cores
from chessreg.models.decoding.policies import choose_moves, make_policy, sample_cropped
from chessreg.models.decoding.sampling import draw_tokens
from chessreg.models.decoding.session import DecodingSession
from chessreg.noise import uniform
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import resolve_spec
from chessreg.runs.spec import build_settings

PLAY = find_kind("play")


def rows(session, table):
    with session.database.read() as sql:
        found = sql.scalars(select(table).order_by(*table.__table__.primary_key)).all()
        sql.expunge_all()
    return found


# -- presets ----------------------------------------------------------------------------------------------------------


def test_a_preset_only_fills_settings_in(session):
    paper = PlaySpec(**PLAY.preset("paper"), checkpoint="bigram", games=3)
    by_hand = PlaySpec(
        checkpoint="bigram", games=3, opponent="stockfish:0@nodes=100000", policy="retry:5", move_tokens=10,
        temperatures=(0.001, 0.201, 0.401, 0.5, 0.5), resignation="counts", move_limit=90, context="crop",
        adjudication="nodes=100000",
    )  # fmt: skip
    hashes = {resolve_spec(PLAY, spec, session.inputs).spec_hash for spec in (paper, by_hand)}
    assert len(hashes) == 1


def test_the_authors_preset_differs_from_the_papers_where_the_code_does():
    paper, author = (PLAY.preset(name) for name in ("paper", "author-2024"))
    assert {name: author[name] for name in author if author[name] != paper[name]} == {
        "opponent": "stockfish:0@time=0.1",
        "finished_openings": "keep",
        "adjudication": "time=0.1",
        "adjudicate_at": 90,
    }


def test_an_unknown_preset_names_those_that_there_are():
    with pytest.raises(NotFoundError) as error:
        PLAY.preset("paper-2025")
    assert "author-2024" in error.value.hint


def test_settings_without_effect_do_not_make_another_run(session):
    legal = PlaySpec(checkpoint="bigram", policy="legal")
    assert PlaySpec(checkpoint="bigram", policy="legal", move_tokens=10) == legal
    assert PlaySpec(checkpoint="bigram", finished_openings="keep").finished_openings == "redraw"
    assert PlaySpec(checkpoint="bigram", opening="random:4", finished_openings="keep").finished_openings == "keep"


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (
            {"policy": "legal", "move_tokens": 10},
            "--move-tokens 10 has no effect: the policy legal writes no free text",
        ),
        ({"policy": "trie", "resignation": "illegal"}, "--resignation illegal has no effect: the policy trie writes"),
        ({"finished_openings": "keep"}, "--finished-openings keep has no effect: no plies are drawn"),
        ({"adjudication": "none", "adjudicate_at": 90}, "--adjudicate-at 90 has no effect: no stopped game is"),
    ],
)
def test_what_is_typed_and_has_no_effect_is_refused_and_of_a_preset_passed_over(typed, complaint):
    with pytest.raises(BadInputError) as error:
        build_settings(PlaySpec, {"checkpoint": "bigram", **typed})
    assert error.value.message.startswith(complaint)
    assert build_settings(PlaySpec, {"checkpoint": "bigram"}, typed) == PlaySpec(checkpoint="bigram", **typed)


# -- cropping ---------------------------------------------------------------------------------------------------------


def plainly(model, pgn, prompt, key, temperature):
    """A move's text, every character from a whole pass over the newest tokens."""
    written = []
    for step in range(pgn.max_move_tokens):
        logits = model.logits(torch.tensor([[*prompt, *written][-model.block_size :]]))[0, -1]
        logprobs = torch.log_softmax(logits.float(), -1)[None].numpy()
        token = int(draw_tokens(logprobs, np.array([temperature]), np.array([uniform(*key, step)]))[0])
        if token in pgn.stop_ids:
            break
        written.append(token)
    return pgn.decode(written)


def test_a_context_that_is_full_is_cropped_token_by_token(small, pgn):
    text = ";1.e4 e5 2.Nf3 Nc6 3.Bb5 a6 4.Ba4 Nf6 5.O-O Be7 6.Re1 b5 7.Bb3 d6 8.c3 O-O 9.h3 Nb8 10."
    prompts = [pgn.encode(text[:n]).tolist() for n in (60, 63, 64, 65, len(text))]
    keys = [("crop", n) for n in range(5)]
    session = DecodingSession(small, 5)
    found = sample_cropped(session, pgn, [chess.Board()] * len(prompts), prompts, keys, temperature=1.0, max_tokens=10)
    assert [pgn.decode(ids).split(" ")[0] for ids in found] == [
        plainly(small, pgn, p, k, 1.0) for p, k in zip(prompts, keys, strict=True)
    ]
    assert session.tokens == [[]] * 5


def test_where_there_is_room_cropping_changes_nothing(model, pgn):
    prompts = [pgn.prompt(sans) for sans in (["e4", "e5"], ["d4", "d5"])]
    session = DecodingSession(model, 2)
    session.sync(prompts)
    keys = [("room", n) for n in range(2)]
    plain = [plainly(model, pgn, prompt, key, 0.9) for prompt, key in zip(prompts, keys, strict=True)]
    cropped = sample_cropped(session, pgn, [chess.Board()] * 2, prompts, keys, temperature=0.9, max_tokens=10)
    assert [pgn.decode(ids).split(" ")[0] for ids in cropped] == plain


def test_a_game_goes_on_past_the_context_with_the_cropped_texts(small, pgn):
    with EnginePool(parse_engine("random")) as pool:
        source = parse_opening("random:18")
        arena = Arena(
            ModelPlayer(small, make_policy("retry:200", (1.0,))), MatchRules(chess.WHITE, 4, "crop"), pool,
            lambda n: make_openings(source, 0, [n])[0], noise=(0, 0),
        )  # fmt: skip
        games = list(arena.play(range(3)))
    moved = [game for game in games if game.tries]
    assert any(len(pgn.prompt(game.sans)) > 64 + 10 for game in moved)
    for game in moved:
        before = game.sans[:18]
        prompt = list(pgn.prompt(before))
        assert len(prompt) > 64
        said = [text for ply, _, text in game.illegal if ply == 18]
        keys = [("play", 0, 0, game.unit, 18, attempt) for attempt in range(len(said))]
        assert said == [plainly(small, pgn, prompt, key, 1.0) for key in keys]


# -- starts and ends --------------------------------------------------------------------------------------------------


def test_a_game_that_its_opening_ended_is_a_game_without_a_turn(model, pgn):
    mate = Opening(0, ("f2f3", "e7e5", "g2g4", "d8h4"), ("f3", "e5", "g4", "Qh4#"))
    with EnginePool(parse_engine("random")) as pool:
        arena = Arena(
            ModelPlayer(model, make_policy("legal")), MatchRules(chess.WHITE, 3), pool,
            lambda n: mate if n < 2 else Opening(n), noise=(0, 0), batch_games=2,
        )  # fmt: skip
        games = {game.unit: game for game in arena.play(range(4))}
        assert [game.ply for game in arena.play([0])] == [4]
    assert sorted(games) == [0, 1, 2, 3]
    assert [(str(games[n].end.termination), games[n].end.result, games[n].tries) for n in (0, 1)] == [
        ("checkmate", "0-1", [])
    ] * 2
    assert all(games[n].tries for n in (2, 3))


def test_the_author_keeps_finished_openings_and_the_match_says_so(session, play):
    play(games=2, policy="legal", opening="random:6", finished_openings="keep", move_limit=2)
    (match,) = rows(session, tables.Match)
    assert match.opening == "random-2024:6"


def test_a_stopped_game_is_evaluated_where_the_rules_say():
    game = PlayedGame(0, Opening(0), MatchRules(chess.WHITE, 4, adjudicate_at=3))
    for san in ("e4", "e5", "Nf3", "Nc6", "Bb5", "a6", "Ba4", "Nf6"):
        game.push(game.board.parse_san(san))
    assert game.is_adjudicated
    assert game.find_judged_board().fen() == "r1bqkbnr/pppp1ppp/2n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"
    early = PlayedGame(0, Opening(0), MatchRules(chess.WHITE, 4, adjudicate_at=90))
    early.push(chess.Move.from_uci("e2e4"))
    assert early.find_judged_board() is early.board


def test_the_protocol_stands_in_the_match(session, play):
    play(games=1, policy="retry:2", move_tokens=6, adjudicate_at=7, context="crop", resignation="illegal", move_limit=1)
    (match,) = rows(session, tables.Match)
    wanted = {"move_tokens": 6, "adjudicate_at": 7, "context": "crop", "resignation": "illegal",
              "adjudication": "none", "precision": "float32", "temperatures": [0.001, 0.201]}  # fmt: skip
    assert {name: match.detail[name] for name in wanted} == wanted


def test_a_try_writes_no_more_than_it_may(model, pgn):
    from chessreg.models.decoding.policies import ModelTurn

    session = DecodingSession(model, 40)
    session.sync([pgn.encode(";1.").tolist()] * 40)
    turns = [ModelTurn(row, chess.Board(), ("short", row)) for row in range(40)]
    choices = choose_moves(make_policy("retry:2", (1.5,), move_tokens=2), session, pgn, turns)
    assert {len(text) for choice in choices for text in choice.illegal} <= {0, 1, 2}
    assert max(len(text) for choice in choices for text in choice.illegal) == 2


# -- cores ------------------------------------------------------------------------------------------------------------


def test_under_a_time_limit_model_and_engines_share_no_core(monkeypatch, stockfish):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    for threads, reserved in ((0, 1), (3, 3), (20, 7)):
        cores = Cores(PlayOptions(threads=threads), "cpu", is_timed=True, engines=True, used_threads=set())
        assert cores.reserved_cores == reserved
        with EnginePool(parse_engine("stockfish:0@time=0.1"), 64, reserved_cores=cores.reserved_cores) as pool:
            assert pool.processes == count_free_cores() - reserved
    assert Cores(PlayOptions(), "cuda", is_timed=True, engines=True, used_threads=set()).reserved_cores == 0
    assert Cores(PlayOptions(), "cpu", is_timed=False, engines=True, used_threads=set()).reserved_cores == 0
    with EnginePool(parse_engine("random"), 64, is_timed=True) as pool:  # analyses have a time limit
        assert pool.processes == 8
    torch.set_num_threads(1)


# -- uniqueness -------------------------------------------------------------------------------------------------------


def test_games_are_compared_with_the_training_games(session, play, tmp_path, monkeypatch):
    from chessreg.experiments import play as match
    from chessreg.experiments.play import TrainingGames
    from chessreg.games.boards.moves import hash_move_lists

    assert TrainingGames.from_inputs(session.inputs, session.inputs.reference("checkpoint", "bigram")) is None
    play(games=4, policy="legal", move_limit=12)
    assert {game.detail["training_openings"] for game in rows(session, tables.Game)} == {None}
    played = {game.unit: game.moves for game in rows(session, tables.Game)}
    openings_seen = hash_move_lists([played[0][:40], played[0][:40], played[1][:40]])
    known = TrainingGames(openings_seen, hash_move_lists([played[1], b"", played[2][:-2]]))
    monkeypatch.setattr(match.TrainingGames, "from_inputs", lambda inputs, checkpoint: known)
    report = play(games=4, policy="legal", move_limit=12, temperatures=(1.0,), adjudicate_at=1)
    again = {game.unit: game for game in rows(session, tables.Game) if game.run_id == report.run_id}
    assert {unit: game.moves for unit, game in again.items()} == played
    counts = {unit: (game.detail["training_openings"], game.detail["training_games"]) for unit, game in again.items()}
    assert counts == {0: (2, 0), 1: (1, 1), 2: (0, 0), 3: (0, 0)}


def test_the_training_games_are_those_of_the_datasets_that_the_checkpoint_names(session, checkpoint_folder, tmp_path):
    from chessreg.entities.adding import add_dataset
    from chessreg.experiments.play import TrainingGames
    from chessreg.games.boards.moves import pack_moves

    (tmp_path / "g.pgn").write_text('[Event "a"]\n\n1. e4 e5 *\n\n[Event "b"]\n\n1. d4 d5 2. c4 e6 *\n')
    add_dataset(session.database, session.store, [tmp_path / "g.pgn"], name="lm")
    recipe = session.inputs.reference("dataset", "lm")
    with session.database.write() as sql:
        sql.scalars(select(tables.Checkpoint)).one().training_datasets = [recipe]
    known = TrainingGames.from_inputs(session.inputs, session.inputs.reference("checkpoint", "bigram"))
    board = chess.Board()
    for san in ("d4", "d5", "c4", "e6"):
        board.push_san(san)
    assert known.count_equal_games(pack_moves(board.move_stack)) == (1, 1)
    assert known.count_equal_games(pack_moves(board.move_stack[:2])) == (0, 0)


# -- bias or hook -----------------------------------------------------------------------------------------------------


def test_a_vector_as_bias_plays_the_games_of_the_hook(session, play, make_vectors):
    vectors = make_vectors()
    told = {"vector": vectors, "scale": -0.5}
    settings = {"games": 4, "policy": "legal", "opening": "random:4", "move_limit": 6}
    runs = [
        play(**settings, intervention=intervention).run_id for intervention in ({}, told, {**told, "form": "mlp-bias"})
    ]
    played = [[g.moves for g in rows(session, tables.Game) if g.run_id == run] for run in runs]
    assert runs[1] != runs[2]
    assert played[1] == played[2]
    assert played[0] != played[1]


def test_a_preset_on_the_command_line_fills_what_is_not_given(session, tmp_path):
    import json

    from click.testing import CliRunner

    from chessreg.cli.root import root

    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    words = [*place, "run", "play", "--preset", "author-2024", "--checkpoint", "bigram", "--opponent", "random",
             "--opening", "random:20", "--dry-run", "--json"]  # fmt: skip
    answer = CliRunner().invoke(root, words)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)["settings"]
    assert found["opponent"] == {"value": "random", "source": "given", "name": None}
    assert found["finished_openings"] == {"value": "keep", "source": "preset author-2024", "name": None}
    assert found["adjudicate_at"] == {"value": 90, "source": "preset author-2024", "name": None}
    with pytest.raises(BadInputError):
        PlaySpec(**PLAY.preset("paper") | {"policy": "legal", "temperatures": (1.0, 2.0)}, checkpoint="bigram")


@pytest.mark.parametrize(("threads", "engines", "usual"), [(0, True, 7), (0, False, 8), (3, True, 3)])
def test_a_core_is_left_to_engines_and_more_while_they_are_slower(monkeypatch, threads: int, engines: bool, usual: int):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("os.cpu_count", lambda: 32)
    monkeypatch.delenv("OMP_NUM_THREADS")
    cores = Cores(PlayOptions(threads=threads), "cpu", is_timed=False, engines=engines, used_threads=set())
    assert torch.get_num_threads() == usual
    cores.share(True)
    assert torch.get_num_threads() == (threads or 1)
    cores.share(False)
    assert torch.get_num_threads() == usual
    torch.set_num_threads(1)
