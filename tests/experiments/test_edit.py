"""`edit`: what is recorded of each state is what the definition says, whatever the batch."""

from __future__ import annotations

from collections import defaultdict

import chess
import numpy as np
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit import EditHow, EditSpec
from chessreg.experiments.editing.states import states
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.selection import select as select_games
from chessreg.games.tokenizers import tokenizer
from chessreg.jobs.checkpoints import import_checkpoint
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.registry import tables


@pytest.fixture
def edited(world_session, bigram, tmp_path):
    """Edits of the bigram model on the world's games: the spec's recipes resolved, and its rows by state."""
    session = world_session
    model = bigram(likes=".Nc3 ")
    save_checkpoint(model.hf, tmp_path / "bigram", CheckpointInfo.of(model.hf, "pgn-char-32"))
    import_checkpoint(session.database, session.store, tmp_path / "bigram", name="bigram")
    session.run(CacheSpec(checkpoint="bigram", dataset="sample:fit", last=10), name="bigram-fit")
    session.run(ProbeSpec(cache="bigram-fit", epochs=1), name="bigram-board")

    def run(how=None, **settings):
        spec = EditSpec(
            **{"checkpoint": "bigram", "probe": "bigram-board", "dataset": "sample:test", "games": 6, "per_game": 4}
            | {"spellings": False}
            | settings
        )
        report = session.run(spec, how)
        by_unit = defaultdict(dict)
        with session.database.read() as sql:
            stored = EditSpec(**sql.get_one(tables.Run, report.run_id).spec)
            for row in sql.scalars(select(tables.Trial).where(tables.Trial.run_id == report.run_id)):
                by_unit[row.unit][row.condition, row.sample] = row
            sql.expunge_all()
        return stored, by_unit

    return run


def test_a_state_has_every_condition_or_a_reason(edited):
    _, by_unit = edited(controls=2, samples=3)
    done = [rows for rows in by_unit.values() if ("skipped", -1) not in rows]
    skipped = [rows for rows in by_unit.values() if ("skipped", -1) in rows]
    assert done
    assert skipped
    expected = {(c, s) for c in ("clean", "edit", "random-0", "random-1", "shuffled-0") for s in (-1, 0, 1, 2)}
    assert all(set(rows) == expected for rows in done)
    assert all(len(rows) == 1 for rows in skipped)
    assert {rows["skipped", -1].detail["skipped"] for rows in skipped} <= {"illegal", "king"}


def test_the_piece_is_off_the_modified_board_and_the_rest_is_as_it_was(edited):
    _, by_unit = edited()
    for rows in by_unit.values():
        if ("skipped", -1) in rows:
            continue
        clean = rows["clean", -1]
        board, move = chess.Board(clean.fen), chess.Move.from_uci(clean.detail["move"])
        assert board.parse_san(clean.text) == move
        assert board.piece_at(move.from_square).symbol() == clean.detail["piece"]
        assert board.piece_type_at(move.from_square) != chess.KING
        modified = board.copy(stack=False)
        modified.remove_piece_at(move.from_square)
        parse = tokenizer("pgn-char-32").parse
        for row in rows.values():
            assert row.legal_original == (parse(row.text, board) is not None)
            assert row.legal_modified == (parse(row.text, modified) is not None)
        assert not clean.legal_modified or modified.parse_san(clean.text) != move


def test_exact_masses_equal_teacher_forcing_one_move_at_a_time(edited, world_session):
    import torch

    spec, by_unit = edited(scale=0.0, controls=0, samples=0)
    model, pgn = world_session.model("bigram"), tokenizer("pgn-char-32")
    games, places = select_games(spec, world_session.inputs)
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if ("skipped", -1) not in r)
    (state,) = states(spec, games, places, [unit])
    mass = 0.0
    for move in state.board.legal_moves:
        ids = torch.from_numpy(pgn.encode(state.prompt + pgn.spell(state.board, move)).astype(np.int64))[None]
        logprobs = model.logits(ids).log_softmax(-1)[0]
        start = len(state.prompt)
        mass += float(torch.exp(logprobs[torch.arange(start - 1, ids.shape[1] - 1), ids[0, start:]].sum()))
    assert rows["clean", -1].mass_original == pytest.approx(mass, abs=1e-5)
    assert rows["edit", -1].mass_original == pytest.approx(mass, abs=1e-5)  # an edit of scale 0 changes nothing


def test_batches_do_not_change_what_is_drawn(edited):
    def texts(by_unit):
        return {(u, *key): row.text for u, rows in by_unit.items() for key, row in rows.items()}

    one, many = edited(EditHow(batch_states=1), seed=3), edited(EditHow(batch_states=12), seed=3, replicate=1)
    assert texts(one[1]) == texts(many[1])


def test_states_of_a_game_differ_and_short_games_have_fewer(edited, world_session):
    spec, _ = edited(per_game=30, games=3)
    games, places = select_games(spec, world_session.inputs)
    found = states(spec, games, places, range(90))
    plies = defaultdict(list)
    for state in found:
        plies[state.item].append(state.ply)
        assert state.board.turn
        assert state.prompt.endswith(".")
    assert all(p == list(range(0, 2 * len(p), 2)) for p in plies.values())
    assert 0 < len(found) < 90


def test_probes_of_another_model_are_refused(edited):
    with pytest.raises(BadInputError, match="another checkpoint"):
        edited(checkpoint="reference")
