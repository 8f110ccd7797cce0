"""Execution options of trainings that several processes can share (chessreg/models/ranks.py)."""

from __future__ import annotations

from pydantic import Field

from chessreg.runs.spec import ExecutionOptions


class ParallelOptions(ExecutionOptions):
    devices: int = Field(
        1,
        ge=1,
        description="CUDA devices that share each batch, one process each; on a CPU: processes (data parallel)",
    )
