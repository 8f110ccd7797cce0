"""The kind that the rounds run: rows of two families, artifacts, a reduce; all of it known beforehand."""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field

from chessreg.noise import generator
from chessreg.runs.kind import Kind
from chessreg.runs.spec import ExecutionOptions, Spec


class LedgerSpec(Spec):
    count: int = Field(6, ge=1, description="units beside the reduce")


class LedgerOptions(ExecutionOptions):
    pause: float = Field(0.0, description="seconds to wait in each unit")


def value(seed: int, unit: int, step: int) -> float:
    """The content that a unit writes at a step."""
    return float(generator("ledger", seed, unit, step).integers(1_000_000))


def page(seed: int, unit: int) -> bytes:
    """The content of a unit's artifact; only even units have one."""
    return b"%d %d\n" % (seed, unit) + generator("page", seed, unit).bytes(2000)


def points(seed: int, count: int) -> dict[tuple[int, str, int], float]:
    """Every metric point of a complete run by (unit, name, step)."""
    found = {(unit, "entry", step): value(seed, unit, step) for unit in range(count) for step in range(2)}
    return found | {(count, "sum", 0): sum(found.values())}


def pages(seed: int, count: int) -> dict[str, bytes]:
    """Every output of a complete run by its name."""
    return {f"page-{unit}": page(seed, unit) for unit in range(0, count, 2)}


class Ledger(Kind):
    """Entries, pages and a sum."""

    name = "ledger"
    tables = ("metric_point", "score")
    spec, options = LedgerSpec, LedgerOptions

    def units(self, spec: Any, inputs: Any) -> int:
        return int(spec.count)

    def run(self, task: Any) -> None:
        for unit in task.units:
            if unit % 2 == 0:
                with task.output(f"page-{unit}", unit, "page") as folder:
                    (folder / "page.bin").write_bytes(page(task.spec.seed, unit))
            for step in range(2):
                task.emit("metric_point", unit, name="entry", step=step, value=value(task.spec.seed, unit, step))
            task.emit("score", unit, split="test", item=unit, n=64, correct=unit)
            time.sleep(task.options.pause)
            task.done(unit)

    def reduce(self, task: Any) -> None:
        from sqlalchemy import func, select

        from chessreg.registry.tables import MetricPoint as Point

        with task.inputs.database.read() as session:
            total = session.scalar(
                select(func.sum(Point.value)).where(Point.run_id == task.run_id, Point.name == "entry")
            )
        task.emit("metric_point", task.spec.count, name="sum", step=0, value=float(total))
