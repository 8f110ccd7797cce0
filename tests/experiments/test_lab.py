"""The lab's answers equal those stored by an edit run for the same position, numbers and boards."""

from __future__ import annotations

import io
import json
from pathlib import Path

import chess
import numpy as np
import pytest
from sqlalchemy import select

from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.experiments.edit.heat import load_readings
from chessreg.experiments.edit.spec import EditOptions, EditSpec
from chessreg.experiments.probe import ProbeOptions, ProbeSpec
from chessreg.games.datasets.labels import PIECE_CLASSES
from chessreg.lab import answer as text
from chessreg.lab import worker
from chessreg.lab.answer import LabAnswer
from chessreg.lab.model import Lab
from chessreg.lab.question import LabPosition, StoredState, load_stored_edit
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.registry import tables
from chessreg.session import open_session

MOVES = "e4 e5 Nf3 Nc6"  # Nc3 is legal then, which the bigram model likes to write
EDIT = {"checkpoint": "likes-nc3", "probe": "likes-nc3-board", "moves": MOVES, "scale": 2.0}


@pytest.fixture(scope="module")
def likes_nc3(world, bigram, tmp_path_factory) -> None:
    """A model that writes legal moves, and probes of it, in the world of this file."""
    model, folder = bigram(likes=".Nc3 "), tmp_path_factory.mktemp("likes") / "model"
    save_checkpoint(model.network, folder, CheckpointInfo.from_network(model.network, "pgn-char-32"))
    with open_session(str(world / "registry.db"), world / "store") as session:
        import_checkpoint(session.database, session.store, folder, name="likes-nc3")
        cache = CacheSpec(checkpoint="likes-nc3", dataset="sample:fit", max_sites=10)
        session.run(cache, CacheOptions(threads=1), name="likes-nc3-fit")
        session.run(ProbeSpec(cache="likes-nc3-fit", epochs=1), ProbeOptions(threads=1), name="likes-nc3-board")


@pytest.fixture
def lab(likes_nc3, world_session) -> Lab:
    """A lab in a world with that model and its probes."""
    return Lab(world_session.inputs)


@pytest.fixture
def stored(world_session, lab):
    """The edit run of that position: its id, and its greedy rows by condition."""
    spec = LabPosition.from_settings(**EDIT).spec()
    report = world_session.run(spec, EditOptions(threads=1))
    with world_session.database.read() as sql:
        trial = tables.Trial
        rows = sql.scalars(select(trial).where(trial.run_id == report.run_id, trial.sample == -1)).all()
        sql.expunge_all()
    return report.run_id, {row.condition: row for row in rows}


@pytest.mark.slow
def test_masses_and_texts_are_those_that_the_edit_run_stores(lab: Lab, stored) -> None:
    run_id, rows = stored
    answer = lab.ask(LabPosition.from_settings(**EDIT))
    again = lab.ask(StoredState(run=run_id.hex, unit=0))
    assert answer.edited is not None
    for found in (answer, again):
        for side, condition in ((found.clean, "clean"), (found.edited, "edit")):
            row = rows[condition]
            assert side.original == pytest.approx(row.mass_original, abs=2e-6)
            assert side.modified == pytest.approx(row.mass_modified, abs=2e-6)
            assert side.text == row.text
            assert side.legal == row.legal_original
    assert rows["clean"].fen == answer.fen == "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3"
    assert rows["clean"].item == -1
    assert chess.square_name(answer.square) == rows["clean"].detail["square"]
    assert answer.scales == tuple(rows["edit"].detail["scales"])
    assert answer.clean != answer.edited


def test_beliefs_of_every_layer_are_the_heat_maps(lab: Lab, stored, world_session) -> None:
    run_id, _ = stored
    answer = lab.ask(StoredState(run=run_id.hex, unit=0, condition="random-0"))
    for place in (0, len(answer.layers) - 1):
        found = load_readings(world_session.inputs, run_id, 0, "random-0", answer.layers[place])
        for which, side in (("clean", answer.clean), ("edited", answer.edited)):
            for label in (0, 6, 12):
                heat = found.values(which, label, "probability")
                np.testing.assert_allclose(side.beliefs[place, :, label], heat, atol=2e-6)


def test_moves_are_ranked_and_sum_to_the_mass(lab: Lab) -> None:
    answer = lab.ask(LabPosition.from_settings(**EDIT))
    board = chess.Board(answer.fen)
    for side in (answer.clean, answer.edited):
        assert {move.uci for move in side.moves} == {move.uci() for move in board.legal_moves}
        assert all(board.san(chess.Move.from_uci(move.uci)) == move.san for move in side.moves)
        probabilities = [move.probability for move in side.moves]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(side.original, abs=1e-6)
        assert sum(move.probability for move in side.moves_modified) == pytest.approx(side.modified, abs=1e-6)
    gone = chess.Board(answer.modified_fen)
    assert gone.piece_at(answer.square) is None
    assert board.piece_at(answer.square).symbol() == answer.piece


def test_only_the_edited_side_follows_the_scale(lab: Lab) -> None:
    small, large = (
        lab.ask(LabPosition.from_settings(**{**EDIT, "scale": scale, "layers": (0,)})) for scale in (0.5, 40.0)
    )
    assert small.clean is large.clean  # not computed again
    assert small.edited.original != pytest.approx(large.edited.original, abs=1e-3)
    assert (small.scales, large.scales) == ((0.5,), (40.0,))


def test_a_vector_is_added_and_leaves_the_board_alone(lab: Lab) -> None:
    with_vector = {"checkpoint": "reference", "moves": MOVES, "vector": "skill", "probe": "reference-board"}
    answer = lab.ask(LabPosition.from_settings(**with_vector, scale=3.0))
    assert answer.edited is not None
    assert (answer.square, answer.modified_fen, answer.edited.modified) == (None, "", None)
    assert answer.edited_layers
    assert not np.array_equal(answer.clean.beliefs, answer.edited.beliefs)
    nothing = lab.ask(LabPosition.from_settings(**with_vector, scale=0))
    assert nothing.edited is None
    assert "scale 0" in nothing.why_not


def test_black_to_move_and_no_edit(lab: Lab) -> None:
    answer = lab.ask(LabPosition.from_settings(checkpoint="reference", moves="e4"))
    assert chess.Board(answer.fen).turn == chess.BLACK
    assert 0 < answer.clean.original < 1
    assert answer.edited is None


@pytest.mark.parametrize("moves", ["", "startpos", chess.STARTING_FEN])
def test_the_initial_position_is_edited_stored_and_taken_up_as_any_other(lab: Lab, world_session, moves: str) -> None:
    question = LabPosition.from_settings(**{**EDIT, "moves": moves})
    answer, spec = lab.ask(question), question.spec()
    assert answer.edited is not None
    assert (answer.sans, chess.square_name(answer.square or 0)) == ((), "b1")
    assert (spec.moves, spec.sans) == ("startpos", ())
    assert "--moves startpos" in " ".join(question.storing_arguments)
    run_id = world_session.run(spec, EditOptions(threads=1)).run_id
    with world_session.database.read() as sql:
        trial = tables.Trial
        [row] = sql.scalars(select(trial).where(trial.run_id == run_id, trial.sample == -1, trial.condition == "edit"))
        sql.expunge_all()
    assert (row.ply, row.mass_modified) == (0, pytest.approx(answer.edited.modified, abs=1e-6))
    taken = load_stored_edit(world_session.inputs, run_id, row)
    assert (taken.sans, taken.scale, taken.condition) == ((), 2.0, "edit")
    assert lab.ask(StoredState(run=run_id.hex, unit=0)).edited.modified == pytest.approx(row.mass_modified, abs=1e-6)


def test_a_control_is_the_one_that_the_run_drew(lab: Lab, world_session) -> None:
    spec = EditSpec(
        checkpoint="likes-nc3", probe="likes-nc3-board", dataset="sample:test", games=2, per_game=3, samples=0,
        scales=(1.0, 2.0), random_controls=2, shuffled_label_controls=2, spellings=False,
    )  # fmt: skip
    run_id = world_session.run(spec, EditOptions(threads=1)).run_id
    with world_session.database.read() as sql:
        trial = tables.Trial
        wanted = trial.run_id == run_id, trial.sample == -1, trial.condition.in_(("random-3", "shuffled-2"))
        rows = sql.scalars(select(trial).where(*wanted)).all()
        sql.expunge_all()
    assert any(row.unit > 0 for row in rows)
    for row in rows:
        taken = load_stored_edit(world_session.inputs, run_id, row)
        question = LabPosition.from_settings(
            checkpoint=taken.checkpoint_id.hex, probe=taken.probe_run.hex, moves=" ".join(taken.sans),
            layers=taken.layers, scale=taken.scale, token_mask=taken.token_mask, condition=taken.condition,
            unit=taken.unit, settings=taken.settings,
        )  # fmt: skip
        assert lab.ask(question).edited.modified == pytest.approx(row.mass_modified, abs=1e-6)
        assert f"--unit {row.unit}" in " ".join(question.command) or row.unit == 0


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"checkpoint": "nobody"}, NotFoundError, "nobody"),
        ({"moves": "e4 e5 Nf6"}, BadInputError, "2.Nf6 is not legal"),
        ({"moves": "f3 e5 g4 Qh4#"}, BadInputError, "the game is over"),
        ({"layers": (99,)}, BadInputError, "no probe reads layer 99"),
        ({"layers": (99,), "moves": ""}, BadInputError, "no probe reads layer 99"),
        ({"probe": "reference-board"}, BadInputError, "fitted on another checkpoint"),
        ({"probe": "reference-board", "vector": "skill"}, BadInputError, "fitted on another checkpoint"),
        ({"layers": (1, 1)}, BadInputError, "^--layers: "),
        ({"vector": "skill", "token_mask": "turns"}, BadInputError, "--token-mask all, or last"),
        ({"scale": float("nan")}, BadInputError, "^--scale: input should be a finite number$"),
        ({"scale": 1e300}, BadInputError, "^--scale: the number is too large$"),
        ({"probe": None, "layers": (1,)}, BadInputError, "needs a probe or a vector"),
    ],
)
def test_what_cannot_be_looked_at_is_told(lab: Lab, wrong: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lab.ask(LabPosition.from_settings(**{**EDIT, **wrong}))


def test_frames_mark_what_is_read_otherwise(lab: Lab) -> None:
    answer = lab.ask(LabPosition.from_settings(**EDIT))
    place = text.find_layer_place(answer, None)
    clean, edited = (text.build_belief_frame(answer, which, place, 12) for which in ("clean", "edited"))
    original = chess.Board(answer.fen)
    for square in range(64):
        read = PIECE_CLASSES[int(answer.clean.beliefs[place, square].argmax())]
        piece = original.piece_at(square)
        assert (clean.marks.get(square) == "wrong") == (read != (piece.symbol() if piece else "."))
        assert clean.heat[square] == pytest.approx(answer.clean.beliefs[place, square, 12])
    assert edited.squares == answer.edited.board(place)
    before, after = text.build_position_frames(answer)
    assert before.arrows[0].label == answer.clean.moves[0].san
    drawn = [move for move in answer.edited.moves_modified[:3] if move.probability >= text.MIN_ARROW_PROBABILITY]
    assert [(arrow.label, arrow.weight) for arrow in after.arrows] == [(m.san, m.probability) for m in drawn]
    assert after.marks[answer.square] == "removed"
    with pytest.raises(NotFoundError, match="no layer 77"):
        text.find_layer_place(answer, 77)


def test_the_worker_answers_line_by_line_and_survives_what_fails(lab: Lab, world: Path) -> None:
    asked = [
        {"id": 1, "position": EDIT},
        {"id": 2, "position": {**EDIT, "moves": "e4 e4"}},
        {"id": 3, "position": {**EDIT, "probe": "nothing"}},
        {"id": 4, "position": {"checkpoint": "reference", "moves": "d4"}},
    ]
    said = io.StringIO()
    lines = io.StringIO("".join(json.dumps(question) + "\n" for question in asked))
    worker.serve_questions(lines, said, f"sqlite:///{world / 'registry.db'}", world / "store", 1)
    first, second, third, fourth = (json.loads(line) for line in said.getvalue().splitlines())
    answer, same = LabAnswer.from_json(first["answer"]), lab.ask(LabPosition.from_settings(**EDIT))
    assert answer.clean.moves == same.clean.moves
    np.testing.assert_array_equal(answer.edited.beliefs, same.edited.beliefs)
    assert answer.summary() == same.summary()
    assert "not legal" in second["message"]
    assert "nothing" in third["message"]
    assert third["hint"]
    assert LabAnswer.from_json(fourth["answer"]).edited is None


def test_a_command_gives_every_digit_of_the_scale() -> None:
    question = LabPosition.from_settings(**{**EDIT, "scale": 0.12345678})
    assert [words[words.index("--scale") + 1] for words in (question.command, question.storing_arguments)] == [
        "0.12345678"
    ] * 2
