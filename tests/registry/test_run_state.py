"""A run's state and its number of complete units are the same in every output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.queries import run_sql
from chessreg.registry import lineage, names, read, run_filter, run_state, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.registry.tables import AttemptState, JobState
from chessreg.scheduling import status
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.columns import STATE_TONES
from tui.data.run_rows import SortedIds
from tui.data.run_rows import list_run_pages as runs_of_the_tui

from ..postgres import postgres as postgres

START = datetime(2026, 1, 1, tzinfo=UTC)
UNITS = 10
# name → (attempts, oldest first: state, cause, of a job, a cancelled job, a job that is queued again or one that the
# job of the remaining units waits for), ranges done, expected output: state, units done
CASES: dict[str, tuple[list[tuple[str | None, ...]], list[tuple[int, int]], str, int]] = {
    "planned": ([], [], "planned", 0),
    "running": ([("running", None)], [], "running", 0),
    "running-on": ([("failed", "failed"), ("running", None)], [(0, 1), (3, 4)], "running", 2),
    "failed": ([("failed", "failed")], [], "failed", 0),
    "out-of-memory": ([("failed", "oom")], [], "oom", 0),
    "cancelled": ([("lost", "lost"), ("killed", "killed", "cancelled")], [], "cancelled", 0),
    "killed-by-the-system": ([("killed", "killed", "job")], [], "killed", 0),
    "tried-again": ([("killed", "killed", "queued")], [], "queued", 0),
    "again-after-some": ([("killed", "preempted", "queued")], [(0, 3)], "queued", 3),
    "waits-in-vain": ([("failed", "failed", "last")], [], "failed", 0),
    "gone": ([("lost", "killed")], [], "killed", 0),
    "interrupted": ([("lost", "lost"), ("killed", "killed")], [], "interrupted", 0),
    "preempted": ([("killed", "preempted")], [], "preempted", 0),
    "lost": ([("killed", "killed"), ("lost", "lost")], [], "lost", 0),
    "lost-process": ([("failed", "lost")], [], "lost", 0),
    "partial": ([("failed", "failed")], [(0, 1), (1, 2), (9, 10)], "partial", 3),
    "overlapping": ([("lost", "lost")], [(0, 5), (3, 4), (3, 7), (6, 8)], "partial", 8),
    "nothing-in-its-share": ([("finished", "finished")], [], "partial", 0),
    "complete": ([("finished", "finished")], [(0, 10)], "complete", 10),
    "archived": ([("finished", "finished")], [(0, 10)], "complete", 10),
    "invalid": ([("failed", "failed")], [], "failed", 0),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("states")
    url = str(folder / "registry.db") if request.param == "sqlite" else request.getfixturevalue("postgres").empty()
    with open_session(url, folder / "store") as session:
        fill(session.database)
        yield session, url, folder / "store"


def fill(database: Database) -> None:
    machine = make_uuid(hash_canonical_json("box"))
    with database.write() as sql:
        sql.add(
            tables.Machine(
                id=machine, host="box", platform="linux", cpu="x", cores=2, memory_bytes=1, gpus=[], python="3.11",
                last_seen=START,
            )
        )  # fmt: skip
        sql.flush()
        for name, (attempts, ranges, state, _) in CASES.items():
            complete = START if state == "complete" else None
            digest = hash_canonical_json(name)
            run = tables.Run(
                id=make_uuid(digest), kind="toy", version=1, spec={}, spec_hash=digest, explicit=[], units=UNITS,
                created_at=START, completed_at=complete,
            )  # fmt: skip
            sql.add(run)
            sql.flush()
            for number, (how, cause, *job) in enumerate(attempts):
                job_id = make_id() if job else None
                for shard in range(1 + (job == ["last"])) if job else ():
                    queued = job == ["queued"] or shard == 1
                    sql.add(
                        tables.Job(
                            id=make_id() if shard else job_id, group_id=job_id, run_id=run.id, kind="toy",
                            spec_hash=digest, executor="local", host="box", shard=shard, shards=1,
                            state="queued" if queued else "ended", cause=None if queued else cause,
                            cancel=job == ["cancelled"], detail={}, created_at=START,
                            ended_at=None if queued else START,
                        )
                    )  # fmt: skip
                    sql.flush()
                sql.add(
                    tables.Attempt(
                        id=make_id(), run_id=run.id, machine_id=machine, executor="local", job_id=job_id,
                        execution_options={"used_threads": [2]} if how == "killed" else {}, argv=[], pid=1,
                        pid_started=0.5, boot_id="b", started_at=START + timedelta(hours=number), checked_in_at=START,
                        next_check_in_seconds=60.0, state=how,
                        ended_at=None if how == "running" else START + timedelta(hours=number),
                        cause=cause, chessreg_version="0", code={}, environment={},
                    )
                )  # fmt: skip
            for start, stop in ranges:
                sql.add(tables.UnitRange(run_id=run.id, start=start, stop=stop, attempt_id=make_id()))
            names.add_annotation(sql, "run", run.id, "name", name)
        names.add_annotation(sql, "run", make_uuid(hash_canonical_json("archived")), "archive")
        names.add_annotation(sql, "run", make_uuid(hash_canonical_json("invalid")), "invalid", "wrong games")


SAID = {name: (state, done) for name, (_, _, state, done) in CASES.items()}


def test_an_attempt_is_listed_with_its_end(registry):
    """Stored are `killed` and `finished`: an attempt in the foreground was interrupted, one of a job cancelled."""
    from chessreg.entities import load_entity

    session, *_ = registry
    ends = {name: state for name, (attempts, ranges, state, _) in CASES.items() if attempts and not ranges}
    ends |= {"tried-again": "killed", "waits-in-vain": "failed", "nothing-in-its-share": "complete"}
    with session.database.read() as sql:
        assert {name: read.read_run(sql, name)["tries"][-1]["end"] for name in ends} == ends
    (part,) = [each for each in load_entity("run").show(session, "interrupted").parts if each.name == "attempts"]
    assert [(row["state"], row["threads"]) for row in part.rows] == [("lost", None), ("interrupted", "2")]


def test_the_list_of_runs(registry: tuple[Session, str, Path]) -> None:
    with registry[0].database.read() as sql:
        rows = {row["name"]: row for row in read.list_runs(sql, archived=True)}
        one_by_one = {name: read.read_run(sql, name) for name in CASES}
    assert {name: (row["state"], row["done"]) for name, row in rows.items()} == SAID
    assert {name: (row["state"], row["done"]) for name, row in one_by_one.items()} == SAID
    assert [name for name, row in rows.items() if row["archived"]] == ["archived"]
    assert [name for name, row in rows.items() if row["invalid"]] == ["invalid"]


def test_the_command(registry: tuple[Session, str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, url, store = registry
    assert run_command_line(["--registry", url, "--store", str(store), "runs", "list", "--all", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["name"]: (row["state"], row["done"]) for row in shown} == SAID


def test_the_terminal_ui(registry: tuple[Session, str, Path]) -> None:
    pages = runs_of_the_tui(registry[0], "archived"), runs_of_the_tui(registry[0])
    rows = [row for listed in pages for row in listed.read_page(0)]
    assert {row["name"]: (row["state"], row["done"]) for row in rows} == SAID


def test_one_word_for_each_state_in_code_docs_and_the_terminal_ui() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "jobs.md").read_text()
    words = set(
        re.findall(r"^\| `(\w+)` \| .* \|$", page.partition("## States")[2].partition("\n## ")[0], re.MULTILINE)
    )
    used = {*run_state.STATES, *run_state.FAILURES, *run_state.ENDS, *status.FINAL_STATES, *STATE_TONES}
    assert used <= words
    assert not {str(state) for state in (*JobState, *AttemptState)} - words - {"ended", "finished"}


GROUPS = {"failed": run_state.FAILURES, "ended": run_state.ENDS}  # words that find several states


@pytest.mark.parametrize("state", [*run_state.STATES, "ended"])
def test_the_filter(registry: tuple[Session, str, Path], state: str) -> None:
    with registry[0].database.read() as sql:
        found = run_filter.find_runs(sql, f"state:{state}", archived=True)
    ended = {"partial": "failed", "overlapping": "lost"}
    words = GROUPS.get(state, (state,))
    fits = {name for name, (said, _) in SAID.items() if {said, ended.get(name)}.intersection(words)}
    assert set(found) == {make_uuid(hash_canonical_json(name)) for name in fits}


def test_the_order_by_units(registry: tuple[Session, str, Path]) -> None:
    done = {make_uuid(hash_canonical_json(name)): said for name, (_, said) in SAID.items()}
    with registry[0].database.read() as sql:
        in_order = [done[id] for id in run_filter.find_runs(sql, "", "units", archived=True)]
    assert in_order == sorted(done.values())


@pytest.mark.parametrize("sort", quick_first(5, ["metric.loss", "spec.nothing", *run_filter.SORT_KEYS]))
@pytest.mark.parametrize("turned", quick_first(1, ["", "-"]))
def test_an_order_is_the_same_read_in_chunks_from_either_end(
    registry: tuple[Session, str, Path], monkeypatch: pytest.MonkeyPatch, sort: str, turned: str
) -> None:
    monkeypatch.setattr(SortedIds, "CHUNK", 3)
    with registry[0].database.read() as sql:
        expected = run_filter.find_runs(sql, "!planned", turned + sort)
    pages = runs_of_the_tui(registry[0], "!planned", turned + sort)
    ids = SortedIds(registry[0], [], turned + sort)
    assert [row["id"] for row in pages.read_page(0)] == expected
    assert (ids[len(ids) - 1], ids[0]) == (ids[:][-1], ids[:1][0])


@pytest.mark.parametrize("few", [run_filter.MAX_LISTED_RUNS, 1])
@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("name:RUNN", lambda name, state: "runn" in name),
        ("!partial", lambda name, state: "partial" not in (name, state)),
        ("lost", lambda name, state: "lost" in (name, state) or name == "overlapping"),
        ("~ofm", lambda name, state: name == "out-of-memory"),
        ("machine:BO", lambda name, state: bool(CASES[name][0])),
        ("machine:elsewhere", lambda name, state: False),
        ("state:invalid", lambda name, state: name == "invalid"),
        ("state=complete units=10", lambda name, state: state == "complete"),
        ("units>=3 units<8", lambda name, state: SAID[name][1] == 3),
        ("done!=0 !state:running", lambda name, state: SAID[name][1] > 0 and state != "running"),
        ("tries>1", lambda name, state: len(CASES[name][0]) > 1),
        ("created>9999-01", lambda name, state: False),
        ("machine=box machine>a", lambda name, state: bool(CASES[name][0])),
        ("completed>2000", lambda name, state: state == "complete"),
    ],
)
def test_words(
    registry: tuple[Session, str, Path], monkeypatch: pytest.MonkeyPatch, few: int, words: str, fits: Any
) -> None:
    """Whether few runs fit, which a condition names, or more."""
    monkeypatch.setattr(run_filter, "MAX_LISTED_RUNS", few)
    with registry[0].database.read() as sql:
        found = run_filter.find_runs(sql, words, archived=True)
    assert set(found) == {
        make_uuid(hash_canonical_json(name)) for name, (state, _) in SAID.items() if fits(name, state)
    }


@pytest.mark.parametrize("word", ["units>abc", "elo>abc", "starred:so", "created>soon", "created:99999", "when:7d"])
def test_a_word_that_says_nothing_is_refused(registry: tuple[Session, str, Path], word: str) -> None:
    with registry[0].database.read() as sql, pytest.raises(BadInputError):
        run_filter.find_runs(sql, word)


def test_why_a_run_is_partial_stands_behind_its_state(registry: tuple[Session, str, Path]) -> None:
    with registry[0].database.read() as sql:
        rows = {row["name"]: row["state"] + read.format_marks(row) for row in read.list_runs(sql, archived=True)}
    assert {rows[name] for name in ("partial", "overlapping")} == {"partial (failed)", "partial (lost)"}
    assert (rows["nothing-in-its-share"], rows["invalid"]) == ("partial", "failed (invalid)")


def test_queries(registry: tuple[Session, str, Path]) -> None:
    rows = run_sql(registry[0].database, "SELECT run, state, done, archived, invalid FROM runs").rows
    assert {row["run"]: (row["state"], row["done"]) for row in rows} == SAID
    assert [row["run"] for row in rows if row["archived"]] == ["archived"]
    assert [row["run"] for row in rows if row["invalid"]] == ["invalid"]


def test_lineage(registry: tuple[Session, str, Path]) -> None:
    nodes = {name: lineage.Node("run", make_uuid(hash_canonical_json(name)).hex) for name in CASES}
    with registry[0].database.read() as sql:
        facts = lineage.describe_nodes(sql, [*nodes.values(), lineage.Node("run", UUID(int=7).hex)])
    assert {name: facts[node]["state"] for name, node in nodes.items()} == {
        **{name: state for name, (state, _) in SAID.items()},
        "invalid": "invalid",
    }
    assert facts[lineage.Node("run", UUID(int=7).hex)]["state"] == "missing"


def test_what_an_annotation_names_that_is_no_id_is_no_run() -> None:
    known = lineage.Node("run", UUID(int=7).hex)
    assert lineage.list_ids_of_noun([lineage.Node("run", "nonsense"), known, lineage.Node("dataset", "x")], "run") == [
        UUID(int=7)
    ]


def test_status_of_what_runs(registry: tuple[Session, str, Path]) -> None:
    with registry[0].database.read() as sql:
        rows = {row["name"]: (row["state"], row["done"]) for row in status.list_foreground(sql)}
        news = status.list_ended(sql, START - timedelta(days=1))
    ended = {row["name"]: row["done"] for row in news}
    assert rows == {name: said for name, said in SAID.items() if said[0] == "running"}
    assert ended == {n: done for n, (state, done) in SAID.items() if state not in ("running", "planned", "queued")}
    causes = {row["name"]: row["cause"] for row in reversed(news)}  # of the newest
    words = ("cancelled", "killed-by-the-system", "gone", "interrupted", "preempted", "lost")
    assert {name: causes[name] for name in words} == {name: SAID[name][0] for name in words}, "the same word"


@pytest.mark.parametrize(
    ("fractions", "rate", "left"), [((0.75, 0.5), 0.25, 100), ((0.75, None), 0.75, 100 / 3), ((0.5, 0.5), None, None)]
)
def test_an_attempt_that_began_with_a_saved_state_is_reckoned_by_its_own_work(
    fractions: tuple[float, float | None], rate: float | None, left: float | None
) -> None:
    progress, before = fractions
    times = {"started_at": START, "checked_in_at": START + timedelta(seconds=100)}
    attempt = tables.Attempt(units_done=0, progress=progress, progress_before=before, **times)
    assert status.measure_pace(attempt, 0, 1) == (rate and rate / 100, left and pytest.approx(left))


def test_a_machine_counts_each_run_once(registry: tuple[Session, str, Path]) -> None:
    with registry[0].database.read() as sql:
        (machine,) = read.list_machines(sql)
    assert machine["runs"] == sum(bool(attempts) for attempts, *_ in CASES.values())
    assert machine["running"] == sum(state == "running" for _, _, state, _ in CASES.values())
    assert machine["last_seen"] == START


def test_a_part_of_the_units(registry: tuple[Session, str, Path]) -> None:
    with registry[0].database.read() as sql:
        for name, (_, ranges, _, _) in CASES.items():
            run_id, units = (
                make_uuid(hash_canonical_json(name)),
                {u for start, stop in ranges for u in range(start, stop)},
            )
            assert run_state.read_complete_units(sql, run_id) == units
            for low, high in ((0, 5), (3, 4), (6, 10), (4, 7)):
                assert run_state.count_done(sql, run_id, range(low, high)) == len(units & set(range(low, high)))
                assert run_state.read_complete_units(sql, run_id, low, high) == units & set(range(low, high))
