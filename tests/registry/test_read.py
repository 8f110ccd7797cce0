"""Words that narrow runs and columns that sort them, as the command line and the terminal UI have them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import chess
import pytest
from sqlalchemy import delete, insert, literal, select, update

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.games.boards.adjudication import score_game
from chessreg.queries import stats
from chessreg.queries.intervals import add_intervals, make_cell
from chessreg.registry import measures, names, read, run_filter, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.kind import find_kind, load_kinds
from chessreg.runs.spec import list_setting_names
from store import Store

from ..conftest import shared


@pytest.fixture(scope="module")
def registry(empty_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Five runs, run-0 the oldest: settings, names, tags, a star, something invalid, and losses of two. Only read."""
    folder = tmp_path_factory.mktemp("five-runs")
    Store.create(folder / "store")
    shutil.copy(empty_registry, folder / "registry.db")
    with Database.open(folder / "registry.db") as database:
        now = get_utc_now()
        hashes = [hash_canonical_json({"n": n}) for n in range(5)]
        rows = [
            {"id": make_uuid(h), "kind": ("probe", "edit")[n % 2], "version": 1, "spec_hash": h, "explicit": [],
             "units": 9 - n,
             "spec": {"epochs": (10, 9, 100, 9, 1)[n], "skill": {"bins": n}, "label": "board-state", "quick": n == 2,
                      "lr": (0.1, 1e-5, 3e-4, 1e-5, 1)[n]},
             "created_at": now - timedelta(days=5 - n), "completed_at": now}
            for n, h in enumerate(hashes)
        ]  # fmt: skip
        with database.write() as session:
            session.execute(insert(tables.Run), rows)
            for n, row in enumerate(rows):
                names.add_annotation(session, "run", row["id"], "name", f"run-{'dacbe'[n]}")
            names.add_annotation(session, "run", rows[3]["id"], "star")
            names.add_annotation(session, "run", rows[3]["id"], "note", "looks right to me")
            names.add_annotation(session, "run", rows[2]["id"], "note", "looks odd")
            names.add_annotation(session, "run", rows[2]["id"], "note", "looks odd", withdrawn=True)
            names.add_annotation(session, "run", rows[1]["id"], "star")
            names.add_annotation(session, "run", rows[1]["id"], "star", withdrawn=True)
            names.add_annotation(session, "run", rows[4]["id"], "archive")
            names.add_annotation(session, "run", rows[0]["id"], "invalid", "wrong games")
            made_from = {"run_id": rows[2]["id"], "name": "cache", "reference": "run:x", "digest": "d" * 64,
                         "source_run_id": rows[0]["id"]}  # fmt: skip
            session.execute(insert(tables.RunInput), [made_from])
            points = [(1, 5, 0.5), (1, 9, 0.25), (3, 5, 0.75)]
            session.execute(
                insert(tables.MetricPoint),
                [{"run_id": rows[n]["id"], "unit": 0, "name": "loss", "step": step, "attempt_id": rows[n]["id"],
                  "value": value} for n, step, value in points],
            )  # fmt: skip
        shared(folder)
        yield database, [row["id"] for row in rows], folder


def found(registry: Any, text: str, sort: str = "created") -> list[int]:
    database, ids, _ = registry
    with database.read() as session:
        return [ids.index(id) for id in run_filter.find_runs(session, text, sort)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ("kind:probe", [0, 2]),
        ("~rnc", [2]),
        ("!~rnc", [0, 1, 3]),
        ("starred", [3]),
        ("note:right", [3]),
        ("note:right !name:b", []),
        ("note:odd", []),  # taken back
        ("name:RUN-", [0, 1, 2, 3]),
        ("run-d", [0]),
        ("!run-d !run_", [1, 2, 3]),  # _ is a letter like others
        ("nothing-has-this", []),
        ("invalid", [0]),
        ("stale", [2]),
        ("!stale !invalid", [1, 3]),
        ("archived", [4]),
        ("since:84h", [2, 3]),
        ("before:84h kind:edit", [1]),
        ("spec.epochs:9", [1, 3]),
        ("spec.epochs:9.0", [1, 3]),
        ("spec.epochs:1", []),
        ("spec.skill.bins:3", [3]),
        ("spec.label:board", [0, 1, 2, 3]),
        ("spec.quick:true", [2]),
        ("spec.nothing:1", []),
        ("spec.lr:1e-5", [1, 3]),
        ("spec.lr=0.00001", [1, 3]),
        ("spec.lr!=3e-4", [0, 1, 3]),
        ("starred:yes", [3]),
        ("star:no", [0, 1, 2]),
        ("archived:yes", [4]),
        ("state=complete invalid:no", [1, 2, 3]),
        ("state:invalid", [0]),
        ("units>5", [0, 1, 2, 3]),
        ("units<=7", [2, 3]),
        ("tries:0", [0, 1, 2, 3]),
        ("kind=prob", []),
        ("kind!=probe", [1, 3]),
        ("name>run-c", [0]),
        ("spec.epochs>9", [0, 2]),
        ("spec.label>5", []),
        ("metric.loss<0.5", [1]),
        ("created>2100", []),
        ("created:2020", []),
        ("created>=2020-01-31", [0, 1, 2, 3]),
        ("created>84h", [2, 3]),
        ("completed>2000 completed<2100-12", [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("few", [run_filter.MAX_LISTED_RUNS, 0])
def test_words(registry: Any, monkeypatch: pytest.MonkeyPatch, few: int, text: str, expected: list[int]) -> None:
    """Also where more runs fit than a condition names one by one."""
    monkeypatch.setattr(run_filter, "MAX_LISTED_RUNS", few)
    assert found(registry, text) == expected


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("-created", [3, 2, 1, 0]),
        ("name", [1, 3, 2, 0]),
        ("-name", [0, 2, 3, 1]),
        ("units", [3, 2, 1, 0]),
        ("spec.epochs", [3, 1, 0, 2]),  # as numbers; equal ones newest first
        ("-spec.epochs", [2, 0, 3, 1]),
        ("metric.loss", [1, 3, 2, 0]),  # the last value; without one at the end, either way round
        ("-metric.loss", [3, 1, 2, 0]),
        ("-starred", [3, 2, 1, 0]),
        ("kind", [3, 1, 2, 0]),
    ],
)
def test_orders(registry: Any, sort: str, expected: list[int]) -> None:
    assert found(registry, "", sort) == expected


@pytest.mark.parametrize(
    ("text", "sort", "message"),
    [
        ("hue:1", "created", "no field 'hue'"),
        ("since:soon", "created", "'soon' is not a date"),
        ("", "hue", "cannot be sorted by 'hue'"),
    ],
)
def test_what_there_is_not_is_named(registry: Any, text: str, sort: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        found(registry, text, sort)


def test_the_command_finds_and_sorts_the_same(registry: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, ids, folder = registry
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    assert run_command_line([*place, "runs", "list", "!stale", "spec.label:board", "--sort", "-units", "--json"]) == 0
    listed = [ids.index(UUID(row["id"])) for row in json.loads(capsys.readouterr().out)]
    assert listed == found(registry, "!stale spec.label:board", "-units") == [0, 1, 3]
    assert run_command_line([*place, "runs", "list", "hue:1"]) == 4
    assert "runs have no field 'hue'" in capsys.readouterr().err


def test_last_values_of_metrics(registry: Any) -> None:
    database, ids, _ = registry
    with database.read() as session:
        last = run_filter.read_last_metrics(session, ids, ["loss", "accuracy"])
    assert last[ids[1]] == {"loss": 0.25, "accuracy": None}
    assert last[ids[0]] == {"loss": None, "accuracy": None}


def test_twelve_thousand_names_of_metrics_slow_no_list(session: Any, run_toy: Any) -> None:
    run_toy(positions=2)
    with session.database.write() as sql:
        run_id, attempt_id = sql.scalars(select(tables.Run.id)).one(), sql.scalars(select(tables.Attempt.id)).one()
        same = {"run_id": run_id, "unit": 0, "step": 0, "attempt_id": attempt_id, "value": 0.5}
        points = [{**same, "name": f"metric {number}"} for number in range(12_000)]
        sql.execute(insert(tables.MetricPoint), points)

    def by_metric(sql: Any) -> list[UUID]:
        return run_filter.find_runs(sql, "kind:toy", "metric.metric 7")

    with session.database.read() as sql:
        for look in (read.list_runs, run_filter.find_runs, lambda sql: read.read_run(sql, run_id.hex), by_metric):
            began = time.process_time()
            assert look(sql)
            assert time.process_time() - began < 0.5


@pytest.fixture
def five_runs(registry: Any, tmp_path: Path) -> Iterator[tuple[Database, list[UUID]]]:
    """A copy of the five runs that rows may be added to."""
    _, ids, folder = registry
    copy = tmp_path / "registry.db"
    with closing(sqlite3.connect(folder / "registry.db")) as here, closing(sqlite3.connect(copy)) as there:
        here.backup(there)
    with Database.open(copy) as database:
        yield database, ids


@pytest.mark.parametrize("scanned", [1, 500])
def test_machines_tell_the_runs_that_they_had_a_part_in(
    five_runs: Any, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    """Attempts of one run on two machines, several on one, and a machine without any."""
    database, ids = five_runs
    monkeypatch.setattr(read, "MACHINES_PER_SCAN", scanned)
    now, hosts = (
        get_utc_now(),
        {host: make_uuid(hash_canonical_json(host)) for host in ("one", "two", "idle")},
    )
    tried = [("one", ids[0], 3), ("one", ids[0], 1), ("two", ids[0], 2), ("one", ids[1], 4)]
    with database.write() as sql:
        sql.execute(insert(tables.Machine), [
            {"id": id, "host": host, "platform": "linux", "cpu": "x", "cores": 2, "memory_bytes": 1, "gpus": [],
             "python": "3.11", "last_seen": now} for host, id in hosts.items()
        ])  # fmt: skip
        sql.execute(insert(tables.Attempt), [
            {"id": make_id(), "run_id": run_id, "machine_id": hosts[host], "executor": "local", "execution_options": {},
             "argv": [], "pid": 1, "pid_started": 0.5, "boot_id": "b", "started_at": now, "next_check_in_seconds": 60.0,
             "checked_in_at": now + timedelta(hours=hours), "state": "running" if hours == 4 else "finished",
             "chessreg_version": "0", "code": {}, "environment": {}} for host, run_id, hours in tried
        ])  # fmt: skip
    with database.read() as sql:
        told = [(row["host"], row["runs"], row["running"], row["last_seen"]) for row in read.list_machines(sql)]
    assert told == [
        ("one", 2, 1, now + timedelta(hours=4)), ("two", 1, 0, now + timedelta(hours=2)), ("idle", 0, 0, now),
    ]  # fmt: skip


def test_what_may_differ_between_compared_runs_are_settings_that_kinds_have() -> None:
    settings = {name for each in map(find_kind, load_kinds()) for name in list_setting_names(each.spec)}
    assert settings >= measures.FREE_SETTINGS


def ask_the_same(sql: Any, ids: Sequence[UUID]) -> None:
    """Give these runs settings that differ by nothing but their seed."""
    for seed, run_id in enumerate(ids):
        sql.execute(update(tables.Run).where(tables.Run.id == run_id).values(spec={"label": "piece", "seed": seed}))


PLAIN = {"checkpoint": "sha256:one", "opponent": "stockfish:0", "games": 10, "intervention": {"vector": None}}
EDITED = {"intervention": {"vector": "run:v", "scale": 2}}


@pytest.mark.parametrize(
    ("own", "earlier", "than"),
    [
        ({}, ({"checkpoint": "sha256:two"},), None),  # another model
        ({}, ({"opponent": "stockfish:1"},), None),  # another question
        ({}, ({"claim_draws": True},), None),  # a setting that only one of them has
        ({}, ({"seed": 1, "games": 20},), 0),
        ({}, ({"seed": 1}, {"seed": 1, "games": 20}), 0),  # fewest other settings, then the newest
        ({}, ({"seed": 1}, {"seed": 2}), 1),
        (EDITED, ({"opponent": "random"}, {}, {"checkpoint": "sha256:two"}), 1),
        (EDITED, ({}, {"intervention": {"vector": "run:w"}}), 0),  # next to none, not next to another edit
        (EDITED, ({}, {"intervention": {"vector": "run:v", "scale": 1}}), 0),  # nor next to another scale of it
    ],
)
def test_a_result_is_compared_only_with_an_earlier_run_of_the_same_model_and_question(
    five_runs: Any, own: Any, earlier: Any, than: int | None
) -> None:
    database, ids = five_runs
    with database.write() as sql:
        for n, (run_id, changes) in enumerate(zip(ids, (*earlier, own), strict=False)):
            spec = PLAIN | changes
            sql.execute(update(tables.Run).where(tables.Run.id == run_id).values(kind="play", spec=spec))
            sql.execute(delete(tables.MetricPoint).where(tables.MetricPoint.run_id == run_id))
            sql.execute(insert(tables.MetricPoint), [{"run_id": run_id, "unit": 0, "name": "loss", "step": 0,
                                                      "attempt_id": run_id, "value": n / 4}])  # fmt: skip
            read = {"checkpoint": spec["checkpoint"], "vector": spec["intervention"]["vector"]}
            sql.execute(insert(tables.RunInput), [{"run_id": run_id, "name": name, "reference": reference,
                                                   "digest": "d" * 64}
                                                  for name, reference in read.items() if reference])  # fmt: skip
    last = len(earlier)
    with database.read() as sql:
        told = measures.compare_with_earlier(sql, [ids[last]])[ids[last]]
    found = (None, None) if than is None else ((last - than) / 4, f"run-{'dacbe'[than]}")
    assert (told["change"], told["than"]) == found


def test_a_game_stopped_at_the_move_limit_counts_by_its_evaluation_as_in_the_tables(five_runs: Any) -> None:
    database, ids = five_runs
    ends = [(r, None) for r in ("1-0", "0-1", "1/2-1/2", "*")] + [("*", cp) for cp in (-101, -100, 0, 100, 101)]
    with database.write() as sql:
        for run_id, color in zip(ids, ("white", "black"), strict=False):
            match = {"number": 0, "player": "x", "opponent": "random", "color": color, "opening": "standard",
                     "opening_seed": 0, "policy": "legal", "planned": len(ends)}  # fmt: skip
            game = {"match": 0, "attempt_id": run_id, "opening_number": 0, "opening_plies": 0, "plies": 2, "turns": 1,
                    "termination": "move_limit", "moves": b"", "move_hash": 0}  # fmt: skip
            sql.execute(insert(tables.Match), [{"run_id": run_id, **match}])
            rows = [{"run_id": run_id, "unit": n, "result": result, "adjudication_cp": cp, **game}
                    for n, (result, cp) in enumerate(ends)]  # fmt: skip
            sql.execute(insert(tables.Game), rows)
    for run_id, color in zip(ids, (chess.WHITE, chess.BLACK), strict=False):
        counted = [score_game("paper", color, result, cp) for result, cp in ends]
        known = [points for points in counted if points is not None]
        with database.read() as sql:
            white = measures.build_game_points_sql(literal(color == chess.WHITE))
            assert list(sql.scalars(select(white).where(tables.Game.run_id == run_id))) == counted
            assert measures.read_measures(sql, run_id) == [("score", sum(known) / len(known), None)]


def test_the_change_of_a_score_is_on_shared_openings_and_negates_with_its_interval(five_runs: Any) -> None:
    database, ids = five_runs
    plain, steered = ids[0], ids[2]
    results = {plain: ("1-0",) * 6 + ("0-1",) * 14, steered: ("1-0", "1-0", "0-1", "0-1", "0-1", "0-1", "1/2-1/2")}
    with database.write() as sql:
        ask_the_same(sql, [plain, steered])
        sql.execute(update(tables.Run).where(tables.Run.id.in_([plain, steered])).values(kind="play"))
        for run_id, ends in results.items():
            match = {"number": 0, "player": "x", "opponent": "random", "color": "white", "opening": "random:4",
                     "opening_seed": 0, "policy": "legal", "planned": len(ends)}  # fmt: skip
            game = {"match": 0, "attempt_id": run_id, "opening_plies": 4, "plies": 9, "turns": 3,
                    "termination": "checkmate", "moves": b"", "move_hash": 0}  # fmt: skip
            sql.execute(insert(tables.Match), [{"run_id": run_id, **match}])
            rows = [{"run_id": run_id, "unit": n, "opening_number": n, "result": result, **game}
                    for n, result in enumerate(ends)]  # fmt: skip
            sql.execute(insert(tables.Game), rows)
    with database.read() as sql:
        answer = measures.compare_with_earlier(sql, [steered])[steered]
        answer = add_intervals(sql, steered, answer)
        counts = [make_cell(measures.read_cluster_counts(sql, run_id, "score")) for run_id in (plain, steered)]
    assert answer["value"] == 2.5 / 7
    assert answer["change"] == pytest.approx(2.5 / 7 - 6 / 7)
    assert answer["change_low"] < answer["change"] < answer["change_high"]
    swapped = stats.estimate_cell_difference(*counts)
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx(
        (-answer["change"], -answer["change_high"], -answer["change_low"])
    )


def test_a_probe_is_told_by_its_best_layer_on_validation_and_compared_on_the_same_games(five_runs: Any) -> None:
    database, ids = five_runs
    right = {  # run: split: right of 10 by layer
        ids[0]: {"validation": (5, 7), "test": (9, 6)}, ids[2]: {"validation": (8, 4)},
    }  # fmt: skip
    with database.write() as sql:
        ask_the_same(sql, list(right))
        for run_id, splits in right.items():
            rows = [{"run_id": run_id, "unit": layer, "split": split, "item": 3, "attempt_id": run_id, "layer": layer,
                     "n": 10, "correct": correct}
                    for split, layers in splits.items() for layer, correct in enumerate(layers)]  # fmt: skip
            sql.execute(insert(tables.Score), rows)
    with database.read() as sql:
        told = measures.compare_with_earlier(sql, list(right))
    assert told == {
        ids[0]: {"measure": "best layer, test %", "value": 60.0, "change": None, "than": None},
        ids[2]: {"measure": "best layer, validation %", "value": 80.0, "change": 10.0, "than": "run-d"},
    }


def test_an_edit_is_told_by_the_legal_texts_on_its_board_beside_those_without_it(five_runs: Any) -> None:
    database, ids = five_runs
    legal = {"clean": (True, False, False, False), "edit": (True, True, True, False), "random-0": (True,) * 4}
    with database.write() as sql:
        ask_the_same(sql, [ids[1], ids[3]])
        rows = [{"run_id": ids[1], "unit": 0, "condition": condition, "sample": sample, "attempt_id": ids[1], "item": 0,
                 "ply": 1, "text": "e4", "legal_modified": each, "mass_modified": 0.5 if sample < 0 else None}
                for condition, texts in legal.items() for sample, each in enumerate((False, *texts), -1)]  # fmt: skip
        sql.execute(insert(tables.Trial), rows)
        sql.execute(insert(tables.Trial), [{**rows[0], "run_id": ids[3], "condition": "edit", "mass_modified": 0.25}])
    with database.read() as sql:
        told = measures.compare_with_earlier(sql, [ids[1], ids[3]])
    assert told == {
        ids[1]: {"measure": "legal on modified %", "value": 75.0, "change": 50.0, "than": "clean"},
        ids[3]: {"measure": "legal mass on modified", "value": 0.25, "change": -0.25, "than": "run-a"},
    }
