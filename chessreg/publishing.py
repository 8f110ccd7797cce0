"""The folder of a repository of the Hugging Face hub: files that other tools load, and a card from the registry.

A checkpoint becomes a folder of transformers, SAEs folders of SAELens, probes and vectors safetensors with their facts
in the header, and a dataset Parquet. The card contains no host names, environment, patches or folders of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.cards import format_card_of_checkpoint, format_card_of_dataset, format_card_of_run, hide_folders
from chessreg.entities.checkpoint import export_checkpoint
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets.positions import NO_MOVE, Positions
from chessreg.masking import mask
from chessreg.models.hook_points import to_hook_pattern
from chessreg.models.importers.direction_files import COLUMNS, DETAILS, DirectionFacts, write_direction_file
from chessreg.models.importers.directions import SIDES
from chessreg.registry import names, tables
from chessreg.runs.fitted import load_probe, load_vector_row, read_probe_rows
from store.files import discard_path

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.games.datasets.dataset import DatasetFile
    from chessreg.models.hub_repository import HubAddress, RepositoryType
    from chessreg.session import Session

NOUNS = ("checkpoint", "dataset", "probe", "vector", "sae")
GAME_COLUMNS = {  # of a published Parquet file of games → the column of a dataset
    "White": "white", "Black": "black", "WhiteElo": "white_elo", "BlackElo": "black_elo", "Result": "result",
    "Event": "event", "Site": "site", "Date": "date", "ECO": "eco", "TimeControl": "time_control",
    "Termination": "termination",
}  # fmt: skip
POSITION_COLUMNS = (
    "fen", "best", "played", "eval_before", "eval_after", "mover_elo", "opponent_elo", "rating", "judgment", "game",
    "ply", "action", "win_prob",
)  # fmt: skip
SETTINGS_FILES = ("chessreg.json", "config.json", "cfg.json")


def find_published_noun(session: Session, reference: str) -> str:
    """Return the noun of the checkpoint, dataset, probe, vector or SAE run that a reference names.

    Raises NotFoundError if nothing matches, and BadInputError if several nouns do.
    """
    ids_by_noun: dict[str, UUID] = {}
    name = reference.partition(":")[0]  # of a part NAME:PART
    with session.database.read() as sql:
        for noun in NOUNS:
            try:
                ids_by_noun[noun] = names.resolve_id(sql, noun, name if noun == "dataset" else reference)
            except NotFoundError:
                continue
    if not ids_by_noun:
        raise NotFoundError(
            f"{reference!r} is not a checkpoint, dataset, probe, vector or SAE run", "chessreg runs list"
        )
    if len(ids_by_noun) > 1:
        reference_texts = ", ".join(f"{noun} {id.hex[-6:]}" for noun, id in ids_by_noun.items())
        raise BadInputError(f"{reference!r} is ambiguous: {reference_texts}", "give one of these ids")
    return next(iter(ids_by_noun))


def get_repository_type(noun: str) -> RepositoryType:
    """Return the type of the repository that holds entities of a noun."""
    return "dataset" if noun == "dataset" else "model"


@dataclass(frozen=True)
class RepositoryFolder:
    """A temporary folder with the files of a repository, and the text of its card."""

    folder: Path
    card: str


@contextmanager
def make_repository(session: Session, noun: str, reference: str, address: HubAddress) -> Iterator[RepositoryFolder]:
    """Yield the files of a repository with its card. They are removed after the block.

    `address` has the repository's type. Raises NotFoundError for bytes that are not in the store, and BadInputError for
    entities that other tools could not load.
    """
    with session.store.stage("push") as staging:
        folder = staging / "repository"
        card = WRITERS[noun](session, reference, folder, address)
        for path in sorted(folder.rglob("*.json")):
            if path.name in SETTINGS_FILES:
                drop_private_settings(path)
        (folder / "README.md").write_text(card, encoding="utf-8")
        yield RepositoryFolder(folder, card)
        discard_path(staging)


def drop_private_settings(path: Path) -> None:
    """Remove from a JSON file of settings the texts that are paths of a machine or contain secrets."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    content_settings = drop_private_values(content)
    if content_settings != content:
        path.write_text(json.dumps(content_settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def drop_private_values(value: Any) -> Any:
    """Return JSON data without texts that are paths of a machine or contain secrets.

    >>> drop_private_values({"hook_name": "blocks.3", "checkpoint_path": "/home/ann/out", "more": [{"path": "~/a"}]})
    {'hook_name': 'blocks.3', 'more': [{}]}
    """
    if isinstance(value, dict):
        return {name: drop_private_values(one) for name, one in value.items() if not is_private(one)}
    if isinstance(value, list):
        return [drop_private_values(one) for one in value if not is_private(one)]
    return value


def is_private(value: Any) -> bool:
    """Return whether a setting is a path of a machine or contains a secret."""
    return isinstance(value, str) and (hide_folders(value) != value or mask(value) != value)


def write_checkpoint_files(session: Session, reference: str, folder: Path, address: HubAddress) -> str:
    """Write checkpoint `reference` into `folder` in the layout of transformers. Returns the card of the repository
    `address`.
    """
    card = format_card_of_checkpoint(session, reference, address)
    export_checkpoint(session.database, session.store, reference, folder)
    return card


def write_dataset_files(session: Session, reference: str, folder: Path, address: HubAddress) -> str:
    """Write dataset `reference`, or a part of one (NAME:PART), into `folder` as Parquet that `dataset add` reads.

    Returns the card of the repository `address`.
    """
    import pyarrow.parquet as pq

    file, part = session.inputs.items(session.inputs.reference("dataset", reference))
    selected_file = file if part is None else file.part(part)
    tables = build_published_tables(selected_file)
    folder.mkdir()
    for name, table in tables.items():
        pq.write_table(table, folder / name, compression="zstd")
    return format_card_of_dataset(session, reference, address, len(selected_file), list(tables))


def build_published_tables(file: DatasetFile) -> dict[str, pa.Table]:
    """Return the published tables of a dataset by file name. Reading them again gives the same rows, without those of
    another part."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(file, Positions):
        table = file.table(("text", *GAME_COLUMNS.values()))
        moves = pc.binary_join_element_wise(pc.utf8_ltrim(table["text"], ";"), table["result"], " ")
        columns = {"movetext": moves} | {heading: table[column] for heading, column in GAME_COLUMNS.items()}
        return {"games.parquet": pa.table(columns)}
    table = file.table((*POSITION_COLUMNS, "line"))
    puzzle = pc.is_valid(table["line"])
    tables_of: dict[str, pa.Table] = {}
    game_table, puzzles = table.filter(pc.invert(puzzle)), table.filter(puzzle)
    if len(game_table) or not len(puzzles):
        filled_names = [
            name for name in POSITION_COLUMNS if game_table[name].null_count < len(game_table) or name == "fen"
        ]
        tables_of["positions.parquet"] = game_table.select(filled_names)
    if len(puzzles):
        filled_names = [name for name in POSITION_COLUMNS if puzzles[name].null_count < len(puzzles) and name != "best"]
        moves = pc.binary_join_element_wise(pa.scalar(NO_MOVE), puzzles["line"], " ")
        tables_of["puzzles.parquet"] = puzzles.select(filled_names).append_column("moves", moves)
    return tables_of


def write_probe_files(session: Session, reference: str, folder: Path, address: HubAddress) -> str:
    """Write each layer of probe run `reference` into `folder` as `layer-N.probe.safetensors`.

    Returns the card of the repository `address`. Raises BadInputError for probes that only chessreg or their own tool
    can read.
    """
    inputs = session.inputs
    run = inputs.reference("run:probe", reference)
    folder.mkdir()
    for layer, row in read_probe_rows(inputs, run).items():
        probe = load_probe(inputs, run, layer)
        kind = inputs.run(run).kind
        if probe.load_kind is not None:
            raise BadInputError(
                f"probes of {kind} need its code, so other tools cannot read them", "push its checkpoint"
            )
        if "source" in row.detail:
            raise BadInputError(
                f"probe {reference} reads the latents of an SAE, not the residual stream", "push the SAE"
            )
        facts = build_facts(session, "probe", row, is_centred=probe.centred)
        write_direction_file(
            folder / f"layer-{layer}.probe.safetensors", {"weight": np.ascontiguousarray(probe.weight)}, facts
        )
    return format_card_of_run(session, "probe", run, address)


def write_vector_files(session: Session, reference: str, folder: Path, address: HubAddress) -> str:
    """Write each layer of vector run `reference` into `folder` as `layer-N.vector.safetensors`.

    Returns the card of the repository `address`.
    """
    inputs = session.inputs
    run = inputs.reference("run:vector", reference)
    folder.mkdir()
    for row in inputs.rows(tables.VectorRecord, inputs.run(run)):
        direction = load_vector_row(inputs, run, row)
        sides = zip(SIDES, (direction.vector, direction.high, direction.low), strict=True)
        tensors = {name: np.ascontiguousarray(one, np.float32) for name, one in sides if one is not None}
        facts = build_facts(session, "vector", row, is_centred=row.detail.get("residual") == "centred")
        write_direction_file(folder / f"layer-{row.layer}.vector.safetensors", tensors, facts)
    return format_card_of_run(session, "vector", run, address)


def build_facts(
    session: Session, content: Any, row: tables.ProbeRecord | tables.VectorRecord, *, is_centred: bool
) -> DirectionFacts:
    """Return the facts about one layer that the header of its file states.

    `content` is `probe` or `vector`, `row` the layer's row, and `is_centred` whether the residual stream was centred.
    """
    detail = row.detail
    model, layers = detail.get("model"), None
    if row.checkpoint_id is not None:
        with session.database.read() as sql:
            checkpoint = sql.get_one(tables.Checkpoint, row.checkpoint_id)
            model, layers = names.read_name(sql, "checkpoint", checkpoint.id), checkpoint.layers
    label = row.label if isinstance(row, tables.ProbeRecord) else row.source.rpartition(":")[2]
    return DirectionFacts(
        content=content,
        layer=row.layer,
        hook_point=to_hook_pattern(row.hook_point),
        label=label,
        positions=row.positions,
        residual="centred" if is_centred else "raw",
        model=model,
        n_layers=layers,
        first_position=detail.get("skip_sites"),
        phase=detail.get("phase"),
        columns={name: getattr(row, name) for name in COLUMNS[content]},
        detail={name: detail[name] for name in DETAILS[content] if detail.get(name) is not None},
    )


def write_sae_folders(session: Session, reference: str, folder: Path, address: HubAddress) -> str:
    """Write each SAE of run `reference` as a folder of SAELens below `folder`. Returns the card of the repository
    `address`.
    """
    from chessreg.experiments.sae.stored import build_output_name, export_sae

    inputs = session.inputs
    run = inputs.reference("run:sae", reference)
    folder.mkdir()
    for row in inputs.rows(tables.SaeRecord, inputs.run(run)):
        place = folder / build_output_name(row.hook_point, row.features, row.detail["d_model"])
        export_sae(inputs, run, place, hook_point=row.hook_point, expansion=row.detail.get("expansion"))
    return format_card_of_run(session, "sae", run, address)


WRITERS: dict[str, Callable[[Session, str, Path, HubAddress], str]] = {
    "checkpoint": write_checkpoint_files,
    "dataset": write_dataset_files,
    "probe": write_probe_files,
    "vector": write_vector_files,
    "sae": write_sae_folders,
}
