"""A run in the foreground: resolve, do the missing units, ingest as it goes, and leave a resumable run behind."""

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
from chessreg.runs.resolve import ResolvedSpec, missing_units, resolve
from chessreg.runs.spec import ExecutionOptions, Spec
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
    options: ExecutionOptions,
    database: Database,
    store: Store,
    *,
    given: tuple[str, ...] = (),
    on_start: Callable[[ResolvedSpec, int], None] = lambda resolved, missing: None,
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
    resolved = resolve(kind, spec, inputs)
    missing = missing_units(inputs, resolved)
    if not missing:
        return RunReport(resolved.run_id, kind.name, resolved.units, 0, 0, None, "complete")
    kind.check(resolved.spec, inputs)
    on_start(resolved, len(missing))
    attempt = Attempt(resolved, options, inputs, given, missing, on_progress)
    interrupted = attempt.go(lambda: on_begun(resolved.run_id))
    left = missing_units(inputs, resolved)
    return RunReport(
        resolved.run_id,
        kind.name,
        resolved.units,
        len(missing),
        len(left),
        attempt.id,
        "partial" if left else "complete",
        interrupted,
    )
