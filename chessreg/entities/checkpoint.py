"""What a checkpoint is to a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.entities.base import Entity, Row, entity_row, entity_rows
from chessreg.entities.display import Column, Printed, Thing, annotations_of, facts
from chessreg.registry import names, tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


class Checkpoints(Entity):
    """Models: list, show, export."""

    table = tables.Checkpoint
    plural = "checkpoints"
    place = 20
    columns = (
        Column("id", "id"), Column("name", "name"), Column("architecture", "architecture"), Column("layers", "layers"),
        Column("d_model", "d model"), Column("heads", "heads"), Column("parameters", "parameters"),
        Column("residual", "residual"), Column("tokenizer", "tokenizer"), Column("tokens_seen", "tokens seen"),
        Column("source_format", "source"),
    )  # fmt: skip
    overview_columns = (
        *columns[2:7], columns[9], Column("twin_of", "twin of"), Column("made_by", "made by"), *columns[7:9],
        Column("source_format", "from"), Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no models yet: chessreg import checkpoint FILE --name model"
    hidden = ("detail", "training_datasets", "parent_id", "notes", "archived", "invalid")
    show_help = """Show a checkpoint: its shape, what it was trained on, where it comes from, how well its import was
    verified."""
    example = "reference --json"

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        if reference is not None:
            return [described(sql, reference)]
        return super().rows(sql)

    def overview(self, sql: SqlSession) -> list[Row]:
        rows = entity_rows(sql, self.noun, self.table)
        called = {row["id"]: row["name"] or row["id"].hex[-6:] for row in rows}
        runs = names.names(sql, "run")
        return [{**row, "made_by": runs.get(row["run_id"]), "twin_of": twin_of(row, called)} for row in rows]

    def printed(self, row: Row, lines: Any = (), remarks: Any = ()) -> Printed:
        printed = super().printed(row, lines, remarks)
        trained_on = "unknown" if row["trained_on"] is None else ", ".join(row["trained_on"]) or "nothing"
        return printed._replace(read_as={**printed.read_as, "trained_on": trained_on})

    def thing(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            row = described(sql, id.hex)
            twin = twin_of(row, names.names(sql, "checkpoint"))
        trained, legal = row["trained_on"], row["first_try_legal"]
        more = {
            "trained_on": "not told" if trained is None else ", ".join(trained) or "nothing",
            "twin_of": twin,
            "first_try_legal": "no legality run yet" if legal is None else legal,
        }
        parts = [
            f"checkpoint · {row['architecture'] or row['source_format']}",
            f"{row['layers']} layers × {row['d_model']}" if row["layers"] else "no weights here",
            f"{row['parameters']:,} parameters" if row["parameters"] else "",
            f"{row['tokens_seen']:,} tokens seen" if row["tokens_seen"] is not None else "tokens seen: not told",
            f"untrained twin of {twin}" if twin else "",
            "" if legal is None else f"{100 * legal:.1f} % legal at once",
        ]
        return Thing(" · ".join(filter(None, parts)), annotations_of(row), [facts({**row, **more})])

    def made_by(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        if row.source_format == "random-init" and row.parent_id:
            parent = names.name_of(sql, "checkpoint", row.parent_id) or row.parent_id.hex[-6:]
            return f"chessreg checkpoint twin {parent} --seed {row.detail.get('seed', 0)}", ""
        if row.artefact is None:
            return "", "an external model: its games are here, its weights are not"
        return "chessreg import checkpoint FILE", f"content {row.artefact[:12]}"


def described(sql: SqlSession, reference: str) -> Row:
    """A checkpoint's row, with the names of its parent and training datasets, and how exact its import was."""
    row = entity_row(sql, "checkpoint", tables.Checkpoint, reference)
    verified, source = row["detail"].get("verified") or {}, row["detail"].get("source") or {}
    datasets = {
        identity: names.name_of(sql, "dataset", id) or id.hex[-6:]
        for id, identity in sql.query(tables.Dataset.id, tables.Dataset.identity)
    }
    trained_on = row["training_datasets"]
    return {
        **row,
        "max_logit_difference": verified.get("max_logit_difference"),
        "source_file": source.get("file"),
        "source_sha256": source.get("sha256"),
        "fetched_from": (row["detail"].get("fetched") or {}).get("url"),
        "parent": names.name_of(sql, "checkpoint", row["parent_id"]) if row["parent_id"] else None,
        "first_try_legal": first_try_legal(sql, row["artefact"]),
        "trained_on": None if trained_on is None else [datasets.get(recipe[8:72], recipe) for recipe in trained_on],
    }


def twin_of(row: Row, called: dict[UUID, str]) -> str | None:
    """The model whose untrained twin a checkpoint is."""
    return called.get(row["parent_id"]) if row["source_format"] == "random-init" else None


def first_try_legal(sql: SqlSession, artefact: str | None) -> float | None:
    """Share of turns whose greedy text is a legal move, of the newest complete legality run of these weights."""
    run, read, trial = tables.Run, tables.RunInput, tables.Trial
    newest = (
        select(run.id)
        .join(read, read.run_id == run.id)
        .where(run.kind == "legality", run.completed_at.is_not(None), read.digest == artefact)
        .order_by(run.created_at.desc(), run.id)
        .limit(1)
    )
    turns = trial.run_id == newest.scalar_subquery(), trial.legal_original.is_not(None)
    legal = func.count().filter(trial.legal_original.is_(True))
    all_of_them, right = sql.execute(select(func.count(), legal).where(*turns)).one()
    return right / all_of_them if all_of_them else None
