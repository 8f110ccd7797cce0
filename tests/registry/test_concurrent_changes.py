"""Two processes that change the same JSON column at once: both changes are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chessreg.entities.checkpoint import record_import_details
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id
from chessreg.registry.read import EVALUATORS, get_engine_ids
from chessreg.scheduling import queue

MATCH = {
    "number": 0, "player": "m", "opponent": "random", "color": "white", "opening": "standard", "opening_seed": 0,
    "policy": "legal", "planned": 1,
}  # fmt: skip
EVALUATIONS = 20  # of each process
EVALUATE = f"""
import json, sys
from uuid import UUID
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.runs.ingest import insert_missing

url, run, match, number = sys.argv[1:]
with Database.open(url, create=False) as database:
    for place in range({EVALUATIONS}):
        engine = f"{{1 + place + 100 * int(number):032x}}"
        row = {{"run_id": UUID(run), **json.loads(match), "detail": {{"{EVALUATORS}": [engine]}}}}
        with database.write() as session:
            insert_missing(session, tables.Match.__table__, [row])
"""


def test_two_processes_each_keep_the_engines_that_evaluated_a_match(
    database: Database, url: str, rows: Any, processes: Any
) -> None:
    with database.write() as session:
        run_id = rows.run(session).id
        session.add(tables.Match(run_id=run_id, detail={EVALUATORS: ["f" * 32]}, **MATCH))
    done = processes(EVALUATE, 2, url, run_id.hex, json.dumps(MATCH))
    assert [each.stderr for each in done] == ["", ""]
    with database.read() as session:
        match = session.get_one(tables.Match, (run_id, 0))
        assert len(get_engine_ids(match)["evaluator"]) == 1 + 2 * EVALUATIONS


@pytest.fixture
def two(postgres: Any) -> Any:
    """Two processes' connections to one registry on a server. A writing transaction of SQLite excludes others."""
    url = postgres.migrated()
    with Database.open(url) as one, Database.open(url) as other:
        yield one, other


def test_a_cancelled_job_keeps_what_its_supervisor_recorded_meanwhile(two: Any, rows: Any) -> None:
    one, other = two
    job_id = make_id()
    job = tables.Job(
        id=job_id, group_id=job_id, run_id=job_id, kind="toy", spec_hash="a" * 64, executor="local", host="box",
        shard=0, shards=1, state=tables.JobState.RUNNING, detail={queue.RETRY_KEY: True}, created_at=rows.when,
    )  # fmt: skip
    with one.write() as session:
        session.add(job)
    with one.write() as session:
        read_job = session.get_one(tables.Job, job_id)
        with other.write() as others:
            queue.record_placement(others.get_one(tables.Job, job_id), {"state": "running", "node": "n1"})
        queue.cancel_jobs(session, [read_job])
    with one.read() as session:
        assert session.get_one(tables.Job, job_id).detail == {queue.PLACEMENT_KEY: {"state": "running", "node": "n1"}}


def test_details_of_two_imports_of_a_checkpoint_are_kept(two: Any, rows: Any) -> None:
    one, other = two
    checkpoint_id = make_id()
    with one.write() as session:
        session.add(tables.Checkpoint(id=checkpoint_id, source_format="external", detail={}, created_at=rows.when))
    with one.write() as session:
        read_row = session.get_one(tables.Checkpoint, checkpoint_id)
        with other.write() as others:
            record_import_details(others, checkpoint_id, {"a": 1})
        record_import_details(session, checkpoint_id, {"b": 2})
        assert read_row.detail == {"a": 1, "b": 2}
    with one.read() as session:
        assert session.get_one(tables.Checkpoint, checkpoint_id).detail == {"a": 1, "b": 2}
