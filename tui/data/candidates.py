"""What of the registry may stand in a setting that refers to something: datasets and their parts, checkpoints, runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import or_, select

from chessreg.registry import names, tables
from chessreg.registry.tables import Job
from chessreg.runs.inputs import IMPORTED, stands_for
from tui import show
from tui.data.pages import Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session

MOST = 500  # newest runs that are listed


def candidates(session: Session, noun: str, words: str = "") -> list[Row]:
    """Rows with `value`, what one would type, and `told`, what it is; newest first. Each word is in one of them."""
    with session.database.read() as sql:
        if noun == "dataset":
            rows = datasets(sql)
        elif noun == "checkpoint":
            rows = [*to_come(sql, "train"), *checkpoints(sql)]
        else:
            kind = noun.partition(":")[2]
            rows = [*to_come(sql, kind), *runs(session, sql, kind)]
    wanted = words.lower().split()
    return [row for row in rows if all(word in f"{row['value']} {row['told']}".lower() for word in wanted)]


def datasets(sql: SqlSession) -> list[Row]:
    """Datasets, and after each its parts."""
    called = names.names(sql, "dataset")
    split = tables.Split
    rows: list[Row] = []
    for dataset in sql.scalars(select(tables.Dataset).order_by(tables.Dataset.created_at.desc(), tables.Dataset.id)):
        name = called.get(dataset.id) or dataset.id.hex[-6:]
        rows.append({"value": name, "told": show.counted(dataset.games, "game"), "at": dataset.created_at})
        parts = sql.scalars(select(split).where(split.dataset_id == dataset.id).order_by(split.low, split.name))
        for part in parts:
            told = show.counted(part.games, "game")
            rows.append({"value": f"{name}:{part.name}", "told": told, "at": part.created_at})
    return rows


def checkpoints(sql: SqlSession) -> list[Row]:
    """Checkpoints with weights: an external model cannot be evaluated."""
    called, runs_called, checkpoint = names.names(sql, "checkpoint"), names.names(sql, "run"), tables.Checkpoint
    query = select(checkpoint, tables.Artefact.created_at).join(
        tables.Artefact, tables.Artefact.digest == checkpoint.artefact
    )
    rows: list[Row] = []
    for one, at in sql.execute(query.order_by(tables.Artefact.created_at.desc(), checkpoint.id)).tuples():
        told = f"{one.architecture} · {one.layers} × {one.d_model} · {one.parameters or 0:,} parameters"
        if one.run_id is not None:
            told += f" · of run {runs_called.get(one.run_id) or one.run_id.hex[-6:]}"
        rows.append({"value": called.get(one.id) or one.id.hex[-6:], "told": told, "at": at})
    return rows


def runs(session: Session, sql: SqlSession, kind: str) -> list[Row]:
    """The newest runs of a kind, and those that can stand in their place."""
    from tui.data.runs import summaries

    run = tables.Run
    where = [] if kind in ("", "run") else [or_(run.kind == kind, run.kind == IMPORTED + kind)]
    found = list(sql.scalars(select(run).where(*where).order_by(run.created_at.desc(), run.id).limit(MOST)))
    rows: list[Row] = []
    for row in summaries(sql, found, {}):
        if row["archived"] or row["invalid"]:
            continue
        told = f"{row['kind']} · {row['state']} · {row['done']:,}/{row['units']:,} units"
        rows.append({"value": row["name"] or row["id"].hex[-6:], "told": told, "at": row["created_at"]})
    return rows


def to_come(sql: SqlSession, kind: str) -> list[Row]:
    """Runs that jobs stand for and that have not begun: what names one waits for it."""
    query = select(Job).where(Job.ended_at.is_(None), Job.shard == 0).order_by(Job.created_at.desc(), Job.id)
    rows: list[Row] = []
    for job in sql.scalars(query):
        fits = kind in ("", "run") or stands_for(job.kind, kind)
        begun = sql.get(tables.Run, job.run_id)
        if fits and (begun is None or (job.kind == "train" and begun.completed_at is None)):
            name = names.name_of(sql, "run", job.run_id) or job.run_id.hex[-6:]
            rows.append({"value": name, "told": f"{job.kind} · a job, {job.state.value}", "at": job.created_at})
    return rows
