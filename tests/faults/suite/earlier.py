"""The behavior of earlier versions of chessreg, whose stores can still be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chessreg.runs.task import to_fragment_row
from store.arrays import ArrayGroup


def emit_group(task: Any, path: Path, points: list[str], checkpoint: Any, low: int, high: int) -> None:
    """A cache's group is written before its units: its row, ahead of the rows held back for them, and its number of
    rows."""
    group = ArrayGroup(path)
    row = {
        "run_id": task.run_id, "start": low, "stop": high, "checkpoint_id": checkpoint.id, "hook_points": points,
        "path": str(path.relative_to(task.store.root)), "digest": group.digest, "rows": group.rows,
        "d_model": checkpoint.d_model, "dtype": task.spec.dtype,
        "bytes": group.rows * checkpoint.d_model * len(points) * 2,
    }  # fmt: skip
    task._writer.add("activation_cache", to_fragment_row(row))
    task.emit("metric_point", low, name="rows", step=0, value=float(group.rows))
