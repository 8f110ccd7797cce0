"""A kind with bytes on both sides: it reads a file, and makes a longer one of it for each unit."""

import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from chessreg.runs.kind import Kind
from chessreg.runs.spec import Ref, Spec


class SentSpec(Spec):
    file: Annotated[str, Ref("results")] = Field(description="what is read")
    count: int = 4
    gate: str = ""  # a path on the node: no unit ends before it exists


class Sent(Kind):
    """Copies of a file, each with a number."""

    name = "sent"
    example = "--file README.md"
    tables = ("metric_point",)
    spec = SentSpec

    def units(self, spec, inputs):
        return spec.count

    def run(self, task):
        found = task.inputs.artifact("file", task.spec.file)
        (path,) = (each for each in found.path.iterdir() if not each.name.startswith("."))
        while task.spec.gate and not Path(task.spec.gate).exists():
            time.sleep(0.1)
        for unit in task.units:
            with task.output(f"copy-{unit}", unit=unit, kind="text") as folder:
                (folder / "copy.txt").write_text(f"{path.read_text()}{unit}")
            task.emit("metric_point", unit, name="length", step=0, value=float(path.stat().st_size))
            task.done(unit)
