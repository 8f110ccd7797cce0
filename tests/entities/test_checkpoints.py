"""Checkpoints are registered whole or not at all, recognised by their weights, and come home unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import func, select

from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import (
    RegisteredCheckpoint,
    export_checkpoint,
    import_checkpoint,
    register_random_init_control,
)
from chessreg.entities.dataset import split_dataset
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, load_model, read_info, save_checkpoint
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.runs.inputs import Inputs
from store import Store

torch.set_num_threads(1)  # tiny matrices: a second thread only waits, the longer the busier the machine


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Database, Store]]:
    with Database.open(tmp_path / "registry.db") as database:
        yield database, Store.create(tmp_path / "store")


def hugging_face(folder: Path, seed: int = 0, vocabulary: int = 32) -> Path:
    """A tiny GPT-2 as Hugging Face writes one: without chessreg.json."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, block_size=64, vocab_size=vocabulary)
    model = make_random_gpt2(config, seed)
    save_checkpoint(model, folder, CheckpointInfo.from_network(model, "pgn-char-32"))
    (folder / "chessreg.json").unlink()
    return folder


def rows(database: Database, *kinds: Any) -> list[int]:
    with database.read() as session:
        return [session.scalar(select(func.count()).select_from(kind)) or 0 for kind in kinds]


EVERYTHING = (tables.Artifact, tables.ArtifactLocation, tables.Checkpoint, tables.Tokenizer, tables.Annotation)


def contents(store: Store) -> set[str]:
    return {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}


def test_an_import_is_bytes_rows_and_a_name(place: Any, tmp_path: Path) -> None:
    database, store = place
    made = import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    with database.read() as session:
        row = session.get_one(tables.Checkpoint, names.resolve_id(session, "checkpoint", "tiny"))
        tokenizer = session.get_one(tables.Tokenizer, "pgn-char-32")
    assert made == RegisteredCheckpoint(row.id, row.artifact, True)
    assert row.id == make_uuid(row.artifact)
    assert (row.architecture, row.layers, row.d_model, row.heads, row.block_size) == ("gpt2", 2, 16, 2, 64)
    assert row.parameters - row.parameters_without_embeddings == (32 + 64) * 16
    assert (row.source_format, row.residual, row.training_datasets) == ("huggingface", "raw", None)
    assert row.detail["verified"]["max_logit_difference"] < 1e-4
    assert (tokenizer.size, "".join(tokenizer.vocabulary)) == (32, " #+-.0123456789;=BKNOQRabcdefghx")
    assert load_model(store.path(row.artifact)).config.n_layer == 2
    assert not list(store.tmp.iterdir())


def test_the_same_weights_are_recognised_whatever_the_folder_is_called(place: Any, tmp_path: Path) -> None:
    database, store = place
    first = import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    before, there = rows(database, *EVERYTHING), contents(store)
    again = import_checkpoint(database, store, hugging_face(tmp_path / "renamed"))
    assert again == RegisteredCheckpoint(first.id, first.artifact, False)
    assert rows(database, *EVERYTHING) == before
    assert contents(store) == there


def test_a_taken_name_is_refused_before_anything_is_stored(place: Any, tmp_path: Path) -> None:
    database, store = place
    import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    before, there = rows(database, *EVERYTHING), contents(store)
    with pytest.raises(BadInputError, match="'tiny' is taken"):
        import_checkpoint(database, store, hugging_face(tmp_path / "other", seed=1), name="tiny")
    assert rows(database, *EVERYTHING) == before
    assert contents(store) == there


def test_an_exported_checkpoint_comes_home_with_its_digest(place: Any, tmp_path: Path) -> None:
    database, store = place
    made = import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    out = export_checkpoint(database, store, "tiny", tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == [
        "chessreg.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert import_checkpoint(database, store, out).id == made.id
    with Database.open(tmp_path / "elsewhere.db") as other:  # also where it was never seen
        there = import_checkpoint(other, Store.create(tmp_path / "elsewhere"), out)
    assert there == RegisteredCheckpoint(made.id, made.artifact, True)


def test_other_tools_read_an_export(place: Any, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    database, store = place
    made = import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    out = export_checkpoint(database, store, "tiny", tmp_path / "out")
    tokens = torch.arange(32)[None]
    theirs = GPT2LMHeadModel.from_pretrained(out).eval()(tokens).logits
    ours = load_model(store.path(made.artifact))(tokens)
    assert torch.equal(theirs, ours)


def test_an_export_in_half_precision_is_another_checkpoint_that_says_what_it_was_trained_on(
    place: Any, tmp_path: Path
) -> None:
    database, store = place
    made = import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    reference = f"dataset:{'0' * 64}"
    with database.write() as session:
        session.get_one(tables.Checkpoint, made.id).training_datasets = [reference]
    out = export_checkpoint(database, store, "tiny", tmp_path / "half", "float16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (out, store.path(made.artifact))]
    assert sizes[0] < 0.7 * sizes[1]
    again = import_checkpoint(database, store, out, name="half")
    assert again.id != made.id
    with database.read() as session:
        assert session.get_one(tables.Checkpoint, again.id).training_datasets == [reference]
    tokens = torch.arange(32)[None]
    ours, rounded = (load_model(store.path(one.artifact))(tokens) for one in (made, again))
    assert not torch.equal(ours, rounded)
    torch.testing.assert_close(ours, rounded, atol=0.05, rtol=0.05)
    weights = load_model(store.path(made.artifact))
    with torch.no_grad():
        weights.wte.weight[0, 0] = 1e5  # type: ignore[index, operator, union-attr]
    save_checkpoint(weights, tmp_path / "large", read_info(out))
    import_checkpoint(database, store, tmp_path / "large", name="large")
    with pytest.raises(BadInputError, match=r"weights reach 1e\+05, more than float16"):
        export_checkpoint(database, store, "large", tmp_path / "none", "float16")
    assert not (tmp_path / "none").exists()


def test_an_export_never_touches_what_is_there(place: Any, tmp_path: Path) -> None:
    database, store = place
    import_checkpoint(database, store, hugging_face(tmp_path / "hf"), name="tiny")
    (tmp_path / "full").mkdir()
    with pytest.raises(BadInputError, match="exists already"):
        export_checkpoint(database, store, "tiny", tmp_path / "full")
    with pytest.raises(NotFoundError, match="does not exist"):
        export_checkpoint(database, store, "tiny", tmp_path / "no" / "such")
    assert not list((tmp_path / "full").iterdir())


def test_training_datasets_are_recipes_and_never_change(place: Any, tmp_path: Path) -> None:
    database, store = place
    pgn = tmp_path / "games.pgn"
    pgn.write_text("1. e4 e5 2. Nf3 1-0\n\n1. d4 d5 0-1\n")
    add_dataset(database, store, [pgn], name="mine")
    split_dataset(database, store, "mine", "train=0.5", seed=7)
    source = hugging_face(tmp_path / "hf")
    unknown = import_checkpoint(database, store, source)
    known = import_checkpoint(database, store, source, trained_on=["mine:train"])
    assert known.id == unknown.id
    with database.read() as session:
        recorded = session.get_one(tables.Checkpoint, known.id).training_datasets
    assert recorded == [Inputs(database, store).reference("dataset", "mine:train")]
    with pytest.raises(BadInputError, match="other datasets"):
        import_checkpoint(database, store, source, trained_on=["mine"])
    with pytest.raises(NotFoundError):
        import_checkpoint(database, store, source, trained_on=["yours"])


def test_a_twin_has_the_shape_and_none_of_the_knowledge(place: Any, tmp_path: Path) -> None:
    database, store = place
    parent = import_checkpoint(database, store, hugging_face(tmp_path / "hf", seed=5), name="tiny")
    twin = register_random_init_control(database, store, "tiny", name="untrained", seed=3)
    assert twin.is_new
    assert register_random_init_control(database, store, "tiny", name="untrained", seed=3).is_new is False
    assert register_random_init_control(database, store, "tiny", seed=4).id != twin.id
    with database.read() as session:
        row = session.get_one(tables.Checkpoint, twin.id)
        original = session.get_one(tables.Checkpoint, parent.id)
    assert row.parent_id == parent.id
    assert (row.source_format, row.tokens_seen, row.training_datasets) == ("random-init", 0, [])
    assert row.parameters == original.parameters
    weights = load_model(store.path(row.artifact)).wte.weight
    assert not torch.equal(weights, load_model(store.path(original.artifact)).wte.weight)
    expected = make_random_gpt2(load_model(store.path(original.artifact)).config, 3).wte.weight
    assert torch.equal(weights, expected)


def test_lost_bytes_are_imported_again_under_the_same_id(place: Any, tmp_path: Path) -> None:
    database, store = place
    made = import_checkpoint(database, store, hugging_face(tmp_path / "hf"))
    shutil.rmtree(store.path(made.artifact))
    again = import_checkpoint(database, store, tmp_path / "hf")
    assert (again.id, again.is_new) == (made.id, False)
    assert store.verify(made.artifact).kind == "checkpoint"


def test_another_vocabulary_is_refused(place: Any, tmp_path: Path) -> None:
    database, store = place
    before = contents(store)
    with pytest.raises(BadInputError, match="vocabulary of 50"):
        import_checkpoint(database, store, hugging_face(tmp_path / "hf", vocabulary=50))
    assert contents(store) == before
    assert rows(database, *EVERYTHING) == [0] * len(EVERYTHING)
