"""Training data: mapped from files that later runs use again, equal to the datasets, and collected by gc."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.encodings.fen77 import Fen77
from chessreg.entities import gc
from chessreg.entities.adding import add_dataset
from chessreg.entities.dataset import split_dataset
from chessreg.experiments.settings import corpora
from chessreg.experiments.settings.corpora import TrainingData
from chessreg.experiments.settings.prompts import load_labelled_positions
from chessreg.experiments.train import TrainOptions, build_corpus
from chessreg.models import ranks
from chessreg.models.corpus import Corpus, MappedTexts, PositionCorpus, collate_rows
from chessreg.registry import names, tables
from store import corpora as stored
from tests.specs import train_spec

GPT2: dict[str, Any] = {"architecture": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64, "steps": 4,
                        "batch_tokens": 640, "warmup_steps": 2}  # fmt: skip
FEN: dict[str, Any] = {"architecture": "fen-encoder", "n_layer": 1, "n_head": 2, "n_embd": 16, "steps": 2}
HOW = TrainOptions(threads=1, log_steps=2, autocast=False)


@pytest.fixture
def positions(world_session: Any, tmp_path: Path) -> tuple[str, ...]:
    """References of two datasets of positions, one of them a part, with repeated positions and missing moves."""
    board, lines = chess.Board(), []
    for number in range(60):
        moves = sorted(move.uci() for move in board.legal_moves)
        best = moves[number % len(moves)]
        lines.append(f"{board.fen()},{best if number % 5 else ''},game{number % 7}")
        board.push_uci(best)
    for name, some in (("one", lines[:40] + lines[10:20]), ("two", lines[20:] + lines[:5])):
        path = tmp_path / f"{name}.csv"
        path.write_text("fen,best,game_id\n" + "\n".join(some) + "\n")
        add_dataset(world_session.database, world_session.store, [path], name=name)
    split_dataset(world_session.database, world_session.store, "one", "most=0.8", seed=1)
    return tuple(world_session.inputs.reference("dataset", name) for name in ("one:most", "two"))


def test_positions_are_those_of_the_datasets_without_repetitions(
    world_session: Any, positions: tuple[str, ...]
) -> None:
    data = TrainingData(world_session.inputs, positions)
    expected = load_labelled_positions(positions, world_session.inputs, "datasets")
    fens, moves = data.open_labelled_positions()
    assert isinstance(fens, MappedTexts)
    assert (list(fens), list(moves)) == (expected["fen"], expected["best"])
    assert fens[2:5] == expected["fen"][2:5]
    with pytest.raises(IndexError):
        fens[len(fens)]
    made = build_corpus(train_spec(datasets=("one",), **FEN), data)
    assert isinstance(made, PositionCorpus)
    items = np.arange(len(made))[::-1]
    tokens, labels = collate_rows(made, items[:, None].tolist(), 77)
    written = Fen77().boards(expected["fen"]).ids.reshape(-1, 77)
    assert np.array_equal(tokens, written[::-1])
    assert labels[::-1, 0].tolist() == [Fen77().action_ids[move] for move in expected["best"]]


def test_a_later_run_uses_the_same_files_and_records_its_inputs(world_session: Any) -> None:
    before = set(world_session.store.corpora.iterdir())
    seen: list[dict[Path, int]] = []
    for seed in (1, 2):
        run = world_session.run(
            train_spec(**GPT2, seed=seed, datasets=("sample:fit",), heldout="sample:test", min_characters=61), HOW
        ).run_id
        made = set(world_session.store.corpora.iterdir()) - before
        seen.append({folder: folder.stat().st_ino for folder in made})
        with world_session.database.read() as sql:
            read = sql.query(tables.RunInput).filter_by(run_id=run).all()
        assert {row.name for row in read} == {"datasets", "heldout"}
        for folder in made:
            assert (folder / stored.RUNS_FOLDER / run.hex).exists()
    assert seen[0] == seen[1]
    assert len(made) == 2
    spec = train_spec(**GPT2, datasets=("sample:fit",), min_characters=61)
    data = TrainingData(world_session.inputs, (world_session.inputs.reference("dataset", "sample:fit"),))
    build_corpus(spec.model_copy(update={"packing": "stream"}), data)
    assert set(world_session.store.corpora.iterdir()) == before | made
    build_corpus(spec.model_copy(update={"min_characters": 77}), data)
    assert len(set(world_session.store.corpora.iterdir()) - before) == 3


def test_changed_code_of_an_encoding_makes_a_new_corpus(world_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingData(world_session.inputs, (world_session.inputs.reference("dataset", "sample:fit"),))
    spec = train_spec(**GPT2, datasets=("sample:fit",))
    build_corpus(spec, data)
    before = len(list(world_session.store.corpora.iterdir()))
    monkeypatch.setattr(corpora.inspect, "getsourcefile", lambda of: __file__)
    build_corpus(spec, data)
    assert len(list(world_session.store.corpora.iterdir())) == before + 1


def test_a_signal_while_data_are_prepared_stops_the_run_and_leaves_nothing(world_session: Any) -> None:
    spec = train_spec(**GPT2, datasets=("sample:fit",), min_characters=33)
    before = set(world_session.store.corpora.iterdir())

    def stop(fraction: float, text: str) -> None:
        if text.startswith("preparing games"):
            raise KeyboardInterrupt

    assert world_session.run(spec, HOW, on_progress=stop).interrupted
    assert set(world_session.store.corpora.iterdir()) == before
    assert not [path for path in world_session.store.tmp.iterdir() if path.name.startswith("corpus")]
    assert world_session.run(spec, HOW).state == "complete"


def test_gc_collects_training_data_that_no_unfinished_run_reads(world_session: Any) -> None:
    spec = train_spec(**GPT2, datasets=("sample:fit",), min_characters=44)

    def stop(fraction: float, text: str) -> None:
        if text.startswith("loss"):
            raise KeyboardInterrupt

    def find() -> list[gc.UnusedBytes]:
        unused = gc.find_unused(world_session.database, world_session.store, now=time.time() + 2 * gc.MIN_AGE_S)
        return [item for item in unused if item.path == f"corpora/{folder.name}"]

    before = set(world_session.store.corpora.iterdir())
    assert world_session.run(spec, HOW, on_progress=stop, name="half").interrupted
    (folder,) = set(world_session.store.corpora.iterdir()) - before
    assert find() == []
    with world_session.database.write() as sql:
        run = names.resolve_id(sql, "run", "half")
        names.add_annotation(sql, "run", run, "archive")
    assert len(find()) == 1
    world_session.run(spec, HOW)
    (item,) = find()
    assert (item.what, item.bytes > 1000) == (f"training data {folder.name[:12]}", True)
    young = gc.find_unused(world_session.database, world_session.store)
    assert not any(each.path.startswith("corpora/") for each in young)
    gc.move_to_bin(world_session.store, [item])
    assert not folder.exists()
    gc.restore_from_bin(world_session.store)
    assert folder.exists()


def test_other_processes_map_the_same_files(world_session: Any, tmp_path: Path) -> None:
    data = TrainingData(world_session.inputs, (world_session.inputs.reference("dataset", "sample:fit"),))
    for packing in ("blocks", "stream"):
        made = build_corpus(train_spec(**GPT2, datasets=("sample:fit",), packing=packing), data)
        assert isinstance(made, Corpus)
        with (tmp_path / "corpus").open("wb") as file:
            ranks.ArrayPickler(file, tmp_path).dump(made)
        with (tmp_path / "corpus").open("rb") as file:
            other = ranks.ArrayUnpickler(file, tmp_path).load()
        assert other.tokens.filename == made.tokens.filename  # type: ignore[attr-defined]
        assert len(other) == len(made)
        assert all(np.array_equal(other.row([item], 999), made.row([item], 999)) for item in range(len(made)))
