"""What a kind's `run` is given: its spec, the units to do, its inputs, and the only ways to hand anything back."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel

from chessreg.errors import ChessregError
from chessreg.registry import provenance
from chessreg.registry.tables.types import utc_now
from chessreg.runs.inputs import Inputs
from chessreg.runs.resolve import ResolvedSpec
from chessreg.runs.spec import ExecutionOptions, Spec

if TYPE_CHECKING:
    from store import Store
    from store.artefacts import Artefact
    from store.fragments import FragmentWriter

S = TypeVar("S", bound=Spec)
Options = TypeVar("Options", bound=ExecutionOptions)

FLUSH_SECONDS = 2.0
FLUSH_ROWS = 5000


class Stop(Exception):
    """The attempt was asked to end; what is complete is kept."""


class Task(Generic[S, Options]):
    """One attempt's share of a run. Rows of a unit are held back until `done(unit)`; then they go out together."""

    def __init__(
        self,
        resolved: ResolvedSpec,
        options: Options,
        units: list[int],
        inputs: Inputs,
        attempt_id: UUID,
        writer: FragmentWriter,
        after_flush: Callable[[], None] = lambda: None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> None:
        self.resolved, self.options, self.units, self.inputs = resolved, options, units, inputs
        self.spec: S = resolved.spec  # type: ignore[assignment]
        self.kind, self.run_id, self.attempt_id = resolved.kind, resolved.run_id, attempt_id
        self.units_done = 0
        self.stopping = False
        self.fraction, self.doing = 0.0, ""  # how far it is; the heart says it at the next check-in
        self._writer, self._after_flush, self._on_progress = writer, after_flush, on_progress
        self._held: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self._rows = 0
        self._flushed = time.monotonic()

    @property
    def how(self) -> Options:
        """The earlier name of `options`."""
        return self.options

    @property
    def store(self) -> Store:
        return self.inputs.store

    @property
    def folder(self) -> Path:
        """A folder of this run, for what must outlive the attempt (a trainer's state). Not a result."""
        return self.store.run_folder(self.run_id.hex)

    # -- handing back ---------------------------------------------------------------------------------------------

    def emit(self, table: str, unit: int, detail: BaseModel | None = None, **columns: Any) -> None:
        """One result row of `unit`. `detail` holds the kind's extra columns of this result table."""
        if table not in self.kind.tables:
            raise ChessregError(f"kind {self.kind.name} emits a {table} row, which is not among its result tables")
        row = {"run_id": self.run_id, "unit": unit, "attempt_id": self.attempt_id, **columns}
        if detail is not None:
            row["detail"] = detail.model_dump(mode="json")
        self._held[unit].append((table, row))

    def record(self, table: str, **columns: Any) -> None:
        """An entity row (probe, vector, match, intervention, engine, …): what results refer to."""
        self._writer.add(table, plain(columns))
        self._rows += 1

    def done(self, unit: int) -> None:
        """Unit `unit` is complete: its rows count from now on."""
        for table, row in self._held.pop(unit, []):
            self._writer.add(table, plain(row))
            self._rows += 1
        self._writer.add(
            "unit_range",
            plain({"run_id": self.run_id, "start": unit, "stop": unit + 1, "attempt_id": self.attempt_id}),
        )
        self.units_done += 1
        self.progress(self.units_done / max(len(self.units), 1), "")

    def progress(self, fraction: float, text: str) -> None:
        """Say how far this attempt is (0 to 1) and what it does. Raises Stop when it was asked to end."""
        self.fraction, self.doing = fraction, text or self.doing
        self._on_progress(fraction, text)
        now = time.monotonic()
        if self._rows >= FLUSH_ROWS or (self._rows and now - self._flushed > FLUSH_SECONDS):
            self.flush()
        if self.stopping:
            raise Stop

    def flush(self) -> None:
        self._rows, self._flushed = 0, time.monotonic()
        self._writer.flush()
        self._after_flush()

    @contextmanager
    def output(self, name: str, unit: int, kind: str) -> Iterator[Path]:
        """A folder to write an artefact into; on leaving it is published and recorded as this run's output `name`.

        >>> with task.output("layer-3", unit=3, kind="probe") as folder: ...   # doctest: +SKIP
        """
        with self.store.stage(kind) as folder:
            yield folder
            artefact = self.store.publish(folder)
        self.record_artefact(artefact, kind)
        self.record("output", run_id=self.run_id, name=name, unit=unit, digest=artefact.digest)
        self.last_output = artefact

    def record_artefact(self, artefact: Artefact, kind: str) -> None:
        """The rows of an artefact that is in the store: what it is, and that it is on this machine."""
        self.record(
            "artefact",
            digest=artefact.digest,
            kind=kind,
            bytes=artefact.bytes,
            state="complete",
            created_at=utc_now(),
        )
        machine = provenance.this_machine()["id"]
        self.record(
            "artefact_location",
            digest=artefact.digest,
            uri=str(artefact.path),
            machine_id=machine,
            verified_at=utc_now(),
        )


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as fragments hold it: ids as hex, times as ISO 8601."""
    return {
        key: value.hex if isinstance(value, UUID) else value.isoformat() if isinstance(value, datetime) else value
        for key, value in row.items()
    }
