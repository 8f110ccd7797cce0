"""Two registries under any operations: runs, kills, resumes, merges, pulls, invalidations, gc, in any order.

A model in memory predicts their contents after every step. Hypothesis draws the steps, and shortens failing sequences.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from chessreg import doctor
from chessreg.entities import gc
from chessreg.entities import merge as merging
from chessreg.registry import names, tables
from chessreg.registry.run_state import read_complete_units
from chessreg.registry.tables import AnnotationWord, AttemptState, Cause
from chessreg.runs import attempt, ingest, task, transfer, watch
from chessreg.runs.kind import Kind, find_kind
from chessreg.session import Session, open_session
from store import fragments
from store.places import open_place

LEDGER = Path(__file__).with_name("suite") / "ledger.py"
SEEDS = (1, 2)
COUNT = 3  # units without the reduce
ALL = frozenset(range(COUNT + 1))


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


ledger = imported(LEDGER)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Known:
    """The model's view of a registry: units done by seed, artifacts whose bytes are here, annotations of runs."""

    done: dict[int, frozenset[int]] = field(default_factory=dict)
    here: dict[int, frozenset[str]] = field(default_factory=dict)
    invalid: set[int] = field(default_factory=set)
    archived: set[int] = field(default_factory=set)


class Registries(RuleBasedStateMachine):
    """The real ones and the model, side by side."""

    empty: Path  # a registry and a store with nothing in them
    patches: pytest.MonkeyPatch

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="chessreg-machine-"))
        self.kind: Kind = find_kind(str(LEDGER))
        self.sessions: list[Session] = []
        self.known = [Known(), Known()]
        self.left = 0  # fragments to be written before the kill; 0: none comes

    @initialize()
    def begin(self) -> None:
        for name in ("a", "b"):
            shutil.copytree(self.empty, self.root / name)
            self.sessions.append(open_session(str(self.root / name / "registry.db"), self.root / name / "store"))

    def teardown(self) -> None:
        for session in self.sessions:
            session.close()
        shutil.rmtree(self.root)

    def spec(self, seed: int) -> Any:
        return self.kind.spec(seed=seed, count=COUNT)

    def run_id(self, seed: int) -> UUID:
        from chessreg.runs.resolve import resolve_spec

        return resolve_spec(self.kind, self.spec(seed), self.sessions[0].inputs).run_id

    def known_run(self, which: int, seed: int) -> tuple[int, int]:
        """This registry and seed, if it has such a run; else some run of it, or of the other one."""
        found = [(which, seed), (which, SEEDS[0]), (which, SEEDS[1]), (1 - which, seed)]
        found += [(1 - which, other) for other in SEEDS]
        return next((at, this) for at, this in found if this in self.known[at].done)

    # -- steps --------------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), seed=st.sampled_from(SEEDS))
    def run(self, which: int, seed: int) -> None:
        """Run, resume a killed run, or do nothing."""
        known, before = self.known[which], self.known[which].done.get(seed, frozenset())
        report = self.sessions[which].run(self.spec(seed), kind=str(LEDGER))
        assert report.state == "complete"
        assert (report.attempt_id is None) == (before == ALL)
        known.done[seed] = ALL
        made = {f"page-{unit}" for unit in ALL - before if unit < COUNT and unit % 2 == 0}
        known.here[seed] = known.here.get(seed, frozenset()) | made

    @rule(which=st.integers(0, 1), seed=st.sampled_from(SEEDS), moment=st.integers(1, 6), each=st.booleans())
    def kill(self, which: int, seed: int, moment: int, each: bool) -> None:
        """Run, and be killed before the n-th fragment exists; `each`: every unit is a separate fragment."""
        session, known = self.sessions[which], self.known[which]
        written, count = fragments.place_file, 0

        def counted(*given: Any) -> None:
            nonlocal count
            count += 1
            if count >= moment:
                raise Killed
            written(*given)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fragments, "place_file", counted)
            patched.setattr(task, "FLUSH_INTERVAL_S", -1.0 if each else 1e9)
            with suppress(Killed):
                session.run(self.spec(seed), kind=str(LEDGER))
        for thread in threading.enumerate():
            if thread.name == "ingest":  # which a killed process does not leave behind
                thread.join()
        with session.database.read() as sql:
            running = sql.scalars(select(tables.Attempt.id).where(tables.Attempt.state == AttemptState.RUNNING)).all()
            there = sql.get(tables.Run, self.run_id(seed)) is not None
            now = read_complete_units(sql, self.run_id(seed)) if there else set()
        watch.mark_lost(session.database, list(running), Cause.KILLED, "its process is gone")
        before = known.done.get(seed, frozenset())
        assert before <= now <= ALL  # which of them are new the kill decides; that none is torn the invariants say
        if there:
            known.done[seed] = frozenset(now)
            made = {f"page-{unit}" for unit in now - before if unit < COUNT and unit % 2 == 0}
            known.here[seed] = known.here.get(seed, frozenset()) | made

    @precondition(lambda self: self.known[0].done or self.known[1].done)
    @rule(which=st.integers(0, 1))
    def merge(self, which: int) -> None:
        """One registry merges the other: rows and annotations, not bytes."""
        mine, other = self.known[which], self.known[1 - which]
        merging.merge_source(
            self.sessions[which].database, self.sessions[which].store, str(self.root / "ab"[1 - which])
        )
        for seed, done in other.done.items():
            mine.done[seed] = mine.done.get(seed, frozenset()) | done
        mine.invalid |= other.invalid
        mine.archived |= other.archived

    @precondition(lambda self: self.known[0].done or self.known[1].done)
    @rule(which=st.integers(0, 1), seed=st.sampled_from(SEEDS))
    def pull(self, which: int, seed: int) -> None:
        """Fetch a run's bytes from the other's store; missing bytes are refused by name."""
        which, seed = self.known_run(which, seed)
        session, known = self.sessions[which], self.known[which]
        wanted = transfer.find_items(session.database, [self.run_id(seed).hex], inputs=True)
        pages = {f"page-{unit}" for unit in known.done[seed] if unit < COUNT and unit % 2 == 0}
        assert {item.what.split()[0] for item in wanted} == pages
        there = self.known[1 - which].here.get(seed, frozenset()) | known.here.get(seed, frozenset())
        if pages <= there:
            transfer.pull_items(
                session.database, session.store, wanted, open_place(str(self.root / "ab"[1 - which] / "store"))
            )
            known.here[seed] = known.here.get(seed, frozenset()) | pages

    @precondition(lambda self: self.known[0].done or self.known[1].done)
    @rule(
        which=st.integers(0, 1),
        seed=st.sampled_from(SEEDS),
        word=st.sampled_from([AnnotationWord.INVALID, AnnotationWord.ARCHIVE]),
    )
    def say(self, which: int, seed: int, word: AnnotationWord) -> None:
        """A run is called invalid, or archived; this is never taken back here, so merges can only add to it."""
        which, seed = self.known_run(which, seed)
        with self.sessions[which].database.write() as sql:
            names.add_annotation(
                sql, "run", self.run_id(seed), word.value, "why" if word is AnnotationWord.INVALID else ""
            )
        (self.known[which].invalid if word is AnnotationWord.INVALID else self.known[which].archived).add(seed)

    @rule(which=st.integers(0, 1))
    def collect(self, which: int) -> None:
        """Remove unneeded files; complete archived runs lose their bytes."""
        session, known = self.sessions[which], self.known[which]
        rubbish = gc.find_unused(session.database, session.store, now=9e9)
        gc.move_to_bin(session.store, rubbish)
        gc.empty_bin(session.store, -1e9)
        for seed in known.archived:
            known.here[seed] = frozenset()

    @rule(which=st.integers(0, 1))
    def mend(self, which: int) -> None:
        """`doctor --fix`: it finds nothing but bytes that are elsewhere."""
        session = self.sessions[which]
        for finding in doctor.find_problems(session.database, session.store, session.database.reference, digests=True):
            assert finding.check in ("files", "staging"), finding
            if finding.check == "staging":
                doctor.apply_fix(finding)

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def rows_are_those_of_done_units(self) -> None:
        for session, known in zip(self.sessions, self.known, strict=False):
            with session.database.read() as sql:
                assert {run.id for run in sql.query(tables.Run)} == {self.run_id(seed) for seed in known.done}
                assert not sql.query(tables.Conflict).count()
                for seed, done in known.done.items():
                    run_id = self.run_id(seed)
                    points = sql.query(tables.MetricPoint).filter_by(run_id=run_id)
                    expected = {k: v for k, v in ledger.points(seed, COUNT).items() if k[0] in done}
                    assert {(p.unit, p.name, p.step): p.value for p in points} == expected
                    scores = sql.query(tables.Score).filter_by(run_id=run_id)
                    assert sorted(s.unit for s in scores) == sorted(done - {COUNT})
                    assert read_complete_units(sql, run_id) == done
                    spans = sql.query(tables.UnitRange).filter_by(run_id=run_id)
                    assert sum(span.stop - span.start for span in spans) == len(done)
                    assert (sql.get_one(tables.Run, run_id).completed_at is not None) == (done == ALL)
                    for word, said in (
                        (AnnotationWord.INVALID, known.invalid),
                        (AnnotationWord.ARCHIVE, known.archived),
                    ):
                        now = names.CURRENT_ANNOTATIONS.c
                        query = select(now.value).where(now.target == run_id.hex, now.word == word.value)
                        assert (len(sql.scalars(query).all()) == 1) == (seed in said)

    @invariant()
    def bytes_are_those_that_were_made(self) -> None:
        for session, known in zip(self.sessions, self.known, strict=False):
            assert not fragments.list_pending(session.store)
            with session.database.read() as sql:
                for seed in known.done:
                    outputs = {o.name: o.digest for o in sql.query(tables.Output).filter_by(run_id=self.run_id(seed))}
                    for name in known.here.get(seed, frozenset()):
                        content = ledger.page(seed, int(name.removeprefix("page-")))
                        assert session.store.verify(outputs[name]).file.read_bytes() == content


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Registries]:
    with open_session(str(tmp_path / "empty" / "registry.db"), tmp_path / "empty" / "store"):
        pass
    monkeypatch.setattr(attempt.Heartbeat, "run", lambda heartbeat: None)
    monkeypatch.setattr(Registries, "empty", tmp_path / "empty", raising=False)
    return Registries


def play(machine: type[Registries], examples: int, steps: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None, derandomize=examples < 50,
            suppress_health_check=list(HealthCheck), print_blob=True, phases=phases,
        ),
    )  # fmt: skip


def test_two_registries_hold_what_was_done_with_them(machine: type[Registries]) -> None:
    play(machine, examples=4, steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["complete too early", "units without rows", "invalid is not merged"])
def test_the_machine_finds_a_planted_fault(
    fault: str, machine: type[Registries], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "complete too early":

        def complete_run(session: Any, run_id: UUID) -> None:
            run = session.get(tables.Run, run_id)
            run.completed_at = run.completed_at or run.created_at

        monkeypatch.setattr(ingest, "complete_run_if_done", complete_run)
    elif fault == "units without rows":
        emit = task.Task.emit
        monkeypatch.setattr(task.Task, "emit", lambda self, *a, **k: a[0] == "score" or emit(self, *a, **k))
    else:
        monkeypatch.setattr(merging, "LOCAL_TABLES", merging.LOCAL_TABLES | {"annotation"})
    with pytest.raises(AssertionError):
        play(machine, examples=30, steps=10, phases=(Phase.generate,))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_whatever_is_done_with_them(machine: type[Registries]) -> None:
    play(machine, examples=200, steps=25)
