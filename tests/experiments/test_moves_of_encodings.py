"""Play, legality, move masses and edits of models that do not write PGN: UCI squares, and actions on a FEN."""

from __future__ import annotations

import chess
import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.encodings import get_encoding
from chessreg.entities import checkpoint
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.edit.states import build_states
from chessreg.experiments.legality import LegalitySpec
from chessreg.experiments.play import PlaySpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.settings.games import select_games as select_games
from chessreg.games.boards.moves import unpack_moves
from chessreg.lab.model import Lab
from chessreg.lab.question import LabPosition, StoredState
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel
from chessreg.registry import tables
from chessreg.runs.fitted import load_probe
from chessreg.runs.kind import find_kind
from chessreg.session import open_session
from tests.quick import quick_first

NAMES = {"uci-square-72": "uci", "fen-77": "fen"}
KNIGHT = chess.Move.from_uci("b1c3")


def uci_model(bigram) -> LanguageModel:
    """Writes b1c3 after every token, most of the time, and any other squares now and then."""
    written = get_encoding("uci-square-72")
    origin, target = written.answer(chess.Board(), KNIGHT)
    table = np.random.default_rng(0).normal(0, 1, (written.size, written.size))
    table[:, origin] += 6
    table[origin, target] += 6
    return bigram(name=written.name, table=table - np.log(np.exp(table).sum(1, keepdims=True)))


def fen_model() -> LanguageModel:
    """Random weights, but for the head: b1c3 is the action that it likes best on a usual board."""
    network = FenEncoder(FenConfig(2, 4, 32)).make_untrained(1)
    written = get_encoding("fen-77")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 8 if parameter.dim() == 2 else 1
        usual = network.hidden(torch.tensor([written.prompt(chess.Board())]))[0, -1]
        network.action_head.weight[written.action_ids["b1c3"]] = 3 * usual / usual.norm()
    return LanguageModel(network, CheckpointInfo.from_network(network, written.name))


@pytest.fixture(scope="module")
def session(world, bigram):
    """The world's registry with a model for each encoding, and a board probe of each."""
    with open_session(str(world / "registry.db"), world / "store") as opened:
        for name, model in (("uci-square-72", uci_model(bigram)), ("fen-77", fen_model())):
            called = f"{NAMES[name]}-moves"
            with opened.store.stage("checkpoint") as folder:
                save_checkpoint(model.network, folder, model.info)
                artifact = checkpoint.publish_checkpoint(opened.store, folder, None)
            with opened.database.write() as sql:
                row = checkpoint.build_checkpoint_row(model.info, artifact.digest, training_datasets=None)
                checkpoint.record_checkpoint(sql, artifact, row, called)
            cache = CacheSpec(checkpoint=called, dataset="sample:fit", max_sites=10, sites="white-turns", games=40)
            opened.run(cache, name=f"{called}-fit")
            opened.run(ProbeSpec(cache=f"{called}-fit", epochs=1), name=f"{called}-board")
        yield opened


def rows_of(session, table, report):
    with session.database.read() as sql:
        found = sql.scalars(select(table).where(table.run_id == report.run_id)).all()
        sql.expunge_all()
    return found


def slow_mass(model: LanguageModel, prompt, board: chess.Board, edits=()) -> float:
    """The probability of all answers, each token by a separate forward pass."""
    total = 0.0
    for ids in model.encoding.answers(board).values():
        logprob = 0.0
        for depth, token in enumerate(ids):
            logits = model.logits(torch.tensor([[*prompt, *ids[:depth]]]), edits=edits)[0, -1]
            logprob += float(torch.log_softmax(logits.float(), -1)[token])
        total += np.exp(logprob)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["legal", "retry:3"])
def test_a_model_plays_whatever_it_writes(session, name, policy):
    spec = PlaySpec(checkpoint=f"{NAMES[name]}-moves", opponent="random", games=6, policy=policy, move_limit=6,
                    opening="random:4", adjudication="none")  # fmt: skip
    report = session.run(spec)
    games, tries = rows_of(session, tables.Game, report), rows_of(session, tables.IllegalAttempt, report)
    assert len(games) == 6
    for game in games:
        board = chess.Board()
        texts = {(row.ply, row.number): row.text for row in tries if row.unit == game.unit}
        for ply, move in enumerate(unpack_moves(game.moves)):
            assert all(get_encoding(name).parse(text, board) is None for (at, _), text in texts.items() if at == ply)
            assert board.is_legal(move)
            board.push(move)
    if policy == "legal":
        assert not tries
        assert all(0 <= game.detail["legal_mass"] < 1 for game in games)
        assert any(game.detail["legal_mass"] > 0 for game in games)
    else:
        assert tries
        assert any(game.plies > game.opening_plies for game in games)
        assert {game.termination for game in games} <= {"forfeit_illegal", "move_limit"}
    assert (
        len(find_kind("play").board_views({"run_id": report.run_id, "unit": 0}, session.inputs)) == games[0].plies + 1
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("black", quick_first(1, [False, True]))
def test_legality_is_that_of_the_most_probable_answer_and_its_mass_is_exact(session, name, black):
    called = f"{NAMES[name]}-moves"
    spec = LegalitySpec(checkpoint=called, dataset="sample:test", games=3, every=9, mass=True, black=black)
    report = session.run(spec)
    rows, model = rows_of(session, tables.Trial, report), session.model(called)
    games, _ = session.inputs.dataset(session.inputs.reference("dataset", "sample:test"))
    assert {row.ply % 2 for row in rows} == {int(black)}
    assert len(rows) >= 3
    for row in rows:
        played = unpack_moves(games.moves([row.item])[0])
        assert row.ply < len(played)
        board = chess.Board()
        for move in played[: row.ply]:
            board.push(move)
        assert row.fen == board.fen()
        assert row.legal_original == (get_encoding(name).parse(row.text, board) is not None)
        assert row.mass_original == pytest.approx(slow_mass(model, model.encoding.prompt(board), board), abs=1e-4)
    frames = find_kind("legality").board_views({"run_id": report.run_id, "unit": 0}, session.inputs)
    first = sorted((row for row in rows if row.unit == 0), key=lambda row: row.ply)
    assert [bool(frame.arrows) for frame in frames] == [row.legal_original for row in first]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", quick_first(1, ["all", "last"]))
def test_a_piece_is_taken_off_at_the_sites_of_the_encoding(session, name, tokens):
    called = f"{NAMES[name]}-moves"
    spec = EditSpec(checkpoint=called, probe=f"{called}-board", dataset="sample:test", games=8, per_game=2,
                    last_move=4, scale=4.0, token_mask=tokens, samples=2)  # fmt: skip
    report = session.run(spec)
    rows = {(row.unit, row.condition, row.sample): row for row in rows_of(session, tables.Trial, report)}
    with session.database.read() as sql:
        stored = EditSpec(**sql.get_one(tables.Run, report.run_id).spec)
    edited = sorted({unit for unit, condition, _ in rows if condition == "edit"})
    assert edited
    games, places = select_games(stored, session.inputs)
    model = session.model(called)
    layer = layer_of(session, report)
    for state in build_states(stored, model.encoding, games, places, edited[:3]):
        clean, after = rows[state.unit, "clean", -1], rows[state.unit, "edit", -1]
        move = chess.Move.from_uci(clean.detail["move"])
        assert model.encoding.parse(clean.text, state.board) == move
        modified = state.board.copy(stack=False)
        piece = modified.remove_piece_at(move.from_square)
        weight = load_probe(session.inputs, stored.probe, layer).weight
        own = torch.from_numpy(weight[:, move.from_square, 6 + piece.piece_type * (1 if piece.color else -1)])
        edit = ResidualEdit(layer, own / own.norm(), 4.0, tokens, "subtract")
        for row, edits in ((clean, []), (after, [edit])):
            assert row.mass_original == pytest.approx(slow_mass(model, state.prompt, state.board, edits), abs=1e-4)
            assert row.mass_modified == pytest.approx(slow_mass(model, state.prompt, modified, edits), abs=1e-4)
            assert row.detail["spelled_original"] == pytest.approx(row.mass_original, abs=1e-4)
        original, target = find_kind("edit").board_views({"run_id": report.run_id, "unit": state.unit}, session.inputs)
        assert original.heat is not None
        assert "removed" in target.marks.values()
    lab = Lab(session.inputs)
    answer = lab.ask(StoredState(run=report.run_id.hex, unit=edited[0]))
    assert answer.clean.original == pytest.approx(rows[edited[0], "clean", -1].mass_original, abs=1e-5)
    assert answer.edited.modified == pytest.approx(rows[edited[0], "edit", -1].mass_modified, abs=1e-5)


def layer_of(session, report) -> int:
    """The layer that the run's edit is of."""
    with session.database.read() as sql:
        found = select(tables.Trial.intervention_id).where(
            tables.Trial.run_id == report.run_id, tables.Trial.condition == "edit"
        )
        return sql.get_one(tables.Intervention, sql.scalars(found).first()).layers[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_lab_asks_any_model(session, name):
    called = f"{NAMES[name]}-moves"
    answer = Lab(session.inputs).ask(
        LabPosition.from_settings(checkpoint=called, probe=f"{called}-board", moves="e4 e5")
    )
    assert answer.sans == ("e4", "e5")
    assert sum(move.probability for move in answer.clean.moves) == pytest.approx(answer.clean.original, abs=1e-6)
    assert answer.clean.moves[0].san == "Nc3"
    assert answer.edited is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_the_encoding_does_not_have_is_refused_by_name(session, name):
    called = f"{NAMES[name]}-moves"
    spec = EditSpec(checkpoint=called, probe=f"{called}-board", dataset="sample:test", token_mask="white-segments")
    with pytest.raises(BadInputError, match=f"{name} has no tokens called white-segments"):
        session.run(spec)
    both = EditSpec(checkpoint=called, probe=f"{called}-board", dataset="sample:test", black_probe=f"{called}-board")
    with pytest.raises(BadInputError, match=f"black-segments, which {name} does not have"):
        session.run(both)
