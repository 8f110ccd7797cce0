"""The report of an import, as the run keeps it: counts, rows without a game, and every oddity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

OUTPUT = "report"
FILE = "report.json"


def publish(task: Task[Any, Any], unit: int, report: dict[str, Any]) -> None:
    with task.output(OUTPUT, unit, "report") as folder:
        (folder / FILE).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report_of(inputs: Inputs, run_id: UUID) -> dict[str, Any]:
    """The report of a complete import. Raises NotFoundError when its bytes are not here."""
    with inputs.database.read() as session:
        spec_hash = session.get_one(tables.Run, run_id).spec_hash
    found = inputs.artefact(OUTPUT, f"run:{spec_hash}/{OUTPUT}")
    report: dict[str, Any] = json.loads((found.path / FILE).read_text(encoding="utf-8"))
    return report
