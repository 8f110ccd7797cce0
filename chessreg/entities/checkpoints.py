"""Checkpoints: imported, exported, and random twins of those that are there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from chessreg.encodings import encoding
from chessreg.entities import register
from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import uuid_of
from chessreg.registry.tables.types import utc_now
from chessreg.runs.inputs import Inputs, with_weights

if TYPE_CHECKING:
    from chessreg.models.checkpoint import CheckpointInfo
    from store import Artefact, Store

NOUN = "checkpoint"
FILES = ("config.json", "model.safetensors", "chessreg.json")


@dataclass(frozen=True)
class Registered:
    """A checkpoint of the registry; `created` is False when it was there already."""

    id: UUID
    artefact: str
    created: bool


def checkpoint_row(
    info: CheckpointInfo,
    digest: str,
    *,
    training_datasets: Sequence[str] | None,
    parent_id: UUID | None = None,
    run_id: UUID | None = None,
    detail: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The columns of a checkpoint's row. `digest` is its artefact's; the id derives from it."""
    shape = info.architecture
    return {
        "id": uuid_of(digest),
        "artefact": digest,
        "architecture": shape["family"],
        "layers": shape["n_layer"],
        "d_model": shape["n_embd"],
        "heads": shape["n_head"],
        "block_size": info.block_size,
        "tokenizer": info.encoding,
        "parameters": info.parameters,
        "parameters_without_embeddings": info.parameters_without_embeddings,
        "residual": info.residual,
        "tokens_seen": info.tokens_seen,
        "training_datasets": None if training_datasets is None else list(training_datasets),
        "source_format": info.source.get("format", "unknown"),
        "parent_id": parent_id,
        "run_id": run_id,
        "detail": {"shape": shape, "source": info.source, **(detail or {})},
        "created_at": utc_now(),
    }


def tokenizer_row(name: str) -> dict[str, Any]:
    """The columns of a tokenizer's row."""
    found = encoding(name)
    return {"name": name, "size": found.size, "vocabulary": list(found.vocabulary)}


def import_checkpoint(
    database: Database,
    store: Store,
    source: Path,
    *,
    name: str | None = None,
    encoding: str = "pgn-char-32",
    trained_on: Sequence[str] | None = None,
    fetched: dict[str, Any] | None = None,
) -> Registered:
    """Convert the file or folder `source`, verify it by logits, publish and register it.

    The same weights imported again are recognised. `trained_on` names datasets of the registry (None: unknown);
    `fetched` says where the file was downloaded from.
    Raises NotFoundError (no such file or dataset) and BadInputError (no checkpoint, code in a pickle, another
    vocabulary, a name that is taken); then nothing is stored or recorded.
    """
    from chessreg.models import importers
    from chessreg.models.checkpoint import digest as content_digest
    from chessreg.models.checkpoint import read_info

    if not source.exists():
        raise NotFoundError(f"no file or folder {source}")
    inputs = Inputs(database, store)
    recipes = None if trained_on is None else [inputs.recipe("dataset", reference) for reference in trained_on]
    register.prepare(database, name)
    with store.stage(NOUN) as folder:
        report = importers.import_checkpoint(source, folder, encoding=encoding)
        info = report.info
        if is_ours(source, folder):  # comes home unchanged, and so keeps its digest
            for file in FILES:
                shutil.copyfile(source / file, folder / file)
            info = read_info(folder)
        content = content_digest(folder)
        if recipes is None:
            recipes = info.source.get("training_datasets")
        known = find_content(database, store, content)
        register.refuse_taken(database, NOUN, name, known.id if known else None)
        artefact = publish(store, folder, known)
    detail = {
        **({"fetched": fetched} if fetched else {}),
        "content": content,
        "verified": {"max_logit_difference": report.max_logit_difference, "tokens": report.tokens_compared},
    }
    with database.write() as session:
        if known is not None:
            learn_training(session, known.id, recipes)
            register.give_name(session, NOUN, known.id, name)
            return known
        columns = checkpoint_row(info, artefact.digest, training_datasets=recipes, detail=detail)
        return record(session, artefact, columns, name)


def publish(store: Store, folder: Path, known: Registered | None) -> Artefact:
    """The staged checkpoint as an artefact: the one that is known where its bytes are here, else what was staged."""
    if known is None or not store.exists(known.artefact):
        return store.publish(folder, expect=known.artefact if known else None)
    shutil.rmtree(folder)
    return store.artefact(known.artefact)


def record(session: Session, artefact: Artefact, columns: dict[str, Any], name: str | None) -> Registered:
    """The rows of a published checkpoint. One that is there already stays as it is."""
    register.record_artefact(session, artefact)
    if session.get(tables.Tokenizer, columns["tokenizer"]) is None:
        session.add(tables.Tokenizer(**tokenizer_row(columns["tokenizer"])))
        session.flush()
    there = session.get(tables.Checkpoint, columns["id"])
    if there is None:
        session.add(tables.Checkpoint(**columns))
        session.flush()
    register.give_name(session, NOUN, columns["id"], name)
    return Registered(columns["id"], artefact.digest, there is None)


def is_ours(source: Path, converted: Path) -> bool:
    """Whether `source` is a folder of chessreg's own layout that loads to the same weights as `converted`."""
    import torch

    from chessreg.models.checkpoint import load_model, read_info

    if not all((source / file).is_file() for file in FILES):
        return False
    if read_info(source).encoding != read_info(converted).encoding:
        raise BadInputError(
            f"{source.name} was made for encoding {read_info(source).encoding}",
            f"give --encoding {read_info(source).encoding}",
        )
    ours, theirs = load_model(source).state_dict(), load_model(converted).state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def find_content(database: Database, store: Store, content: str) -> Registered | None:
    """The checkpoint with these weights, configuration and encoding (`models.checkpoint.digest`), if there is one."""
    from chessreg.models.checkpoint import digest

    with database.read() as session:
        table = tables.Checkpoint
        here = table.artefact.is_not(None)  # an external model has no weights to compare
        rows = session.execute(select(table.id, table.artefact, table.detail).where(here)).all()
    for row in rows:
        recorded = row.detail.get("content")
        if recorded is None and store.exists(row.artefact):  # a run made it
            recorded = digest(store.path(row.artefact))
        if recorded == content:
            return Registered(row.id, row.artefact, False)
    return None


def learn_training(session: Session, checkpoint_id: UUID, recipes: Sequence[str] | None) -> None:
    """Add what a checkpoint was trained on where that was unknown. BadInputError where something else is recorded."""
    row = session.get_one(tables.Checkpoint, checkpoint_id)
    if recipes is None or row.training_datasets == list(recipes):
        return
    if row.training_datasets is not None:
        raise BadInputError(
            f"checkpoint {checkpoint_id.hex[-6:]} is registered as trained on other datasets",
            f"chessreg checkpoint show {checkpoint_id.hex[-6:]}",
        )
    row.training_datasets = list(recipes)


def import_reference(database: Database, store: Store, name: str | None = "reference") -> Registered:
    """Register the reference model that comes with chessreg."""
    with as_file(files("chessreg") / "data" / "reference-model") as folder:
        if not folder.is_dir():
            raise NotFoundError(
                "this installation of chessreg carries no reference model", "chessreg run train makes one"
            )
        return import_checkpoint(database, store, folder, name=name)


def export_checkpoint(database: Database, store: Store, reference: str, folder: Path) -> Path:
    """Write a checkpoint as a Hugging Face folder (config.json, model.safetensors; chessreg.json beside them).

    Every byte is checked on the way. Raises BadInputError for a folder that exists, NotFoundError for its parent.
    """
    with database.read() as session:
        row = session.get_one(tables.Checkpoint, names.resolve(session, NOUN, reference))
        digest = with_weights(row, reference).artefact
    if folder.exists():
        raise BadInputError(f"{folder} exists already", "an export makes a new folder: name one that is not there")
    if not folder.parent.is_dir():
        raise NotFoundError(f"the folder {folder.parent} does not exist", f"mkdir -p {folder.parent}")
    artefact = store.verify(digest)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        aside.mkdir()
        for file in FILES:
            shutil.copyfile(artefact.path / file, aside / file)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def random_twin(
    database: Database, store: Store, reference: str, *, name: str | None = None, seed: int = 0
) -> Registered:
    """Register an untrained model of a checkpoint's shape: the baseline of every probe (Karvonen 2024, Table 1)."""
    from chessreg.models.checkpoint import CheckpointInfo, load_model, read_info, save_checkpoint
    from chessreg.models.checkpoint import digest as content_digest

    register.prepare(database, name)
    inputs = Inputs(database, store)
    parent, original = inputs.checkpoint(inputs.recipe(NOUN, reference))
    with store.stage(NOUN) as folder:
        model = load_model(original).untrained(seed)
        source = {"format": "random-init", "seed": seed, "shape_of": parent.artefact}
        info = CheckpointInfo.of(model, read_info(original).encoding, tokens_seen=0, source=source)
        save_checkpoint(model, folder, info)
        content = content_digest(folder)
        known = find_content(database, store, content)
        register.refuse_taken(database, NOUN, name, known.id if known else None)
        artefact = publish(store, folder, known)
    with database.write() as session:
        if known is not None:
            register.give_name(session, NOUN, known.id, name)
            return known
        columns = checkpoint_row(
            info, artefact.digest, training_datasets=[], parent_id=parent.id, detail={"content": content, "seed": seed}
        )
        return record(session, artefact, columns, name)
