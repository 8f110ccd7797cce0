"""The base class of nouns: how entities of one noun are listed, shown, plotted, verified and recreated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from sqlalchemy import select

from chessreg.entities.display import (
    Column,
    Option,
    Part,
    ShowOutput,
    Thing,
    format_annotations,
    format_display_cell,
    format_layers,
    list_facts,
)
from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import format_count
from chessreg.registry import brought, names, tables
from chessreg.registry.read import NO_ANNOTATIONS, get_row_values, read_annotations
from chessreg.terminal import make_visible

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.entities.display import VerifyOutput
    from chessreg.session import Session

Row = dict[str, Any]


class Entity:
    """A noun. A subclass with a table adds `chessreg NOUN list` and `show`, an entry in the TUI and support for
    `reproduce`.

    Naming, lineage, merge, gc and transfer read everything else from the table: its key, artifacts, arrays and foreign
    keys. Rows are dicts of the table's columns with the thing's annotations.
    """

    table: ClassVar[Any]
    plural: ClassVar[str]
    command: ClassVar[str] = ""  # command group; "": the noun
    place: ClassVar[int] = 100  # sort key among the nouns
    in_data_room: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]]  # columns of `list`, one line per row
    overview_columns: ClassVar[tuple[Column, ...]] = ()  # of the data screen; (): as `list`
    none_yet: ClassVar[str] = ""  # shown in an empty list: the command that makes one
    hidden: ClassVar[tuple[str, ...]] = ()  # fields that `show` prints only with --json
    measured: ClassVar[tuple[Column, ...]] = ()  # fields of `show` whose headings have a unit
    list_help: ClassVar[str] = ""
    show_help: ClassVar[str] = ""
    example: ClassVar[str] = ""  # arguments of `show` in its help
    show_options: ClassVar[tuple[Option, ...]] = ()
    verify_help: ClassVar[str] = ""
    verify_options: ClassVar[tuple[Option, ...]] = ()
    # Reads every byte of an entity and compares digests: (session, reference, options). None: no command `verify`.
    verify: ClassVar[Callable[..., VerifyOutput] | None] = None

    @property
    def noun(self) -> str:
        return str(self.table.__noun__.name)

    @property
    def is_made_by_runs(self) -> bool:
        """Return whether runs make these entities. A row then has the id and the name of its run."""
        return names.is_keyed_by_run(self.table)

    @property
    def is_made_per_unit(self) -> bool:
        """Return whether a run makes one entity per unit, such as one probe per layer."""
        return self.is_made_by_runs and "unit" in self.table.__table__.columns

    # -- rows -----------------------------------------------------------------------------------------------------

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return all rows, oldest first, or only the rows of `reference`. Raises NotFoundError if it does not exist."""
        if reference is None and not brought.has_table(sql, self.table.__table__):
            return []
        if self.is_made_by_runs:
            return read_produced_rows(sql, self.noun, self.table, reference)
        if reference is not None:
            return [read_entity_row(sql, self.noun, self.table, reference)]
        return read_entity_rows(sql, self.noun, self.table)

    def overview(self, sql: SqlSession) -> list[Row]:
        """Return one row per entity, with its annotations."""
        rows = self.rows(sql)
        return (
            add_annotations(sql, [self.summarize_rows(part) for part in group_by_run(rows).values()])
            if self.is_made_by_runs
            else rows
        )

    def summarize_rows(self, rows: list[Row]) -> Row:
        """Return one row that summarizes `rows`, the rows that one run made."""
        return {**rows[0], "layers": format_layers(row.get("layer") for row in rows)}

    # -- one entity ------------------------------------------------------------------------------------------------

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        """Return the output of `chessreg NOUN show`. `options` are the values of `show_options`."""
        with session.database.read() as sql:
            row = self.choose_row(self.rows(sql, reference), reference, options.get("layer"))
        return self.make_output(row)

    def make_output(self, row: Row, lines: Sequence[str] = (), remarks: Sequence[str] = ()) -> ShowOutput:
        """Return `row` as output of `show`, without the hidden fields in its text form."""
        read_as = {"tags": " ".join(row["tags"])} if "tags" in row else {}
        columns = {column.field: column for column in self.measured}
        read_as |= {
            name: text for name, column in columns.items() if (text := format_display_cell(column, row)) is not None
        }
        fields = {name: columns[name].heading if name in columns else name.replace("_", " ") for name in row}
        notes = [f"note  {make_visible(note, chr(10))}".replace("\n", "\n      ") for note in row.get("notes", ())]
        shown_fields = {name: text for name, text in fields.items() if name not in (*self.hidden, "notes")}
        return ShowOutput(row, shown_fields, read_as, [*lines, *notes], remarks)

    def choose_row(self, rows: list[Row], reference: str, layer: int | None) -> Row:
        """Return the row of `layer`, or the only row if `layer` is None.

        Raises NotFoundError if the layer does not exist, BadInputError if the choice is ambiguous. Both list the
        layers.
        """
        matching_rows = [row for row in rows if layer is None or row["layer"] == layer]
        layers = ", ".join(str(row["layer"]) for row in rows if "layer" in row)
        if not matching_rows:
            raise NotFoundError(f"{reference} has no {self.noun} of layer {layer}", f"it has {layers}")
        return matching_rows[0] if len(matching_rows) == 1 else self.choose_best(matching_rows, reference, layers)

    def choose_best(self, rows: list[Row], reference: str, layers: str) -> Row:
        """Return the row to use if the user chose none of several. Raises BadInputError if the choice is ambiguous."""
        hint = f"choose with --layer one of {layers}" if layers else f"chessreg {self.noun} list --run {reference}"
        raise BadInputError(f"{reference} has {format_count(len(rows), self.noun, self.plural)}", hint)

    def read_details(self, session: Session, id: UUID) -> Thing:
        """Return the summary, annotations and tables of one entity, as the TUI shows them.

        `id` is that of the entity, or of its run if runs make these entities. Raises NotFoundError if it does not
        exist.
        """
        with session.database.read() as sql:
            rows = self.rows(sql, id.hex)
            annotations = format_run_annotations(sql, id) if self.is_made_by_runs else format_annotations(rows[0])
        parts = [Part(f"{self.plural} {len(rows)}", self.columns, rows)] if self.is_made_per_unit else []
        name = rows[0].get("checkpoint") or rows[0]["name"]
        summary = " · ".join(filter(None, [self.plural if self.is_made_per_unit else self.noun, name]))
        return Thing(summary, annotations, [*parts, list_facts(rows[0], self.measured)])

    def describe_origin(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        """Return the command that recreates an entity that no run made, and a remark on it, for `reproduce`."""
        return "", f"{self.noun} {row.id.hex[-6:]}"

    def list_source_files(self, sql: SqlSession, row: Any) -> list[tuple[str, str]]:
        """Return (name, SHA-256) of each file that the command of `describe_origin` reads. `sha256:…` instead of a
        digest refers to an artifact.
        """
        return []

    def list_following_commands(self, sql: SqlSession, row: Any) -> list[str]:
        """Return the commands that recreate the parts and names of the entity that later commands use."""
        return []


def read_entity_rows(sql: SqlSession, noun: str, table: Any) -> list[Row]:
    """Return all rows of an entity table with their annotations, oldest first."""
    annotations = read_annotations(sql, noun)
    order = table.created_at if hasattr(table, "created_at") else table.id
    records = sql.scalars(select(table).order_by(order, table.id)).all()
    return [{**annotations.get(record.id, NO_ANNOTATIONS), **get_row_values(record)} for record in records]


def read_entity_row(sql: SqlSession, noun: str, table: Any, reference: str) -> Row:
    """Return the row of an entity table that `reference` (a name or id) refers to, with its annotations."""
    record = sql.get_one(table, names.resolve_id(sql, noun, reference))
    return {**read_annotations(sql, noun, [record.id]).get(record.id, NO_ANNOTATIONS), **get_row_values(record)}


def read_produced_rows(sql: SqlSession, noun: str, table: Any, reference: str | None = None) -> list[Row]:
    """Return the rows of `table`, which runs produce, with the names of runs and checkpoints, newest run last.

    `reference` selects the rows of one run of `noun`, which then have the notes of that run.
    """
    query = select(table).join(tables.Run, tables.Run.id == table.run_id)
    if reference is not None:
        query = query.where(table.run_id == names.resolve_id(sql, noun, reference))
    records = sql.scalars(query.order_by(tables.Run.created_at, *table.__table__.primary_key)).all()
    run_ids = {record.run_id for record in records}
    runs, run_rows, checkpoints = (
        *(names.read_names_of(sql, n, run_ids) for n in ("run", noun)),
        names.read_noun_names(sql, "checkpoint"),
    )
    annotations = {} if reference is None else read_annotations(sql, "run", list(run_ids))
    return [
        {
            "name": run_rows.get(record.run_id) or runs.get(record.run_id),
            "checkpoint": checkpoints.get(row["checkpoint_id"]) if row.get("checkpoint_id") else None,
            **row,
            **({} if reference is None else {"notes": annotations.get(record.run_id, NO_ANNOTATIONS)["notes"]}),
        }
        for record in records
        for row in [get_row_values(record)]
    ]


def group_by_run(rows: list[Row]) -> dict[UUID, list[Row]]:
    """Return run id → the rows of that run."""
    rows_by_run: dict[UUID, list[Row]] = defaultdict(list)
    for row in rows:
        rows_by_run[row["run_id"]].append(row)
    return rows_by_run


def add_annotations(sql: SqlSession, rows: list[Row]) -> list[Row]:
    """Return `rows`, which runs made, with the annotations of these runs."""
    annotations = read_annotations(sql, "run", [row["run_id"] for row in rows])
    return [{**NO_ANNOTATIONS, **annotations.get(row["run_id"], {}), **row} for row in rows]


def format_run_annotations(sql: SqlSession, run_id: UUID) -> str:
    """Return the annotations of a run as one line."""
    return format_annotations(read_annotations(sql, "run", [run_id]).get(run_id, NO_ANNOTATIONS))


def add_model_names(rows: list[Row]) -> list[Row]:
    """Set `model` in each row and return `rows`: the name or id of the checkpoint, or `unknown:` and the recorded
    model.
    """
    for row in rows:
        row["model"] = row["checkpoint"] or (row["checkpoint_id"] and row["checkpoint_id"].hex[-6:])
        if row["model"] is None:
            row["model"] = f"unknown: {row['detail'].get('model') or 'not recorded'}"
    return rows
