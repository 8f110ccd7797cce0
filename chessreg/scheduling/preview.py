"""What an order would do, before it does it: units, rows, bytes, and the time that they took when last done."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.runs.inputs import Inputs
from chessreg.runs.spec import hashed
from chessreg.scheduling.launch import Planned

if TYPE_CHECKING:
    from store import Store

Row = dict[str, Any]
LOOKED_AT = 50  # newest attempts of a kind among which the nearest are looked for
NEAREST = 3


def preview(planned: Planned, database: Database, store: Store) -> Row:
    """A planned order in numbers: rows by family, bytes in the store, seconds, and remarks of its kind.

    Rows and bytes are of the whole run, `seconds` of what is missing of it, all shards side by side. Each is None where
    nobody can tell: inputs that are yet to be made, a kind that does not estimate, one that was never run.
    """
    order = planned.order
    known = planned.units is not None
    estimate = order.kind.estimate(planned.spec, Inputs(database, store)) if known else None
    told = estimate is not None and bool(estimate.rows or estimate.bytes)
    pace, like = seconds_a_unit(planned, database)
    seconds = None if pace is None or not planned.missing else pace * planned.missing / max(1, order.shards)
    return {
        "run_id": planned.run_id,
        "kind": order.kind.name,
        "name": order.name,
        "standing": planned.standing,
        "units": planned.units,
        "missing": planned.missing,
        "rows": dict(estimate.rows) if estimate and told else None,
        "bytes": estimate.bytes if estimate and told else None,
        "seconds": seconds,
        "like": like,
        "determinism": order.kind.determinism,
        "waits_for": [spec_hash[26:32] for spec_hash in planned.after],
        "remarks": list(estimate.remarks) if estimate else [],
    }


def seconds_a_unit(planned: Planned, database: Database) -> tuple[float | None, int]:
    """Seconds that a unit took in the finished attempts whose settings are nearest to these, and how many those were.

    Attempts of this host count before those of others, equal settings before newer ones; the median of the three
    nearest is taken.
    """
    attempt, run, machine = tables.Attempt, tables.Run, tables.Machine
    query = (
        select(attempt.started_at, attempt.ended_at, attempt.units_done, run.spec, machine.host)
        .join(run, run.id == attempt.run_id)
        .join(machine, machine.id == attempt.machine_id)
        .where(
            run.kind == planned.order.kind.name,
            run.version == planned.order.kind.version,
            attempt.state == tables.AttemptState.FINISHED,
            attempt.units_done > 0,
        )
        .order_by(attempt.started_at.desc(), attempt.id)
        .limit(LOOKED_AT)
    )
    with database.read() as session:
        found = session.execute(query).all()
    wanted, here = hashed(planned.spec), socket.gethostname()
    near = sorted(found, key=lambda row: (row.host != here, -alike(wanted, row.spec)))[:NEAREST]
    paces = [(row.ended_at - row.started_at).total_seconds() / row.units_done for row in near if row.ended_at]
    return (statistics.median(paces), len(paces)) if paces else (None, 0)


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """How many settings are equal."""
    return sum(1 for key, value in one.items() if key in other and other[key] == value)
