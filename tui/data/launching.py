"""From a form to jobs: what it would do, and doing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import ChessregError
from chessreg.registry import tables
from chessreg.runs.kind import Kind
from chessreg.runs.settings import FILES
from chessreg.scheduling.executors import EXECUTORS
from chessreg.scheduling.launch import Expected, Order, enqueue, plan, preview
from tui.data.form import Checked, Form
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.session import Session


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
                    inputs.recipe(one.noun, reference)
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
