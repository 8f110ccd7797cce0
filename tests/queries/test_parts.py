"""Stored numbers of parts give the same answers as the results themselves, whatever happens to the registry."""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from chessreg.entities.merge import merge_source
from chessreg.queries import mirror, numbers, parts, run_query, stats
from chessreg.queries.ask import build_question, query_rows_behind
from chessreg.queries.catalogue import list_entries
from chessreg.queries.question import strip_comments
from chessreg.queries.scope import Scope
from chessreg.registry import migrations, tables
from chessreg.registry.database import Database
from chessreg.runs.ingest import ingest_fragments, requeue_quarantined
from chessreg.runs.kind import load_kinds
from store import Store
from store.fragments import FragmentWriter
from tests.quick import quick_first

from .conftest import START, Maker

STORED = [entry.title for entry in list_entries() if entry.stored_names]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch):
    """Parts with few units have files too, and intervals take little time."""
    monkeypatch.setattr(parts, "LONG_RUN_UNITS", 1)
    monkeypatch.setattr(mirror, "LEAST_ROWS", 1)
    monkeypatch.setattr(mirror, "LONG_ROWS", 5)
    monkeypatch.setattr(stats, "RESAMPLES", 20)


def ask(database: Database, title: str, quick: bool, **scope):
    """The answer of a process that has not asked yet; if not `quick`, from SQL without any file."""
    with pytest.MonkeyPatch.context() as patch, Database.open(database.place.path, create=False) as again:
        if not quick:
            patch.setattr(parts, "LONG_RUN_UNITS", 1 << 60)
            patch.setattr(mirror, "read_mirror", lambda *_: None)
        result = run_query(again, title, **scope)
        return result.rows, result.notes, result.meta["rows_read"]


def files(database: Database):
    return sorted(parts.find_numbers_folder(database).glob(f"*{parts.SUFFIX}"))


class Laboratory:
    """A registry with matches and edits, and random operations on it."""

    def __init__(self, database: Database, folder, seed: int) -> None:
        self.database, self.folder, self.drawn = database, folder, random.Random(seed)
        self.store = Store.create(folder / "store")
        self.make = Maker(database)
        self.runs: list[tables.Run] = []
        self.checkpoints = [self.make.checkpoint("a"), self.make.checkpoint("b")]
        vector = self.make.vector(self.checkpoints[0], "contrastive:skill")
        control = self.make.vector(self.checkpoints[0], "random:skill", of=vector)
        self.edits = [None, self.make.intervention(self.checkpoints[0], vector=vector),
                      self.make.intervention(self.checkpoints[0], source="random:skill", vector=control),
                      self.make.intervention(self.checkpoints[0], source="probe:piece")]  # fmt: skip
        kind = load_kinds()["edit-next-token"]
        self.make.add(
            tables.KindRecord(name=kind.name, version=kind.version, source="chessreg", result_tables=list(kind.tables),
                              extra_columns=kind.schemas, determinism="exact")
        )  # fmt: skip
        for _ in range(3):
            self.play()
            self.edit()

    def game(self):
        end = self.drawn.choice(["checkmate", "move_limit", "forfeit_illegal", "opponent_forfeit"])
        return {"result": "*" if end == "move_limit" else self.drawn.choice(["1-0", "0-1", "1/2-1/2"]),
                "termination": end, "adjudication_cp": self.drawn.choice([None, -101, -100, 0, 100, 500]),
                "first_try_legal": self.drawn.randrange(21), "moves": bytes([self.drawn.randrange(9)])}  # fmt: skip

    def play(self, **planned):
        checkpoint, edit = self.drawn.choice([(self.checkpoints[0], edit) for edit in self.edits[:3]]
                                             + [(self.checkpoints[1], None)])  # fmt: skip
        games = [self.game() for _ in range(self.drawn.randrange(4, 9))]
        color = self.drawn.choice(["white", "both"])
        self.runs.append(self.make.play(checkpoint, games, intervention=edit, color=color, **planned))

    def trials(self, run: tables.Run, units) -> list[dict]:
        rows = []
        for unit in units:
            for condition in ("clean", "edit-0", "random-0", "random-1"):
                mass = self.drawn.random()
                detail = {"piece": "Pk"[unit % 2], "square": ["e4", "d5"][unit // 2 % 2], "half": "report",
                          "mass_future": mass / 2, "argmax_kept": True}  # fmt: skip
                if condition != "clean":
                    detail |= {"setting": 0, "kl": 2 * mass, "edit_norm": 3 * mass}
                number = {"clean": None, "edit-0": 3}.get(condition, 2)
                rows.append({
                    "run_id": run.id, "unit": unit, "condition": condition, "sample": -1, "attempt_id": run.attempt_id,
                    "intervention_id": number and self.edits[number].id, "item": unit // 2, "ply": 20 + unit % 2,
                    "text": "e4", "mass_original": mass, "mass_modified": self.drawn.random(), "detail": detail,
                })  # fmt: skip
        return rows

    def edit(self):
        run = self.make.run("edit-next-token", 6, kind_version=load_kinds()["edit-next-token"].version)
        self.make.add(*(tables.Trial(**row) for row in self.trials(run, range(6))))
        self.runs.append(run)

    def mark(self):
        run, word = self.drawn.choice(self.runs), self.drawn.choice(["archive", "invalid", "invalid"])
        self.make.say("run", run.id, word, withdrawn=self.drawn.random() < 0.4)

    def rename(self):
        noun, thing = self.drawn.choice([("run", self.drawn.choice(self.runs)),
                                         ("checkpoint", self.drawn.choice(self.checkpoints))])  # fmt: skip
        self.make.say(noun, thing.id, "name", f"n{self.drawn.randrange(99)}")

    def redo(self):
        """As `doctor --fix` and the next attempt: rows go, and others come through a fragment."""
        run = self.drawn.choice([run for run in self.runs if run.kind == "edit-next-token"])
        with self.database.write() as session:
            session.query(tables.Trial).filter_by(run_id=run.id).delete()
            session.query(tables.UnitRange).filter_by(run_id=run.id).delete()
            session.get_one(tables.Run, run.id).completed_at = None
        half = self.drawn.randrange(7)
        for units in (range(half), range(half, 6)):
            with FragmentWriter(self.store, run.id.hex, run.attempt_id.hex) as writer:
                for row in self.trials(run, units):
                    ids = {name: value.hex for name, value in row.items() if hasattr(value, "hex") and "_id" in name}
                    writer.add("trial", row | ids)
                if units:
                    writer.add("unit_range", {"run_id": run.id.hex, "start": units.start, "stop": units.stop,
                                              "attempt_id": run.attempt_id.hex})  # fmt: skip
            if self.drawn.random() < 0.5:
                break
        for path in self.store.incoming.glob("*.zst") if self.drawn.random() < 0.3 else ():
            path.rename(self.store.quarantine / path.name)
        ingest_fragments(self.database, self.store)

    def requeue(self):
        requeue_quarantined(self.store)
        ingest_fragments(self.database, self.store)

    def branch(self):
        """Keep a copy of the registry for a later merge."""
        copy = self.folder / f"copy{self.drawn.randrange(2)}.db"
        copy.unlink(missing_ok=True)
        migrations.back_up_registry(self.database.place, copy)

    def merge(self):
        if copies := sorted(self.folder.glob("copy*.db")):
            merge_source(self.database, self.store, str(self.drawn.choice(copies)))

    def complete_later(self):
        """Complete a run at another time, after its rows changed."""
        run = self.drawn.choice([run for run in self.runs if run.kind == "play"])
        with self.database.write() as session:
            row = session.get_one(tables.Run, run.id)
            row.completed_at = (row.completed_at or START) + timedelta(seconds=1)
            session.query(tables.Game).filter_by(run_id=run.id, unit=0).update(
                {"result": self.drawn.choice(["1-0", "0-1", "1/2-1/2"])}
            )

    def harm(self):
        """Remove, cut or flip a file."""
        for path in self.drawn.sample(found := files(self.database), min(2, len(found))):
            data = bytearray(path.read_bytes())
            data[self.drawn.randrange(len(data))] ^= 1 << self.drawn.randrange(8)
            self.drawn.choice([path.unlink, lambda p=path, d=data: p.write_bytes(d),
                               lambda p=path, d=data: p.write_bytes(d[: len(d) // 2])])()  # fmt: skip

    def scope(self):
        run, checkpoint = self.drawn.choice(self.runs).id.hex, self.checkpoints[1].id.hex
        return self.drawn.choice([{}, {}, {"partial": True}, {"run": run}, {"checkpoint": checkpoint},
                                  {"where": "unit > 3"}, {"machine": "box1"}])  # fmt: skip


def interrupt_once(patch, place: str | None, operation) -> None:
    """Call an operation at once, or during the next query: before its parts are computed, or after all are read."""
    if place is None:
        operation()
        return
    plain, pending = getattr(parts, place), [operation]

    def interrupted(*given, **options):
        if place == "compute_parts" and pending:
            pending.pop()()
        numbers = plain(*given, **options)
        if pending:
            pending.pop()()
        return numbers

    patch.setattr(parts, place, interrupted)


@pytest.mark.parametrize(("seed", "steps"), quick_first(1, [(0, 4), *((seed, 30) for seed in range(1, 7))]))
def test_stored_numbers_are_never_outdated(seed, steps, database, tmp_path):
    lab = Laboratory(database, tmp_path, seed)
    operations = [lab.play, lab.edit, lab.mark, lab.rename, lab.redo, lab.requeue, lab.branch, lab.merge,
                  lab.complete_later, lab.harm]  # fmt: skip
    for title in STORED:
        ask(database, title, True)
    assert files(database)
    for _ in range(steps):
        operation, title, scope = lab.drawn.choice(operations), lab.drawn.choice(STORED), lab.scope()
        with pytest.MonkeyPatch.context() as patch:
            interrupt_once(patch, lab.drawn.choice([None, "read_part_numbers", "compute_parts"]), operation)
            quick = ask(database, title, True, **scope)
        slow = ask(database, title, False, **scope)
        assert quick[0] == slow[0], (title, operation.__name__, scope)
        assert quick[1] == slow[1], (title, operation.__name__, scope)


@pytest.mark.parametrize("identified_by", ["time of completion", "fragment"])
def test_results_that_were_made_again_are_counted_again(identified_by, database, make):
    run = make.play(make.checkpoint("a"), [{"result": "1-0"}] * 4)
    before = ask(database, "elo by intervention", True)[0]
    with database.write() as session:
        session.query(tables.Game).filter_by(run_id=run.id).update({"result": "0-1"})
        if identified_by == "fragment":
            session.add(tables.FragmentRecord(name="later", run_id=run.id, rows=4, ingested_at=START))
        else:
            session.get_one(tables.Run, run.id).completed_at += timedelta(seconds=1)
    for path in mirror.find_differing_files(database, {}):
        path.unlink()
    after = ask(database, "elo by intervention", True)[0]
    assert (before[0]["w"], after[0]["w"]) == (4, 0)
    assert after == ask(database, "elo by intervention", False)[0]


def test_doctor_finds_numbers_of_results_that_were_changed_by_hand(database, make):
    run = make.play(make.checkpoint("a"), [{"result": "1-0"}] * 4)
    make.play(make.checkpoint("b"), [{"result": "1-0"}] * 4)
    ask(database, "elo by intervention", True)
    assert len(files(database)) == 2
    assert list(numbers.find_differing_number_files(database)) == []
    with database.write() as session:
        session.query(tables.Game).filter_by(run_id=run.id, unit=0).update({"result": "0-1"})
    assert ask(database, "elo by intervention", True)[0] != ask(database, "elo by intervention", False)[0]
    for path in [*numbers.find_differing_number_files(database), *mirror.find_differing_files(database, {})]:
        path.unlink()
    assert ask(database, "elo by intervention", True)[0] == ask(database, "elo by intervention", False)[0]
    assert len(files(database)) == 2
    assert list(numbers.find_differing_number_files(database)) == []


def test_renaming_computes_nothing_again_and_a_new_run_its_part_alone(database, make, monkeypatch):
    computed = []
    plain = parts.compute_parts
    monkeypatch.setattr(parts, "compute_parts", lambda *given: computed.append(len(given[2])) or plain(*given))
    model, other = make.checkpoint("a"), make.checkpoint("b")
    run = make.play(model, [{}] * 4)
    make.play(other, [{}] * 4)
    ask(database, "elo by intervention", True)
    make.say("checkpoint", model.id, "name", "z")
    make.say("run", run.id, "name", "first")
    rows, _, read = ask(database, "elo by intervention", True)
    assert [row["checkpoint"] for row in rows] == ["b", "z"]
    assert (read["game"], computed) == (8, [2])
    make.play(model, [{}] * 4, intervention=make.intervention(model))
    ask(database, "elo by intervention", True)
    assert computed == [2, 1]


def test_a_read_only_registry_gets_no_file(database, make):
    make.play(make.checkpoint("a"), [{}] * 4)
    database.read_only = True
    assert len(run_query(database, "elo by intervention").rows) == 1
    assert files(database) == []
    with Database.open(database.place.path, create=False) as writable:
        numbers.store_numbers(writable)
    assert len(files(database)) == 1


@pytest.mark.parametrize("title", STORED)
def test_stored_relations_read_nothing_but_results_and_the_rows_of_their_part(title, empty):
    question = build_question(empty, title, Scope(), "paper", None)
    statements = parts.list_stored_statements(question)
    for sql in statements.values():
        assert not re.search(
            r"\b(scoped|cells|runs|named|annotated|checkpoints|interventions|arms)\b", strip_comments(sql)
        )


@pytest.mark.parametrize("write", ["name", "run", "results"])
def test_only_writes_to_the_parts_during_a_query_have_it_repeated(write, database, make, monkeypatch):
    model = make.checkpoint("a")
    runs = [make.play(model, [{}] * 4) for _ in range(2)]
    ask(database, "elo by intervention", True)
    plain, reads = parts.read_part_numbers, []

    def write_meanwhile(*given):
        reads.append(plain(*given))
        make.say("run", runs[0].id, "name", f"n{len(reads)}")
        if write == "run" and len(reads) == 1:
            make.play(model, [{}] * 4)
        if write == "results" and len(reads) == 1:
            with database.write() as session:
                session.query(tables.Game).filter_by(run_id=runs[1].id, unit=0).update({"result": "0-1"})
                session.get_one(tables.Run, runs[1].id).completed_at += timedelta(seconds=1)
        return reads[-1]

    with monkeypatch.context() as patch:
        patch.setattr(parts, "read_part_numbers", write_meanwhile)
        patch.setattr("chessreg.queries.ask.answer_from_rows", None)
        quick = ask(database, "elo by intervention", True)[0]
    assert len(reads) == (1 if write == "name" else 2)
    assert quick == ask(database, "elo by intervention", False)[0]


def test_the_rows_behind_a_square_are_its_cases(database, tmp_path):
    lab = Laboratory(database, tmp_path, seed=0)
    edits = [run for run in lab.runs if run.kind == "edit-next-token"]
    for number, row in enumerate(run_query(database, "legal move mass by square").rows, 1):
        behind = query_rows_behind(database, "legal move mass by square", number).rows
        columns = ("run", "type", "piece", "square")
        assert [[each[name] for name in columns] for each in behind] == [[row[name] for name in columns]] * row["cases"]
    assert number == len(edits) * 2 * 4


def test_the_oldest_files_above_the_limit_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MOST_FILES", 2)
    for time in (3, 1, 2, 4):
        parts.write_numbers(path := tmp_path / f"{time}{parts.SUFFIX}", parts.PartNumbers({}, {}))
        os.utime(path, (time, time))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"3{parts.SUFFIX}", f"4{parts.SUFFIX}"]


def list_imports(path):
    """Return the modules of chessreg.queries that a file imports anywhere, except for type checking."""
    names = set()

    def collect(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and node.module == "chessreg.queries":
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chessreg.queries."):
                names.add(node.module.split(".")[2])
            collect(ast.iter_child_nodes(node))

    collect(ast.parse(path.read_text()).body)
    return names


def test_the_digest_of_numbers_covers_the_modules_that_compute_them_and_no_others(tmp_path):
    package, found, todo = Path(parts.__file__).parent, set(), {"parts"}
    while todo:
        found |= todo
        todo = {name for module in todo for name in list_imports(package / f"{module}.py")} - found
    assert found == set(parts.COMPUTING_MODULES)
    folder = tmp_path / "queries"
    shutil.copytree(package, folder)
    shutil.copy(package.parent / "noise.py", tmp_path)
    before = parts.hash_query_code.__wrapped__(folder)
    assert before == parts.hash_query_code()
    for path, changes in (
        (folder / "render.py", False), (folder / "plot.py", False), (folder / "stats.py", True),
        (folder / "engine.py", True), (tmp_path / "noise.py", True),
    ):  # fmt: skip
        text = path.read_text()
        path.write_text(text + "\n")
        assert (parts.hash_query_code.__wrapped__(folder) != before) is changes, path.name
        path.write_text(text)
