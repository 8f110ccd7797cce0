"""Executes the missing units of a run, in the foreground (`run_spec`) or as a job."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import ChessregError, is_out_of_memory
from chessreg.masking import mask, mask_words
from chessreg.registry import provenance
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id, make_uuid
from chessreg.registry.machine import describe_this_machine, read_load
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.background import Ingester
from chessreg.runs.ingest import ingest_fragments
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, read_kind_file
from chessreg.runs.resolve import (
    ResolvedSpec,
    describe_kind_change,
    find_missing_units,
    list_references,
    publish_user_files,
    require_runnable,
    resolve_spec,
)
from chessreg.runs.spec import ExecutionOptions, Spec
from chessreg.runs.task import StopRequest, Task, to_fragment_row
from chessreg.runs.watch import mark_dead_attempts
from chessreg.terminal import make_visible
from store.process import get_this_process

if TYPE_CHECKING:
    from store import Store
    from store.fragments import FragmentWriter


ProgressCallback = Callable[[float, str], None]
END_RECORD_TIMEOUT_S = 10.0  # for recording the end of an attempt; after that, signals are obeyed again


@dataclass(frozen=True)
class AttemptOrigin:
    """The executor that started an attempt, and the resources granted to it."""

    executor: str = "foreground"
    job_id: UUID | None = None
    log: str | None = None
    granted: dict[str, Any] = field(default_factory=dict)  # slot: gpu, threads
    ingests: bool = True  # False for a job, whose fragments its supervisor ingests


class RunAttempt:
    """One attempt at the missing units of a run, from its first fragment to its last."""

    def __init__(
        self,
        resolved_spec: ResolvedSpec,
        options: ExecutionOptions,
        inputs: Inputs,
        explicit: tuple[str, ...],
        missing_units: list[int],
        on_progress: ProgressCallback = lambda fraction, text: None,
        where: AttemptOrigin = AttemptOrigin(),
    ) -> None:
        from store.fragments import FragmentWriter

        self.id = make_id()
        self.resolved, self.options, self.inputs = resolved_spec, options, inputs
        self.explicit, self.missing, self.where = explicit, missing_units, where
        self.state, self.cause, self.code = "running", "", 0  # how the attempt ended
        self.message: str | None = None
        self.writer: FragmentWriter = FragmentWriter(
            inputs.store,
            resolved_spec.run_id.hex,
            self.id.hex,
            flush_rows=1 << 60,  # only the task flushes, so that a unit's rows stay in one fragment
            flush_bytes=1 << 60,
            flush_seconds=math.inf,
        )
        self.ingester = Ingester(inputs.database, inputs.store, resolved_spec.run_id) if where.ingests else None
        last_unit = resolved_spec.units - 1
        self.reduces = resolved_spec.kind.reduce is not None and last_unit in missing_units
        units = [unit for unit in missing_units if not (resolved_spec.kind.reduce is not None and unit == last_unit)]
        self.task: Task[Any, Any] = Task(
            resolved_spec, options, units, inputs, self.id, self.writer, self.start_ingest, on_progress
        )

    def execute(self, on_begun: Callable[[], None] = lambda: None) -> bool:
        """Execute the units. Return whether the attempt was interrupted. Its end is recorded in any case.

        `on_begun` is called once the registry contains the run and the attempt.
        """
        with self.ingester.run_during_block() if self.ingester is not None else nullcontext():
            return self._run_to_end(on_begun)

    def _run_to_end(self, on_begun: Callable[[], None]) -> bool:
        """Process the units and record how the attempt ended. Return whether it was interrupted.

        Raises the error of a failed attempt after recording it. `on_begun` is called once the attempt is registered.
        """
        state, cause, message, code = "finished", "finished", None, 0
        heartbeat = Heartbeat(self.task, self.ingester.request_ingest if self.ingester is not None else lambda: None)
        with stop_on_signals(self.task) as hold_signals:
            self.begin()
            try:
                heartbeat.start()
                on_begun()
                self.process_units()
            except (StopRequest, KeyboardInterrupt):
                state, cause, code = "killed", "killed", 130
                return True
            except BaseException as error:
                state, cause, code = "failed", classify_failure(error), getattr(error, "exit_code", 1)
                message = f"{type(error).__name__}: {error}"
                raise
            finally:
                hold_signals()
                heartbeat.stop()
                self.state, self.cause, self.message, self.code = state, cause, message, code
                self.end(state, cause, message, code)
        return False

    def process_units(self) -> None:
        """Call the kind's `run`, and its `reduce` once all units are in the registry.

        Raises ChessregError if units remain unfinished.
        """
        if self.task.units:
            with self.inputs.database.wait_for_server(print_warning, self.task.stop_if_asked):
                self.resolved.kind.run(self.task)
        self.task.flush()
        self.require_ingested()
        if self.reduces:
            self.require_units()
            assert self.resolved.kind.reduce
            with self.inputs.database.wait_for_server(print_warning, self.task.stop_if_asked):
                self.resolved.kind.reduce(self.task)
            self.task.done(self.resolved.units - 1)
            self.task.flush()
            self.require_ingested()
        if self.task.units_done < len(self.missing):
            progress = f"{len(self.missing) - self.task.units_done} of {len(self.missing)} units"
            raise ChessregError(f"kind {self.resolved.kind.name} left {progress} unfinished without an error")

    def require_ingested(self) -> None:
        """Raise ChessregError if the registry refused rows of this run; their units count as unfinished."""
        self.ingest_written()
        if self.ingester is not None and self.ingester.refusals:
            raise ChessregError(
                f"rows of kind {self.resolved.kind.name} were quarantined: {self.ingester.refusals[0]}",
                "chessreg recover --list",
            )

    def require_units(self) -> None:
        """Raise ChessregError unless the registry has the rows of all other units, which `reduce` needs."""
        remaining_units = len(find_missing_units(self.inputs, self.resolved)) - 1
        if remaining_units > 0:
            reason = f": {self.outage}" if self.outage else ""
            raise ChessregError(
                f"the registry lacks {remaining_units} of {self.resolved.units - 1} units, "
                f"so `reduce` cannot start{reason}",
                f"chessreg run --resume {self.resolved.run_id.hex[-6:]}",
            )

    def begin(self) -> None:
        """Write the rows of machine, kind, run and attempt. Raises ChessregError if the registry is unavailable."""
        for remark in self.inputs.remarks:
            print_warning(remark)
        machine = describe_this_machine()
        self.add("machine", **machine)
        kind = self.resolved.kind
        self.add(
            "kind",
            name=kind.name,
            version=kind.version,
            source=kind.source,
            result_tables=list(kind.tables),
            extra_columns=kind.schemas,
            determinism=kind.determinism,
        )
        self.add(
            "run",
            id=self.resolved.run_id,
            kind=kind.name,
            version=kind.version,
            spec=self.resolved.settings,
            spec_hash=self.resolved.spec_hash,
            explicit=list(self.explicit),
            units=self.resolved.units,
            created_at=get_utc_now(),
        )
        process, kind_file = get_this_process(), read_kind_file(kind)
        self.add(
            "attempt",
            id=self.id,
            run_id=self.resolved.run_id,
            machine_id=machine["id"],
            job_id=self.where.job_id,
            executor=self.where.executor,
            execution_options=self.recorded_options,
            argv=mask_words(sys.argv),
            pid=process.pid,
            pid_started=process.started,
            boot_id=process.boot_id,
            started_at=get_utc_now(),
            checked_in_at=get_utc_now(),
            next_check_in_seconds=CHECK_IN_TIMEOUT_S,
            state="running",
            units_done=0,
            log=self.where.log,
            chessreg_version=provenance.get_chessreg_version(),
            code=provenance.read_code_state() | ({"kind_file": kind_file} if kind_file else {}),
            environment=provenance.read_packages(),
        )
        fragment = self.writer.flush()
        self.ingest_written()
        if self.outage:
            if fragment is not None:  # nothing was done, so the attempt must not appear later
                fragment.path.unlink(missing_ok=True)
            raise ChessregError(self.outage)

    def end(self, state: str, cause: str, message: str | None, code: int) -> None:
        """Write the inputs and the end of the attempt: `state`, `cause`, `message` and the exit status `code`.

        Raises ChessregError if a finished attempt could not be ingested.
        """
        input_rows = [
            (name, reference, digest, located_input.run_id)
            for (name, digest, reference), located_input in self.inputs.located_inputs.items()
        ]
        input_rows += [
            (name, reference, spec_hash, make_uuid(spec_hash)) for name, reference, spec_hash in self.list_read_inputs()
        ]
        for name, reference, digest, source in input_rows:
            self.add(
                "run_input",
                run_id=self.resolved.run_id,
                name=name,
                reference=reference,
                digest=digest,
                source_run_id=source,
            )
        self.add(
            "attempt_end",
            id=self.id,
            ended_at=get_utc_now(),
            state=state,
            cause=cause,
            message=message and mask(message),
            exit_code=code,
            units_done=self.task.units_done,
            checked_in_at=get_utc_now(),
            execution_options=self.recorded_options | self.count_threads(),
        )
        self.task.flush()
        self.writer.close()
        self.ingest_written()
        if self.outage and state == "finished":
            raise ChessregError(
                f"the results are saved in {self.inputs.store.root}, but were not ingested: {self.outage}",
                "the next chessreg command ingests them",
            )

    @property
    def recorded_options(self) -> dict[str, Any]:
        """The execution options, granted resources and remarks on the settings, as recorded with the attempt."""
        remarks = {"remarks": self.inputs.remarks} if self.inputs.remarks else {}
        return self.options.model_dump(mode="json") | self.where.granted | remarks

    def count_threads(self) -> dict[str, list[int]]:
        """Return the thread counts that torch actually used, which may differ from the options. Empty without torch."""
        torch = sys.modules.get("torch")
        return {"used_threads": sorted({torch.get_num_threads()} | self.task.threads)} if torch else {}

    def list_read_inputs(self) -> list[tuple[str, str, str]]:
        """Return (field, reference, spec hash) of input runs whose rows were read but no artifacts."""
        seen_run_ids = {located_input.run_id for located_input in self.inputs.located_inputs.values()}
        references = [(name, ref, ref.removeprefix("run:").partition("/")[0])
                 for name, ref in list_references(self.resolved.spec).items() if ref.startswith("run:")]  # fmt: skip
        return [row for row in references if make_uuid(row[2]) not in seen_run_ids]

    def add(self, table: str, **columns: Any) -> None:
        """Add a row to the attempt's fragment."""
        self.writer.add(table, to_fragment_row(columns))

    @property
    def outage(self) -> str | None:
        """The reason why the registry did not accept waiting fragments, or None."""
        return self.ingester.outage if self.ingester is not None else None

    def start_ingest(self) -> None:
        """Start ingesting written fragments in the background. Raises the error of the previous ingest, unless the
        registry was unavailable."""
        if self.ingester is not None:
            self.ingester.request_ingest()
            self.ingester.raise_error()

    def ingest_written(self) -> None:
        """Wait until all written fragments are ingested. If the registry does not respond, they stay in the store."""
        if self.ingester is not None:
            self.ingester.wait_until_ingested()


def print_warning(text: str) -> None:
    """Print a message to stderr."""
    print(f"chessreg: {make_visible(text)}", file=sys.stderr, flush=True)


def classify_failure(error: BaseException) -> str:
    """Return the cause recorded for an error: oom, diverged, the error's own `cause`, or failed."""
    if is_out_of_memory(error):
        return "oom"
    if isinstance(error, FloatingPointError):
        return "diverged"
    return getattr(error, "cause", "failed")


@contextmanager
def stop_on_signals(task: Task[Any, Any]) -> Iterator[Callable[[], None]]:
    """On the first SIGINT or SIGTERM, stop at the next progress report. On the second, raise KeyboardInterrupt.

    Yields a function that ignores further signals for END_RECORD_TIMEOUT_S while the end of the attempt is recorded,
    because an impatient user presses Ctrl-C repeatedly.
    """
    held_until = -math.inf

    def hold_signals_back() -> None:
        nonlocal held_until
        held_until = time.monotonic() + END_RECORD_TIMEOUT_S

    def request_stop(number: int, frame: Any) -> None:
        if time.monotonic() < held_until:
            return
        if task.stopping:
            hold_signals_back()
            raise KeyboardInterrupt
        task.stopping = True

    if threading.current_thread() is not threading.main_thread():
        yield hold_signals_back
        return
    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield hold_signals_back
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- its heartbeat ----------------------------------------------------------------------------------------------------


CHECK_IN_INTERVAL_S = 10.0
# An attempt counts as lost after twelve missed intervals: the registry may be unavailable for a minute, and ingest may
# follow late.
CHECK_IN_TIMEOUT_S = 12 * CHECK_IN_INTERVAL_S


class Heartbeat(threading.Thread):
    """Thread that checks in after 1, 2, 4 and 8 s, then every 10 s. A failed check-in is retried at the next one."""

    def __init__(self, task: Task[Any, Any], after: Callable[[], object]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.task, self.after = task, after
        self._end = threading.Event()

    def run(self) -> None:
        """Check in after 1 s, then at doubling intervals up to CHECK_IN_INTERVAL_S, until the attempt ends. Errors are
        ignored."""
        from store.fragments import FragmentWriter

        writer = FragmentWriter(
            self.task.store,
            self.task.run_id.hex,
            self.task.attempt_id.hex,
            flush_rows=1 << 60,  # the rows of one check-in are one fragment
            flush_bytes=1 << 60,
            flush_seconds=math.inf,
        )
        pause = 1.0
        while not self._end.wait(pause):
            pause = min(2 * pause, CHECK_IN_INTERVAL_S)
            with suppress(Exception):
                self._check_in(writer)

    def _check_in(self, writer: FragmentWriter) -> None:
        """Write a check-in with the progress and the load of this machine as a fragment, then call `after`."""
        row = {
            "id": self.task.attempt_id,
            "checked_in_at": get_utc_now(),
            "next_check_in_seconds": CHECK_IN_TIMEOUT_S,
            "units_done": self.task.units_done,
            "progress": min(max(float(self.task.fraction), 0.0), 1.0),
            "progress_before": self.task.fraction_before,
            "doing": self.task.progress_text[:200],
            "load": read_load(),
        }
        writer.add("check_in", to_fragment_row(row))
        writer.flush()
        self.after()

    def stop(self) -> None:
        """End the thread, so that the end of the attempt is the next row written."""
        self._end.set()
        if self.is_alive():
            self.join(timeout=60)


@dataclass(frozen=True)
class RunReport:
    """The state of a run after an attempt."""

    run_id: UUID
    kind: str
    units: int
    missing_before: int
    missing: int
    attempt_id: UUID | None  # None: the run was complete already
    state: str  # complete, partial
    interrupted: bool = False

    def __repr__(self) -> str:
        progress = f"{self.units - self.missing:,} of {self.units:,} units"
        return f"{self.kind} run {self.run_id.hex[-6:]}: {self.state}, {progress}{', interrupted' * self.interrupted}"


def run_spec(
    kind: Kind,
    spec: Spec,
    options: ExecutionOptions,
    database: Database,
    store: Store,
    *,
    explicit: tuple[str, ...] = (),
    on_start: Callable[[ResolvedSpec, int], None] = lambda _spec, _count: None,
    on_begun: Callable[[UUID], None] = lambda run_id: None,
    on_progress: ProgressCallback = lambda fraction, text: None,
) -> RunReport:
    """Execute the missing units of this spec's run. A complete run is left unchanged.

    `on_start` is called with the resolved spec and the number of missing units before anything is written, `on_begun`
    once the registry contains the run. Errors of the kind are raised; the attempt is then recorded as failed, and
    complete units are kept.
    """
    inputs = Inputs(database, store)
    ingest_fragments(database, store)
    mark_dead_attempts(database)
    resolved_spec = resolve_spec(kind, spec, inputs)
    missing_units = find_missing_units(inputs, resolved_spec)
    for change in describe_kind_change(database, kind, resolved_spec.run_id):
        print_warning(change)
    if not missing_units:
        return RunReport(resolved_spec.run_id, kind.name, resolved_spec.units, 0, 0, None, "complete")
    require_runnable(resolved_spec, options, inputs)
    on_start(resolved_spec, len(missing_units))
    publish_user_files(resolved_spec.spec, inputs)
    attempt = RunAttempt(resolved_spec, options, inputs, explicit, missing_units, on_progress)
    is_interrupted = attempt.execute(lambda: on_begun(resolved_spec.run_id))
    if attempt.outage:  # possible only for an interrupted attempt
        remaining_units = len(missing_units) - attempt.task.units_done
    else:
        remaining_units = len(find_missing_units(inputs, resolved_spec))
    return RunReport(
        resolved_spec.run_id,
        kind.name,
        resolved_spec.units,
        len(missing_units),
        remaining_units,
        attempt.id,
        "partial" if remaining_units else "complete",
        is_interrupted,
    )
