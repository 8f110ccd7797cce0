"""Training every model that the house has: GPT-2 on two ways of writing games, FEN encoders on positions and games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.encodings import get_encoding
from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.settings.corpora import TrainingData
from chessreg.experiments.train import TrainOptions, build_corpus
from chessreg.games.boards.moves import replay_boards, unpack_moves
from chessreg.models.decoding.session import DecodingSession
from chessreg.registry import tables
from chessreg.registry.identity import make_uuid
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import resolve_and_hash
from chessreg.runs.unfinished import lock_states
from store.errors import StoreError
from tests.quick import quick_first
from tests.specs import train_spec

SHAPE: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "warmup_steps": 3, "learning_rate": 5e-3, "seed": 3}
UCI = {"architecture": "gpt2", "encoding": "uci-square-72", "block_size": 128, "batch_tokens": 1500, "steps": 25}
FEN = {"architecture": "fen-encoder", "batch_moves": 51, "steps": 40}
GPT2 = {**SHAPE, "architecture": "gpt2"}
HOW = TrainOptions(threads=1, log_steps=5, autocast=False)


@pytest.fixture(scope="module")
def positions(world: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of every position of twelve games; best is the move of the lowest UCI, played the one of the game."""
    from chessreg.session import open_session

    lines = ["fen,best,played"]
    with open_session(str(world / "registry.db"), world / "store") as session:
        games, part = session.inputs.dataset(session.inputs.reference("dataset", "sample:fit"))
        for packed in games.moves(games.rows(part)[:12]):
            for code, board in zip(unpack_moves(packed), replay_boards(packed), strict=False):
                best, played = min(move.uci() for move in board.legal_moves), code.uci()
                lines.append(f"{board.fen()},{best},{played}")
        path = tmp_path_factory.mktemp("positions") / "positions.csv"
        path.write_text("\n".join(lines) + "\n")
        add_dataset(session.database, session.store, [path], name="positions")
    return "positions"


def trained(session: Any, **settings: Any) -> tuple[Any, dict[str, list[float]], Any]:
    """The model of a training, its curves by name, and its checkpoint's row."""
    report = session.run(train_spec(**{**SHAPE, **settings}), HOW)
    with session.database.read() as sql:
        points = sql.query(tables.MetricPoint).filter_by(run_id=report.run_id).all()
        row = sql.query(tables.Checkpoint).filter_by(run_id=report.run_id).one()
        sql.expunge_all()
    curves: dict[str, list[float]] = {}
    for point in sorted(points, key=lambda point: point.step):
        curves.setdefault(point.name, []).append(point.value)
    return session.model(row.id.hex), curves, row


@pytest.mark.parametrize(
    "settings",
    quick_first(
        1, [{"packing": "games"}, {"packing": "stream", "biases": True, "activation": "gelu_new", "dropout": 0.1}]
    ),
)
def test_a_gpt2_learns_games_in_uci(world_session: Any, settings: dict[str, Any]) -> None:
    model, curves, row = trained(
        world_session, datasets=("sample:fit",), heldout="sample:test", heldout_steps=25, **UCI, **settings
    )
    assert curves["loss"][-1] < 0.95 * curves["loss"][0]
    assert curves["heldout_loss"][-1] < np.log(72)
    assert (model.encoding.name, model.adapter, model.attention, model.head) == (
        "uci-square-72", "gpt2", "causal", "next-token"
    )  # fmt: skip
    assert (row.tokenizer, row.detail["shape"]["bias"]) == ("uci-square-72", settings.get("biases", False))
    assert row.detail["shape"]["activation"] == settings.get("activation", "gelu")
    with world_session.database.read() as sql:
        read = sql.query(tables.RunInput).filter_by(run_id=row.run_id).all()
    parts = {"datasets": "sample:fit", "heldout": "sample:test"}
    assert {row.name: row.reference for row in read} == {
        field: world_session.inputs.reference("dataset", part) for field, part in parts.items()
    }


def test_a_stream_is_cut_anywhere_and_loses_the_rest_of_a_thousand_games(world_session: Any) -> None:
    spec = train_spec(**SHAPE, **UCI, datasets=("sample:fit",), packing="stream")
    recipes = (world_session.inputs.reference("dataset", "sample:fit"),)
    whole, cut = (
        build_corpus(spec.model_copy(update={"packing": packing}), TrainingData(world_session.inputs, recipes))
        for packing in ("blocks", "stream")
    )
    assert len(cut) == len(whole.tokens) // 128
    np.testing.assert_array_equal(cut.row(range(len(cut)), 10**9), whole.tokens[: 128 * len(cut)])
    assert {stop - start for start, stop in map(cut.find_span, range(len(cut)))} == {128}
    games, part = world_session.inputs.dataset(recipes[0])
    pgn = build_corpus(
        train_spec(architecture="gpt2", datasets=("sample:fit",)), TrainingData(world_session.inputs, recipes)
    )
    texts = [get_encoding("pgn-char-32").encode(text) for text in games.texts(games.rows(part)) if len(text) >= 60]
    np.testing.assert_array_equal(pgn.tokens, np.concatenate(texts))


@pytest.mark.parametrize(("attention", "embedding"), quick_first(1, [("bidirectional", "own"), ("causal", "tied")]))
def test_a_fen_encoder_learns_the_moves_of_positions(
    world_session: Any, positions: str, attention: str, embedding: str
) -> None:
    model, curves, row = trained(
        world_session, datasets=(positions,), heldout=positions, attention=attention, embedding=embedding, **FEN
    )
    assert abs(curves["loss"][0] - np.log(1968)) < 1.5
    assert curves["loss"][-1] < 0.8 * curves["loss"][0]
    assert 0 <= curves["heldout_accuracy"][-1] <= 1
    assert (model.encoding.name, model.adapter, model.attention, model.head) == (
        "fen-77", "fen-encoder", attention, "action"
    )  # fmt: skip
    assert (row.architecture, row.tokenizer, row.block_size) == ("fen-encoder", "fen-77", 77)
    board = chess.Board()
    logprobs = DecodingSession(model, 1).feed([model.encoding.prompt(board)])[0]
    legal = [model.encoding.answer(board, move)[0] for move in board.legal_moves]
    assert float(logprobs[legal].exp().sum()) > 2 * 20 / 1968  # learned first: which squares hold its pieces


def test_games_train_a_fen_encoder_with_the_moves_that_were_played(world_session: Any, positions: str) -> None:
    spec = train_spec(**SHAPE, **FEN, datasets=("sample:fit",), target="played", min_characters=2)
    inputs = world_session.inputs
    of_games, of_positions = (
        build_corpus(spec, TrainingData(inputs, (inputs.reference("dataset", name),)))
        for name in ("sample:fit", positions)
    )
    asked, told = (
        [(row.tobytes(), int(action)) for row, action in zip(made.tokens, made.actions, strict=True)]
        for made in (of_games, of_positions)
    )
    assert len(told) > 100
    assert len({row for row, _ in told}) == len(told)  # a position once
    assert set(told) <= set(asked)


def test_what_does_not_go_together_is_refused(world_session: Any, positions: str) -> None:
    for settings, message in (
        ({"encoding": "fen-77"}, "writes positions"),
        (
            {**FEN, "encoding": "pgn-char-32"},
            "--encoding belongs to --architecture gpt2 or gpt2-best-moves, not to fen",
        ),
        ({**FEN, "biases": True}, "--biases belongs to --architecture gpt2 or gpt2-best-moves, not to fen-encoder"),
        (
            {"attention": "bidirectional"},
            "--attention belongs to --architecture fen-encoder or searchless-chess, not to gpt2",
        ),
        (FEN, "has no best moves"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            world_session.run(train_spec(**{**GPT2, "datasets": ("sample:fit",), **settings}))
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInputError, match="games are needed"):
        world_session.run(train_spec(**GPT2, datasets=(positions,)))


def test_games_too_few_to_fill_a_row_are_told_before_anything_is_recorded(world_session: Any) -> None:
    spec = train_spec(datasets=("sample:test",), **{**GPT2, "block_size": 1_000_000}, steps=2)
    recipes = (world_session.inputs.reference("dataset", "sample:test"),)
    tokens = len(build_corpus(spec, TrainingData(world_session.inputs, recipes)).tokens)  # type: ignore[union-attr]
    with world_session.database.read() as sql:
        before = sql.query(tables.Run).count()
    for rows, longest in (("blocks", tokens - 1), ("stream", tokens)):
        enough, few = (spec.model_copy(update={"packing": rows, "block_size": longest + more}) for more in (0, 1))
        find_kind("train").check(enough.model_copy(update={"datasets": recipes}), world_session.inputs)
        with pytest.raises(
            BadInputError, match=rf"have {tokens:,} tokens, but --packing {rows} needs .*--packing games"
        ):
            world_session.run(few, HOW)
    with world_session.database.read() as sql:
        assert sql.query(tables.Run).count() == before


def test_a_checkpoint_goes_by_the_name_of_the_run_that_trained_it(world_session: Any) -> None:
    world_session.run(train_spec(**{**GPT2, "steps": 2}, datasets=("sample:fit",)), HOW, name="mine")
    assert world_session.model("mine").n_layers == SHAPE["n_layer"]


def test_a_second_process_at_one_training_is_refused_and_harms_nothing(world_session: Any) -> None:
    spec = train_spec(**{**GPT2, "steps": 10, "seed": 5}, datasets=("sample:fit",))
    run_id = make_uuid(resolve_and_hash(find_kind("train"), spec, world_session.inputs)[1])
    with (
        lock_states(world_session.store, run_id, ["state.pt"]),
        pytest.raises(StoreError, match=rf"state.pt of run {run_id.hex[-6:]} is being written by process \d+ on "),
    ):
        world_session.run(spec, HOW)
    assert not (world_session.store.runs / run_id.hex / "state.pt").exists()
    assert world_session.run(spec, HOW).state == "complete"


def test_progress_of_a_training_that_goes_on_begins_where_it_broke_off(world_session: Any) -> None:
    spec = train_spec(**SHAPE | UCI | {"seed": 12}, datasets=("sample:fit",), packing="games")

    def stop(fraction: float, text: str) -> None:
        if fraction >= 0.4:
            raise KeyboardInterrupt

    assert world_session.run(spec, HOW, on_progress=stop).interrupted
    seen: list[float] = []
    world_session.run(spec, HOW, on_progress=lambda fraction, text: seen.append(fraction))
    assert (seen[0], seen[-1]) == (pytest.approx(0.4), 1.0)


def test_a_damaged_state_is_told_in_one_line_with_its_file(world_session: Any) -> None:
    spec = train_spec(**{**GPT2, "steps": 10, "seed": 6}, datasets=("sample:fit",))
    run_id = make_uuid(resolve_and_hash(find_kind("train"), spec, world_session.inputs)[1])
    state = world_session.store.run_folder(run_id.hex) / "state.pt"
    state.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ChessregError, match=r"state\.pt cannot be read") as caught:
        world_session.run(spec, HOW)
    assert (caught.value.hint, "\n" in str(caught.value)) == ("remove it to start from scratch", False)
