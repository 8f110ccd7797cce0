"""Runs in other experiment trackers: every number is in the output of the tracker's own reader."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import chessreg
from chessreg import tracking
from chessreg.api import Registry
from chessreg.errors import BadInputError, NotFoundError
from chessreg.tracking import RunRecord, collect_records, export_records, name_for_mlflow
from tests.quick import quick_first

from .queries.test_any_value import DEMO


@pytest.fixture(scope="module")
def reg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    path = tmp_path_factory.mktemp("tracked")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extractall(path)
    with chessreg.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def records(reg: Registry) -> list[RunRecord]:
    return collect_records(reg)


@pytest.mark.slow
def test_a_record_has_every_setting_number_and_input_of_its_run(reg: Registry, records: list[RunRecord]) -> None:
    assert {record.id for record in records} == {str(row["id"]) for row in reg.runs()}
    [trained] = [record for record in records if record.name == "trained"]
    shown = reg.show("run", "trained")
    assert set(shown["spec"]) <= set(trained.settings)
    points = reg.sql("SELECT name, step, value FROM metric_point JOIN runs USING (run_id) WHERE run = 'trained'").rows
    assert sorted((p["name"], p["step"], p["value"]) for p in points) == sorted(
        (name, step, value) for name, curve in trained.curves.items() for step, value in curve
    )
    [board] = [record for record in records if record.name == "reference-board"]
    metric = reg.compare("reference-board", "untrained-board").metrics[0]
    assert [board.results[metric.name + end] for end in ("", " low", " high")] == list(metric.values[0])
    assert {"cache", "test_cache"} <= {name for name, _, _ in board.inputs}
    assert any("lessons" in line for line in board.lineage)
    assert next(record for record in records if record.name == "edits").notes == ("ten states of five games",)


def test_words_choose_runs(reg: Registry) -> None:
    assert {record.kind for record in collect_records(reg, "kind:legality")} == {"legality"}
    with pytest.raises(NotFoundError, match="no run matches"):
        collect_records(reg, "kind:nothing")


@pytest.mark.parametrize("place", ["mlflow", "mlflow:", "tensorboard:x", ":x"])
def test_another_place_is_refused(reg: Registry, place: str) -> None:
    with pytest.raises((BadInputError, NotFoundError)):
        export_records(reg, place)


def numbers(record: RunRecord) -> list[tuple[str, int, float]]:
    """(name, step, value) of each number; results have step 0."""
    points = [(f"curve/{name}", step, value) for name, curve in record.curves.items() for step, value in curve]
    return sorted([*((name, 0, value) for name, value in record.results.items()), *points])


def assert_equal_numbers(back: list[tuple[str, int, float]], expected: list[tuple[str, int, float]]) -> None:
    """Fail unless both have the same numbers. Means that were computed twice may differ in the last digit."""
    assert [point[:2] for point in sorted(back)] == [point[:2] for point in sorted(expected)]
    assert [point[2] for point in sorted(back)] == pytest.approx([point[2] for point in sorted(expected)], rel=1e-12)


def test_mlflow_gives_every_number_back(
    reg: Registry, records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow writes artifacts into ./mlruns
    mlflow = pytest.importorskip("mlflow", reason="no MLflow here: pip install mlflow-skinny")
    place = f"sqlite:///{tmp_path}/mlflow.db"
    done = export_records(reg, f"mlflow:{place}")
    assert (done["runs"], done["new"]) == (len(records), len(records))
    assert export_records(reg, f"mlflow:{place}")["new"] == 0
    client = mlflow.MlflowClient(tracking_uri=place)
    [experiment] = [e for e in client.search_experiments() if e.name == "chessreg"]
    found = {run.data.tags["chessreg.run"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {record.id for record in records}
    for record in records:
        run = found[record.id]
        assert run.data.params.keys() == record.settings.keys()
        back = [
            (key, metric.step, metric.value)
            for key in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, key)
        ]
        expected = [(name_for_mlflow(name), step, value) for name, step, value in numbers(record)]
        assert_equal_numbers(back, expected)
        assert (run.info.status == "FINISHED") == (record.state == "complete")


def read_leveldb_log(data: bytes) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format (blocks of 32 KiB, records in fragments) after seven bytes."""
    block, at, whole = 32768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block that is too short for a header
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last fragment of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_wandb_gives_every_number_back(reg: Registry, records: list[RunRecord], tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="no W&B here: pip install wandb")
    from wandb.proto import wandb_internal_pb2

    chosen = [record for record in records if record.kind in ("train", "rating", "probe")]
    words = ["kind:train", "kind:rating", "kind:probe"]
    for word in words:
        export_records(reg, f"wandb:{tmp_path}", word)
    assert export_records(reg, f"wandb:{tmp_path}", "kind:train")["new"] == 0
    for record in chosen:
        [file] = tmp_path.glob(f"wandb/offline-run-*-{record.id}/*.wandb")
        config: dict[str, Any] = {}
        summary: dict[str, Any] = {}
        curves: list[tuple[str, int, float]] = []
        for data in read_leveldb_log(file.read_bytes()):
            entry = wandb_internal_pb2.Record()
            entry.ParseFromString(data)
            for item in (*entry.run.config.update, *entry.config.update):
                config[item.key or item.nested_key[0]] = json.loads(item.value_json)
            for item in entry.summary.update:
                summary[item.key or item.nested_key[0]] = json.loads(item.value_json)
            if entry.HasField("history"):
                row = {item.key or item.nested_key[-1]: json.loads(item.value_json) for item in entry.history.item}
                curves += [
                    (name, row[name.replace("curve/", "step/")], value)
                    for name, value in row.items()
                    if name.startswith("curve/")
                ]
        assert record.settings.keys() <= config.keys()
        back = [(name, 0, summary[name]) for name in record.results] + curves
        assert_equal_numbers(back, numbers(record))


def test_trackio_gives_every_number_back(reg: Registry, records: list[RunRecord], tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="no Trackio here: pip install trackio")
    export_records(reg, f"trackio:{tmp_path}")
    assert export_records(reg, f"trackio:{tmp_path}")["new"] == 0
    from trackio.sqlite_storage import SQLiteStorage

    for record in records:
        config = SQLiteStorage.get_run_config("chessreg", run_id=record.id)
        assert config is not None
        assert record.settings.keys() <= config.keys()
        back = [
            (name, row["step"], value)
            for row in SQLiteStorage.get_logs("chessreg", run_id=record.id)
            for name, value in row.items()
            if name not in ("step", "timestamp")
        ]
        assert_equal_numbers(back, numbers(record))


def test_a_crate_has_every_result_row_and_describes_its_files(
    reg: Registry, records: list[RunRecord], tmp_path: Path
) -> None:
    rocrate = pytest.importorskip("rocrate.rocrate", reason="no RO-Crate library here: pip install rocrate")
    folder = tmp_path / "crate"
    export_records(reg, f"ro-crate:{folder}")
    with pytest.raises(BadInputError, match="not empty"):
        export_records(reg, f"ro-crate:{folder}")
    crate = rocrate.ROCrate(folder)
    described = {entity.id for entity in crate.data_entities}
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files - described == {"ro-crate-metadata.json"}
    assert described <= files
    for table in ("score", "game", "trial", "metric_point", "rating"):
        rows = pyarrow.parquet.read_table(folder / f"results/{table}.parquet").num_rows
        asked = f"SELECT count(*) AS n FROM {table} WHERE run_id NOT IN (SELECT run_id FROM runs WHERE archived)"
        assert rows == reg.sql(asked).rows[0]["n"]
    actions = [e for e in crate.contextual_entities if e.type == "CreateAction"]
    assert {action.id for action in actions} == {f"#run-{record.id}" for record in records}
    [board] = [record for record in records if record.name == "reference-board"]
    document = json.loads((folder / f"runs/{board.id}.json").read_text())
    assert document["results"] == board.results
    assert all(math.isfinite(value) for value in document["results"].values())


@pytest.mark.parametrize(("tracker", "package"), [("mlflow", "mlflow"), ("ro-crate", "rocrate")])
def test_an_export_that_was_cut_off_is_written_again(
    reg: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, package: str
) -> None:
    pytest.importorskip(package, reason=f"no {package} here")
    monkeypatch.chdir(tmp_path)
    place = f"mlflow:sqlite:///{tmp_path}/mlflow.db" if tracker == "mlflow" else f"ro-crate:{tmp_path}/crate"
    with monkeypatch.context() as cut:
        cut.setattr(RunRecord, "as_dict", lambda record: (_ for _ in ()).throw(RuntimeError("cut off")))
        with pytest.raises(RuntimeError, match="cut off"):
            export_records(reg, place, "kind:train")
    assert export_records(reg, place, "kind:train")["new"] == 1
    if tracker == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
        experiment = client.get_experiment_by_name("chessreg")
        assert experiment is not None
        [run] = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
    else:
        assert (tmp_path / "crate/ro-crate-metadata.json").exists()
        assert not (tmp_path / "crate.part").exists()


def count_exported_runs(tracker: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Return run → (its exported copies, the numbers in them)."""
    if tracker == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
        found = [
            (
                run.data.tags["chessreg.run"],
                sum(len(client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics),
            )
            for experiment in client.search_experiments()
            for run in client.search_runs([experiment.experiment_id])
        ]
    elif tracker == "wandb":
        documents = [json.loads(path.read_text()) for path in folder.glob("wandb/offline-run-*/chessreg.json")]
        found = [(one["id"], len(one["results"]) + sum(map(len, one["curves"].values()))) for one in documents]
    else:
        from trackio.sqlite_storage import SQLiteStorage

        found = []
        for config in SQLiteStorage.get_all_run_configs("chessreg").values():
            run = config["chessreg"]["run"]
            rows = SQLiteStorage.get_logs("chessreg", run_id=run)
            found.append((run, sum(len(row.keys() - {"step", "timestamp"}) for row in rows)))
    return {
        run: (sum(1 for one, _ in found if one == run), sum(n for one, n in found if one == run)) for run, _ in found
    }


@pytest.mark.parametrize(
    ("tracker", "package"), quick_first(1, [("mlflow", "mlflow"), ("wandb", "wandb"), ("trackio", "trackio")])
)
def test_an_incomplete_run_is_replaced_when_it_has_gone_on(
    reg: Registry, records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, package: str
) -> None:
    pytest.importorskip(package, reason=f"no {package} here")
    monkeypatch.chdir(tmp_path)
    place = f"{tracker}:sqlite:///{tmp_path}/mlflow.db" if tracker == "mlflow" else f"{tracker}:{tmp_path}"
    [whole] = [record for record in records if record.name == "trained"]
    [name, curve] = max(whole.curves.items(), key=lambda item: len(item[1]))
    early = replace(whole, state="running", ended=None, results={}, curves={name: curve[:1]})
    later = replace(whole, state="running", ended=None, results={}, curves={name: curve[:2]})
    done = {}
    for step, record in (("early", early), ("same", early), ("later", later), ("whole", whole), ("again", whole)):
        monkeypatch.setattr(tracking, "collect_records", lambda session, words, record=record: [record])
        written = export_records(reg, place)
        done[step] = written["new"], written["updated"]
        expected = 1 if step in ("early", "same") else 2 if step == "later" else whole.count_numbers()
        assert count_exported_runs(tracker, tmp_path) == {whole.id: (1, expected)}, step
    assert done == {"early": (1, 0), "same": (0, 0), "later": (0, 1), "whole": (0, 1), "again": (0, 0)}


def test_a_synced_run_of_wandb_that_is_updated_is_named(
    reg: Registry, records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="no W&B here")
    [whole] = [record for record in records if record.name == "trained"]
    monkeypatch.setattr(
        tracking, "collect_records", lambda session, words: [replace(whole, state="running", results={})]
    )
    export_records(reg, f"wandb:{tmp_path}")
    [folder] = tmp_path.glob(f"wandb/offline-run-*-{whole.id}")
    (folder / f"run-{whole.id}.wandb.synced").touch()
    monkeypatch.setattr(tracking, "collect_records", lambda session, words: [whole])
    assert "uploaded before" in export_records(reg, f"wandb:{tmp_path}")["remark"]
