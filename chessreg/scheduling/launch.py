"""Launching: turns specs into jobs. Everything is checked before anything is queued.

A spec may name results that do not exist yet: of a run in the same launch, or of a run with a job. Its job then waits.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.folders import get_recordable_path
from chessreg.named import clip_text
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id, make_uuid
from chessreg.registry.tables import Job, JobState
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs import transfer
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, is_checkpoint_maker
from chessreg.runs.resolve import (
    check_execution_options,
    count_spec_units,
    describe_kind_change,
    find_missing_units,
    list_references,
    publish_user_files,
    require_runnable,
    resolve_and_hash,
)
from chessreg.runs.spec import ExecutionOptions, Spec, flatten_settings
from chessreg.scheduling import queue
from chessreg.scheduling.executors import open_executor
from chessreg.scheduling.expected_time import estimate_time
from store.process import get_this_process

if TYPE_CHECKING:
    from store import Store


BATCH_PREFIXES = ("batch_", "micro_")  # prefixes of execution options that are halved if memory runs out


class LaunchOptions(BaseModel):
    """Options for the executor, shared by `chessreg launch` and the launch form."""

    model_config = ConfigDict(extra="forbid")
    name: str | None = Field(None, description="name of the run")
    on: str = Field("local", description="local, slurm, slurm:PROFILE, ray or ray:ADDRESS")
    shards: int = Field(1, ge=1, description="ranges of units that run in parallel")
    priority: int = Field(0, description="priority; jobs with a higher one start first")
    share_gpu: bool = Field(False, description="allow other jobs with --share-gpu on the same GPU")
    gpu_memory: float = Field(0.0, ge=0, description="memory that must be free on the GPU, in GiB")


@dataclass(frozen=True)
class Order:
    """One run to launch. The last six fields correspond to LaunchOptions."""

    kind: Kind
    spec: Spec
    options: ExecutionOptions
    explicit: tuple[str, ...] = ()
    name: str | None = None
    on: str = "local"
    shards: int = 1
    priority: int = 0
    share_gpu: bool = False
    gpu_memory: float = 0.0  # GiB; see executors.ResourceNeeds


@dataclass(frozen=True)
class PlannedRun:
    """An order that can be executed: its run, its dependencies and its missing units."""

    order: Order
    spec: Spec
    spec_hash: str
    after: tuple[str, ...]  # spec hashes of the runs that must be complete first
    units: int | None  # None until these are complete
    missing: int | None
    status: str  # queued (by this launch), complete, or already_queued

    @property
    def run_id(self) -> UUID:
        return make_uuid(self.spec_hash)

    @property
    def shards(self) -> int:
        """The number of ranges into which the units are divided, without the reduce. No range is empty.

        One if the kind requires its units in order.
        """
        kind, order = self.order.kind, self.order
        max_shards = 1 if kind.in_order(self.spec) else order.shards
        return min(max_shards, max((self.units or max_shards) - (kind.reduce is not None), 1))


class ExpectedInputs(Inputs):
    """Inputs that include runs without a row in the registry: runs of this launch, and runs with jobs."""

    def __init__(self, database: Database, store: Store) -> None:
        super().__init__(database, store)
        self.of_launch: dict[str, tuple[str, str]] = {}  # name or run id → kind and spec hash

    def _make_run_reference(self, kind: str, reference: str) -> str:
        expected_run = self._find_expected_run("run", reference)
        if expected_run is None:
            return super()._make_run_reference(kind, reference)
        if kind not in ("run", expected_run[0]):
            raise BadInputError(f"run {reference} is a {expected_run[0]} run, not a {kind} run")
        return f"run:{expected_run[1]}"

    def _resolve_checkpoint(self, reference: str) -> str:
        expected_run = self._find_expected_run("checkpoint", reference)
        if expected_run is None:
            return super()._resolve_checkpoint(reference)
        if not is_checkpoint_maker(expected_run[0]):
            raise BadInputError(f"{reference} is a {expected_run[0]} run, which makes no checkpoint")
        return f"run:{expected_run[1]}/checkpoint"

    def _find_expected_run(self, noun: str, reference: str) -> tuple[str, str] | None:
        """Return kind and spec hash of a run that will exist, by name or id, else None.

        An existing entity of this noun with the name takes precedence.
        """
        if reference in self.of_launch:
            return self.of_launch[reference]
        with self.database.read() as session:
            if not names.find_by_name(session, "run", reference) and names.find_by_name(session, noun, reference):
                return None
            try:
                jobs = queue.find_jobs(session, reference)
            except NotFoundError:
                return None
            runs = {(job.kind, job.spec_hash) for job in jobs}
            if len(runs) > 1:
                raise BadInputError(f"{reference} is a launch of {len(runs)} runs", "name one of them")
            kind, spec_hash = next(iter(runs))
            # A run that has begun is found normally, but its checkpoint exists only at its end.
            run = session.get(tables.Run, make_uuid(spec_hash))
            return None if run and (run.completed_at or not is_checkpoint_maker(kind)) else (kind, spec_hash)


def plan_orders(orders: Sequence[Order], database: Database, store: Store) -> list[PlannedRun]:
    """Return the run of every order. A later order may name an earlier one. Writes nothing.

    Raises the error of the first order that cannot be executed.
    """
    if not orders:
        raise BadInputError("nothing to launch")
    for executor in dict.fromkeys(order.on for order in orders):
        open_executor(executor)
    inputs = ExpectedInputs(database, store)
    planned_runs: dict[str, PlannedRun] = {}
    for order in orders:
        if order.shards < 1:
            raise BadInputError(f"--shards is {order.shards}", "give 1 or more")
        planned_run = plan_order(order, inputs, planned_runs)
        require_free_order_name(order, planned_run, database)
        if order.name and order.name in inputs.of_launch:
            raise BadInputError(f"two runs of this launch are named {order.name!r}")
        planned_runs.setdefault(planned_run.spec_hash, planned_run)
        for reference in filter(None, (order.name, planned_run.run_id.hex, planned_run.run_id.hex[-6:])):
            if planned_run.status != "complete":
                inputs.of_launch[reference] = order.kind.name, planned_run.spec_hash
    return list(planned_runs.values())


def plan_order(order: Order, inputs: ExpectedInputs, planned_runs: dict[str, PlannedRun]) -> PlannedRun:
    """Resolve one order. `planned_runs` are the earlier orders of the launch by spec hash."""
    spec, spec_hash = resolve_and_hash(order.kind, order.spec, inputs)
    dependencies = []
    for name, reference in list_references(spec).items():
        needed_hash = reference.removeprefix("run:").partition("/")[0]
        with inputs.database.read() as session:
            is_made = not reference.startswith("run:") or transfer.is_finished(session, reference)
            is_expected = (
                needed_hash in planned_runs or queue.has_active_job(session, make_uuid(needed_hash))
                if not is_made
                else False
            )
            run = session.get(tables.Run, make_uuid(needed_hash)) if not is_made else None
            earlier_job = (
                session.scalars(select(Job.id).where(Job.run_id == make_uuid(needed_hash))).first() if run else None
            )
        if is_made:
            transfer.require_bytes(inputs.database, inputs.store, name, reference)
        elif is_expected:
            dependencies.append(needed_hash)
        elif run is not None:
            raise transfer.make_unfinished_input_error(run.kind, run.id.hex, earlier_job is not None)
        else:
            raise NotFoundError(
                f"{name}: no run with spec {needed_hash[:12]}… is complete or launched", "launch it first"
            )
    units = missing_units = None
    status = "queued"
    if not dependencies:
        unit_count = count_spec_units(order.kind, spec, spec_hash, inputs)
        units, missing_units = unit_count.units, len(find_missing_units(inputs, unit_count))
        if missing_units:
            require_runnable(unit_count, None, inputs)
        else:
            status = "complete"
    if status != "complete":
        check_execution_options(order.kind, spec, order.options, order.on)
    with inputs.database.read() as session:
        if status != "complete" and queue.has_active_job(session, make_uuid(spec_hash)):
            status = "already_queued"
    return PlannedRun(order, spec, spec_hash, tuple(dict.fromkeys(dependencies)), units, missing_units, status)


def require_free_order_name(order: Order, planned_run: PlannedRun, database: Database) -> None:
    """Raise BadInputError if another run has the name of the order."""
    if order.name:
        with database.read() as session:
            names.require_free_name(session, "run", planned_run.run_id, order.name)


def launch_orders(
    orders: Sequence[Order], database: Database, store: Store, folder: Path | None = None
) -> tuple[UUID | None, list[PlannedRun]]:
    """Plan orders and queue the unfinished ones as one group. Return its id (None if nothing was queued) and the plan.

    If two processes launch the same spec, only one queues it. Complete runs receive their names too. An unnamed run of
    a sweep is named after the settings in which it differs, such as `probe-epochs2`. Raises the errors of
    `plan_orders`.
    """
    planned_runs, group = plan_orders(orders, database, store), make_id()
    for each in planned_runs:
        publish_user_files(each.spec, Inputs(database, store))
    with database.write() as session:
        queue.lock_queue(session)
        planned_runs = [replace(each, status=get_current_status(session, each)) for each in planned_runs]
        differences = describe_differences(planned_runs)
        for each in planned_runs:
            name_run(session, each, differences[each.spec_hash], group)
            if each.status == "queued":
                session.add_all(make_jobs(each, group, store, folder or Path.cwd(), differences[each.spec_hash]))
    return group if any(each.status == "queued" for each in planned_runs) else None, planned_runs


def name_run(session: Session, planned_run: PlannedRun, differs: str, group: UUID) -> None:
    """Name a run as ordered, or an unnamed run of a sweep after `differs`, the settings in which it differs.

    `group` makes the name unique if another run has it. Raises BadInputError if another run has the ordered name.
    """
    run_id, name, now = planned_run.run_id, planned_run.order.name, names.read_name(session, "run", planned_run.run_id)
    if name and name != now:
        names.require_free_name(session, "run", run_id, name)
    elif not name and not now and differs:
        suffix = re.sub(r"[^A-Za-z0-9._+-]+", "-", differs.replace("=", "")).strip("-")
        name = f"{planned_run.order.kind.name}-{suffix}"[:90]
        if names.find_by_name(session, "run", name):
            name = f"{name}-{group.hex[-6:]}"
    if name and name != now:
        names.add_annotation(session, "run", run_id, "name", name)


def get_current_status(session: Session, planned_run: PlannedRun) -> str:
    """Return the status of a planned run now: another process may have queued or completed it."""
    run = session.get(tables.Run, planned_run.run_id)
    if planned_run.status == "complete" or (planned_run.missing is not None and run is not None and run.completed_at):
        return "complete"
    return "already_queued" if queue.has_active_job(session, planned_run.run_id) else "queued"


def describe_differences(planned_runs: Sequence[PlannedRun]) -> dict[str, str]:
    """Return spec hash → the settings in which a run differs from others of its kind, such as `games=3`.

    Empty for a single run.
    """
    specs = {
        each.spec_hash: {
            name: format_setting(value)
            for name, value in flatten_settings(each.order.spec.model_dump(mode="json")).items()
        }
        for each in planned_runs
    }
    values: dict[tuple[str, str], set[str]] = {}  # kind and setting → its values
    for each in planned_runs:
        for name, value in specs[each.spec_hash].items():
            values.setdefault((each.order.kind.name, name), set()).add(value)
    differences: dict[str, str] = {}
    for each in planned_runs:
        settings = specs[each.spec_hash].items()
        differing_settings = [
            f"{name}={value}" for name, value in settings if len(values[each.order.kind.name, name]) > 1
        ]
        differences[each.spec_hash] = clip_text(", ".join(differing_settings))
    return differences


def make_jobs(planned_run: PlannedRun, group: UUID, store: Store, folder: Path, differs: str = "") -> list[Job]:
    """Return one job for each shard, and one for the reduce. `differs` describes the run within its launch."""
    order, shards = planned_run.order, planned_run.shards
    options, process = order.options.model_dump(mode="json"), get_this_process()
    numbers = list(range(shards)) + ([shards] if order.kind.reduce is not None else [])
    return [
        Job(
            id=make_id(),
            group_id=group,
            run_id=planned_run.run_id,
            kind=order.kind.name,
            spec_hash=planned_run.spec_hash,
            executor=order.on,
            host=process.host,
            system_id=process.system_id,
            shard=number,
            shards=shards,
            priority=order.priority,
            state=JobState.QUEUED,
            cancel=False,
            tries=0,
            detail={
                "source": order.kind.source,
                "spec": planned_run.spec.model_dump(mode="json"),
                "execution_options": options,
                "explicit": sorted(order.explicit),
                "name": order.name,
                "differs": differs,
                "after": list(planned_run.after),
                "units": planned_run.units,
                "reduces": order.kind.reduce is not None,
                "store": str(store.root),
                "folder": str(get_recordable_path(folder)),
                "user": os.environ.get("USER") or str(os.getuid()),
                "share_gpu": order.share_gpu,
                "gpu_memory": order.gpu_memory,
                "batches": {
                    key: value
                    for key, value in options.items()
                    if key.startswith(BATCH_PREFIXES) and isinstance(value, int)
                },
            },
            created_at=get_utc_now(),
        )
        for number in numbers
    ]


# -- previews and sweeps ----------------------------------------------------------------------------------------------


Row = dict[str, Any]


def preview_run(planned_run: PlannedRun, database: Database, store: Store) -> Row:
    """Return a planned run in numbers: rows by result table, bytes in the store, seconds, and remarks of its kind.

    Rows and bytes are for the whole run. `seconds` is the time for the missing units, with shards in parallel. Unknown
    values are None. A run that waits for its inputs is estimated as far as its kind can count without them.
    """
    order, inputs = planned_run.order, Inputs(database, store)
    units, missing_units, estimate = planned_run.units, planned_run.missing, None
    with suppress(ChessregError) if units is None else nullcontext():
        estimate = order.kind.estimate(planned_run.spec, inputs)
        if units is None:
            units = missing_units = order.kind.units(planned_run.spec, inputs)
    has_sizes = estimate is not None and bool(estimate.rows or estimate.bytes)
    time = estimate_time(
        order.kind, planned_run.spec, estimate, units, missing_units, inputs, order.options, planned_run.shards
    )
    return {
        "run_id": planned_run.run_id,
        "kind": order.kind.name,
        "name": order.name,
        "status": planned_run.status,
        "units": planned_run.units,
        "missing": planned_run.missing,
        "rows": dict(estimate.rows) if estimate and has_sizes else None,
        "bytes": estimate.bytes if estimate and has_sizes else None,
        "seconds": time.seconds,
        "like": time.attempts,
        "basis": time.basis,
        "determinism": order.kind.determinism,
        "waits_for": [spec_hash[26:32] for spec_hash in planned_run.after],
        "remarks": [
            *describe_kind_change(database, order.kind, planned_run.run_id),
            *inputs.remarks,
            *(estimate.remarks if estimate else ()),
        ],
    }


Settings = dict[str, Any]
MOST_CELLS = 10_000  # each is a separate run, planned before any begins


def combine_grid(grid: Mapping[str, Any], listed_settings: Iterable[Mapping[str, Any]] = ()) -> list[Settings]:
    """Return every combination of a grid's values with each of the listed settings. Dotted paths are nested settings.

    >>> combine_grid({"seed": [0, 1]}, [{"epochs": 2}, {"epochs": 4}])
    [{'epochs': 2, 'seed': 0}, {'epochs': 2, 'seed': 1}, {'epochs': 4, 'seed': 0}, {'epochs': 4, 'seed': 1}]

    Raises BadInputError for a grid value that is not a non-empty list, and for more than MAX_CELLS combinations.
    """
    values = flatten_settings(grid)
    for path, choices in values.items():
        if not isinstance(choices, list) or not choices:
            raise BadInputError(f"grid: {path} is {choices!r}, not a list of values", f"{path} = [{choices!r}]")
    listed_settings = list(listed_settings) or [{}]
    count = math.prod(len(choices) for choices in values.values()) * len(listed_settings)
    if count > MOST_CELLS:
        raise BadInputError(f"{count:,} cells are more than one sweep may have ({MOST_CELLS:,})", "make parts of it")
    combinations = [dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())]
    return [{**flatten_settings(cell), **combination} for cell in listed_settings for combination in combinations]


def make_cell_name(name: str | None, cell: Mapping[str, Any], number: int) -> str | None:
    """Return the name of a sweep's cell, such as `scan-seed0-epochs4`, or `scan-7` if the values are not valid in
    names."""
    if name is None or not cell:
        return name
    suffix = "-".join(f"{path.rpartition('.')[2]}{format_setting(value)}" for path, value in cell.items())
    full_name = f"{name}-{suffix}"
    return (
        full_name if len(full_name) <= 100 and re.fullmatch(r"[A-Za-z0-9._+-]+", full_name) else f"{name}-{number + 1}"
    )


def format_setting(value: Any) -> str:
    """Return a value of a setting as text, lists joined with +."""
    if isinstance(value, (list, tuple)):
        return "+".join(map(format_setting, value))
    return "none" if value is None else str(value)
