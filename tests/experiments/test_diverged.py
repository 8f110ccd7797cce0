"""NaN and infinity end the attempt as `diverged`, in one line, and none of its rows count as results."""

from __future__ import annotations

import pytest
import torch
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import DivergedError
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.registry import tables
from chessreg.registry.run_state import select_run_states


@pytest.fixture
def overflowing(world_session, tmp_path):
    """A checkpoint that is well for 60 tokens and writes NaN after them."""
    made = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=1023, vocab_size=32), seed=7)
    with torch.no_grad():
        made.wpe.weight[60:] = torch.finfo(torch.float32).max
    save_checkpoint(made, tmp_path / "overflowing", CheckpointInfo.from_network(made, "pgn-char-32"))
    with world_session.database.read() as sql:
        if sql.scalars(select(tables.Annotation).where(tables.Annotation.value == "overflowing")).first():
            return
    import_checkpoint(world_session.database, world_session.store, tmp_path / "overflowing", name="overflowing")


RUNS = {
    "cache": "--checkpoint overflowing --dataset sample:fit --games 3 --max-sites 30",
    "legality": "--checkpoint overflowing --dataset sample:test --games 2",
    "move-quality": "--checkpoint overflowing --dataset sample:test --games 1 --every 4 --judge-limit nodes=10",
    "play": "--checkpoint overflowing --opponent random --games 2 --policy retry:2 --opening random:16",
    "play:edited": "--checkpoint reference --opponent random --games 2 --intervention.vector skill "
    "--intervention.layers 0 --intervention.scale 3e38",
    "vector": "--source contrastive-uncached --checkpoint overflowing --dataset sample:fit --first-ply 4",
    "sae": "--checkpoint overflowing --dataset sample:fit --tokens 200 --batch-tokens 100 --expansions 2",
    "sae:diverging": "--cache reference-fit --tokens 2000 --batch-tokens 100 --expansions 2 --learning-rate 1e37",
    "probe": "--cache reference-fit --learning-rate 1e37 --epochs 2",
}


def last_attempt(session):
    with session.database.read() as sql:
        found = sql.scalars(select(tables.Attempt).order_by(tables.Attempt.started_at.desc()).limit(1)).one()
        sql.expunge(found)
        state = {row.run_id: row.state for row in sql.execute(select_run_states())}[found.run_id]
        games = sql.scalars(select(tables.Game).where(tables.Game.run_id == found.run_id)).all()
    return found, state, games


@pytest.mark.usefixtures("overflowing")
@pytest.mark.parametrize("name", RUNS)
def test_numbers_that_are_none_end_as_diverged(name, world, world_session, capsys):
    words = ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "run", name.partition(":")[0]]
    assert run_command_line([*words, *RUNS[name].split()]) == 1
    said = capsys.readouterr().err
    assert "NaN" in said or "not finite" in said, said
    assert "fault in chessreg" not in said
    attempt, state, games = last_attempt(world_session)
    assert attempt.cause is tables.Cause.DIVERGED
    assert state in ("diverged", "partial")
    assert not [game for game in games if game.termination == "forfeit_illegal"]


def test_activations_that_do_not_fit_their_type_are_refused(world, world_session, tmp_path, capsys):
    made = make_random_gpt2(GPT2Config(n_layer=1, n_head=2, n_embd=32, block_size=200, vocab_size=32), seed=7)
    with torch.no_grad():
        made.wpe.weight[60:] = 1e5
    save_checkpoint(made, tmp_path / "large", CheckpointInfo.from_network(made, "pgn-char-32"))
    import_checkpoint(world_session.database, world_session.store, tmp_path / "large", name="large")
    words = ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "run", "cache"]
    words += ["--checkpoint", "large", "--dataset", "sample:fit", "--games", "2", "--max-sites", "14"]
    assert run_command_line(words) == 4
    assert "--dtype bfloat16" in capsys.readouterr().err
    assert run_command_line([*words, "--dtype", "bfloat16"]) == 0


def test_training_that_diverges_says_so(world, world_session, capsys):
    words = ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "run", "train"]
    settings = (
        "--architecture gpt2 --datasets sample:fit "
        "--n-layer 1 --n-head 1 --n-embd 8 --steps 40 --batch-tokens 512 --warmup-steps 0 "
        "--learning-rate 1e30 --log-steps 5"
    )
    assert run_command_line([*words, *settings.split()]) == 1
    said = capsys.readouterr().err
    assert "the loss is" in said
    assert "--learning-rate" in said
    assert last_attempt(world_session)[1] == "diverged"


def test_an_edit_beyond_all_numbers_says_so(world_session):
    model = world_session.model("reference")
    edit = ResidualEdit(0, torch.ones(model.d_model), 1e308)
    with pytest.raises(DivergedError, match="edited model's logits are NaN"):
        DecodingSession(model, 1, [edit]).feed([[0, 1, 2]])
