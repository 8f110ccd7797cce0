"""What a comparison is looked at beside its numbers: curves of metrics over steps, and the machines of the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from chessreg.queries.compare import Subject, last_attempt
from chessreg.registry import tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Curve = list[tuple[int, float]]  # (step, value), by step
MACHINE = ("host", "platform", "cpu", "cores", "memory_bytes", "gpus", "driver", "cuda", "torch", "python")


def curves(session: Session, subjects: list[Subject]) -> dict[str, list[Curve]]:
    """Metric → a curve for each subject, empty where it has none. Metrics with one step everywhere are no curves."""
    point = tables.MetricPoint
    found: dict[str, list[Curve]] = {}
    for number, subject in enumerate(subjects):
        rows = select(point.name, point.unit, point.step, point.value).where(point.run_id == subject.run_id)
        if subject.attempt_id is not None:
            rows = rows.where(point.attempt_id == subject.attempt_id)
        for name, unit, step, value in session.execute(rows.order_by(point.name, point.unit, point.step)):
            metric = f"{name} of unit {unit}" if unit else name
            found.setdefault(metric, [[] for _ in subjects])[number].append((step, value))
    return {metric: parts for metric, parts in sorted(found.items()) if any(len(part) > 1 for part in parts)}


def machines(session: Session, subjects: list[Subject]) -> list[dict[str, Any]]:
    """For each subject the machine of its last attempt, the seconds that all its attempts took, and its units an hour.

    `hosts` names every machine that had a part. None: not known, or still running.
    """
    attempt, machine = tables.Attempt, tables.Machine
    found = []
    for subject in subjects:
        rows = select(attempt, machine.host).join(machine, machine.id == attempt.machine_id)
        rows = rows.where(attempt.run_id == subject.run_id)
        if subject.attempt_id is not None:
            rows = rows.where(attempt.id == subject.attempt_id)
        tries = session.execute(rows.order_by(attempt.started_at, attempt.id)).all()
        last = session.get(tables.Attempt, subject.attempt_id) if subject.attempt_id else None
        last = last or last_attempt(session, subject.run_id)
        where = session.get(tables.Machine, last.machine_id) if last else None
        ended = [tried for tried, _ in tries if tried.ended_at is not None]
        seconds = sum(((tried.ended_at or tried.started_at) - tried.started_at).total_seconds() for tried in ended)
        units = sum(tried.units_done for tried in ended)
        found.append(
            {"label": subject.label, "run_id": subject.run_id.hex}
            | {name: getattr(where, name, None) for name in MACHINE}
            | {
                "hosts": list(dict.fromkeys(host for _, host in tries)),
                "attempts": len(tries),
                "seconds": seconds if ended else None,
                "units": units,
                "units_an_hour": 3600 * units / seconds if seconds else None,
            }
        )
    return found
