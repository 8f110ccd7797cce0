"""Runs: listing them, the command that recreates one, and the boards behind a unit."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.entities.base import Entity, Row
from chessreg.entities.display import Column, Part, ShowOutput
from chessreg.errors import NotFoundError
from chessreg.named import clip_text
from chessreg.registry import names, read, tables
from chessreg.registry.identity import shorten_id
from chessreg.terminal import make_visible

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.kind import Kind
    from chessreg.session import Session


class Runs(Entity):
    """Runs: list, show, name, tag, note, archive. `chessreg run` makes them."""

    table = tables.Run
    plural = "runs"
    command = "runs"
    in_data_room = False  # runs have separate screens
    columns = (
        Column("id", "id"), Column("name", "name"), Column("kind", "kind"), Column("progress", "state"),
        Column("attempts", "tries"), Column("host", "host"), Column("created_at", "created"), Column("tags", "tags"),
    )  # fmt: skip
    show_help = """Show a run: its settings, inputs and outputs, and every attempt with its cause.

    RUN is a name, an id, or the last digits of an id: lists show the last six."""
    example = "reference-board"

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return all runs, including archived ones. A single run has its inputs, outputs and attempts."""
        return read.list_runs(sql, archived=True) if reference is None else [read.read_run(sql, reference)]

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        from chessreg.runs.kind import list_effective_settings
        from chessreg.runs.spec import describe_source, format_value

        with session.database.read() as sql:
            (row,) = self.rows(sql, reference)
            settings = [
                {"setting": path, "value": value_text, "source": describe_source(path, row["explicit"])}
                for path, value in list_effective_settings(row["kind"], row["spec"]).items()
                for each in [[describe_reference(sql, v) for v in value] if isinstance(value, list) else value]
                for value_text in [name_artifacts(format_value(describe_reference(sql, each)))]
            ]
            inputs = [
                {**each, "input": name_artifacts(describe_reference(sql, each["reference"]))} for each in row["inputs"]
            ]
            inputs = list({(each["name"], each["input"]): each for each in inputs}.values())  # of several digests one
        remarks = {text for each in row["tries"] for text in each["execution_options"].get("remarks", ())}
        if any(each["input"].startswith("artifact ") for each in inputs):
            remarks.add(
                "the digest of an artifact is not the SHA-256 of its file, which sha256sum prints; for that: chessreg "
                f"reproduce {shlex.quote(row['name'] or row['id'].hex[-6:])}"
            )
        fields = {
            "id": "run", "name": "name", "kind": "kind", "version": "version", "progress": "state",
            "created_at": "created", "completed_at": "completed", "spec_hash": "spec hash", "tags": "tags",
            "invalid": "invalid", "rests_on_invalid": "rests on", "conflicts": "conflicts",
        }  # fmt: skip
        return ShowOutput(
            row,
            fields,
            {"progress": format_run_progress(row), "tags": " ".join(row["tags"])},
            ["\nnote  " + make_visible(note, "\n").replace("\n", "\n      ") for note in row["notes"]],
            remarks=sorted(remarks),
            parts=[
                Part("settings", build_columns("setting", "value", "source"), settings),
                Part("code and versions", build_columns("name", "version"),
                     [*list_code_versions(row["tries"][-1:]), *list_engine_versions(row["engines"])]),
                Part("inputs", build_columns("name", "input"), inputs),
                Part("outputs", build_columns("name", "unit"), row["outputs"]),
                Part("attempts", build_columns("id", "state", "host", "threads", "started_at", "ended_at", "units_done",
                                           "message"), [*map(describe_attempt, row["tries"])]),
            ],
        )  # fmt: skip

    def list_source_files(self, sql: SqlSession, row: Any) -> list[tuple[str, str]]:
        """Return (name, reference) of each user file that the spec identifies by content. An unknown name is ""."""
        references = [
            text
            for text in list_spec_texts(row.spec)
            if text.startswith("sha256:") and format_typed_digest(sql, text) == text
        ]
        attempt = sql.scalars(select(tables.Attempt).where(tables.Attempt.run_id == row.id)).first()
        options = attempt.execution_options if attempt else {}
        file_names = [
            name for name in str(options.get("file_names") or options.get("file_name") or "").split(", ") if name
        ]
        named_files = list(
            zip(file_names if len(file_names) == len(references) else [""] * len(references), references, strict=True)
        )
        kind_file = read.read_kind_file_of_run(sql, row.id)
        return [*named_files, *([kind_file] if kind_file else [])]

    def list_following_commands(self, sql: SqlSession, row: Any) -> list[str]:
        digests = select(tables.Output.digest).where(tables.Output.run_id == row.id)
        ids = sql.scalars(select(tables.Checkpoint.id).where(tables.Checkpoint.artifact.in_(digests)))
        checkpoint_names = [names.read_name(sql, "checkpoint", id) for id in ids]
        run = names.read_name(sql, "run", row.id) or row.id.hex[-6:]
        return [f"chessreg checkpoint name {shlex.quote(run)} {shlex.quote(name)}" for name in checkpoint_names if name]

    def describe_origin(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        options = "".join(format_option(sql, key, row.spec) for key in row.explicit)
        source = sql.get_one(tables.KindRecord, (row.kind, row.version)).source
        kind = source if ".py:" in source else row.kind
        if (kind_file := read.read_kind_file_of_run(sql, row.id)) is not None:
            kind = f"./{kind_file[0]}:{source.rpartition(':')[2]}"
        return f"chessreg run {shlex.quote(kind)}{options}", ""


def describe_attempt(attempt: Row) -> Row:
    """Return an attempt with its end as `state`, and the CPU threads that PyTorch used, None if not recorded."""
    threads = attempt["execution_options"].get("used_threads") or ()
    return {**attempt, "state": attempt["end"], "threads": ", ".join(map(str, threads)) or None}


def list_code_versions(attempts: list[Row]) -> list[Row]:
    """Return the commit of each folder of code and the versions of the main packages, of the last of `attempts`."""
    rows = []
    for attempt in attempts[-1:]:
        rows.append({"name": "chessreg", "version": attempt["chessreg_version"]})
        for name, code in attempt["code"].items():
            if isinstance(code, dict) and code.get("commit"):
                patch_note = f", with changes (sha256 {code['patch_sha256'][:12]})" if code.get("patch_sha256") else ""
                rows.append({"name": f"{name}, commit", "version": f"{code['commit'][:12]}{patch_note}"})
            elif name == "chessreg":
                rows.append({"name": "chessreg, commit", "version": "unknown: not installed from a git checkout"})
            if isinstance(code, dict) and code.get("sha256"):
                rows.append({"name": str(code.get("file")), "version": f"sha256 {str(code['sha256'])[:12]}"})
        versions = attempt["environment"] or {}
        rows += [{"name": name, "version": versions[name]} for name in MAIN_PACKAGES if name in versions]
    return rows


def list_engine_versions(engines: list[Row]) -> list[Row]:
    """Return the engines of a run, `read.list_run_engines`, as rows of its code and versions."""
    return [
        {
            "name": f"{engine['name']}, {' and '.join(engine['roles'])}",
            "version": f"{engine['version']}, sha256 {engine['binary_sha256'][:12]}",
        }
        for engine in engines
    ]


MAIN_PACKAGES = ("torch", "transformers", "chess", "numpy")


def build_columns(*names: str) -> list[Column]:
    """Return one column per field name. Its heading is the name with spaces for underscores."""
    return [Column(name, name.replace("_", " ")) for name in names]


def format_run_progress(row: Row) -> str:
    """Return the progress of a run for a table cell: `complete`, or its state with the number of complete units."""
    progress = "complete" if row["state"] == "complete" else f"{row['state']} {row['done']}/{row['units']}"
    return progress + read.format_marks(row)


# -- the command that makes a run --------------------------------------------------------------------------------------


def format_option(sql: SqlSession, key: str, spec: dict[str, Any]) -> str:
    """Return one explicit setting as a command-line option."""
    value: Any = spec
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return ""  # an execution option or a default setting
        value = value[part]
    if isinstance(value, dict):
        return "".join(format_option(sql, f"{key}.{inner}", spec) for inner in value)
    if value is None or value == []:
        return ""
    flag = shlex.quote("--" + key.replace("_", "-"))
    if isinstance(value, bool):
        return f" {flag}" if value else f" {flag.replace('--', '--no-', 1)}"
    text = (
        ",".join(format_typed_reference(sql, v) for v in value)
        if isinstance(value, list)
        else format_typed_reference(sql, value)
    )
    return f" {flag} {shlex.quote(text)}"


def format_typed_reference(sql: SqlSession, value: Any) -> str:
    """Return an input reference as a user types it: the name of a run, dataset part or checkpoint. Other values become
    text.
    """
    text = str(value)
    if text.startswith("run:"):
        run_hash, _, output = text.removeprefix("run:").partition("/")
        row = sql.scalars(select(tables.Run).where(tables.Run.spec_hash == run_hash)).first()
        if row is None:
            return text
        digest = sql.get(tables.Output, (row.id, output)) if output else None
        checkpoint = (
            digest
            and sql.scalars(select(tables.Checkpoint.id).where(tables.Checkpoint.artifact == digest.digest)).first()
        )
        if checkpoint:
            return names.read_name(sql, "checkpoint", checkpoint) or checkpoint.hex[-6:]
        return names.read_name(sql, "run", row.id) or row.id.hex[-6:]
    if text.startswith("sha256:"):
        return format_typed_digest(sql, text)
    if text.startswith("dataset:"):
        return format_typed_dataset(sql, text)
    return text


def list_spec_texts(value: Any) -> list[str]:
    """Return every text of a spec, in order."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in list_spec_texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in list_spec_texts(inner)]
    return [value] if isinstance(value, str) else []


def format_typed_digest(sql: SqlSession, reference: str) -> str:
    """Return the name or id of the checkpoint with this digest, or the reference itself if it is not registered."""
    digest = reference.removeprefix("sha256:")
    row_id = sql.scalars(select(tables.Checkpoint.id).where(tables.Checkpoint.artifact == digest)).first()
    return (names.read_name(sql, "checkpoint", row_id) or row_id.hex[-6:]) if row_id else reference


def format_typed_dataset(sql: SqlSession, reference: str) -> str:
    """Return the name of a dataset or of one of its parts, or the reference itself if it is not registered."""
    identity, _, bounds = reference.removeprefix("dataset:").partition("[")
    row = sql.scalars(select(tables.Dataset).where(tables.Dataset.identity == identity)).first()
    if row is None:
        return reference
    name = names.read_name(sql, "dataset", row.id) or row.id.hex[-6:]
    if not bounds:
        return name
    for split in sql.scalars(select(tables.Split).where(tables.Split.dataset_id == row.id)):
        if f"{split.seed},{split.low!r},{split.high!r}]" == bounds:
            return f"{name}:{split.name}"
    return reference


def name_artifacts(text: str) -> str:
    """Return a text with `artifact DIGEST` for each `sha256:DIGEST`, which is not the SHA-256 of a file."""
    return text.replace("sha256:", "artifact ")


def describe_reference(sql: SqlSession, value: Any) -> Any:
    """Return an input reference as the name of its target: `fit`, `games:fit`, or `games, split 0–80 %` for a part
    without a name. Any other value is returned unchanged, and so is a reference to an unknown target."""
    if not isinstance(value, str):
        return value
    if value.startswith("run:"):
        run, _, output = value.partition("/")
        return format_typed_reference(sql, run) + (f"/{output}" if output else "")
    typed_reference = format_typed_reference(sql, value)
    if typed_reference != value or not value.startswith("dataset:") or "[" not in value:
        return typed_reference
    dataset, _, bounds = value.removesuffix("]").partition("[")
    name, (seed, low, high) = format_typed_dataset(sql, dataset), bounds.split(",")
    split = f"split {100 * float(low):g}–{100 * float(high):g} %" + ("" if seed == "0" else f" of seed {seed}")
    return value if name == dataset else f"{name}, {split}"


# -- its boards --------------------------------------------------------------------------------------------------------


def read_unit_row(
    sql: SqlSession, kind: Kind, run_id: UUID, unit: int, item: int | None, condition: str | None = None
) -> dict[str, Any]:
    """Return the first row of unit `unit`, including the kind's custom columns.

    `item` and `condition` select a row; without `item`, items come before totals. Raises NotFoundError if the unit has
    no such row, item or condition.
    """
    for name in kind.tables:
        table = tables.Base.metadata.tables[name]
        query = select(table).where(table.c.run_id == run_id, table.c.unit == unit)
        if "item" in table.c:
            query = query.where(table.c.item == item) if item is not None else query.order_by(table.c.item < 0)
        elif item is not None:
            continue
        if condition is not None:
            if "condition" not in table.c:
                continue
            query = query.where(table.c.condition == condition)
        row = sql.execute(query.order_by(*table.primary_key).limit(1)).mappings().first()
        if row is not None:
            values = dict(row)
            return {**values, **(values.pop("detail", None) or {})}
    place = f"unit {unit}" if item is None else f"item {item} in unit {unit}"
    place += "" if condition is None else f" under condition {clip_text(condition)!r}"
    raise NotFoundError(f"run {shorten_id(run_id)} has no row of {place}", "chessreg runs show RUN")


def load_kind_of_run(sql: SqlSession, inputs: Inputs, run_id: UUID) -> Kind:
    """Return the kind of a run, in the version that it was made with."""
    from chessreg.runs.kind import find_kind_of_record

    run = sql.get_one(tables.Run, run_id)
    record = sql.get_one(tables.KindRecord, (run.kind, run.version))
    return find_kind_of_record(record, inputs.store.read_only)


def find_first_unit(sql: SqlSession, kind: Kind, run_id: UUID) -> int:
    """Return the first unit of a run with rows to show: of edits, the first state that was not skipped.

    If all were skipped, return the first of them. Raises NotFoundError if the run has no rows.
    """
    for name in kind.tables:
        table = tables.Base.metadata.tables[name]
        first = select(func.min(table.c.unit)).where(table.c.run_id == run_id)
        units = [first.where(table.c.condition != "skipped")] if "condition" in table.c else []
        for query in (*units, first):
            if (unit := sql.scalar(query)) is not None:
                return int(unit)
    raise NotFoundError(f"run {shorten_id(run_id)} has no rows", "chessreg runs show RUN")


def build_unit_frames(
    inputs: Inputs, run_id: UUID, unit: int, item: int | None = None, condition: str | None = None
) -> list[BoardFrame]:
    """Return the boards behind a unit, or behind its row of `item` and `condition`, as its kind draws them.

    Raises NotFoundError if the row does not exist or the kind draws no boards.
    """
    with inputs.database.read() as session:
        kind = load_kind_of_run(session, inputs, run_id)
        row = read_unit_row(session, kind, run_id, unit, item, condition)
    views = kind.board_views(row, inputs)
    if not views:
        raise NotFoundError(f"runs of kind {kind.name} have no boards")
    return views
