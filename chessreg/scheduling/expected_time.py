"""The time that a planned run takes: its counted work, at the pace of the nearest earlier runs or of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from sqlalchemy import select

from chessreg.errors import ChessregError
from chessreg.registry import tables
from chessreg.runs.cost import estimate_cpu_seconds
from chessreg.runs.inputs import Inputs
from chessreg.runs.spec import parse_settings
from store.process import is_this_machine

if TYPE_CHECKING:
    from sqlalchemy import Row

    from chessreg.runs.kind import Kind, RunEstimate
    from chessreg.runs.spec import ExecutionOptions, Spec

NEWEST_ATTEMPTS = 50  # of a kind, among which the nearest are chosen
NEAREST_ATTEMPTS = 8
START_S = 5.0  # seconds that a run takes at most to start: imports, and reading its inputs
FAST_SHARE = 0.25  # of the work of the nearest attempts: the estimate is the pace that this share reached


@dataclass(frozen=True)
class ExpectedTime:
    """Seconds of the missing units, with all shards side by side (None: not known), and their basis.

    `attempts` is the number of earlier attempts that give the pace; 0 if the work is counted only. `counted`: whether
    the work of this run could be counted. Otherwise it is taken to be as large as that of the earlier attempts.
    `took`: the shortest and the longest time of these attempts in seconds, if more processes than cores ran during one
    of them. The estimate is for a machine without other processes.
    """

    seconds: float | None
    attempts: int = 0
    is_counted: bool = True
    range_s: tuple[float, float] | None = None

    @property
    def basis(self) -> str:
        """The origin of the estimate in words; empty if there is no estimate."""
        if self.seconds is None:
            return ""
        if not self.attempts:
            return "counted operations on one CPU thread of this machine"
        fastest = "fastest" if self.attempts * FAST_SHARE < 1 else "fastest quarter"
        earlier = "the nearest earlier run" if self.attempts == 1 else f"the {fastest} of {self.attempts} earlier runs"
        if self.range_s:
            low, high = (f"{seconds:,.0f}" for seconds in self.range_s)
            range_text = f"it took {low} s" if self.attempts == 1 else f"they took {low} to {high} s"
            earlier += f", as if nothing else had run ({range_text})"
        return earlier if self.is_counted else f"{earlier}; its inputs do not exist yet"


def estimate_time(
    kind: Kind,
    spec: Spec,
    estimate: RunEstimate | None,
    units: int | None,
    missing_units: int | None,
    inputs: Inputs,
    options: ExecutionOptions,
    shards: int = 1,
) -> ExpectedTime:
    """Return the time of the `missing_units` units of a run with `units` units (None: not known before its inputs
    exist).

    The nearest earlier attempts of the kind give the ratio of measured to counted time: the ratio that the fastest
    quarter of their work reached, because a loaded machine only makes runs slower. The time of a start does not grow
    with the work. Without earlier attempts the counted time is returned. A kind that counts nothing is measured per
    unit, a run of unknown size per run. The devices of one run share its work equally.
    """
    shards *= count_devices(options.model_dump())
    if missing_units == 0:
        return ExpectedTime(None)
    attempts = find_nearest_attempts(kind, spec, inputs)
    if units is None or missing_units is None:
        attempts_with_units = [each for each in attempts if each.units]
        full_times = [(_measure_seconds(each) * each.units / each.units_done, 1.0) for each in attempts_with_units]
        crowded_range = _find_crowded_range(attempts_with_units)
        return (
            ExpectedTime(find_fast_pace(full_times) / shards, len(full_times), False, crowded_range)
            if full_times
            else ExpectedTime(None)
        )
    if counted_seconds := estimate_cpu_seconds(kind.name, estimate) if estimate is not None else None:
        attempt_times = [
            (each, seconds) for each in attempts if (seconds := estimate_counted_seconds(kind, each, inputs))
        ]
        times = [(_measure_seconds(each), seconds) for each, seconds in attempt_times]
        if times or not attempts:
            start = find_start_time(times)
            ratio = find_fast_pace([(seconds - start, work) for seconds, work in times]) if times else 1.0
            expected_seconds = start + counted_seconds * ratio * missing_units / units / shards
            return ExpectedTime(
                expected_seconds, len(times), range_s=_find_crowded_range([each for each, _ in attempt_times])
            )
    if not attempts:
        return ExpectedTime(None)
    seconds_per_unit = find_fast_pace([(_measure_seconds(attempt), attempt.units_done) for attempt in attempts])
    return ExpectedTime(seconds_per_unit * missing_units / shards, len(attempts), range_s=_find_crowded_range(attempts))


def describe_busy_cores() -> str:
    """Return how much longer than estimated a run takes now, by the last minute's load of this machine; empty on idle
    cores.
    """
    from chessreg.models.devices import count_usable_cores

    cores = count_usable_cores()
    slowdown = (os.getloadavg()[0] + 1) / cores
    return f"this machine is busy now: expect {slowdown:.0f} times as long" if slowdown >= 1.5 else ""


def count_devices(options: Mapping[str, Any]) -> int:
    """Return the number of devices that share a run's work. The processes on one CPU count as one device.

    >>> count_devices({"device": "cuda", "devices": 8, "nodes": 2}), count_devices({"device": "cpu", "devices": 2})
    (16, 1)
    """
    devices = 1 if options.get("device") == "cpu" else int(options.get("devices", 1))
    return devices * int(options.get("nodes", 1))


def find_start_time(times: Sequence[tuple[float, float]]) -> float:
    """Return the seconds, given (measured, counted seconds) of attempts, that do not grow with the work: the smallest
    excess over the counted time, at most START_S.

    >>> find_start_time([(4.5, 1.0), (9.0, 6.0)]), find_start_time([(60.0, 20.0)]), find_start_time([(1.0, 9.0)])
    (3.0, 5.0, 0.0)
    """
    return min((min(START_S, max(0.0, seconds - counted_seconds)) for seconds, counted_seconds in times), default=0.0)


def find_fast_pace(times: Sequence[tuple[float, float]]) -> float:
    """Return the seconds per piece of work that FAST_SHARE of the work reached, given (seconds, work) of attempts.

    >>> find_fast_pace([(100.0, 10.0), (20.0, 10.0), (300.0, 10.0)]), find_fast_pace([(8.0, 1.0), (100.0, 100.0)])
    (2.0, 1.0)
    """
    paces = sorted((seconds / work, work) for seconds, work in times)
    cumulative_work = accumulate(work for _, work in paces)
    enough = FAST_SHARE * sum(work for _, work in times)
    return next(pace for (pace, _), cumulative in zip(paces, cumulative_work, strict=True) if cumulative >= enough)


def find_nearest_attempts(kind: Kind, spec: Spec, inputs: Inputs) -> list[Row[Any]]:
    """Return at most NEAREST_ATTEMPTS finished attempts of a kind.

    Attempts on this machine come first, then those with the most settings in common, then the newest.
    """
    attempt, run, machine = tables.Attempt, tables.Run, tables.Machine
    query = (
        select(
            attempt.started_at, attempt.ended_at, attempt.units_done, attempt.load, attempt.execution_options,
            run.units, run.spec,
            machine.host, machine.system_id,
        )
        .join(run, run.id == attempt.run_id)
        .join(machine, machine.id == attempt.machine_id)
        .where(
            run.kind == kind.name,
            run.version == kind.version,
            attempt.state == tables.AttemptState.FINISHED,
            attempt.ended_at.is_not(None),
            attempt.units_done > 0,
        )
        .order_by(attempt.started_at.desc(), attempt.id)
        .limit(NEWEST_ATTEMPTS)
    )  # fmt: skip
    with inputs.database.read() as session:
        rows = session.execute(query).all()
    settings = spec.model_dump(mode="json")
    rank = sorted(
        rows, key=lambda row: (not is_this_machine(row.host, row.system_id), -_count_equal_settings(settings, row.spec))
    )
    return list(rank[:NEAREST_ATTEMPTS])


def estimate_counted_seconds(kind: Kind, attempt: Row[Any], inputs: Inputs) -> float | None:
    """Return the counted time of an attempt's units.

    None if its work cannot be counted again, for example because its inputs were deleted.
    """
    with suppress(ChessregError, ValidationError, OSError):
        counted_seconds = estimate_cpu_seconds(
            kind.name, kind.estimate(parse_settings(kind.spec, attempt.spec), inputs)
        )
        if counted_seconds and attempt.units:
            return counted_seconds * attempt.units_done / attempt.units
    return None


def _measure_seconds(attempt: Row[Any]) -> float:
    """Return the seconds that an attempt would have taken on one device, if no more processes than cores had run."""
    seconds = float((attempt.ended_at - attempt.started_at).total_seconds()) / max(1.0, _measure_crowding(attempt))
    return seconds * count_devices(attempt.execution_options)


def _find_crowded_range(attempts: Sequence[Row[Any]]) -> tuple[float, float] | None:
    """Return the shortest and the longest time of attempts in seconds; None if none was on a crowded machine."""
    durations = [float((each.ended_at - each.started_at).total_seconds()) for each in attempts]
    return (min(durations), max(durations)) if any(_measure_crowding(each) > 1 for each in attempts) else None


def _measure_crowding(attempt: Row[Any]) -> float:
    """Return the processes per core of the machine at the attempt's last check-in, 0 if unknown."""
    load = attempt.load or {}
    return float(load.get("cpu") or 0.0) / (load.get("cores") or 1)


def _count_equal_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Return the number of settings with equal values."""
    return sum(1 for key, value in one.items() if key in other and other[key] == value)
