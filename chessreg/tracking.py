"""Runs written for other experiment trackers: MLflow, Weights & Biases, Trackio and RO-Crate.

The direction is one way. A record has a run's settings, execution options, code, machine, versions, results with 95 %
intervals, curves, artifacts by digest, and lineage. Writers use the tracker's own library, which the user installs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.entities.run import describe_reference
from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import NameRegistry
from chessreg.plugins import install_command
from chessreg.queries.compare import Subject, compute_metrics, read_last_attempt, read_run_facts
from chessreg.registry import lineage, read, run_filter, tables
from chessreg.rows import to_plain

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.registry.database import Database
    from chessreg.session import Session

RUN_TAG = "chessreg.run"  # holds the id of a run that is written completely, by which a repeated export finds it
STARTED_TAG = "chessreg.export"  # holds the id from the start of its export
STATE_TAG, PROGRESS_TAG = "chessreg.state", "chessreg.progress"
COMPLETE = "complete"
DOCUMENT = "chessreg.json"  # the whole record; written last, so it marks a complete export
MLFLOW_BATCH = 1000  # metrics per request, the server's limit
MLFLOW_PARAMS = 100  # parameters per request, the server's limit
MLFLOW_VALUE_CHARS = 6000  # of a parameter, the server's limit
NOT_IN_MLFLOW = re.compile(r"[^/\w.\- :]")  # characters that MLflow refuses in the name of a metric


@dataclass(frozen=True)
class RunRecord:
    """One run as other trackers store it.

    `settings` maps dotted names to values; `facts` does so for execution options, code, machine and versions. `results`
    maps a metric to its value, and `NAME low` and `NAME high` to the ends of its 95 % interval. `curves` maps a metric
    to its (step, value) pairs. `inputs` and `outputs` list (name, reference, digest).
    """

    id: str
    name: str
    kind: str
    state: str
    began: datetime
    ended: datetime | None
    settings: dict[str, Any]
    facts: dict[str, Any]
    tags: tuple[str, ...]
    notes: tuple[str, ...]
    results: dict[str, float]
    curves: dict[str, list[tuple[int, float]]]
    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str, str]]
    lineage: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The run's name with its kind if it has no name."""
        return self.name or f"{self.kind} {self.id[-6:]}"

    def count_numbers(self) -> int:
        """Return the number of results and points of curves."""
        return len(self.results) + sum(map(len, self.curves.values()))

    @property
    def progress(self) -> str:
        """A text that changes when an incomplete run progresses."""
        return f"{self.state}, {self.count_numbers()} numbers"

    def is_newer_than(self, state: str | None, progress: str | None) -> bool:
        """Return whether an export with this state and progress has to be written again. A complete one is final."""
        return state != COMPLETE and progress != self.progress

    def as_dict(self) -> dict[str, Any]:
        """Return the whole record as a JSON document."""
        document: dict[str, Any] = to_plain(vars(self))
        return document


def collect_records(session: Session, words: str = "") -> list[RunRecord]:
    """Return the records of the runs that match all `words` (as `chessreg runs list`), oldest first.

    Raises NotFoundError if no run matches.
    """
    with session.database.read() as sql:
        rows_by_id = {row["id"]: row for row in read.list_runs(sql, kind=None, archived=False)}
        matching_ids = [id for id in run_filter.find_runs(sql, words, "created", archived=False) if id in rows_by_id]
        if not matching_ids:
            raise NotFoundError(
                f"no run matches {words!r}" if words else "the registry has no runs", "chessreg runs list"
            )
        subjects = [Subject(rows_by_id[id]["name"] or id.hex[-6:], id) for id in matching_ids]
        records = [read_run_record(sql, subject, rows_by_id[subject.run_id]) for subject in subjects]
    add_results(session.database, subjects, records)
    return records


def read_run_record(sql: SqlSession, subject: Subject, row: dict[str, Any]) -> RunRecord:
    """Return the record of a run, without results."""
    id = subject.run_id
    facts = read_run_facts(sql, subject)
    attempt = read_last_attempt(sql, id)
    point, run_input, run_output = tables.MetricPoint, tables.RunInput, tables.Output
    has_several_units = len(set(sql.scalars(select(point.unit).where(point.run_id == id)))) > 1
    curves: dict[str, list[tuple[int, float]]] = {}
    for p in sql.scalars(select(point).where(point.run_id == id).order_by(point.name, point.unit, point.step)):
        curves.setdefault(f"{p.name}, unit {p.unit}" if has_several_units else p.name, []).append((p.step, p.value))
    inputs = sql.scalars(
        select(run_input).where(run_input.run_id == id).order_by(run_input.name, run_input.reference)
    ).all()
    outputs = sql.scalars(select(run_output).where(run_output.run_id == id).order_by(run_output.name)).all()
    return RunRecord(
        id=id.hex,
        name=row["name"] or "",
        kind=row["kind"],
        state=row["state"],
        began=attempt.started_at if attempt else row["created_at"],
        ended=row["completed_at"],
        settings=facts["settings"],
        facts={
            f"{group.replace(' ', '_')}.{key}": value
            for group in ("execution options", "code", "machine", "versions")
            for key, value in facts[group].items()
        },
        tags=tuple(row["tags"]),
        notes=tuple(row["notes"]),
        results={},
        curves=curves,
        inputs=[(i.name, str(describe_reference(sql, i.reference)), i.digest) for i in inputs],
        outputs=[(o.name, f"run:{row['spec_hash']}/{o.name}", o.digest) for o in outputs],
        lineage=repr(lineage.build_tree(sql, lineage.Node("run", id.hex), up=True)).splitlines(),
    )


def add_results(database: Database, subjects: Sequence[Subject], records: Sequence[RunRecord]) -> None:
    """Add to each record the results of its run."""
    for metric in compute_metrics(database, list(subjects)):
        for value, record in zip(metric.values, records, strict=True):
            for end, number in (("", value.value), (" low", value.low), (" high", value.high)):
                if number is not None:
                    record.results[metric.name + end] = number


# -- writers ---------------------------------------------------------------------------------------------------------


class WrittenRuns(NamedTuple):
    """Numbers of runs that an export added, and that it wrote again because they were incomplete before."""

    new: int
    updated: int = 0
    remark: str = ""


Writer = Callable[[Sequence[RunRecord], str, str, "Session"], WrittenRuns]
"""Writes records to a place under the name of a project."""

TRACKERS: NameRegistry[Writer] = NameRegistry("tracker", "mlflow:sqlite:///mlflow.db, ro-crate:FOLDER")


def export_records(session: Session, place: str, words: str = "", project: str = "chessreg") -> dict[str, Any]:
    """Write runs to `TRACKER:PLACE`; return the numbers of runs, of new and of updated runs, and of results and points
    of curves. A run that was incomplete when it was exported is replaced if it has progressed.

    Raises BadInputError for another format or if the tracker's library is not installed, NotFoundError if no run
    matches `words`.
    """
    tracker, _, target = place.partition(":")
    if not target:
        raise BadInputError(f"{place!r} is not TRACKER:PLACE", f"for example {TRACKERS.example}")
    write = TRACKERS[tracker]
    records = collect_records(session, words)
    try:
        report = write(records, target, project, session)
    except ModuleNotFoundError as error:
        package = PACKAGES.get(tracker, tracker)
        if str(error.name).partition(".")[0] != package.partition("-")[0]:
            raise
        raise BadInputError(f"export to {tracker} needs the package {package}", install_command(package)) from None
    numbers = sum(record.count_numbers() for record in records)
    return {"place": place, "runs": len(records), **report._asdict(), "numbers": numbers}


PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb", "trackio": "trackio", "ro-crate": "rocrate"}


@TRACKERS.named("mlflow")
def write_mlflow(records: Sequence[RunRecord], where: str, project: str, session: Session) -> WrittenRuns:
    """Write the runs to the experiment `project` of an MLflow tracking URI or folder `where`.

    Returns the numbers of new and of replaced runs. An incomplete run is replaced; MLflow lists the old one as deleted.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(tracking_uri=where)
    experiment_record = client.get_experiment_by_name(project)
    experiment = experiment_record.experiment_id if experiment_record else client.create_experiment(project)
    new = updated_count = 0
    for record in records:
        existing_runs = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{record.id}'")
        known_states = [(run.data.tags.get(STATE_TAG), run.data.tags.get(PROGRESS_TAG)) for run in existing_runs]
        if current := [
            run for run, tags in zip(existing_runs, known_states, strict=True) if not record.is_newer_than(*tags)
        ]:
            for stale_run in [run for run in existing_runs if run is not current[0]]:  # of an update that was cut off
                client.delete_run(stale_run.info.run_id)
            continue
        for unfinished_run in client.search_runs([experiment], f"tags.`{STARTED_TAG}` = '{record.id}'"):
            client.delete_run(unfinished_run.info.run_id)
        tags = {"chessreg.kind": record.kind, STATE_TAG: record.state, PROGRESS_TAG: record.progress}
        tags |= {f"chessreg.{name}": format_param(value) for name, value in record.facts.items() if value is not None}
        tags |= {"tags": ", ".join(record.tags)} if record.tags else {}
        tags |= {"mlflow.note.content": "\n\n".join(record.notes)} if record.notes else {}
        start_ms = to_milliseconds(record.began)
        end_ms = to_milliseconds(record.ended or record.began)
        run = client.create_run(experiment, start_ms, {STARTED_TAG: record.id}, record.title).info.run_id
        params = [Param(name, format_param(value)[:MLFLOW_VALUE_CHARS]) for name, value in record.settings.items()]
        points = [Metric(name_for_mlflow(name), value, end_ms, 0) for name, value in record.results.items()]
        points += [
            Metric(f"curve/{name_for_mlflow(name)}", value, end_ms, step)
            for name, curve in record.curves.items()
            for step, value in curve
        ]
        for part in split_batches(params, MLFLOW_PARAMS):
            client.log_batch(run, params=part)
        for part in split_batches([RunTag(name, value) for name, value in tags.items()], MLFLOW_PARAMS):
            client.log_batch(run, tags=part)
        for part in split_batches(points, MLFLOW_BATCH):
            client.log_batch(run, metrics=part)
        client.log_dict(run, record.as_dict(), DOCUMENT)
        client.set_terminated(run, "FINISHED" if record.state == COMPLETE else "FAILED", end_ms)
        client.set_tag(run, RUN_TAG, record.id)
        for stale_run in existing_runs:
            client.delete_run(stale_run.info.run_id)
        new, updated_count = new + (not existing_runs), updated_count + bool(existing_runs)
    return WrittenRuns(new, updated_count)


@TRACKERS.named("wandb")
def write_wandb(records: Sequence[RunRecord], where: str, project: str, session: Session) -> WrittenRuns:
    """Write offline runs of the W&B project `project` into the folder `where`; `wandb sync` uploads them.

    Returns the numbers of new and of replaced runs. An incomplete run is replaced in the folder, but not on W&B's
    server.
    """
    import wandb

    folder = Path(where)
    folder.mkdir(parents=True, exist_ok=True)
    new = updated_count = synced_count = 0
    for record in records:
        earlier_folders = list(folder.glob(f"wandb/offline-run-*-{record.id}"))
        known_states = [
            read_exported_progress(path / DOCUMENT) for path in earlier_folders if (path / DOCUMENT).exists()
        ]
        if any(not record.is_newer_than(*known_state) for known_state in known_states):
            continue
        synced_count += any(True for path in earlier_folders for _ in path.glob("*.synced"))
        for earlier_folder in earlier_folders:
            shutil.rmtree(earlier_folder)
        run = wandb.init(
            project=project, dir=folder, mode="offline", id=record.id, name=record.title, job_type=record.kind,
            tags=list(record.tags), notes="\n\n".join(record.notes) or None, reinit="finish_previous",
            config={**to_plain(record.settings), "chessreg": {"state": record.state, **to_plain(record.facts)}},
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, x_disable_meta=True, x_save_requirements=False
            ),
        )  # fmt: skip
        for name in record.curves:
            run.define_metric(f"curve/{name}", step_metric=f"step/{name}")
        for name, curve in record.curves.items():
            for step, value in curve:
                run.log({f"curve/{name}": value, f"step/{name}": step})
        run.summary.update({**record.results, "inputs": record.inputs, "outputs": record.outputs})
        run.summary["lineage"] = record.lineage
        run.finish()
        [run_folder] = folder.glob(f"wandb/offline-run-*-{record.id}")
        write_document(record, run_folder / DOCUMENT)
        new, updated_count = new + (not known_states), updated_count + bool(known_states)
    remark = (
        f"{synced_count} of them were uploaded before: delete them on W&B, then run `wandb sync`"
        if synced_count
        else ""
    )
    return WrittenRuns(new, updated_count, remark)


def read_exported_progress(path: Path) -> tuple[str | None, str | None]:
    """Return state and progress of an exported document."""
    document = json.loads(path.read_text(encoding="utf-8"))
    numbers = len(document["results"]) + sum(map(len, document["curves"].values()))
    return document["state"], f"{document['state']}, {numbers} numbers"


@TRACKERS.named("trackio")
def write_trackio(records: Sequence[RunRecord], where: str, project: str, session: Session) -> WrittenRuns:
    """Write the runs to the project `project` of Trackio's folder `where` (its TRACKIO_DIR).

    Returns the numbers of new and of replaced runs. An incomplete run is replaced.
    """
    import os

    folder = Path(where).resolve()
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = folder  # if the library was imported before, it has read the variable
    storage = sqlite_storage.SQLiteStorage

    configs = [config.get("chessreg", {}) for config in storage.get_all_run_configs(project).values()]
    known_states = {
        config["run"]: (config.get("state"), config.get("progress")) for config in configs if "run" in config
    }
    new_records = [
        record for record in records if record.id not in known_states or record.is_newer_than(*known_states[record.id])
    ]
    updated_records = [record for record in new_records if record.id in known_states]
    for record in updated_records:
        storage.delete_run(project, record.title, run_id=record.id)
    for record in new_records:
        facts = {"run": record.id, "kind": record.kind, "state": record.state, "progress": record.progress,
                 "tags": record.tags,
                 "notes": record.notes, "inputs": record.inputs, "outputs": record.outputs, "lineage": record.lineage,
                 **record.facts}  # fmt: skip
        steps: dict[int, dict[str, float]] = {}
        for name, curve in record.curves.items():
            for step, value in curve:
                steps.setdefault(step, {})[f"curve/{name}"] = value
        points = [(0, dict(record.results)), *sorted(steps.items())]
        storage.bulk_log(
            project=project,
            run=f"{record.title} {record.id[-6:]}" if record.name else record.title,
            run_id=record.id,
            metrics_list=[metrics for _, metrics in points],
            steps=[step for step, _ in points],
            timestamps=[record.began.isoformat()] * len(points),
            config={**to_plain(record.settings), "chessreg": to_plain(facts)},
        )
    return WrittenRuns(len(new_records) - len(updated_records), len(updated_records))


@TRACKERS.named("ro-crate")
def write_crate(records: Sequence[RunRecord], where: str, project: str, session: Session) -> WrittenRuns:
    """Write the runs as a new RO-Crate in the folder `where`, named `project`, and return the numbers of written runs.

    The crate has the result tables of the runs as Parquet and a JSON document for each run. Each run is an action of
    the Process Run Crate profile. Raises BadInputError if the folder is not empty.
    """
    from rocrate.model import ContextEntity
    from rocrate.rocrate import ROCrate

    folder = Path(where)
    if folder.exists() and any(folder.iterdir()):
        raise BadInputError(f"{folder} is not empty", "a RO-Crate is not updated: give a new folder")
    crate = ROCrate()
    crate.name, crate.description = project, f"{len(records)} runs of chessreg, their settings, results and lineage"
    profile = "https://w3id.org/ro/wfrun/process/0.5"
    crate.root_dataset["conformsTo"] = crate.add(ContextEntity(crate, profile, {"@type": "CreativeWork"}))
    software = crate.add(ContextEntity(crate, "#chessreg", {"@type": "SoftwareApplication", "name": "chessreg"}))
    part_path = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part_path, ignore_errors=True)
    part_path.mkdir(parents=True)
    output_files = [
        crate.add_file(path, f"results/{path.name}", properties={"encodingFormat": "application/vnd.apache.parquet"})
        for path in write_result_tables(session, records, part_path / "results")
    ]
    for record in records:
        path = write_document(record, part_path / "runs" / f"{record.id}.json")
        document = crate.add_file(path, f"runs/{path.name}", properties={"encodingFormat": "application/json"})
        input_entities = [
            crate.add(ContextEntity(crate, f"#sha256-{digest}", {"@type": "Dataset", "name": reference}))
            for _, reference, digest in record.inputs
        ]
        action = {"@type": "CreateAction", "name": record.title, "startTime": record.began.isoformat()}
        if record.ended is not None:
            action["endTime"] = record.ended.isoformat()
        status = "Completed" if record.state == COMPLETE else "Failed"
        action["actionStatus"] = f"http://schema.org/{status}ActionStatus"
        action_entity = crate.add(ContextEntity(crate, f"#run-{record.id}", action))
        action_entity["instrument"], action_entity["object"], action_entity["result"] = (
            software,
            input_entities,
            [document, *output_files],
        )
        crate.root_dataset.append_to("mentions", action_entity)
    crate.write(part_path)
    part_path.replace(folder)
    return WrittenRuns(len(records))


def write_document(record: RunRecord, path: Path) -> Path:
    """Write a record as a JSON file, and return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record.as_dict(), indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    return path


def write_result_tables(session: Session, records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write the rows of the runs in each result table as Parquet; return the files."""
    from chessreg.queries import run_sql
    from chessreg.queries.render import write_result
    from chessreg.registry.result_tables import RESULT_TABLES

    ids = ", ".join(f"UUID '{UUID(record.id)}'" for record in records)
    folder.mkdir(parents=True)
    files = []
    for table in RESULT_TABLES:
        result = run_sql(session.database, f"SELECT * FROM {table} WHERE run_id IN ({ids}) ORDER BY ALL")
        if len(result):
            write_result(result, folder / f"{table}.parquet", "parquet")
            files.append(folder / f"{table}.parquet")
    return files


def format_param(value: Any) -> str:
    """Return a setting as one text: texts unchanged, everything else as JSON."""
    plain_value = to_plain(value)
    return plain_value if isinstance(plain_value, str) else json.dumps(plain_value, ensure_ascii=False)


def name_for_mlflow(name: str) -> str:
    """Return the name of a metric without the characters that MLflow refuses.

    >>> name_for_mlflow("accuracy, test, layer 3")
    'accuracy test layer 3'
    """
    return " ".join(NOT_IN_MLFLOW.sub(" ", name).split())


def to_milliseconds(moment: datetime) -> int:
    """Return milliseconds since 1970; times of the registry are UTC."""
    return round(1000 * (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def split_batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """Yield parts of at most `size` items."""
    return (items[start : start + size] for start in range(0, len(items), size))
