"""A rehearsal does every step of the paper on few items, finds planted faults, resumes, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.entities import gc
from chessreg.entities.dataset import split_dataset
from chessreg.errors import BadInputError
from chessreg.papers import find_paper, rehearsal
from chessreg.papers.davis.edits import get_chosen_edit
from chessreg.papers.davis.matches import measure_edit_length
from chessreg.papers.karvonen.edits import find_best_edit
from chessreg.papers.plan import Paper, Request, Sheet, Step
from chessreg.papers.rehearsal import PassedSteps, PeakMemory, check_shape_on_meta, rehearse_paper
from chessreg.papers.work import Work
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.session import Session
from store import Store
from store.errors import LockHeldError, StoreError

from .conftest import TOY
from .test_davis import TRANSPOSED, make_davis

REQUEST = Request("reference", "sample", "sample", 2, 32, "paper")
SMALL_LLAMA: dict[str, Any] = {"family": "llama", "n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 128,
                               "datasets": ("puzzles",), "template": "junkin-small", "warmup_steps": 1}  # fmt: skip


@pytest.fixture(scope="module")
def pristine_world(solver_world):
    """With the dataset `puzzles`."""
    return solver_world


@pytest.fixture(autouse=True)
def without_rehearsals(world_session):
    shutil.rmtree(world_session.store.rehearsals, ignore_errors=True)


def rehearse(session, steps, sheets=(), on_step=lambda step: None, options=None, only=(), **how):
    """Rehearse a paper of these steps; return its steps by name."""
    work = Work(session, Paper("toy", "Toys", lambda request: steps, sheets), REQUEST, options or {"device": "cpu"},
                only=only)  # fmt: skip
    return {step.name: step for step in rehearse_paper(work, on_step, **how)}


def count_rows(session):
    with session.database.read() as sql:
        return {name: sql.scalar(select(func.count()).select_from(table))
                for name, table in tables.Base.metadata.tables.items()}  # fmt: skip


@pytest.mark.parametrize("paper", ["karvonen", "davis", "junkin"])
def test_a_rehearsal_has_the_steps_of_the_paper(paper):
    request = Request("model", "train", "test", 12, 768, "paper", positions="positions", puzzles="puzzles")
    whole, few = (find_paper(paper).steps(replace(request, size=size)) for size in ("paper", "rehearsal"))
    assert [(step.name, step.kind) for step in few] == [(step.name, step.kind) for step in whole]
    assert sum(step.units for step in few) < sum(step.units for step in whole)


def test_steps_are_measured_and_leave_nothing_in_the_registry_and_the_store(world_session):
    before, files = count_rows(world_session), sorted(world_session.store.root.rglob("*"))
    steps = [
        Step("a", TOY, {"positions": 2}, "Table 1"),
        Step("parts", "split", {"dataset": "sample", "parts": "fit=0.5,test=0.5", "seed": 3}, "all tables"),
        Step("cached", "cache", {"checkpoint": "reference", "dataset": "sample", "games": 4}, "Table 1", ("a",),
             operations=1e15),
        Step("probe", "probe", {"cache": "@cached", "epochs": 1}, "Table 1"),
    ]  # fmt: skip
    sheet = Sheet("table-1", "Table 1", "best probe layers", has_published=False)
    done = rehearse(world_session, steps, (sheet,))
    assert list(done) == ["disk", "a", "parts", "cached", "probe", "tables"]
    assert {step.state for step in done.values()} == {"passed"}, done
    assert done["cached"].expected_seconds > 10 * done["cached"].seconds
    assert all(step.seconds > 0 and step.peak_bytes > 1 << 20 for step in done.values())
    assert count_rows(world_session) == before
    assert list_rehearsals(world_session) == []
    assert [path for path in sorted(world_session.store.root.rglob("*")) if path.name != "rehearsals"] == files


def list_rehearsals(session):
    return list(session.store.rehearsals.glob("*"))


def count_attempts(session):
    """Return the number of attempts by kind in the only unfinished rehearsal."""
    [folder] = list_rehearsals(session)
    with Database.open(folder / "registry.db", create=False) as database, database.read() as sql:
        attempts = select(tables.Run.kind, func.count()).join(tables.Attempt, tables.Attempt.run_id == tables.Run.id)
        return dict(sql.execute(attempts.group_by(tables.Run.kind)).all())


CACHED_STEPS = [
    Step("a", TOY, {"positions": 2}, ""),
    Step("parts", "split", {"dataset": "sample", "parts": "fit=0.5,test=0.5", "seed": 3}, ""),
    Step("cached", "cache", {"checkpoint": "reference", "dataset": "sample", "games": 4}, "", ("a",)),
    Step("probe", "probe", {"cache": "@cached", "epochs": 1}, ""),
]  # fmt: skip


def interrupt_at(name):
    def interrupt(step):
        if step.name == name:
            raise KeyboardInterrupt

    return interrupt


def test_a_stopped_rehearsal_continues_with_its_measurements(world_session):
    before = {}

    def stop_after_cache(step):
        before[step.name] = step
        interrupt_at("cached")(step)

    with pytest.raises(KeyboardInterrupt):
        rehearse(world_session, CACHED_STEPS, on_step=stop_after_cache)
    attempts = count_attempts(world_session)
    assert attempts == {"toy": 1, "cache": 1}

    def count_probes(step):
        if step.name == "probe":
            assert count_attempts(world_session) == attempts | {"probe": 1}

    done = rehearse(world_session, CACHED_STEPS, on_step=count_probes)
    assert {step.state for step in done.values()} == {"passed"}, done
    names = ("a", "parts", "cached")
    assert [done[name] for name in names] == [before[name] for name in names]
    assert list_rehearsals(world_session) == []


def test_a_changed_step_and_the_steps_that_need_it_are_rehearsed_again(world_session):
    with pytest.raises(KeyboardInterrupt):
        rehearse(world_session, CACHED_STEPS, on_step=interrupt_at("probe"))
    changed = [
        replace(step, settings={**step.settings, "games": 5}) if step.name == "cached" else step
        for step in CACHED_STEPS
    ]

    def count_at_tables(step):
        if step.name == "tables":
            assert count_attempts(world_session) == {"toy": 1, "cache": 2, "probe": 2}

    assert rehearse(world_session, changed, on_step=count_at_tables)["probe"].state == "passed"


def test_failed_steps_are_repeated_and_passed_steps_are_kept(world_session, tmp_path):
    file = tmp_path / "games.pgn"
    steps = [Step("a", TOY, {"positions": 2}, ""), Step("path", "imported-games", {"file": str(file)}, "")]
    first = rehearse(world_session, steps)
    assert (first["a"].state, first["path"].state) == ("passed", "failed")
    second = rehearse(world_session, steps, only=("a",))
    assert second["a"] == first["a"]
    assert len(list_rehearsals(world_session)) == 1, "only some of the steps were asked for"
    file.write_text('[White "x"]\n[Black "y"]\n[Result "1-0"]\n\n1. e4 e5 1-0\n')
    third = rehearse(world_session, steps)
    assert third["a"] == first["a"]
    assert third["path"].state == "passed", third["path"].why
    assert list_rehearsals(world_session) == []


def test_a_step_killed_before_its_record_says_what_was_measured(world_session, monkeypatch):
    """The units of a killed attempt are kept, so only the others are measured."""

    def stop(self, step, reference):
        raise KeyboardInterrupt

    def rehearse_and_stop():
        with monkeypatch.context() as patch:
            patch.setattr(PassedSteps, "add", stop)
            with pytest.raises(KeyboardInterrupt):
                rehearse(world_session, [step])

    step = Step("a", TOY, {"positions": 4}, "")
    rehearse_and_stop()
    assert rehearse(world_session, [step])["a"].why == "an interrupted rehearsal did it, without a measurement"
    rehearse_and_stop()
    monkeypatch.setattr(rehearsal, "find_missing_units", lambda inputs, spec: [3])
    assert rehearse(world_session, [step])["a"].why == "measured on the last 1 of 4 units"


@pytest.mark.parametrize("size", ["rehearsal", "paper"])
def test_only_a_rehearsal_does_without_the_edits_that_choose(size):
    empty = SimpleNamespace(rows=[])
    steps = SimpleNamespace(
        request=replace(REQUEST, size=size),
        is_rehearsal=size == "rehearsal",
        query=lambda *words: empty,
        value=lambda statement: None,
        run_id=lambda name: "0",
    )
    for choose in (
        lambda: find_best_edit(steps, "edit-sweep-last", ["0", "1", "0-1"]),
        lambda: get_chosen_edit(steps),
        lambda: measure_edit_length(steps),
    ):
        with nullcontext() if steps.is_rehearsal else pytest.raises(BadInputError):
            assert choose() in ({"layers": (0, 1), "scale": 3.0}, {"layers": (1,), "scale": 0.5}, 0.5)


@pytest.mark.slow
def test_karvonen_edits_of_a_model_without_legal_moves_pass(world_session, monkeypatch):
    from chessreg.papers.karvonen.sizes import SIZES

    few = replace(
        SIZES["rehearsal"], fit_games=8, test_games=4, min_plies=20, edit_games=2, edit_states=2, sweep_games=2
    )
    monkeypatch.setitem(SIZES, "rehearsal", few)
    split_dataset(world_session.database, world_session.store, "sample", "rest=0.6,validation=0.4", seed=0)
    work = Work(world_session, find_paper("karvonen"), REQUEST, {"device": "cpu", "threads": 1}, only=("edits-last",))
    done = {step.name: step for step in rehearse_paper(work)}
    assert not [(step.name, step.why) for step in done.values() if step.state != "passed"]
    for name in ("edit-sweep-last", "edits-last"):
        assert done[name].why.startswith("every state was skipped")
        assert done[name].expected_seconds is None


def test_other_code_other_options_and_fresh_start_over(world_session, monkeypatch):
    step = Step("a", TOY, {"positions": 2}, "")
    seen = []

    def stop(step):
        seen.append(step)
        interrupt_at("a")(step)

    def rehearse_and_stop(**how):
        with pytest.raises(KeyboardInterrupt):
            rehearse(world_session, [step], on_step=stop, **how)
        return seen[-1]

    first = rehearse_and_stop()
    assert rehearse_and_stop() == first
    assert rehearse_and_stop(options={"device": "cpu", "threads": 1}) != first
    assert rehearse_and_stop() == first, "options of another rehearsal discard nothing"
    fresh = rehearse_and_stop(fresh=True)
    assert fresh != first
    monkeypatch.setattr(rehearsal, "hash_source_files", lambda: "changed")
    assert rehearse_and_stop() not in (first, fresh)


def test_two_rehearsals_of_a_paper_do_not_mix(world_session):
    def rehearse_again(step):
        if step.name == "a":
            rehearse(world_session, [Step("a", TOY, {"positions": 2}, "")])

    with pytest.raises(LockHeldError, match=r"the rehearsal of this paper is being written by process \d+"):
        rehearse(world_session, [Step("a", TOY, {"positions": 2}, "")], on_step=rehearse_again)


def test_gc_lists_rehearsals_that_nobody_continues(world_session):
    with pytest.raises(KeyboardInterrupt):
        rehearse(world_session, CACHED_STEPS[:1], on_step=interrupt_at("a"))
    [folder] = list_rehearsals(world_session)

    def list_unused(days):
        return [item.path for item in gc.find_unused(world_session.database, world_session.store,
                                                     now=time.time() + 86_400 * days)]  # fmt: skip

    path = f"rehearsals/{folder.name}"
    assert path not in list_unused(days=0.9)
    assert path in list_unused(days=2)


def test_planted_faults_are_found_and_the_other_steps_are_done(world_session, monkeypatch, tmp_path):
    """A wrong path, a missing package and a missing engine; steps that need a failed step are left out."""
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *package: None if name == "peft" else there(name))
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(tmp_path / "stockfish"))
    steps = [
        Step("path", "imported-games", {"file": str(tmp_path / "games.pgn")}, ""),
        Step("model", "finetune", {**SMALL_LLAMA, "steps": 0}, ""),
        Step("package", "finetune", {"checkpoint": "@model/checkpoint", "datasets": ("puzzles",), "tune": "lora"}, ""),
        Step("engine", "engine-match", {"games": 2}, ""),
        Step("of-engine", "move-quality", {"play": "@engine", "games": 2}, ""),
        Step("optional", "engine-match", {"games": 2, "seed": 1}, "", optional=True),
        Step("sound", TOY, {"positions": 1}, ""),
    ]
    done = rehearse(world_session, steps)
    states = {name: step.state for name, step in done.items()}
    assert states == {
        "disk": "passed", "path": "failed", "model": "passed", "package": "failed", "engine": "failed",
        "of-engine": "left out", "optional": "refused", "sound": "passed", "tables": "passed",
    }  # fmt: skip
    assert done["path"].why.endswith("does not exist")
    assert "peft" in done["package"].why
    assert "stockfish is not a program" in done["engine"].why
    assert done["of-engine"].why == "needs engine"


def test_a_full_disk_is_found(world_session, monkeypatch):
    usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    step = Step("waits", TOY, {"positions": 1}, "", ("a",), rows={"trial": 4_000_000})
    done = rehearse(world_session, [Step("a", TOY, {"positions": 2}, ""), step])
    assert done["disk"].state == "failed"
    assert done["disk"].why.startswith("the paper needs about 2.")
    assert done["waits"].state == "passed"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(psutil.Process(), "rlimit"), reason="memory is limited only on Linux")
def test_a_batch_that_does_not_fit_is_found(world_session, monkeypatch):
    settings = {"architecture": "gpt2", "datasets": ("sample",), "n_layer": 1, "n_head": 8, "n_embd": 512,
                "block_size": 255, "packing": "games", "steps": 1}  # fmt: skip
    small = Step("small", "train", {**settings, "batch_tokens": 300}, "")
    large = Step("large", "train", {**settings, "batch_tokens": 60_000}, "")  # all games: 300 MiB of activations
    rehearse(world_session, [small])  # threads and libraries take memory once
    monkeypatch.setattr(rehearsal, "measure_available_memory", lambda device: 200 << 20)
    done = rehearse(world_session, [large, small])
    assert done["large"].state == "failed"
    assert done["large"].why.startswith("out of memory ("), done["large"].why
    assert done["small"].state == "passed", done["small"].why
    np.ones(100 << 20)  # 800 MiB: the limit is lifted


def test_a_model_that_does_not_fit_passes_on_the_meta_device(world_session, monkeypatch):
    monkeypatch.setattr(rehearsal, "measure_available_memory", lambda device: 100_000)
    monkeypatch.setattr(rehearsal, "limit_memory", rehearsal.suppress)
    tuning = {"steps": 1, "batch_positions": 2}
    steps = [
        Step("first", "finetune", {**SMALL_LLAMA, **tuning}, ""),
        Step("then", "finetune", {"checkpoint": "@first/checkpoint", "datasets": ("puzzles",), **tuning}, ""),
    ]
    done = rehearse(world_session, steps)
    assert (done["first"].state, done["then"].state) == ("passed", "passed"), done
    assert "the next steps use 1 layer; train it with --devices N --fsdp" in done["first"].why
    assert "weights needs" in done["first"].why


def test_the_llama_of_the_paper_passes_on_the_meta_device():
    from chessreg.models.finetuning import FinetuneConfig
    from chessreg.papers.junkin.sizes import SIZES

    shape = {name: value for name, value in SIZES["paper"].language_models["llama"].items() if name != "tokenizer"}
    assert 7e8 < check_shape_on_meta(FinetuneConfig(**shape)) < 1.4e9


def test_the_peak_of_memory_is_that_inside_the_block():
    with PeakMemory() as before:
        pass
    with PeakMemory() as inside:
        np.ones(40 << 20)
    assert inside.peak_bytes - before.peak_bytes > 200 << 20


def test_the_command_prints_every_step_and_fails_if_one_failed(world, capsys, monkeypatch):
    from chessreg.papers import karvonen

    steps = [Step("a", TOY, {"positions": 2}, "Table 1")]
    monkeypatch.setattr(karvonen, "PAPER", Paper("karvonen", "Toys", lambda request: steps, ()))
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "paper", "karvonen"]
    words = [*place, "--checkpoint", "reference", "--dataset", "sample", "--rehearse"]
    assert run_command_line([*words, "--size", "small"]) == 4
    assert "add --size paper" in capsys.readouterr().err
    assert run_command_line([*words, "--size", "paper", "--dry-run"]) == 4
    assert "--rehearse excludes other actions" in capsys.readouterr().err
    assert run_command_line([*words[:-1], "--size", "paper", "--fresh"]) == 4
    assert "--fresh has no effect without --rehearse" in capsys.readouterr().err
    assert run_command_line([*words, "--size", "paper"]) == 0
    shown = capsys.readouterr()
    assert "[2/3] a" in shown.err
    assert "3 steps, 0 failed" in shown.err
    steps.append(Step("b", "imported-games", {"file": "/nowhere.pgn"}, "Table 2"))
    assert run_command_line([*words, "--size", "paper", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(step["name"], step["state"]) for step in told["steps"]] == [
        ("disk", "passed"), ("a", "passed"), ("b", "failed"), ("tables", "passed"),
    ]  # fmt: skip
    assert told["failed"] == 1
    assert run_command_line([*words, "--size", "paper", "--fresh"]) == 1
    assert "passed steps are kept: the same command repeats only the others" in capsys.readouterr().err
    assert run_command_line([*words, "--size", "paper", "--only", "a"]) == 0
    assert f"passed steps are kept in {world / 'store' / 'rehearsals'}" in capsys.readouterr().err


def test_a_store_that_is_open_for_reading_only_is_refused(world_session, world):
    session = Session(world_session.database, Store(world / "store", read_only=True))
    with pytest.raises(StoreError, match="is open for reading only"):
        rehearse(session, [Step("a", TOY, {"positions": 2}, "")])
    assert list_rehearsals(world_session) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_of_davis_is_rehearsed(tmp_path, capsys):
    make_davis(tmp_path, TRANSPOSED)
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store"), "paper", "davis"]
    words = ["--checkpoint", "model", "--dataset", "games", "--size", "paper", "--rehearse", "--threads", "1", "--json"]
    assert run_command_line([*place, *words]) == 0, capsys.readouterr().err
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == 0
    assert {step["state"] for step in told["steps"]} <= {"passed", "refused"}
