"""Metrics on positions whose legal moves all have a win probability, against DeepMind's own evaluators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.encodings.fen77 import Fen77
from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError
from chessreg.experiments.move_accuracy import MoveAccuracyOptions, MoveAccuracySpec
from chessreg.experiments.settings.returns import compute_kendall_tau
from chessreg.games.datasets.bags import encode_record, write_bag
from chessreg.games.datasets.positions import Positions
from chessreg.models.decoding.values import score_moves
from chessreg.models.importers import UnrecordedSettings
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.session import Session

HERE = Path(__file__).parents[1] / "fixtures" / "searchless_chess"
with np.load(HERE / "expected.npz") as file:
    EXPECTED = dict(file)
FENS = [str(fen) for fen in EXPECTED["fens"]]
METRICS = ("top", "log_loss", "tau_argsort", "entropy", "l2", "consistency")
GIVEN = UnrecordedSettings(heads=2)
fen = Fen77()


def labelled(number: int) -> list[tuple[str, float]]:
    """The legal moves of a position, in the order of their actions, with the win probabilities of the golden file."""
    ordered = sorted((move.uci() for move in chess.Board(FENS[number]).legal_moves), key=fen.action_ids.__getitem__)
    return list(zip(ordered, EXPECTED[f"returns/{number}"].tolist(), strict=True))


@pytest.fixture
def bag(session: Session, tmp_path: Path) -> Session:
    """A dataset of action values whose rows are mixed; the last position lacks a move."""
    records = [encode_record(FENS[number], *row) for number in range(len(FENS)) for row in labelled(number)]
    order = np.random.default_rng(0).permutation(len(records))
    records = [records[place] for place in order]
    write_bag(
        tmp_path / "action_value_data.bag", [*records, encode_record("8/P6k/8/8/8/8/6pK/8 w - - 0 1", "a7a8q", 0.9)]
    )
    add_dataset(session.database, session.store, [tmp_path / "action_value_data.bag"], name="bag")
    return session


def measured(session: Session, model: str) -> dict[str, dict[str, Any]]:
    """FEN → the columns of its row."""
    report = session.run(MoveAccuracySpec(checkpoint=model, dataset="bag"), MoveAccuracyOptions(threads=1))
    items, _ = session.inputs.items(session.inputs.reference("dataset", "bag"))
    assert isinstance(items, Positions)
    with session.database.read() as sql:
        rows = sql.query(tables.Prediction).filter_by(run_id=report.run_id).all()
        fens = items.fens([row.item for row in rows])
        return {text: {**(row.detail or {}), "row": row} for text, row in zip(fens, rows, strict=True)}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("behavioral_cloning", "behavioral-cloning.npz"),
        ("action_value", "action-value.npz"),
        ("state_value", "state-value"),
    ],
)
def test_metrics_are_those_of_their_evaluators(bag: Session, name: str, path: str) -> None:
    if path == "state-value":
        pytest.importorskip("tensorstore", reason="the extra orbax is not installed")
    import_checkpoint(bag.database, bag.store, HERE / path, name="model", unrecorded_settings=GIVEN)
    found = measured(bag, "model")
    assert found.keys() == set(FENS)
    for number, text in enumerate(FENS):
        own = [found[text].get(metric) for metric in METRICS]
        theirs = EXPECTED[f"{name}/{number}/metrics"]
        assert [np.nan if value is None else float(value) for value in own] == pytest.approx(
            theirs.tolist(), abs=1e-5, nan_ok=True
        )
        returns = EXPECTED[f"returns/{number}"]
        assert found[text]["best_uci"] == labelled(number)[int(returns.argmax())][0]
        assert found[text]["legal"] is not None
    [row] = bag.query("value prediction by model").rows
    means = {metric: np.mean([found[text][metric] for text in FENS]) for metric in ("tau", "log_loss")}
    assert row["n"] == len(FENS)
    assert row["tau"] == pytest.approx(means["tau"])
    assert row["log_loss"] == pytest.approx(means["log_loss"])
    assert (row["l2"] is None) == (name == "behavioral_cloning")
    views = find_kind("move-accuracy").board_views(
        {"run_id": found[FENS[0]]["row"].run_id, "unit": found[FENS[0]]["row"].unit}, bag.inputs
    )  # fmt: skip
    assert views[0].title.startswith("position ")


def test_positions_of_a_bag_that_lack_a_move_are_left_out_or_refused(session: Session, tmp_path: Path) -> None:
    write_bag(tmp_path / "one.bag", [encode_record(FENS[0], "e2e4", 0.5)])
    add_dataset(session.database, session.store, [tmp_path / "one.bag"], name="bag")
    import_checkpoint(
        session.database, session.store, HERE / "action-value.npz", name="model", unrecorded_settings=GIVEN
    )
    with pytest.raises(BadInputError, match="no position has a best move"):
        measured(session, "model")


def test_positions_whose_own_value_alone_is_known_are_measured_by_it(session: Session, tmp_path: Path) -> None:
    values = [0.1, 0.5, 0.9]
    records = [encode_record(text, None, value) for text, value in zip(FENS, values, strict=False)]
    write_bag(tmp_path / "state_value_data.bag", records)
    add_dataset(session.database, session.store, [tmp_path / "state_value_data.bag"], name="bag")
    import_checkpoint(
        session.database, session.store, HERE / "action-value.npz", name="model", unrecorded_settings=GIVEN
    )
    import_checkpoint(
        session.database, session.store, HERE / "behavioral-cloning.npz", name="moves", unrecorded_settings=GIVEN
    )
    with pytest.raises(BadInputError, match="a model with the head action predicts no win probability"):
        session.run(MoveAccuracySpec(checkpoint="moves", dataset="bag"), MoveAccuracyOptions(threads=1))
    found = measured(session, "model")
    model, centres = session.model("model"), (np.arange(128) + 0.5) / 128
    for text, value in zip(FENS, values, strict=False):
        [scored] = score_moves(model, [chess.Board(text)])
        best = scored.log_probs[scored.returns.argmax()].astype(np.float64)
        assert found[text]["log_loss"] == pytest.approx(-best[int(np.ceil(value * 128)) - 1] / np.log(2), rel=1e-4)
        assert found[text]["l2"] == pytest.approx((np.exp(best) @ centres - value) ** 2, rel=1e-4)
        assert (found[text].get("top"), found[text].get("best")) == (None, None)
    [row] = session.query("value prediction by model").rows
    assert (row["n"], row["top"], row["tau"]) == (len(values), None, None)
    assert row["l2"] == pytest.approx(np.mean([found[text]["l2"] for text in found]))
    assert session.query("move accuracy by model").rows == []
    frames = find_kind("move-accuracy").board_views({"run_id": row["run_id"], "unit": 0}, session.inputs)
    assert "squared error of the win probability" in frames[0].caption[0]


def test_tau_counts_ties_as_tau_b() -> None:
    one, other = np.array([1, 2, 2, 3]), np.array([1, 3, 2, 2])
    assert compute_kendall_tau(one, other) == pytest.approx(2 / 5)
    assert compute_kendall_tau(one, np.ones(4)) == 0.0
    assert compute_kendall_tau(np.array([5.0]), np.array([1.0])) == 1.0
