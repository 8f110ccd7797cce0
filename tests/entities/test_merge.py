"""Two registries become one: each row once, in both directions, independent of their clocks."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select

from chessreg.entities import gc
from chessreg.entities import merge as merging
from chessreg.entities.adding import AddedDataset, add_dataset
from chessreg.entities.dataset import locate_dataset, split_dataset
from chessreg.entities.merge import merge_source
from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import brought, machine, names, provenance, read, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.runs.ingest import insert_missing
from chessreg.runs.kind import find_kind
from chessreg.runs.transfer import TransferItem, record_location
from chessreg.session import Session, open_session

from ..postgres import postgres as postgres

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


class Home:
    """A registry and a store of a separate machine."""

    def __init__(
        self, folder: Path, host: str, ahead: timedelta, monkeypatch: pytest.MonkeyPatch, url: str | None = None
    ) -> None:
        self.folder, self.host, self.ahead, self.patch = folder, host, ahead, monkeypatch
        self.url = url or str(folder / "registry.db")

    def __enter__(self) -> Session:
        from chessreg.runs import attempt, ingest, task

        here = machine._describe_machine() | {"host": self.host}
        self.patch.setattr(machine, "_describe_machine", lambda: here)
        self.patch.setattr(provenance, "read_code_state", lambda: {"chessreg": {"commit": "c0ffee"}})  # of both alike
        self.patch.setattr(names.socket, "gethostname", lambda: self.host)
        for module in (attempt, ingest, task, names):
            if hasattr(module, "get_utc_now"):
                self.patch.setattr(module, "get_utc_now", self.now)
        self.folder.parent.mkdir(exist_ok=True)
        self.session = open_session(self.url, self.folder / "store")
        return self.session

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def __exit__(self, *error: object) -> None:
        self.session.close()
        self.patch.undo()


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Home, Home]:
    """Two machines whose clocks are ten minutes apart."""
    return (
        Home(tmp_path / "a" / ".chessreg", "box1", timedelta(0), monkeypatch),
        Home(tmp_path / "b" / ".chessreg", "box2", timedelta(minutes=10), monkeypatch),
    )


def run_toy(session: Session, name: str | None = None, **settings: object) -> object:
    toy = find_kind(TOY)
    return session.run(toy.spec(**settings), kind=TOY, name=name)


def rows(database: Database, *, of: tuple[str, ...] = ("score", "run", "unit_range", "machine", "annotation")) -> dict:
    """All rows of some tables, as sets that can be compared between registries."""
    with database.read() as session:
        return {
            name: sorted(
                repr({k: v for k, v in row.items() if k not in ("attempt_id", "seconds")})
                for row in session.execute(select(tables.Base.metadata.tables[name])).mappings()
            )
            for name in of
        }


def count(database: Database, table: type) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_one_spec_in_two_homes_merged_both_ways_twice_is_one_run_with_two_attempts(homes):
    here, there = homes
    with here as session:
        run_toy(session, positions=6)
    with there as session:
        run_toy(session, positions=6)
        run_toy(session, name="only-there", positions=3, seed=1)
    for _ in range(2):
        with here as session:
            merge_source(session.database, session.store, str(there.folder))
        with there as session:
            merge_source(session.database, session.store, str(here.folder.parent))  # a folder with a .chessreg in it
    with Database.open(here.folder / "registry.db") as a, Database.open(there.folder / "registry.db") as b:
        assert rows(a, of=("score", "run", "machine", "annotation")) == rows(
            b, of=("score", "run", "machine", "annotation")
        )
        assert count(a, tables.Score) == 9
        assert count(a, tables.Attempt) == count(b, tables.Attempt) == 3
        assert count(a, tables.Conflict) == count(b, tables.Conflict) == 0
        with a.read() as session:
            assert set(session.scalars(select(tables.Machine.host))) == {"box1", "box2"}
            assert all(session.scalars(select(tables.Run.completed_at)))


@pytest.mark.parametrize("days", [(1, 2), (2, 1)], ids=["later there", "later here"])
def test_a_machine_was_seen_when_either_registry_saw_it_last(homes, days):
    here, there = homes
    seen = [datetime(2026, 1, day, tzinfo=UTC) for day in days]
    with here as session:
        run_toy(session, positions=2)
        with session.database.read() as sql:
            row = dict(sql.execute(select(tables.Machine.__table__)).mappings().one())
    there.folder.mkdir(parents=True)
    for home, at in zip(homes, seen, strict=True):
        with open_session(home.url, home.folder / "store") as session, session.database.write() as sql:
            sql.merge(tables.Machine(**row | {"last_seen": at}))
    with open_session(here.url, here.folder / "store") as session:
        merge_source(session.database, session.store, str(there.folder / "registry.db"))
        with session.database.read() as sql:
            assert sql.get_one(tables.Machine, row["id"]).last_seen == max(seen)


def test_another_merge_of_the_same_between_a_look_and_its_write_takes_nothing_in_twice(homes, monkeypatch):
    here, there = homes
    with there as session:
        run_toy(session, positions=3)
        run_toy(session, positions=2, seed=1)
    with here as session:
        look, looks = merging.read_fragment_names, []

        def overtaken(database: Database, run_id: UUID) -> set[str]:
            seen = look(database, run_id)
            if not looks:
                looks.append(run_id)
                merge_source(session.database, session.store, str(there.folder))
            return seen

        monkeypatch.setattr(merging, "read_fragment_names", overtaken)
        report = merge_source(session.database, session.store, str(there.folder))
        assert (report.results, report.repeated, report.conflicts) == (0, 0, 0)
        assert (count(session.database, tables.Score), count(session.database, tables.Conflict)) == (5, 0)
        with session.database.read() as sql:
            assert all(sql.scalars(select(tables.Run.completed_at)))


@pytest.mark.slow
def test_pulls_at_once_note_one_place_once_on_postgresql(postgres):
    from concurrent.futures import ThreadPoolExecutor

    item = TransferItem("0" * 64, "activations", 1)
    with Database.open(postgres.migrated()) as database:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: record_location(database, item, "/store/arrays/x"), range(16)))
        assert count(database, tables.ArtifactLocation) == 1


def test_the_character_0_of_a_tokenizer_of_bytes_and_of_what_a_model_wrote_comes_into_postgresql(
    homes, postgres, tmp_path
):
    _, there = homes
    with there as session:
        run_toy(session, positions=2)
        with session.database.write() as sql:
            sql.add(tables.Tokenizer(name="of-bytes", size=2, vocabulary=["\0", "a"]))
            run_id = sql.scalars(select(tables.Run.id)).one()
            [attempt_id] = sql.scalars(select(tables.Attempt.id))
            written = {"run_id": run_id, "unit": 0, "attempt_id": attempt_id, "item": 0, "value": 0.5}
            for number in range(2):
                sql.add(tables.Prediction(**written, name=f"n{number}", text="\0" * 30, detail={"\0": ["\0b"]}))
    with open_session(postgres.migrated(), tmp_path / "here") as session:
        for taken in (4, 0):
            report = merge_source(session.database, session.store, str(there.folder))
            assert (report.results, report.conflicts) == (taken, 0)
        with session.database.read() as sql:
            assert sql.get_one(tables.Tokenizer, "of-bytes").vocabulary == ["␀", "a"]
            assert [(row.text, row.detail) for row in sql.scalars(select(tables.Prediction))] == [
                ("␀" * 30, {"␀": ["␀b"]})
            ] * 2


def test_texts_that_only_sqlite_takes_lose_no_other_row_on_the_way_into_postgresql(homes, postgres, tmp_path):
    _, there = homes
    with there as session:
        for seed in range(3):
            run_toy(session, positions=2, seed=seed)
        with session.database.write() as sql:
            first, second = sql.scalars(select(tables.Attempt).order_by(tables.Attempt.started_at).limit(2))
            wordy = {"run_id": first.run_id, "unit": 0, "attempt_id": first.id, "ply": 0, "number": 1}
            named = {"run_id": second.run_id, "unit": 0, "attempt_id": second.id, "step": 0, "value": 0.5}
            sql.add(tables.IllegalAttempt(**wordy, text="e4 " * 40))
            sql.add(tables.MetricPoint(**named, name="x" * 65))
    with open_session(postgres.migrated(), tmp_path / "here") as session:
        url = session.database.reference
        with pytest.raises(BadInputError, match=r"too long.*all other runs were merged"):
            merge_source(session.database, session.store, str(there.folder))
        with session.database.read() as sql:
            assert sql.scalars(select(tables.IllegalAttempt.text)).all() == [("e4 " * 40)[:32]]
        assert count(session.database, tables.Score) == 4
    with there as session:
        assert merge_source(session.database, session.store, url).conflicts == 0


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_match_played_in_two_homes_counts_once_and_only_the_machine_differs(
    backend, world, tmp_path, monkeypatch, request
):
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.experiments.play import Play, PlaySpec
    from chessreg.queries import run_query
    from chessreg.queries.compare import compare_runs

    spec = PlaySpec(
        checkpoint="reference", opponent="random", games=4, opening="random:4", move_limit=2, adjudication="none"
    )
    urls = [request.getfixturevalue("postgres").empty() if backend == "postgresql" else None for _ in range(2)]
    here, there = both = [
        Home(tmp_path / host / ".chessreg", host, timedelta(minutes=minutes), monkeypatch, url)
        for (host, minutes), url in zip((("box1", 0), ("box2", 10)), urls, strict=True)
    ]
    for home in both:
        with home as session:
            import_checkpoint(session.database, session.store, world / "twin", name="reference")
            run_id = session.run(spec, Play.options(device="cpu", threads=1), name="match").run_id
            (alone,) = run_query(session.database, "elo by intervention").rows
    assert alone["n"] == 4
    for _ in range(2):
        for home, other in ((here, there), (there, here)):
            with home as session:
                merge_source(session.database, session.store, other.url)
    tables_of = []
    for home in both:
        with home as session:
            (merged,) = run_query(session.database, "elo by intervention").rows
            assert merged | {"machines": 0} == alone | {"machines": 0}
            assert (merged["n"], merged["planned"]) == (4, 4)
            assert count(session.database, tables.Conflict) == 0
            found = compare_runs(session.database, ["match"])
            assert found.differences == {"machine": {"host": ["box1", "box2"]}}
            assert {subject.run_id for subject in found.subjects} == {run_id}
            assert found.metrics
            assert all(metric.values[0] == metric.values[1] for metric in found.metrics)
            with pytest.raises(BadInputError, match="is this registry"):
                merge_source(session.database, session.store, home.url)
            tables_of.append(rows(session.database, of=("game", "illegal_attempt", "run", "machine", "annotation")))
    assert tables_of[0] == tables_of[1]
    assert len(tables_of[0]["game"]) == 4


def test_a_match_that_other_engines_evaluated_in_each_home_has_both(homes):
    match = {
        "number": 0, "player": "m", "opponent": "random", "color": "white", "opening": "standard", "opening_seed": 0,
        "policy": "legal", "planned": 1,
    }  # fmt: skip
    for home, engine in zip(homes, "ab", strict=True):
        with home as session:
            run_id = run_toy(session, positions=6).run_id
            with session.database.write() as sql:
                sql.add(tables.Match(run_id=run_id, detail={read.EVALUATORS: [engine * 32]}, **match))
    here, there = homes
    for home, other, engines in ((here, there, "ab"), (there, here, "ba"), (here, there, "ab")):
        with home as session:
            merge_source(session.database, session.store, other.url)
            with session.database.read() as sql:
                stored = sql.get_one(tables.Match, (run_id, 0))
                assert stored.detail[read.EVALUATORS] == [engine * 32 for engine in engines]
    with here as session, session.database.write() as sql:  # a fragment of a third machine
        row = {"run_id": run_id, **match, "detail": {read.EVALUATORS: ["c" * 32]}}
        insert_missing(sql, tables.Match.__table__, [row])
        stored = sql.get_one(tables.Match, (run_id, 0))
        assert stored.detail[read.EVALUATORS] == [engine * 32 for engine in "abc"]


def test_a_second_merge_changes_nothing(homes):
    here, there = homes
    with there as session:
        run_toy(session, positions=4)
    with here as session:
        first = merge_source(session.database, session.store, str(there.folder))
        version = session.database.data_version()
        second = merge_source(session.database, session.store, str(there.folder / "registry.db"))
        assert (first.results, first.runs) == (4, 1)
        assert (second.results, second.repeated, second.facts) == (0, 0, {})
        assert session.database.data_version() == version


def test_a_run_half_done_here_is_completed_by_the_other_half(homes):
    here, there = homes
    with there as session:
        run_toy(session, positions=5)
    with here as session:
        run_toy(session, positions=5)
        with session.database.write() as sql:  # as if this attempt had been killed after two units
            sql.query(tables.UnitRange).filter(tables.UnitRange.start >= 2).delete()
            sql.query(tables.Score).filter(tables.Score.unit >= 2).delete()
            sql.query(tables.Run).update({"completed_at": None})
        report = merge_source(session.database, session.store, str(there.folder))
        assert (report.results, report.repeated) == (3, 2)
        with session.database.read() as sql:
            assert sql.scalar(select(tables.Run.completed_at)) is not None
            assert sorted(sql.scalars(select(tables.Score.unit))) == [0, 1, 2, 3, 4]


def test_a_copy_of_a_registry_that_was_worked_with_elsewhere_comes_home(homes):
    here, there = homes
    with here as session:
        run_toy(session, positions=4)
    shutil.copytree(here.folder, there.folder)
    with there as session:
        run_toy(session, positions=3, seed=1)
    with here as session:
        run_toy(session, positions=5, seed=2)
        assert merge_source(session.database, session.store, str(there.folder)).results == 3
        assert merge_source(session.database, session.store, str(there.folder)).results == 0
        assert count(session.database, tables.Score) == 12
    with there as session:
        assert merge_source(session.database, session.store, str(here.folder)).results == 5


def test_two_copies_of_one_registry_that_went_on_apart_both_come_in(homes, tmp_path):
    with homes[1] as session:
        run_toy(session, positions=4)
    for copy, missing in (("box1", 2), ("box2", 1)):
        shutil.copytree(homes[1].folder, tmp_path / copy)
        with Database.open(tmp_path / copy / "registry.db") as there, there.write() as sql:
            sql.query(tables.UnitRange).delete()
            run_id, attempt_id = sql.execute(select(tables.Attempt.run_id, tables.Attempt.id)).one()
            for unit in {0, 1, 2, 3} - {missing}:
                sql.add(tables.UnitRange(run_id=run_id, start=unit, stop=unit + 1, attempt_id=attempt_id))
    with homes[0] as session:
        for copy in ("box1", "box2"):
            merge_source(session.database, session.store, str(tmp_path / copy / "registry.db"))
        with session.database.read() as sql:
            assert sorted(sql.scalars(select(tables.Score.unit))) == [0, 1, 2, 3]


def test_results_that_differ_are_listed_once_and_the_first_counts(homes):
    here, there = homes
    for home in homes:
        with home as session:
            run_toy(session, positions=3)
    with there as session, session.database.write() as sql:
        sql.query(tables.Score).filter(tables.Score.unit == 1).update({"n": 2})
    with here as session:
        for _ in range(2):
            merge_source(session.database, session.store, str(there.folder))
        with session.database.read() as sql:
            (conflict,) = sql.scalars(select(tables.Conflict))
            assert (conflict.table_name, conflict.key["unit"], conflict.row["n"]) == ("score", 1, 2)
            assert set(sql.scalars(select(tables.Score.n))) == {1}


def rows_of(database: Database) -> dict[str, int]:
    """Rows by table, and the number that rises with every write."""
    with database.read() as sql:
        every = {table.name: table for table in tables.Base.metadata.sorted_tables if brought.has_table(sql, table)}
        counts = {name: sql.scalar(select(func.count()).select_from(table)) for name, table in every.items()}
    return {**counts, database.data_version(): 0}


@pytest.mark.parametrize("part", ["", "store/fragments"], ids=["registry", "fragments"])
def test_a_preview_tells_what_the_merge_then_does_and_keeps_nothing(homes, part):
    here, there = homes
    for home in homes:
        with home as session:
            run_toy(session, positions=3)
    with there as session:
        run_toy(session, positions=2, seed=1)
        with session.database.write() as sql:
            sql.query(tables.Score).filter(tables.Score.unit == 1).update({"n": 2})
    other = str(there.folder / part)
    with here as session:
        before, files = rows_of(session.database), sorted(path.name for path in session.store.root.rglob("*"))
        preview = merging.preview_merge(session.database, session.store, other)
        assert rows_of(session.database) == before
        assert sorted(path.name for path in session.store.root.rglob("*")) == files
        rows = {row["units"]: (row["done_before"], row["done"], row["conflicts"]) for row in preview.runs}
        assert rows == {2: (None, 2, 0)} | ({} if part else {3: (3, 3, 1)})
        assert preview.unchanged == (1 if part else 0)
        assert [conflict["differs"] for conflict in preview.conflicts] == ([] if part else [{"n": (1, 2)}])
        report = merge_source(session.database, session.store, other)
        assert report == preview.report
        assert report.results > 0
        with session.database.read() as sql:
            listed = [(row["table_name"], row["key"]) for row in read.list_conflicts(sql)]
        assert listed == [(row["table_name"], row["key"]) for row in preview.conflicts]
        again = merging.preview_merge(session.database, session.store, other)
        assert (again.report.facts, again.report.results, again.conflicts) == ({}, 0, [])
        assert (again.runs, again.unchanged) == ([], 2)


def test_a_preview_takes_nothing_in_on_postgresql_either(homes, postgres):
    there = homes[1]
    with there as session:
        run_toy(session, positions=3)
    with open_session(postgres.migrated(), homes[0].folder / "store", create=True) as session:
        before = rows_of(session.database)
        preview = merging.preview_merge(session.database, session.store, str(there.folder))
        assert preview.report.results > 0
        assert rows_of(session.database) == before
        assert merge_source(session.database, session.store, str(there.folder)) == preview.report


def test_a_preview_of_this_registry_itself_is_refused(homes):
    with homes[0] as session:
        run_toy(session, positions=3)
        with pytest.raises(BadInputError, match="is this registry"):
            merging.preview_merge(session.database, session.store, str(homes[0].folder))
        with session.database.write() as sql:  # the transaction is over
            names.add_annotation(sql, "run", sql.scalars(select(tables.Run.id)).one(), "note", "still writes")


def test_merges_both_ways_list_only_the_other_row_and_once_however_the_run_grows(homes):
    for home, n in zip(homes, (1, 2), strict=True):
        with home as session:
            run_toy(session, positions=3)
            with session.database.write() as sql:
                sql.query(tables.Score).filter(tables.Score.unit == 0).update({"n": n})
                sql.query(tables.UnitRange).filter(tables.UnitRange.start > 0).delete()
                sql.query(tables.Score).filter(tables.Score.unit > 0).delete()
                attempt_id = sql.scalar(select(tables.UnitRange.attempt_id))
    reported = []
    for unit in (1, 2):
        for home, other, theirs in ((*homes, 2), (*reversed(homes), 1)):
            with home as session:
                reported.append(merge_source(session.database, session.store, str(other.folder)).conflicts)
                with session.database.read() as sql:
                    assert [row["n"] for row in sql.scalars(select(tables.Conflict.row))] == [theirs]
        with homes[1] as session, session.database.write() as sql:
            run_id = sql.scalar(select(tables.Run.id))
            sql.add(tables.UnitRange(run_id=run_id, start=unit, stop=unit + 1, attempt_id=attempt_id))
    assert reported == [1, 1, 0, 0]


def test_a_name_that_two_machines_gave_is_shown_with_its_host(homes):
    here, there = homes
    with here as session:
        run_toy(session, name="best", positions=2)
    with there as session:
        run_toy(session, name="best", positions=3)
    with here as session:
        merge_source(session.database, session.store, str(there.folder))
        with session.database.read() as sql:
            assert sorted(names.read_noun_names(sql, "run").values()) == ["best@box1", "best@box2"]
            with pytest.raises(BadInputError, match="ambiguous"):
                names.resolve_id(sql, "run", "best")
            assert names.resolve_id(sql, "run", "best@box2")


PGN = "\n".join(f'[Event "{moves}"]\n[Result "1-0"]\n\n1. {moves} 1-0\n' for moves in ("e4 e5", "d4 d5", "c4 c5"))


def add_games(session: Session, tmp_path: Path, name: str) -> AddedDataset:
    """One dataset, from a file of this name."""
    path = tmp_path / f"{name}.pgn"
    path.write_text(PGN)
    return add_dataset(session.database, session.store, [path], name=name)


def test_a_dataset_whose_file_was_called_otherwise_there_keeps_its_bytes_here(homes, tmp_path):
    here, there = homes
    with there as session:
        theirs = add_games(session, tmp_path, "first")
    with here as session:
        mine = add_games(session, tmp_path, "copy")
        merge_source(session.database, session.store, str(there.folder))
        assert (mine.id, mine.artifact != theirs.artifact) == (theirs.id, True)
        (there.folder / "store").rename(tmp_path / "out-of-reach")
        assert locate_dataset(session.database, session.store, "copy")[1] == session.store.path(mine.artifact)
        with session.database.write() as sql:  # outcome of an earlier merge
            sql.query(tables.Dataset).update({"artifact": theirs.artifact})
        later = time.time() + 2 * gc.MIN_AGE_S
        assert gc.find_unused(session.database, session.store, now=later) == []
        with session.database.write() as sql:
            names.add_annotation(sql, "dataset", mine.id, "archive")
        assert [r.path[-64:] for r in gc.find_unused(session.database, session.store, now=later)] == [mine.artifact]


def test_a_part_with_other_bounds_stays_as_it_is_on_both_sides_and_is_listed(homes, tmp_path):
    for home, part, seed in ((homes[1], "train=0.5", 1), (homes[0], "train=0.9", 7)):  # the other's is older
        with home as session:
            add_games(session, tmp_path, "games")
            split_dataset(session.database, session.store, "games", part, seed)
    for home, other, seed in ((homes[0], homes[1], 7), (homes[1], homes[0], 1)):
        with home as session:
            assert merge_source(session.database, session.store, str(other.folder)).conflicts == 1
            with session.database.read() as sql:
                assert sql.scalar(select(tables.Split.seed)) == seed


def test_what_is_known_of_a_checkpoint_stays_and_what_is_not_is_learned(homes):
    early, late, digest = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), "ab" * 32
    for home, at, values in (
        (homes[0], late, {"training_datasets": ["dataset:" + "cd" * 32], "tokens_seen": None}),
        (homes[1], early, {"training_datasets": None, "tokens_seen": 8}),
    ):
        with home as session:
            checkpoint(session, digest, at, **values)
    with homes[0] as session:
        merge_source(session.database, session.store, str(homes[1].folder))
        with session.database.read() as sql:
            row = sql.scalars(select(tables.Checkpoint)).one()
        assert (row.training_datasets, row.tokens_seen, row.created_at) == (["dataset:" + "cd" * 32], 8, early)


def test_a_checkpoint_whose_parent_a_fast_clock_registered_comes_in(homes):
    at, parent, child = datetime(2026, 1, 1, tzinfo=UTC), "ab" * 32, "cd" * 32
    with homes[1] as session:
        checkpoint(session, parent, at + timedelta(minutes=5))
        checkpoint(session, child, at, parent_id=make_uuid(parent))
    with homes[0] as session:
        merge_source(session.database, session.store, str(homes[1].folder))
        assert count(session.database, tables.Checkpoint) == 2


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ({"run_id": "nobody", "unit": 0, "split": "x", "item": 1}, {"n": 1}),
        ({"unit": "9" * 40}, [1]), ([], "text"), ({"run_id": "0" * 32, "unit": 2**80, "split": [], "item": {}}, {}),
    ],
)  # fmt: skip
def test_what_stands_in_a_conflict_of_others_is_data(homes, key, row):
    here, there = homes
    with there as session:
        run_toy(session, positions=2)
        with session.database.write() as sql:
            attempt = sql.scalars(select(tables.Attempt)).one()
            known = {"run_id": attempt.run_id, "attempt_id": attempt.id, "found_at": attempt.started_at}
            sql.add(tables.Conflict(id=make_uuid("ef" * 32), table_name="score", key=key, row=row, **known))
    with here as session:
        for _ in range(2):
            merge_source(session.database, session.store, str(there.folder))
        assert count(session.database, tables.Conflict) == 1


def test_a_checkpoint_that_is_its_own_parent_is_refused_in_a_line(homes):
    with homes[1] as session:
        checkpoint(session, "ab" * 32, datetime(2026, 1, 1, tzinfo=UTC), parent_id=make_uuid("ab" * 32))
    with homes[0] as session, pytest.raises(BadInputError, match="a row of checkpoint is refused: it is its own"):
        merge_source(session.database, session.store, str(homes[1].folder))


def checkpoint(session: Session, digest: str, at: datetime, **values: object) -> None:
    """Rows of a checkpoint with these values, without its bytes."""
    shape = {"architecture": "gpt2", "layers": 1, "source_format": "nanogpt", "detail": {}}
    with session.database.write() as sql:
        sql.add(tables.Artifact(digest=digest, kind="checkpoint", bytes=1, state="complete", created_at=at))
        sql.flush()
        sql.add(tables.Checkpoint(id=make_uuid(digest), artifact=digest, created_at=at, **shape, **values))


def test_fragments_of_a_machine_without_a_registry_come_home(homes, tmp_path):
    here, there = homes
    with there as session:
        run_toy(session, positions=4)
    spool = tmp_path / "spool"
    spool.mkdir()
    for path in (there.folder / "store" / "fragments" / "ingested").rglob("*.zst"):
        (spool / path.name).write_bytes(path.read_bytes())
    with here as session:
        report = merge_source(session.database, session.store, str(spool))
        assert report.results == 4
        assert merge_source(session.database, session.store, str(spool)).results == 0
        assert count(session.database, tables.Score) == 4


def test_what_is_no_registry_is_refused(homes, tmp_path):
    with homes[0] as session:
        with pytest.raises(NotFoundError, match="does not exist"):
            merge_source(session.database, session.store, str(tmp_path / "nowhere"))
        (tmp_path / "empty").mkdir()
        with pytest.raises(BadInputError, match=r"neither a registry\.db nor fragments"):
            merge_source(session.database, session.store, str(tmp_path / "empty"))
        with pytest.raises(BadInputError, match="is this registry"):
            merge_source(session.database, session.store, str(homes[0].folder))
