"""A kind that writes an array for each unit, on a disk that is full as long as a file exists."""

import resource
from pathlib import Path

import numpy as np
from pydantic import Field

from chessreg.runs.kind import Kind
from chessreg.runs.spec import ExecutionOptions, Spec


class FillingSpec(Spec):
    count: int = 3


class FillingOptions(ExecutionOptions):
    full: str = Field("", description="a file: as long as it is there, the disk is full after the first unit")
    for_others: bool = Field(False, description="nothing else of this process can be written from then on")


class Filling(Kind):
    """Arrays of random numbers."""

    name = "filling"
    example = "--count 3"
    tables = ("metric_point",)
    spec, options = FillingSpec, FillingOptions

    def units(self, spec, inputs):
        return spec.count

    def run(self, task):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        for unit in task.units:
            if unit and task.options.full and Path(task.options.full).exists():
                task.flush()
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                with task.output(f"array-{unit}", unit, "array") as folder:
                    np.save(folder / "values.npy", np.arange(1000) + unit)
            finally:
                if not task.options.for_others:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
            task.emit("metric_point", unit, name="size", step=0, value=1000.0)
            task.done(unit)
