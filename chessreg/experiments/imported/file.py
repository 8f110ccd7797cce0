"""Parts shared by the kinds that import a file of results: the bundled sample, the artifact row, the refusal of a
second import of the same bytes, and the report."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import Field, model_validator
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind
from chessreg.runs.resolve import resolve_spec
from chessreg.runs.spec import ExecutionOptions, Ref, Spec
from chessreg.runs.task import Task

SAMPLE = "sample"
"""The value of --file that means the bundled file of the kind."""
REPORT = "report"
REPORT_FILE = "report.json"


class FileSpec(Spec):
    file: Annotated[str, Ref("results")] = Field(description="the file; `sample` is one that comes with chessreg")
    bundled_file: ClassVar[str]
    """The name of the bundled file, in chessreg/data."""

    @model_validator(mode="before")
    @classmethod
    def _replace_sample(cls, values: Any) -> Any:
        return replace_sample(values, cls.bundled_file)


class ImportOptions(ExecutionOptions):
    file_name: str = Field("", description="a readable name of the file. Left out: its own name")


class ImportedFile(Kind):
    """A kind that imports a file. It refuses bytes that are imported already, and stores a report as its last unit."""

    options = ImportOptions

    def check(self, spec: Any, inputs: Inputs) -> None:
        refuse_reimport(inputs.database, self.name, resolve_spec(self, spec, inputs).run_id, spec)

    def report(self, spec: Any, inputs: Inputs) -> dict[str, Any]:
        """Return the counts of the import and its `oddities`: rows with incomplete or contradictory data."""
        raise NotImplementedError

    def reduce(self, task: Task[Any, ImportOptions]) -> None:
        spec, inputs = task.spec, task.inputs
        about = {"format": spec.format, "file": task.options.file_name, **self.report(spec, inputs)}
        publish_report(task, self.units(spec, inputs), about)


def locate_import(spec: FileSpec, inputs: Inputs) -> Path:
    """Return the path of the imported file in the store."""
    return inputs.store.artifact(inputs.artifact("file", spec.file).digest).file


def replace_sample(values: Any, name: str) -> Any:
    """Return the settings with `sample` replaced by the path of the bundled file `name`."""
    if isinstance(values, dict) and values.get("file") == SAMPLE:
        return {**values, "file": str(locate_sample(name))}
    return values


def locate_sample(name: str) -> Path:
    """Return the path of a file that comes with chessreg."""
    return Path(str(files("chessreg") / "data" / name))


def record_imported_file(task: Task[Any, Any], reference: str, kind: str) -> None:
    """Record the imported file as an artifact row."""
    task.record_artifact(task.store.artifact(reference.removeprefix("sha256:")), kind)


def refuse_reimport(database: Database, kind: str, run_id: UUID | None, spec: Any) -> None:
    """Raise BadInputError if another run of `kind` imported the bytes of `spec`'s file with other settings and is
    neither archived nor invalid: the games would count twice. `run_id` is excluded."""
    with database.read() as session:
        runs = session.scalars(select(tables.Run).where(tables.Run.kind == kind)).all()
        runs_of_file = [run for run in runs if run.spec.get("file") == spec.file and run.id != run_id]
        if not runs_of_file:
            return
        excluded_runs = select(names.CURRENT_ANNOTATIONS.c.target).where(
            names.CURRENT_ANNOTATIONS.c.noun == "run",
            names.CURRENT_ANNOTATIONS.c.word.in_(
                [tables.AnnotationWord.ARCHIVE.value, tables.AnnotationWord.INVALID.value]
            ),
        )
        excluded_ids = set(session.scalars(excluded_runs))
        counted_runs = [run for run in runs_of_file if run.id.hex not in excluded_ids]
        if counted_runs:
            run_name = names.read_name(session, "run", counted_runs[0].id) or counted_runs[0].id.hex[-6:]
            raise BadInputError(
                f"these bytes are already in run {run_name}, imported with other settings; they would count twice",
                f"chessreg runs archive {run_name}",
            )


def publish_report(task: Task[Any, Any], unit: int, report: dict[str, Any]) -> None:
    """Store the report of an import as an output of its last unit."""
    with task.output(REPORT, unit, "report") as folder:
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_import_report(inputs: Inputs, run_id: UUID) -> dict[str, Any]:
    """Return the report of a complete import. Raises NotFoundError if its artifact is not in the store."""
    with inputs.database.read() as session:
        spec_hash = session.get_one(tables.Run, run_id).spec_hash
    artifact = inputs.artifact(REPORT, f"run:{spec_hash}/{REPORT}")
    report: dict[str, Any] = json.loads((artifact.path / REPORT_FILE).read_text(encoding="utf-8"))
    return report
