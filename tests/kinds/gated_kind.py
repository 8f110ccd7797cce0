"""A kind whose pace a test controls: it stops at a gate until a file exists. Its batch must fit into memory."""

import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from chessreg.runs.kind import Kind
from chessreg.runs.spec import ExecutionOptions, Ref, Spec

WAIT_SECONDS = 3600.0  # all tests together take less time: killed tests do not leave a process at the gate forever


class GatedSpec(Spec):
    count: int = 6
    engine_dies: bool = False
    memory: int = Field(4, description="the largest batch that fits")


class GatedOptions(ExecutionOptions):
    batch_numbers: int = 4
    gate: str = Field("", description="a file that must be there to pass")
    passed: int = Field(2, description="units of a shard that are done before the gate")


class Gated(Kind):
    """Squares of numbers."""

    name = "gated"
    example = "--count 3"
    tables = ("metric_point",)
    spec, options = GatedSpec, GatedOptions

    def units(self, spec, inputs):
        return spec.count

    def run(self, task):
        if task.options.batch_numbers > task.spec.memory:
            raise MemoryError(f"a batch of {task.options.batch_numbers}")
        if task.spec.engine_dies:
            error = RuntimeError("the engine does not answer")
            error.cause = "engine_died"
            raise error
        for place, unit in enumerate(task.units):
            if task.options.gate and place == task.options.passed:
                task.flush()
                deadline = time.monotonic() + WAIT_SECONDS
                while not Path(task.options.gate).exists():
                    if time.monotonic() > deadline:
                        raise TimeoutError("nobody opens the gate")
                    task.progress(place / len(task.units), "at the gate")
                    time.sleep(0.1)
            task.emit("metric_point", unit, name="square", step=0, value=float(unit * unit))
            task.done(unit)


class Summed(Gated):
    """Squares of numbers, and their sum."""

    name = "summed"

    def reduce(self, task):
        from sqlalchemy import func, select

        from chessreg.registry.tables import MetricPoint as Point

        with task.inputs.database.read() as session:
            squares = select(func.sum(Point.value)).where(Point.run_id == task.run_id, Point.name == "square")
            total = session.scalar(squares)
        task.emit("metric_point", task.spec.count, name="sum", step=0, value=float(total))


class DoubledSpec(Spec):
    of: Annotated[str, Ref("run:gated")]


class Doubled(Kind):
    """The rows of a gated run, doubled."""

    name = "doubled"
    example = "--of squares"
    tables = ("metric_point",)
    spec, options = DoubledSpec, GatedOptions

    def units(self, spec, inputs):
        return inputs.run(spec.of, "gated").units

    def run(self, task):
        from sqlalchemy import select

        from chessreg.registry.tables import MetricPoint as Point

        with task.inputs.database.read() as session:
            source = Point.run_id == task.inputs.run(task.spec.of, "gated").id
            squares = dict(session.execute(select(Point.unit, Point.value).where(source)).all())
        for unit in task.units:
            task.emit("metric_point", unit, name="doubled", step=0, value=2 * squares[unit])
            task.done(unit)
