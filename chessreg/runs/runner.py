"""A run in the foreground: freeze, do the missing units, ingest as it goes, and leave a resumable run behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.registry.database import Database
from chessreg.runs.attempt import Attempt, Progress
from chessreg.runs.ingest import ingest
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind
from chessreg.runs.resolve import Frozen, freeze, missing_units
from chessreg.runs.spec import How, Spec
from chessreg.runs.watch import mark_dead

if TYPE_CHECKING:
    from store import Store


@dataclass(frozen=True)
class RunReport:
    """How a run stands after an attempt."""

    run_id: UUID
    kind: str
    units: int
    missing_before: int
    missing: int
    attempt_id: UUID | None  # None: it was complete, nothing was done
    state: str  # complete, partial
    interrupted: bool = False


def run(
    kind: Kind,
    spec: Spec,
    how: How,
    database: Database,
    store: Store,
    *,
    given: tuple[str, ...] = (),
    on_start: Callable[[Frozen, int], None] = lambda frozen, missing: None,
    on_begun: Callable[[UUID], None] = lambda run_id: None,
    on_progress: Progress = lambda fraction, text: None,
) -> RunReport:
    """Do what is missing of this spec's run. A finished spec does nothing.

    `on_start` is called before anything is written, `on_begun` once the registry has the run.
    Raises what the kind raises; the attempt is then recorded as failed, and complete units stay.
    """
    inputs = Inputs(database, store)
    ingest(database, store)
    mark_dead(database)
    frozen = freeze(kind, spec, inputs)
    missing = missing_units(inputs, frozen)
    if not missing:
        return RunReport(frozen.run_id, kind.name, frozen.units, 0, 0, None, "complete")
    kind.check(frozen.spec, inputs)
    on_start(frozen, len(missing))
    attempt = Attempt(frozen, how, inputs, given, missing, on_progress)
    interrupted = attempt.go(lambda: on_begun(frozen.run_id))
    left = missing_units(inputs, frozen)
    return RunReport(
        frozen.run_id,
        kind.name,
        frozen.units,
        len(missing),
        len(left),
        attempt.id,
        "partial" if left else "complete",
        interrupted,
    )
