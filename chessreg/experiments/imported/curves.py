"""`imported-curves`: losses and accuracies by step, from the log of a published training script."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from chessreg.experiments.imported.file import (
    FileSpec,
    ImportedFile,
    ImportOptions,
    locate_import,
    record_imported_file,
)
from chessreg.games.foreign import training_log
from chessreg.games.foreign.game import read_source_text
from chessreg.runs.cost import parse_seconds
from chessreg.runs.kind import RunEstimate
from chessreg.runs.spec import Ref

if TYPE_CHECKING:
    from chessreg.games.foreign.training_log import LogPoint, TrainingLog
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


class ImportedCurvesSpec(FileSpec):
    bundled_file = "sample-training.log"
    format: Literal["training-log"] = Field("training-log", description="training-log")
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="the trained model, as a checkpoint of this registry. Left out: an unknown model"
    )


class ImportedCurves(ImportedFile):
    """Published training curves: the losses and accuracies that training scripts printed.

    The logs in the repository of Junkin 2025. Unit n holds the values printed for a step for the n-th time, so a
    checkpoint that was evaluated twice keeps both. The curves appear in `training curves` next to those of
    `train`, marked as imported.
    """

    name = "imported-curves"
    tables = ("metric_point",)
    spec = ImportedCurvesSpec
    queries = ("training curves",)
    example = "--file sample"

    def units(self, spec: ImportedCurvesSpec, inputs: Inputs) -> int:
        return read_log(spec, inputs)[0].repeats

    def check(self, spec: ImportedCurvesSpec, inputs: Inputs) -> None:
        if spec.checkpoint is not None:
            inputs.checkpoint(spec.checkpoint)
        super().check(spec, inputs)

    def estimate(self, spec: ImportedCurvesSpec, inputs: Inputs) -> RunEstimate:
        log, path = read_log(spec, inputs)
        size = path.stat().st_size
        return RunEstimate({"metric_point": len(log.points)}, size, cpu_seconds=parse_seconds(size))

    def run(self, task: Task[ImportedCurvesSpec, ImportOptions]) -> None:
        log, _ = read_log(task.spec, task.inputs)
        record_imported_file(task, task.spec.file, "results")
        if task.spec.checkpoint is not None:
            task.inputs.checkpoint(task.spec.checkpoint)
        by_unit: dict[int, list[LogPoint]] = defaultdict(list)
        for point in log.points:
            by_unit[point.repeat].append(point)
        for unit in task.units:
            for point in by_unit[unit]:
                task.emit("metric_point", unit, name=point.name, step=point.step, value=point.value)
            task.done(unit)

    def report(self, spec: ImportedCurvesSpec, inputs: Inputs) -> dict[str, Any]:
        return summarize_log(read_log(spec, inputs)[0])


def read_log(spec: ImportedCurvesSpec, inputs: Inputs) -> tuple[TrainingLog, Path]:
    """Return the log's values and its path in the store. Raises BadInputError for an unreadable line."""
    path = locate_import(spec, inputs)
    return training_log.read_training_log(read_source_text(path)), path


def summarize_log(log: TrainingLog) -> dict[str, Any]:
    """Return the number of lines and values of an import, and the repeated or non-finite values (`oddities`)."""
    repeated_lines = sorted({point.line for point in log.points if point.repeat})
    odd = (
        ("told again", repeated_lines, "another value of the same step; both are kept"),
        ("no finite number", list(log.nonfinite_lines), "nan or inf: left out"),
    )
    return {
        "rows": log.lines,
        "points": len(log.points),
        "other_lines": log.other_lines,
        "metrics": dict(sorted(Counter(point.name for point in log.points).items())),
        "rejected": [],
        "oddities": [
            {"code": code, "count": len(lines), "rows": lines, "texts": [text]} for code, lines, text in odd if lines
        ],
    }
