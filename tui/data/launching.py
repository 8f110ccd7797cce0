"""From a form to jobs: what may stand in a reference, what it would do, and doing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import or_, select

from chessreg.errors import ChessregError
from chessreg.registry import names, tables
from chessreg.registry.tables import Job
from chessreg.runs.inputs import IMPORTED, stands_for
from chessreg.runs.kind import Kind
from chessreg.runs.settings import FILES
from chessreg.scheduling.executors import EXECUTORS
from chessreg.scheduling.launch import Expected, Order, enqueue, plan, preview
from tui import show
from tui.data.form import Checked, Form
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


@dataclass
class Outlook:
    """What launching a form would do, or why it cannot be done: by field, or as a whole with what helps."""

    plan: Row | None = None
    errors: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    hint: str = ""


def order_of(form: Form, checked: Checked) -> Order:
    return Order(form.kind, checked.spec, checked.options, form.given_names, **checked.launch.model_dump())


def outlook(session: Session, form: Form, checked: Checked) -> Outlook:
    """Look everything up that the form names, and plan it. Nothing is queued."""
    result = Outlook(errors=unknown(session, form))
    if result.errors:
        return result
    try:
        (planned,) = plan([order_of(form, checked)], session.database, session.store)
        result.plan = preview(planned, session.database, session.store)
    except ChessregError as error:
        result.trouble, result.hint = error.message, error.hint or ""
    return result


def unknown(session: Session, form: Form) -> dict[str, str]:
    """Fields whose reference cannot be resolved, and why."""
    inputs, found = Expected(session.database, session.store), {}
    for one in form.fields:
        text = form.text(one.key)
        if not one.noun or form.source(one.key) not in ("given", "preset") or not text:
            continue
        value = one.parsed(text)
        for reference in value if isinstance(value, tuple) else [value]:
            try:
                if reference is not None and one.noun in FILES:
                    require_file(reference)
                elif reference is not None:
                    inputs.reference(one.noun, reference)
            except ChessregError as error:
                found[one.key] = error.message + (f" ({error.hint})" if error.hint else "")
    return found


def require_file(reference: str) -> None:
    from chessreg.errors import NotFoundError
    from chessreg.runs.inputs import REFERENCE

    if not REFERENCE.match(reference) and reference != "sample" and not Path(reference).expanduser().exists():
        raise NotFoundError(f"{reference} does not exist")


def launch(session: Session, form: Form, checked: Checked) -> tuple[UUID | None, str]:
    """Queue it and see that a supervisor is there, as `chessreg launch` does. Returns the launch, or None and why not.

    Raises what planning raises.
    """
    from chessreg.runs.ingest import ingest
    from chessreg.scheduling.presence import Presence

    ingest(session.database, session.store)
    planned = plan([order_of(form, checked)], session.database, session.store)
    group = enqueue(planned, session.database, session.store)
    if group is None:
        return None, {"complete": "it is complete already", "already_queued": "a job stands for it already"}.get(
            planned[0].status, planned[0].status
        )
    Presence(session.store).start(session.database.url)
    return group, ""


# -- what there is to choose from -------------------------------------------------------------------------------------


def places() -> tuple[str, ...]:
    """Executors: those that are here, and each profile of Slurm."""
    from chessreg.scheduling.executors import slurm_script

    found: list[str] = []
    for word in EXECUTORS:
        found.append(word)
        if word == "slurm":
            for path in dict.fromkeys(slurm_script.places(Path.cwd())):
                if path.is_file():
                    found += [f"slurm:{name}" for name in slurm_script.read(path) if name != slurm_script.DEFAULT]
    return tuple(dict.fromkeys(found))


def kinds(session: Session) -> list[Row]:
    """Every kind of experiment: ours, and those of files that runs of this registry were made with."""
    from chessreg.runs.kind import kind, kinds

    known: dict[str, tuple[Kind, str]] = {name: (found, name) for name, found in kinds().items()}
    with session.database.read() as sql:
        for record in sql.scalars(_newest_kinds()):
            if record.name not in known and ".py:" in record.source:
                try:
                    known[record.name] = kind(record.source), record.source
                except ChessregError:  # its file is gone, or broken: it can still be looked at
                    continue
    return [row_of(found, reference) for _, (found, reference) in sorted(known.items())]


def _newest_kinds() -> Any:
    from sqlalchemy import select

    return select(tables.KindRecord).order_by(tables.KindRecord.version.desc())


def row_of(found: Kind, reference: str) -> Row:
    return {
        "name": found.name,
        "summary": found.summary,
        "presets": ", ".join(found.presets),
        "source": "" if reference == found.name else reference,
        "reference": reference,
        "kind": found,
    }
