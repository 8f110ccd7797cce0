"""DeepMind's transformer trained from scratch on best moves and on the win probabilities of bags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.encodings.fen77 import Fen77
from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError
from chessreg.experiments.settings.corpora import TrainingData
from chessreg.experiments.train import TrainOptions, build_corpus
from chessreg.games.datasets.bags import encode_record, write_bag
from chessreg.models.decoding.values import score_moves
from chessreg.models.ranks import run_ranks
from chessreg.models.training import Trainer
from chessreg.registry import tables
from chessreg.session import Session
from tests.quick import quick_first
from tests.specs import train_spec

SHAPE: dict[str, Any] = {
    "architecture": "searchless-chess", "n_layer": 1, "n_head": 2, "n_embd": 16, "steps": 60, "batch_moves": 32,
    "warmup_steps": 2, "learning_rate": 3e-3, "buckets": 8,
}  # fmt: skip
HOW = TrainOptions(threads=1, log_steps=10, autocast=False)
fen = Fen77()


def value_of(move: chess.Move) -> float:
    """The bags rate a move to the h-file as good."""
    return chess.square_file(move.to_square) / 8 + 0.05


@pytest.fixture
def bags(session: Session, tmp_path: Path) -> Session:
    """Three datasets of 40 positions: all moves with values, positions with a value, best moves."""
    random, board = np.random.default_rng(0), chess.Board()
    boards: list[chess.Board] = []
    while len(boards) < 40:
        boards.append(board.copy())
        legal = list(board.legal_moves)
        board.push(legal[random.integers(len(legal))])
    records: dict[str, list[bytes]] = {"actions": [], "states": [], "moves": []}
    for one in boards:
        values = {move: value_of(move) for move in one.legal_moves}
        best = max(values, key=lambda move: values[move])
        records["actions"] += [encode_record(one.fen(), move.uci(), value) for move, value in values.items()]
        records["states"].append(encode_record(one.fen(), None, 0.9 if one.turn else 0.1))
        records["moves"].append(encode_record(one.fen(), best.uci()))
    for name, own in records.items():
        write_bag(tmp_path / f"{name}.bag", own)
        add_dataset(session.database, session.store, [tmp_path / f"{name}.bag"], name=name)
    return session


@pytest.mark.parametrize(
    ("head", "dataset"), quick_first(1, [("action-value", "actions"), ("action", "moves"), ("state-value", "states")])
)
def test_it_learns_what_a_bag_says(bags: Session, head: str, dataset: str) -> None:
    spec = train_spec(**SHAPE, head=head, datasets=(dataset,), heldout=dataset, heldout_steps=60)
    report = bags.run(spec, HOW, name="mine")
    with bags.database.read() as sql:
        points = sql.query(tables.MetricPoint).filter_by(run_id=report.run_id).all()
        losses = {point.step: point.value for point in points if point.name == "loss"}
        held = {point.name: point.value for point in points if point.step == 60}
    assert losses[60] < losses[10]
    assert held["heldout_loss"] < losses[10]
    model = bags.model("mine")
    assert (model.adapter, model.head, model.info.encoding) == ("searchless-chess", head, "fen-77")
    if head == "action-value":
        [values] = score_moves(model, [chess.Board()])
        said = [value_of(move) for move in values.moves]
        assert np.corrcoef(values.returns, said)[0, 1] > 0.8


def test_labels_are_buckets_behind_the_action_read(bags: Session) -> None:
    spec = train_spec(**SHAPE, head="action-value", datasets=("actions",))
    made = build_corpus(spec, TrainingData(bags.inputs, (bags.inputs.reference("dataset", "actions"),)))
    assert made.tokens.shape[1] == 78
    start = fen.encode(chess.STARTING_FEN)
    rows = (made.tokens[:, :77] == start).all(1)
    said = dict(zip(made.tokens[rows, 77].tolist(), made.actions[rows].tolist(), strict=True))  # type: ignore[union-attr]
    assert said == {
        fen.action_ids[move.uci()]: int(np.ceil(value_of(move) * 8)) - 1 for move in chess.Board().legal_moves
    }


@pytest.mark.slow
@pytest.mark.parametrize(("head", "dataset"), [("action-value", "actions"), ("state-value", "states")])
def test_two_processes_train_as_one(bags: Session, tmp_path: Path, head: str, dataset: str) -> None:
    """`--devices 2` on a CPU."""
    spec = train_spec(**{**SHAPE, "steps": 20}, head=head, datasets=(dataset,))
    made = build_corpus(spec, TrainingData(bags.inputs, (bags.inputs.reference("dataset", dataset),)))
    curves = []
    for devices in (1, 2):
        trainer = Trainer(spec, made, tmp_path / str(devices), HOW.trainer_options("cpu", HOW.micro_tokens))  # type: ignore[arg-type]
        with run_ranks(trainer, devices):
            trainer.run(lambda point: None)
        curves.append([point.loss for point in trainer.curve])
    assert len(curves[0]) == 2
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"datasets": ("moves",)}, "--head action-value learns from positions with action and win_prob"),
        ({"datasets": ("states",), "head": "action"}, "--head action learns from positions with best"),
        ({"datasets": ("actions",), "dropout": 0.1}, "--dropout is not available"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_training(bags: Session, settings: Any, reason: str) -> None:
    with pytest.raises(BadInputError) as caught:
        bags.run(train_spec(**{**SHAPE, **settings}), HOW)
    assert reason in str(caught.value)
