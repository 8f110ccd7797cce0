"""A rehearsal does every step of the paper on few items, finds planted faults, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import namedtuple
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.papers import find_paper, rehearsal
from chessreg.papers.plan import Paper, Request, Sheet, Step
from chessreg.papers.rehearsal import PeakMemory, check_shape_on_meta, rehearse_paper
from chessreg.papers.work import Work
from chessreg.registry import tables

from .conftest import TOY
from .test_davis import TRANSPOSED, make_davis

REQUEST = Request("reference", "sample", "sample", 2, 32, "paper")
SMALL_LLAMA: dict[str, Any] = {"family": "llama", "n_layer": 3, "n_head": 2, "n_embd": 32, "block_size": 128,
                               "datasets": ("puzzles",), "template": "junkin-small", "warmup_steps": 1}  # fmt: skip


@pytest.fixture(scope="module")
def pristine_world(solver_world):
    """With the dataset `puzzles`."""
    return solver_world


def rehearse(session, steps, sheets=()):
    """Rehearse a paper of these steps; return its steps by name."""
    paper = Paper("toy", "Toys", lambda request: steps, sheets)
    return {step.name: step for step in rehearse_paper(Work(session, paper, REQUEST, {"device": "cpu"}))}


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
    assert sorted(world_session.store.root.rglob("*")) == files


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
