"""Inputs of specs: from a user's name or id to an input reference, and from the reference to bytes.

An input reference means the same on every machine. It has one of these forms:

    sha256:<digest>                        an imported artifact
    run:<spec hash>                        all outputs of a run
    run:<spec hash>/<output>               one output of a run
    dataset:<identity>[seed,low,high]      a dataset, or the part of it whose seeded hash is in [low, high)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.folders import expand_path
from chessreg.named import clip_text
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.file_gate import refuse_registry
from chessreg.registry.identity import make_uuid

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import DatasetPart, Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.runs.spec import Spec
    from store import Store

NUMBER_PATTERN = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?"
PART_PATTERN = rf"\[([0-9]{{1,20}}),({NUMBER_PATTERN}),({NUMBER_PATTERN})\]"
REFERENCE_PATTERN = re.compile(
    rf"(?P<form>sha256|run|dataset):[0-9a-f]{{64}}(?P<more>(?<=run:.{{64}})/[^\s/]+|(?<=dataset:.{{64}}){PART_PATTERN})?"
)
DATASET_PATTERN = re.compile(rf"dataset:([0-9a-f]{{64}})(?:{PART_PATTERN})?")
REFERENCE_FORMS = {  # accepted for a noun; other nouns are runs
    "dataset": ("dataset",),
    "checkpoint": ("sha256", "run"),
    "book": ("sha256",),
    "results": ("sha256",),
    "probe-file": ("sha256",),
    "vector-file": ("sha256",),
    "sae-folder": ("sha256",),
}

SAE_FOLDER = "sae-folder"
CONTENT_NOUNS = ("results", "probe-file", "vector-file", SAE_FOLDER)  # third-party files identified by content
FILE_NOUNS = ("book", *CONTENT_NOUNS)  # named by path
IMPORTED_PREFIX = "imported-"  # prefix of kinds whose runs are accepted for another kind


PROBE = "probe"


def is_probe(kind: str) -> bool:
    """Return whether a kind's runs hold probes: `probe`, `imported-probe` and users' kinds such as `mlp-probe`."""
    return kind == PROBE or kind.endswith(f"-{PROBE}")


def is_fitted_probe(kind: str) -> bool:
    """Return whether a kind's runs hold probes that were fitted on a cache of this registry, not imported."""
    return is_probe(kind) and not kind.startswith(IMPORTED_PREFIX)


def is_kind_accepted(kind: str, wanted_kind: str) -> bool:
    """Return whether a run of `kind` is accepted by a setting that requires a run of kind `wanted_kind`."""
    return kind in (wanted_kind, IMPORTED_PREFIX + wanted_kind) or (wanted_kind == PROBE and is_probe(kind))


@dataclass(frozen=True)
class LocatedInput:
    """An input in the store: digest and path of its bytes, and the run that made it, if any."""

    reference: str
    digest: str
    path: Path
    run_id: UUID | None = None


def require_user_file(name: str) -> Path:
    """Return the path of a user's file. Raises NotFoundError if it is not a file, BadInputError for a registry in
    use."""
    path = expand_path(name)
    try:
        is_file, is_folder, is_there = path.is_file(), path.is_dir(), path.exists()
    except OSError as error:
        raise NotFoundError(f"{clip_text(name)}: {error.strerror}") from error
    if not is_file:
        problem = "is a folder, not a file" if is_folder else "is not a file" if is_there else "does not exist"
        raise NotFoundError(f"{path if is_folder else clip_text(name)} {problem}")
    refuse_registry(path)
    return path


def list_user_files(noun: str, name: str) -> dict[str, Path]:
    """Return name in the artifact → path of the files that a user's path names for this noun.

    Raises NotFoundError or BadInputError for a path without them.
    """
    if noun == SAE_FOLDER:
        from chessreg.models.sae_files import list_sae_files

        return {file: require_user_file(str(path)) for file, path in list_sae_files(expand_path(name)).items()}
    path = require_user_file(name)
    return {path.name if noun == "book" else noun: path}


def require_weights(checkpoint: tables.Checkpoint, name: str) -> tables.Checkpoint:
    """Return the checkpoint. Raises BadInputError for an external model, whose weights are unknown."""
    if checkpoint.artifact is None:
        raise BadInputError(
            f"checkpoint {name} is an external model: its games are recorded, its weights are not",
            "chessreg import checkpoint FILE",
        )
    return checkpoint


_VERIFIED_FILES: set[tuple[Path, str]] = set()


def verify_once(store: Store, digest: str) -> None:
    """Verify an artifact, once per process. Raises CorruptError naming the damaged file."""
    key = (store.root, digest)
    if key not in _VERIFIED_FILES:
        store.verify(digest)
        _VERIFIED_FILES.add(key)


class Inputs:
    """Resolves the inputs of specs against one registry and one store, and records which inputs were read."""

    def __init__(self, database: Database, store: Store) -> None:
        self.database, self.store = database, store
        self.located_inputs: dict[tuple[str, str, str], LocatedInput] = {}  # by field, digest and reference
        self.remarks: list[str] = []  # on settings that the inputs cannot meet

    def note_shortage(self, spec: Spec, setting: str, available_count: int) -> None:
        """Add a remark if a number other than the setting's default asks for more than the inputs have."""
        value = getattr(spec, setting)
        if available_count < value != type(spec).model_fields[setting].default:
            remark = f"--{setting.replace('_', '-')} {value:,}: only {available_count:,} are available"
            self.remarks += [remark] if remark not in self.remarks else []

    # -- from names to references ---------------------------------------------------------------------------------

    def reference(self, noun: str, name: str) -> str:
        """Return the input reference of a name or id. A reference to something of this noun is returned unchanged.

        Raises BadInputError for a reference of another noun, and NotFoundError.
        """
        if match := REFERENCE_PATTERN.fullmatch(name):
            expected_nouns = REFERENCE_FORMS.get(noun, ("run",))
            if match["form"] in expected_nouns:
                return name
            raise BadInputError(
                f"{clip_text(name)} is not a {noun.removeprefix('run:')}", f"give a name or {expected_nouns[0]}:…"
            )
        if noun == "dataset":
            return self._resolve_dataset(name)
        if noun == "checkpoint":
            return self._resolve_checkpoint(name)
        if noun == "book":
            return self._resolve_file(noun, name)
        if noun in CONTENT_NOUNS:
            return self._resolve_content(noun, name)
        return self._make_run_reference(noun.removeprefix("run:"), name)

    def _resolve_dataset(self, name: str) -> str:
        name, colon, part = name.partition(":")
        with self.database.read() as session:
            dataset = session.get_one(tables.Dataset, names.resolve_id(session, "dataset", name))
            if not colon:
                return f"dataset:{dataset.identity}"
            split = session.get(tables.Split, (dataset.id, part))
            if split is None:
                part_names = session.scalars(
                    select(tables.Split.name).where(tables.Split.dataset_id == dataset.id)
                ).all()
                hint = f"it has {', '.join(part_names)}" if part_names else f"chessreg dataset split {name} --help"
                raise NotFoundError(f"dataset {name} has no part {part!r}", hint)
            return f"dataset:{dataset.identity}[{split.seed},{split.low!r},{split.high!r}]"

    def _resolve_checkpoint(self, name: str) -> str:
        with self.database.read() as session:
            checkpoint = session.get_one(tables.Checkpoint, names.resolve_id(session, "checkpoint", name))
            require_weights(checkpoint, name)
            if checkpoint.run_id is None:
                return f"sha256:{checkpoint.artifact}"
            run = session.get_one(tables.Run, checkpoint.run_id)
            output = session.scalars(
                select(tables.Output.name).where(
                    tables.Output.run_id == run.id, tables.Output.digest == checkpoint.artifact
                )
            ).first()
            return f"run:{run.spec_hash}/{output}"

    def _resolve_file(self, kind: str, name: str) -> str:
        """Return the reference of an opening book; `resolve.publish_user_files` publishes its bytes later."""
        from chessreg.games.boards.openings import Book

        files = list_user_files(kind, name)
        for path in files.values():
            Book.read(path).check()
        return f"sha256:{self.store.lend(files, kind)}"

    def _resolve_content(self, kind: str, name: str) -> str:
        """Return the reference of files that are identified by their bytes alone."""
        return f"sha256:{self.store.lend(list_user_files(kind, name), kind)}"

    def _make_run_reference(self, kind: str, name: str) -> str:
        """Return the reference of a run. `kind` is the required kind, or `run` for any."""
        with self.database.read() as session:
            run = session.get(tables.Run, names.resolve_id(session, "run", name))
            if run is None:  # named at launch
                raise NotFoundError(f"run {name} has not begun", f"chessreg wait {name}")
            if kind != "run" and not is_kind_accepted(run.kind, kind):
                raise BadInputError(f"run {name} is a {run.kind} run, not a {kind} run")
            return f"run:{run.spec_hash}"

    # -- from references to bytes ---------------------------------------------------------------------------------

    def locate_bytes(
        self, field: str, reference: str, digest: str, run_id: UUID | None = None, *, array: str | None = None
    ) -> LocatedInput:
        """Return a registered artifact, or the group of activations named `array`, and record it as read.

        Missing bytes are pulled from a known place. Raises NotFoundError naming the machines that have them if no such
        place is reachable, and CorruptError if an artifact differs from the published one.
        """
        if not self.store.has_content(digest, array):
            from chessreg.runs import transfer

            description = f"{field} of run {run_id.hex[-6:]}" if run_id else f"{field} {digest[:8]}"
            transfer.pull_items(self.database, self.store, [transfer.TransferItem(digest, description, 0, array)])
        path = self.store.get_array_path(array) if array is not None else self.store.path(digest)
        if array is None:  # chunks of arrays are verified when read
            verify_once(self.store, digest)
        located_input = LocatedInput(reference, digest, path, run_id)
        self.located_inputs[field, digest, reference] = located_input
        return located_input

    def run(self, reference: str, kind: str | None = None, complete: bool = True) -> tables.Run:
        """Return the run that a reference names. Raises NotFoundError, and BadInputError if it is not complete or of
        another kind."""
        spec_hash = reference.removeprefix("run:").partition("/")[0]
        with self.database.read() as session:
            run = session.get(tables.Run, make_uuid(spec_hash))
            if run is None:
                raise NotFoundError(f"no run with spec {spec_hash[:12]}… is in this registry", "run it first")
            if complete and run.completed_at is None:
                raise BadInputError(
                    f"{run.kind} run {run.id.hex[-6:]} is not complete", f"chessreg run --resume {run.id.hex[-6:]}"
                )
            if kind and not is_kind_accepted(run.kind, kind):
                raise BadInputError(f"run {run.id.hex[-6:]} is a {run.kind} run, not a {kind} run")
            session.expunge(run)
            return run

    def artifact(self, field: str, reference: str) -> LocatedInput:
        """Return the artifact of a `sha256:` or `run:…/output` reference."""
        digest, run_id = self._find_digest(reference)
        return self.locate_bytes(field, reference, digest, run_id)

    def _find_digest(self, reference: str) -> tuple[str, UUID | None]:
        """Return the digest of an artifact, and the run that made it, if any."""
        if reference.startswith("sha256:"):
            return reference.removeprefix("sha256:"), None
        run = self.run(reference, complete=False)
        output = reference.partition("/")[2]
        with self.database.read() as session:
            row = session.get(tables.Output, (run.id, output))
        if row is None:
            raise NotFoundError(f"{run.kind} run {run.id.hex[-6:]} has made no {output!r} yet")
        return row.digest, run.id

    def checkpoint(self, reference: str, field: str = "checkpoint") -> tuple[tables.Checkpoint, Path]:
        """Return the row and the folder of a checkpoint."""
        artifact = self.artifact(field, reference)
        return self.read_checkpoint_row(reference), artifact.path

    def read_checkpoint_row(self, reference: str) -> tables.Checkpoint:
        """Return the row of a checkpoint. Its bytes need not be in the store."""
        digest, _ = self._find_digest(reference)
        with self.database.read() as session:
            row = session.scalars(select(tables.Checkpoint).where(tables.Checkpoint.artifact == digest)).one_or_none()
            if row is None:
                raise NotFoundError(f"artifact {digest[:12]}… is not a checkpoint of this registry")
            session.expunge(row)
        return row

    def encoding(self, reference: str) -> Encoding:
        """Return the encoding of a checkpoint. If the encoding belongs to it alone, its bytes must be available."""
        from chessreg.encodings import get_encoding, is_stored_encoding

        name = self.read_checkpoint_row(reference).tokenizer
        return get_encoding(name, self.checkpoint(reference)[1] if is_stored_encoding(name) else None)

    def dataset(self, reference: str, field: str = "dataset") -> tuple[Games, DatasetPart | None]:
        """Return the games of a dataset reference and the part that it names (None: all). BadInputError for
        positions."""
        from chessreg.games.datasets.dataset import Games

        folder, part = self._locate_dataset(reference, field)
        return Games(folder), part

    def positions(self, reference: str, field: str = "dataset") -> tuple[Positions, DatasetPart | None]:
        """Return the positions of a dataset reference and the part that it names (None: all). BadInputError for
        games."""
        from chessreg.games.datasets.positions import Positions

        folder, part = self._locate_dataset(reference, field)
        return Positions(folder), part

    def items(self, reference: str, field: str = "dataset") -> tuple[Games | Positions, DatasetPart | None]:
        """Return the games or positions of a dataset reference and the part that it names (None: all)."""
        from chessreg.games.datasets.dataset import POSITIONS_FILE

        folder, _ = self._locate_dataset(reference, field)
        if (folder / POSITIONS_FILE).is_file():
            return self.positions(reference, field)
        return self.dataset(reference, field)

    def _locate_dataset(self, reference: str, field: str) -> tuple[Path, DatasetPart | None]:
        """Return the folder of a dataset reference and the part that it names."""
        from chessreg.games.datasets.dataset import DatasetPart

        match = DATASET_PATTERN.fullmatch(reference)
        if match is None:
            raise BadInputError(f"{reference!r} is not a dataset reference")
        with self.database.read() as session:
            row = session.scalars(select(tables.Dataset).where(tables.Dataset.identity == match[1])).one_or_none()
        if row is None:
            raise NotFoundError(f"dataset {match[1][:12]}… is not in this registry", "chessreg dataset add FILE")
        located_input = self.locate_bytes(field, reference, row.artifact)
        part = DatasetPart(int(match[2]), float(match[3]), float(match[4])) if match[2] else None
        return located_input.path, part

    def rows(self, table: Any, run: tables.Run) -> list[Any]:
        """Return all rows of an entity table that belong to a run, in key order. Raises NotFoundError if there are
        none."""
        with self.database.read() as session:
            rows = session.scalars(
                select(table).where(table.run_id == run.id).order_by(*table.__table__.primary_key)
            ).all()
            session.expunge_all()
        if not rows:
            raise NotFoundError(f"{run.kind} run {run.id.hex[-6:]} has no {table.__tablename__}")
        return list(rows)

    def read_spec(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recorded spec of the run that a result row belongs to."""
        with self.database.read() as session:
            return dict(session.get_one(tables.Run, UUID(str(row["run_id"]))).spec)

    def read_unit_rows(self, table: Any, row: Mapping[str, Any], *order: Any) -> list[Any]:
        """Return the rows of a result table for the same run and unit as `row`, ordered by `order`."""
        is_unit = table.run_id == UUID(str(row["run_id"])), table.unit == int(row["unit"])
        with self.database.read() as session:
            rows = session.scalars(select(table).where(*is_unit).order_by(*order)).all()
            session.expunge_all()
        return list(rows)
