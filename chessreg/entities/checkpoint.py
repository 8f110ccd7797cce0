"""Checkpoints: listing, import, export and random-init controls."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session as SqlSession

from chessreg.entities import register
from chessreg.entities.base import Entity, Row, read_entity_row, read_entity_rows
from chessreg.entities.display import Column, ShowOutput, Thing, format_annotations, list_facts
from chessreg.errors import BadInputError, NotFoundError
from chessreg.folders import write_new_folder
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.inputs import Inputs, require_weights

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.checkpoint import CheckpointInfo
    from chessreg.models.importers import UnrecordedSettings
    from chessreg.session import Session
    from store import Store, StoredArtifact

NOUN = "checkpoint"
ExportType = Literal["float32", "float16", "bfloat16"]


class Checkpoints(Entity):
    """Models: list, show, export."""

    table = tables.Checkpoint
    plural = "checkpoints"
    place = 20
    columns = (
        Column("id", "id"), Column("name", "name"), Column("architecture", "architecture"), Column("layers", "layers"),
        Column("d_model", "d model"), Column("heads", "heads"), Column("parameters", "parameters"),
        Column("tokenizer", "tokenizer"), Column("tokens_seen", "tokens seen"),
        Column("source_format", "source"),
    )  # fmt: skip
    overview_columns = (
        *columns[2:7], columns[8], Column("twin_of", "twin of"), Column("made_by", "made by"),
        Column("residual", "residual"), columns[7], Column("source_format", "from"), Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no models yet: chessreg import checkpoint FILE --name model"
    measured = (
        Column("tokens_seen", "training tokens"),
        Column("max_logit_difference", "largest logit difference from the file"),
        Column("import_loss", "loss on sample games, nats per token"),
        Column("import_entropy", "loss of token frequencies alone, nats per token"),
        Column("import_legal", "first-try legal moves in sample games", "share"),
        Column("first_try_legal", "legal first moves in a legality run", "share"),
    )  # fmt: skip
    hidden = ("detail", "import_learned", "training_datasets", "parent_id", "archived", "invalid")
    show_help = """Show a checkpoint: its shape, training data, origin and import checks."""
    example = "reference --json"

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        if reference is not None:
            return [read_checkpoint(sql, reference)]
        return super().rows(sql)

    def overview(self, sql: SqlSession) -> list[Row]:
        rows = read_entity_rows(sql, self.noun, self.table)
        names_by_id = {row["id"]: row["name"] or row["id"].hex[-6:] for row in rows}
        runs = names.read_names_of(sql, "run", filter(None, (row["run_id"] for row in rows)))
        return [
            {**row, "made_by": runs.get(row["run_id"]), "twin_of": find_twin_name(row, names_by_id)} for row in rows
        ]

    def make_output(self, row: Row, lines: Any = (), remarks: Any = ()) -> ShowOutput:
        output = super().make_output(row, lines, [*remarks, *list_import_warnings(row)])
        dataset_names = "unknown" if row["trained_on"] is None else ", ".join(row["trained_on"]) or "nothing"
        return output._replace(read_as={**output.read_as, "trained_on": dataset_names})

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            row = read_checkpoint(sql, id.hex)
            twin = find_twin_name(row, names.read_noun_names(sql, "checkpoint"))
        dataset_names, legal = row["trained_on"], row["first_try_legal"]
        more = {
            "trained_on": "unknown" if dataset_names is None else ", ".join(dataset_names) or "nothing",
            "twin_of": twin,
        }
        parts = [
            f"checkpoint · {row['architecture'] or row['source_format']}",
            f"{row['layers']} layers × {row['d_model']}" if row["layers"] else "no weights",
            f"{row['parameters']:,} parameters" if row["parameters"] else "",
            f"{row['tokens_seen']:,} tokens seen" if row["tokens_seen"] is not None else "tokens seen: unknown",
            f"random-init control of {twin}" if twin else "",
            "" if legal is None else f"{100 * legal:.1f} % legal on the first try",
        ]
        return Thing(
            " · ".join(filter(None, parts)), format_annotations(row), [list_facts({**row, **more}, self.measured)]
        )

    def describe_origin(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        if row.source_format == "random-init" and row.parent_id:
            parent = names.read_name(sql, "checkpoint", row.parent_id) or row.parent_id.hex[-6:]
            return f"chessreg checkpoint twin {shlex.quote(parent)} --seed {int(row.detail.get('seed', 0))}", ""
        if row.artifact is None:
            return "", "an external model: the registry has its games, but not its weights"
        if bundled_model := find_bundled_model(row):
            return f"chessreg import checkpoint --reference={bundled_model}", f"content {row.artifact[:12]}"
        file = next((name for name, _ in self.list_source_files(sql, row)), "FILE")
        shape, ratings = row.detail.get("shape") or {}, ""
        if row.source_format == "maia2":
            ratings = f" --rating {shape['rating']} --opponent-rating {shape['opponent_rating']}"
        return f"chessreg import checkpoint {shlex.quote(file)}{ratings}", f"content {row.artifact[:12]}"

    def list_source_files(self, sql: SqlSession, row: Any) -> list[tuple[str, str]]:
        source = row.detail.get("source") or {}
        return [(source["file"], source["sha256"])] if source.get("file") and source.get("sha256") else []


def read_checkpoint(sql: SqlSession, reference: str) -> Row:
    """Return a checkpoint's row with the names of its parent and training datasets and the measurements of its import.

    The fields `import_…` describe its predictions of the sample games at import (losses in nats per token).
    """
    row = read_entity_row(sql, "checkpoint", tables.Checkpoint, reference)
    verification, games, source = (row["detail"].get(part) or {} for part in ("verified", "games", "source"))
    datasets = {
        identity: names.read_name(sql, "dataset", id) or id.hex[-6:]
        for id, identity in sql.query(tables.Dataset.id, tables.Dataset.identity)
    }
    dataset_names = row["training_datasets"]
    return {
        **row,
        "max_logit_difference": verification.get("max_logit_difference"),
        "import_loss": games.get("loss"),
        "import_entropy": games.get("entropy"),
        "import_legal": games.get("legal"),
        "import_learned": games.get("learned"),
        "vocabulary": describe_vocabulary(source.get("tokenizer") or {}),
        "source_file": source.get("file"),
        "source_sha256": source.get("sha256"),
        "fetched_from": (row["detail"].get("fetched") or {}).get("url"),
        "parent": names.read_name(sql, "checkpoint", row["parent_id"]) if row["parent_id"] else None,
        "first_try_legal": read_legal_share(sql, row["artifact"]),
        "trained_on": None
        if dataset_names is None
        else [datasets.get(dataset_reference[8:72], dataset_reference) for dataset_reference in dataset_names],
    }


def describe_vocabulary(tokenizer: Row) -> str | None:
    """Return the source of an import's token order and the changes to it, or None if nothing is recorded."""
    if not tokenizer:
        return None
    rows, dropped_count = tokenizer.get("rows"), tokenizer.get("dropped_rows", 0)
    dropped_texts = [f"'{text}'" for text in tokenizer.get("dropped", [])[:3]]
    dropped_texts += ["…"] if dropped_texts and dropped_count > len(dropped_texts) else []
    names_of_dropped = f" ({', '.join(dropped_texts)})" if dropped_texts else ""
    parts = [
        tokenizer.get("file") or "no file",
        "reordered" if rows and rows != list(range(len(rows))) else "",
        f"{dropped_count} rows dropped{names_of_dropped}" if dropped_count else "",
    ]
    return ", ".join(filter(None, parts))


def list_import_warnings(row: Row) -> list[str]:
    """Return remarks and warnings about an imported checkpoint, one sentence each.

    Warns if it predicts the sample games no better than the frequencies of single tokens.
    """
    warnings = list(row["detail"].get("remarks") or [])
    if row["import_learned"] is not False:
        return warnings
    if row["import_loss"] is None or row["import_entropy"] is None:
        warnings.append(
            "warning: the model could not be checked on the sample games: its context is too short, it does not "
            "write moves, or its logits are not finite"
        )
    else:
        source = row["detail"].get("source", {})
        cause = ", or its tokens are in another order: give the order with --vocabulary FILE"
        if (source.get("tokenizer") or {}).get("file"):
            cause = f" or hardly trained; the order of its tokens is known from {source['tokenizer']['file']}"
        if row["tokenizer"] == "maia-2":
            cause = " or hardly trained"
        if source.get("attention_from") == "user":
            cause = ", or it was trained with another --attention"
        warnings.append(
            f"warning: the model does not predict the sample games: its loss is {row['import_loss']:.2f} nats per "
            f"token, that of token frequencies alone {row['import_entropy']:.2f}. It is untrained{cause}"
        )
    return warnings


def find_twin_name(row: Row, names_by_id: dict[UUID, str]) -> str | None:
    """Return the name of the model whose random-init control this checkpoint is, or None.

    `names_by_id` maps ids to names.
    """
    return names_by_id.get(row["parent_id"]) if row["source_format"] == "random-init" else None


def read_legal_share(sql: SqlSession, artifact: str | None) -> float | None:
    """Return the fraction of turns whose greedy text is a legal move.

    Uses the newest complete legality run of these weights. Returns None without such a run.
    """
    run, run_input, trial = tables.Run, tables.RunInput, tables.Trial
    newest_row = (
        select(run.id)
        .join(run_input, run_input.run_id == run.id)
        .where(run.kind == "legality", run.completed_at.is_not(None), run_input.digest == artifact)
        .order_by(run.created_at.desc(), run.id)
        .limit(1)
    )
    turns = trial.run_id == newest_row.scalar_subquery(), trial.legal_original.is_not(None)
    legal = func.count().filter(trial.legal_original.is_(True))
    turn_count, right = sql.execute(select(func.count(), legal).where(*turns)).one()
    return right / turn_count if turn_count else None


# -- registered -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegisteredCheckpoint:
    """A registered checkpoint. `created` is False if it was registered before."""

    id: UUID
    artifact: str
    is_new: bool


def build_checkpoint_row(
    info: CheckpointInfo,
    digest: str,
    *,
    training_datasets: Sequence[str] | None,
    parent_id: UUID | None = None,
    run_id: UUID | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the columns of a checkpoint's row. `digest` is that of its artifact; the id is derived from it.

    `training_datasets` are references, or None if unknown. `parent_id` is the checkpoint that it was made from,
    `run_id` the run that made it, and `extra` is added to the column `detail`.
    """
    shape = info.architecture
    return {
        "id": make_uuid(digest),
        "artifact": digest,
        "architecture": shape["family"],
        "layers": shape["n_layer"],
        "d_model": shape["n_embd"],
        "heads": shape.get("n_head"),
        "block_size": info.block_size,
        "tokenizer": info.encoding,
        "parameters": info.parameters,
        "parameters_without_embeddings": info.parameters_without_embeddings,
        "residual": info.residual,
        "tokens_seen": info.tokens_seen,
        "training_datasets": None if training_datasets is None else list(training_datasets),
        "source_format": info.source.get("format", "chessreg"),
        "parent_id": parent_id,
        "run_id": run_id,
        "detail": {"shape": shape, "source": info.source, **(extra or {})},
        "created_at": get_utc_now(),
    }


def build_tokenizer_row(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Return the columns of a tokenizer's row. `folder` is the checkpoint's folder."""
    from chessreg.encodings import get_encoding

    tokenizer = get_encoding(name, folder)
    return {"name": name, "size": tokenizer.size, "vocabulary": list(tokenizer.vocabulary)}


def import_checkpoint(
    database: Database,
    store: Store,
    source: Path,
    *,
    name: str | None = None,
    encoding: str | Encoding | None = None,
    trained_on: Sequence[str] | None = None,
    fetch_record: dict[str, Any] | None = None,
    vocabulary: Path | None = None,
    unrecorded_settings: UnrecordedSettings | None = None,
) -> RegisteredCheckpoint:
    """Convert the file or folder `source`, verify its logits, check it on sample games, then publish and register it.

    `encoding`, `vocabulary` and `unrecorded_settings` are passed to `importers.import_checkpoint`.
    `encodings.prompts.make_prompt_encoding` makes an encoding for a language model. Importing the same weights again
    returns the existing checkpoint. `trained_on` lists datasets of the registry (None: unknown). `fetch_record` records
    the download.

    Raises NotFoundError for a missing file or dataset. Raises BadInputError if `source` is not a checkpoint, has code
    in a pickle or an unsupported vocabulary, or if the name is in use. Nothing is stored or recorded then.
    """
    from chessreg.models import importers
    from chessreg.models.checkpoint import compute_checkpoint_digest as content_digest
    from chessreg.models.checkpoint import list_checkpoint_files, read_info

    if not source.exists():
        raise NotFoundError(f"{source} does not exist")
    inputs = Inputs(database, store)
    references = None if trained_on is None else [inputs.reference("dataset", reference) for reference in trained_on]
    register.check_registration(database, name)
    with store.stage(NOUN) as folder:
        report = importers.convert_checkpoint(
            source,
            folder,
            encoding=encoding,
            vocabulary=vocabulary,
            settings=unrecorded_settings or importers.NO_SETTINGS,
        )
        info = report.info
        if is_chessreg_folder(source, folder):  # copied unchanged, so that its digest stays the same
            for file in list_checkpoint_files(source):
                shutil.copyfile(source / file, folder / file)
            info = read_info(folder)
        content = content_digest(folder)
        if references is None:
            references = info.source.get("training_datasets")
        existing_row = find_checkpoint_content(database, store, content)
        register.require_unused_name(database, NOUN, name, existing_row.id if existing_row else None)
        artifact = publish_checkpoint(store, folder, existing_row)
    provenance = {
        **({"fetched": fetch_record} if fetch_record else {}),
        "content": content,
        "verified": {"max_logit_difference": report.max_logit_difference, "tokens": report.tokens_compared},
        "games": report.games.as_json(),
        **({"remarks": list(report.remarks)} if report.remarks else {}),
    }
    with database.write() as session:
        if existing_row is not None:
            record_training_datasets(session, existing_row.id, references)
            record_import_details(session, existing_row.id, provenance)
            register.assign_name(session, NOUN, existing_row.id, name)
            return existing_row
        columns = build_checkpoint_row(info, artifact.digest, training_datasets=references, extra=provenance)
        return record_checkpoint(session, artifact, columns, name)


def publish_checkpoint(store: Store, folder: Path, known_checkpoint: RegisteredCheckpoint | None) -> StoredArtifact:
    """Publish the staged checkpoint and return its artifact. If `known_checkpoint` is in the store, return that and
    delete `folder`.
    """
    if known_checkpoint is None or not store.exists(known_checkpoint.artifact):
        return store.publish(folder, expect=known_checkpoint.artifact if known_checkpoint else None)
    shutil.rmtree(folder)
    return store.artifact(known_checkpoint.artifact)


def record_checkpoint(
    session: SqlSession, artifact: StoredArtifact, columns: dict[str, Any], name: str | None
) -> RegisteredCheckpoint:
    """Insert the rows of a published checkpoint and assign `name`. An existing row is kept unchanged.

    `columns` are the values of its row by column name, including the `id` and the description of the tokenizer.
    """
    register.record_artifact(session, artifact)
    if session.get(tables.Tokenizer, columns["tokenizer"]) is None:
        session.add(tables.Tokenizer(**build_tokenizer_row(columns["tokenizer"], artifact.path)))
        session.flush()
    checkpoint = session.get(tables.Checkpoint, columns["id"])
    if checkpoint is None:
        session.add(tables.Checkpoint(**columns))
        session.flush()
    register.assign_name(session, NOUN, columns["id"], name)
    return RegisteredCheckpoint(columns["id"], artifact.digest, checkpoint is None)


def is_chessreg_folder(source: Path, converted_folder: Path) -> bool:
    """Return whether `source` is a folder in chessreg's layout that loads to the same weights as `converted_folder`.

    Raises BadInputError if it was made for another encoding.
    """
    import torch

    from chessreg.models.checkpoint import list_checkpoint_files, load_model, read_info

    if not all((source / file).is_file() for file in list_checkpoint_files(source)):
        return False
    if read_info(source).encoding != read_info(converted_folder).encoding:
        raise BadInputError(
            f"{source.name} was made for encoding {read_info(source).encoding}",
            f"give --encoding {read_info(source).encoding}",
        )
    if read_info(source).architecture != read_info(converted_folder).architecture:
        return False
    source_state, converted_state = load_model(source).state_dict(), load_model(converted_folder).state_dict()
    return source_state.keys() == converted_state.keys() and all(
        torch.equal(source_state[k], converted_state[k]) for k in source_state
    )


def find_checkpoint_content(database: Database, store: Store, content: str) -> RegisteredCheckpoint | None:
    """Return the registered checkpoint with this content digest of weights, configuration and encoding, or None."""
    from chessreg.models.checkpoint import compute_checkpoint_digest

    with database.read() as session:
        table = tables.Checkpoint
        has_weights = table.artifact.is_not(None)  # external models have no weights to compare
        rows = session.execute(select(table.id, table.artifact, table.detail).where(has_weights)).all()
    for row in rows:
        recorded_content = row.detail.get("content")
        if recorded_content is None and store.exists(row.artifact):  # a run made it
            recorded_content = compute_checkpoint_digest(store.path(row.artifact))
        if recorded_content == content:
            return RegisteredCheckpoint(row.id, row.artifact, False)
    return None


def record_training_datasets(session: SqlSession, checkpoint_id: UUID, references: Sequence[str] | None) -> None:
    """Record the training datasets of a checkpoint if unknown. Raises BadInputError if others are recorded."""
    row = session.get_one(tables.Checkpoint, checkpoint_id)
    if references is None or row.training_datasets == list(references):
        return
    if row.training_datasets is not None:
        raise BadInputError(
            f"checkpoint {checkpoint_id.hex[-6:]} is registered as trained on other datasets",
            f"chessreg checkpoint show {checkpoint_id.hex[-6:]}",
        )
    row.training_datasets = list(references)


def record_import_details(session: SqlSession, checkpoint_id: UUID, extra: dict[str, Any]) -> None:
    """Add measurements of an import to a checkpoint that lacks them: one made by a run or imported by an earlier
    version.
    """
    row = session.get_one(tables.Checkpoint, checkpoint_id, with_for_update=True, populate_existing=True)
    if more := {name: value for name, value in extra.items() if name not in row.detail}:
        row.detail = {**row.detail, **more}


BUNDLED_MODELS = {"pgn": ("reference-model", "reference"), "uci": ("uci-model", "uci"), "fen": ("fen-model", "fen")}
"""Bundled models: key → (folder in chessreg/data, default name of the checkpoint)."""


def find_bundled_model(row: tables.Checkpoint) -> str | None:
    """Return the key in BUNDLED_MODELS of a bundled model, or None for another model."""
    spec_hash = str((row.detail.get("source") or {}).get("spec_hash") or "")
    for model_name, (data, _) in BUNDLED_MODELS.items() if spec_hash and row.run_id is None else ():
        config = files("chessreg") / "data" / data / "chessreg.json"
        if config.is_file() and spec_hash in config.read_text(encoding="utf-8"):
            return model_name
    return None


def import_reference(
    database: Database, store: Store, name: str | None = None, model_name: str = "pgn"
) -> RegisteredCheckpoint:
    """Register a bundled model as `name`.

    `model_name` is `pgn` (PGN characters), `uci` (UCI squares) or `fen` (positions).
    """
    data, default_name = BUNDLED_MODELS[model_name]
    with as_file(files("chessreg") / "data" / data) as folder:
        if not folder.is_dir():
            raise NotFoundError(
                "the bundled model is missing from this installation of chessreg",
                "chessreg run train --architecture gpt2 --help",
            )
        return import_checkpoint(database, store, folder, name=name or default_name)


def export_checkpoint(
    database: Database,
    store: Store,
    reference: str,
    folder: Path,
    dtype: ExportType | None = None,
    card: str | None = None,
) -> Path:
    """Write a checkpoint as a Hugging Face folder for AutoModelForCausalLM and AutoTokenizer, and return the folder.

    The folder has config.json, model.safetensors and chessreg.json. If the model reads games or prompts, it also has
    the tokenizer's files. `card` is the text of its README.md. Every byte is verified against the artifact's digest.
    `dtype` rounds the weights (None: keep them). The result is another checkpoint; its chessreg.json records the
    training datasets.

    Raises BadInputError if the folder exists or `dtype` cannot hold the weights, NotFoundError if its parent is
    missing.
    """
    from chessreg import encodings
    from chessreg.encodings.tokenizer_files import write_tokenizer_files
    from chessreg.models.checkpoint import list_checkpoint_files, read_info

    with database.read() as session:
        row = session.get_one(tables.Checkpoint, names.resolve_id(session, NOUN, reference))
        digest = require_weights(row, reference).artifact
    with write_new_folder(folder, "export the checkpoint") as staging:
        artifact = store.verify(digest)
        if dtype is None:
            for file in list_checkpoint_files(artifact.path):
                shutil.copyfile(artifact.path / file, staging / file)
        else:
            write_rounded(artifact.path, staging, dtype, row.training_datasets)
        write_tokenizer_files(encodings.get_encoding(read_info(staging).encoding, staging), staging)
        if card is not None:
            (staging / "README.md").write_text(card, encoding="utf-8")
    return folder


def write_rounded(source: Path, folder: Path, dtype: ExportType, training_datasets: list[str] | None) -> None:
    """Write the checkpoint in `source` to `folder` with weights in `dtype`. Raises BadInputError for weights beyond its
    range.
    """
    import torch

    from chessreg.models.checkpoint import copy_encoding, load_model, read_info, save_checkpoint

    network, info = load_model(source), read_info(source)
    largest = max(float(tensor.abs().max()) for tensor in network.state_dict().values())
    if largest > torch.finfo(getattr(torch, dtype)).max:
        raise BadInputError(f"weights reach {largest:.3g}, more than {dtype} can hold", "--dtype bfloat16")
    origin = {**info.source, "rounded_to": dtype}
    if training_datasets is not None:
        origin["training_datasets"] = training_datasets
    save_checkpoint(network, folder, replace(info, source=origin), dtype)
    copy_encoding(source, folder)


def register_random_init_control(
    database: Database, store: Store, reference: str, *, name: str | None = None, seed: int = 0
) -> RegisteredCheckpoint:
    """Register an untrained model with the shape of checkpoint `reference`: the baseline of every probe (Karvonen 2024,
    Table 1).

    `seed` determines its weights.
    """
    from chessreg.models.checkpoint import CheckpointInfo, copy_encoding, load_model, read_info, save_checkpoint
    from chessreg.models.checkpoint import compute_checkpoint_digest as content_digest

    register.check_registration(database, name)
    inputs = Inputs(database, store)
    parent, original = inputs.checkpoint(inputs.reference(NOUN, reference))
    with store.stage(NOUN) as folder:
        model = load_model(original).make_untrained(seed)
        source = {"format": "random-init", "seed": seed, "shape_of": parent.artifact}
        info = CheckpointInfo.from_network(model, read_info(original).encoding, tokens_seen=0, source=source)
        save_checkpoint(model, folder, info)
        copy_encoding(original, folder)
        content = content_digest(folder)
        existing_row = find_checkpoint_content(database, store, content)
        register.require_unused_name(database, NOUN, name, existing_row.id if existing_row else None)
        artifact = publish_checkpoint(store, folder, existing_row)
    with database.write() as session:
        if existing_row is not None:
            register.assign_name(session, NOUN, existing_row.id, name)
            return existing_row
        columns = build_checkpoint_row(
            info, artifact.digest, training_datasets=[], parent_id=parent.id, extra={"content": content, "seed": seed}
        )
        return record_checkpoint(session, artifact, columns, name)
