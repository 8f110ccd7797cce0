"""The GPU checks at a tiny size on the CPU, with nothing installed but torch, numpy and safetensors."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.entities.checkpoint import import_checkpoint
from chessreg.models.token_file import ARRAYS, TokenFile
from chessreg.session import open_session

FOLDER = Path(__file__).parent
RUN = FOLDER / "run.py"
GAMES = FOLDER / "inputs" / "pgn-char-32.npz"
MODULES = ("context", "correctness", "make_inputs", "report", "run", "speed", "training")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to torch, numpy, safetensors and the packages that these require: everything that `python -S`
    finds there in addition to the standard library and the tree."""
    folder, names, seen = tmp_path_factory.mktemp("bare"), ["torch", "numpy", "safetensors"], set[str]()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # for another platform
            continue
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
        required = [each for each in package.requires or () if "extra ==" not in each]
        names += [match[0] for each in required if (match := re.match(r"[\w.-]+", each))]
    return folder


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the checks."""
    monkeypatch.syspath_prepend(str(FOLDER))

    class Modules:
        def __getattr__(self, name: str) -> ModuleType:
            return importlib.import_module(name)

    yield Modules()
    for name in MODULES:
        sys.modules.pop(name, None)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def whole(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    out = tmp_path_factory.mktemp("run") / "report"
    options = ["--device", "cpu", "--tiny", "--minutes", "60", "--games", str(GAMES), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-S", str(RUN), *options],
        env=environment(PYTHONPATH=str(bare)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith((out / "report.md").read_text() + "\n")
    return out


@pytest.mark.slow
def test_everything_is_measured_with_torch_numpy_and_safetensors_alone(whole: Path) -> None:
    content = json.loads((whole / "report.json").read_text())
    assert content["state"] == "complete"
    assert {"device", "torch", "commit", "arguments"} <= content["machine"].keys()
    rows = {f"{step['name']}: {row['measurement']}": row for step in content["steps"] for row in step["rows"]}
    assert {name: row["left_out"] for name, row in rows.items() if "left_out" in row} == {
        "training: the shards in transformers": "the package transformers is not installed",
        "training: the shards through `chessreg import checkpoint`": "the package chess is not installed",
    }
    compared = [row for name, row in rows.items() if name.startswith("correctness: ")]
    assert len(compared) == 26
    assert all(row["relative"] < (1e-5 if "float32" in row["measurement"] else 0.1) for row in compared)
    for name, row in rows.items():
        assert all(row[key] > 0 for key in row if key.endswith("_per_s") or key in ("mfu", "share_of_peak")), name
    training = rows["training: training"]
    assert (training["updates"], training["last_learning_rate_factor"]) == (30, pytest.approx(0.1, abs=0.1))
    assert rows["training: held-out loss"]["nats_per_token"] < np.log(32)
    assert 0 < rows["training: first-try legal moves"]["legal_move_mass"] < 1
    goals = {goal["goal"].partition(" ")[0]: goal["outcome"] for goal in content["goals"]}
    assert goals == {
        "float32": "met",
        "training": "set for another device",
        "caching": "set for another device",
        "SAE": "set for another device",
    }


@pytest.mark.slow
def test_the_shards_are_imported_with_equal_logits(whole: Path, gpu: Any, tmp_path: Path) -> None:
    files = sorted(file.relative_to(whole).as_posix() for file in whole.rglob("*") if file.is_file())
    shards = [name for name in files if name.endswith(".safetensors")]
    assert len(shards) == 3
    assert files == sorted(
        ["model/config.json", "model/model.safetensors.index.json", *shards, "report.json", "report.md"]
    )
    assert all((whole / name).stat().st_size <= gpu.context.TINY.shard_bytes for name in shards)
    tokens = torch.from_numpy(TokenFile.read(GAMES).heldout_tokens[None, :200].astype(np.int64))
    with open_session(tmp_path / "registry.db", tmp_path / "store") as session:
        import_checkpoint(session.database, session.store, whole / "model", name="gpu")
        imported = session.model("gpu").logits(tokens)
    with torch.inference_mode():
        assert torch.equal(imported, gpu.training.read_shards(whole / "model")(tokens))


@pytest.mark.slow
def test_the_committed_model_predicts_games_as_its_readme_says(gpu: Any) -> None:
    model = gpu.training.read_shards(FOLDER.parent / "fixtures" / "h200-model")
    games = TokenFile.read(GAMES)
    ends = np.cumsum(games.heldout_lengths)[:5]
    losses = []
    for game in np.split(games.heldout_tokens, ends)[:5]:
        tokens = torch.from_numpy(game.astype(np.int64))[None]
        with torch.inference_mode():
            logits = model(tokens)[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
    assert 0.3 < float(sum(losses)) / sum(games.heldout_lengths[:5] - 1) < 0.6


NESTED = """
    import sys
    sys.path[:0] = sys.argv[1:]
    import torch
    import context

    setting = context.Context(torch.device("cpu"), context.TINY)
    outer, inner = torch.inference_mode(), torch.inference_mode()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)  # in the wrong order, as after a signal between the two
    del inner
    assert not torch.is_grad_enabled()
    setting.release()
    torch.ones(1, requires_grad=True).sum().backward()
"""


@pytest.mark.slow
def test_an_interruption_in_inference_mode_leaves_the_next_training_its_gradients() -> None:
    script = [sys.executable, "-c", textwrap.dedent(NESTED), str(FOLDER), str(FOLDER.parents[1])]
    done = subprocess.run(script, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


def test_a_signal_during_training_leaves_the_model_as_it_is(gpu: Any, tmp_path: Path) -> None:
    calls = iter(range(100))
    setting = gpu.context.Context(torch.device("cpu"), gpu.context.TINY)
    fit = gpu.training.Fit(setting, TokenFile.read(GAMES), tmp_path / "model", lambda: next(calls) >= 3)
    assert fit.train(time.monotonic() + 100, compiled=False)["updates"] == 3
    [(label, write)] = fit.plan_rescue()
    assert (label, write()["updates"]) == ("float16 shards", 3)
    assert not list(fit.plan_rescue())
    trained = gpu.training.read_shards(tmp_path / "model").state_dict()
    assert {
        name: value.half() for name, value in fit.trainer.copy_trained().state_dict().items()
    }.keys() == trained.keys()
    assert torch.equal(fit.trainer.copy_trained().wte.weight.half().float(), trained["wte.weight"])


def test_the_number_of_updates_follows_the_time_left(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        config, step = gpu.training.make_training_config(
            gpu.context.Context(torch.device("cpu"), gpu.context.TINY), (1, 1, 8), schedule="trapezoid", steps=10**6,
            warmup_steps=0, decay_steps=1,
        ), 0  # fmt: skip

    trainer, now, plan = Trainer(), 1000.0, gpu.training.Plan(1100.0, 10**6)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    while now < 1100 and trainer.step < trainer.config.steps:
        plan.follow(trainer)
        now += 1.0 if trainer.step < 20 else 0.5 if trainer.step < 60 else 0.55
        trainer.step += 5
    assert 1090 < now <= 1105
    assert trainer.config.rate(trainer.config.steps - 1) == pytest.approx(0.1, abs=0.02)
    assert trainer.config.decay_steps == int(0.4 * trainer.config.steps)


GUARDED = """
    import os, signal, sys, time
    sys.path.insert(0, sys.argv[1])
    import run
    from pathlib import Path
    from report import LeftOut, Report

    class Setting:
        def release(self): pass

    def failing(): raise RuntimeError("no compiler")
    def without(): import no_such_package
    def unable(): raise LeftOut("no games")
    def slow():
        while True: pass
    def importing():
        text = "import os, signal; os.kill(os.getpid(), signal.SIGALRM); whole = True"
        (Path(sys.argv[2]) / "ringing_module.py").write_text(text)
        sys.path.insert(0, sys.argv[2])
        import ringing_module
        while True: pass
    def stopped():
        os.kill(os.getpid(), signal.SIGTERM)
        while True: pass

    report = Report(Path(sys.argv[2]), {"device": "none"}, 1, time.monotonic())
    interrupter = run.Interrupter()
    def step(name, seconds, *works):
        measurements = ((work.__name__, work) for work in works)
        run.run_step(report, name, measurements, time.monotonic() + seconds, Setting(), interrupter)
    def good(): return {"value": 1.5}
    def broken():
        raise OSError("no input")
        yield
    run.run_step(report, "broken", broken(), time.monotonic() + 9, Setting(), interrupter)
    step("guarded", 9, failing, without, unable, good)
    step("timed", 1, slow, good)
    step("imports", 30, importing)
    assert sys.modules["ringing_module"].whole
    step("signals", 9, good, stopped, good)
    assert interrupter.signal == signal.SIGTERM
"""


def test_errors_time_limits_and_signals_end_one_measurement_alone(tmp_path: Path) -> None:
    script = [sys.executable, "-c", textwrap.dedent(GUARDED), str(FOLDER), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "report.json").read_text())
    found = {
        step["name"]: [row.get("error") or row.get("left_out") or row["value"] for row in step["rows"]]
        for step in content["steps"]
    }
    late = "it took longer than the time of its step"
    assert found == {
        "broken": ["OSError: no input"],
        "guarded": ["RuntimeError: no compiler", "the package no_such_package is not installed", "no games", 1.5],
        "timed": [late, "no time left"],
        "imports": [late],
        "signals": [1.5, "interrupted"],
    }


WRITING = """
    import sys, time
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from report import Report

    report = Report(Path(sys.argv[2]), {"device": "none"}, 1, time.monotonic())
    step = report.begin("writing")
    while True:
        report.record(step, f"row {len(step.rows)}", values={"text": "x" * 1000})
"""


def test_a_killed_run_leaves_a_whole_report(tmp_path: Path) -> None:
    script = [sys.executable, "-c", textwrap.dedent(WRITING), str(FOLDER)]
    for number in range(5):
        out = tmp_path / str(number)
        out.mkdir()
        process = subprocess.Popen([*script, str(out)], stdout=subprocess.DEVNULL)
        while not (out / "report.md").exists():
            assert process.poll() is None
        time.sleep(random.Random(number).uniform(0.01, 0.2))
        process.kill()
        process.wait()
        assert json.loads((out / "report.json").read_text())["state"] == "running"
        assert (out / "report.md").read_text().startswith("# GPU report")


def test_a_model_replaces_the_one_before_it(gpu: Any, tmp_path: Path) -> None:
    weights = {f"w{number}": torch.full((10, 100), float(number), dtype=torch.float16) for number in range(7)}
    assert gpu.training.write_shards(tmp_path / "model", {"size": 1}, weights, 10_000) == 2
    (tmp_path / "model.new").mkdir()  # left by a process that was killed
    assert gpu.training.write_shards(tmp_path / "model", {"size": 2}, weights, 4_000) == 7
    names = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert names == [f"model-{number:05}-of-00007.safetensors" for number in range(1, 8)]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "status", "problem"),
    [
        (["--games", "none.npz"], 3, "error: --games: none.npz does not exist"),
        (["--games", "cut.npz"], 4, "error: --games: cut.npz is damaged or not a token file"),
        (["--out", "used"], 2, "error: --out used exists already\nhint: rm -r used"),
        (["--out", "file/below"], 2, "error: --out file/below cannot be written: Not a directory"),
        (["--minutes", "0"], 2, "--minutes: 0 is not between 0 and 1440"),
        (["--minutes", "nan"], 2, "--minutes: nan is not between 0 and 1440"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    options: list[str],
    status: int,
    problem: str,
    gpu: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cut.npz").write_bytes(GAMES.read_bytes()[:20_000])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "report.md").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--device", "cpu", "--tiny", *options])
    try:
        found = gpu.run.main()
    except SystemExit as refused:
        found = refused.code
    assert found == status
    assert problem in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_machine_without_a_gpu_is_told_how_to_try_it(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert gpu.run.main() == 2
    assert "add --device cpu --tiny" in capsys.readouterr().err


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(RUN), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no package numpy\nhint: run it with the Python that has PyTorch" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_inputs_are_those_of_the_bundled_sample(gpu: Any) -> None:
    for name, made in gpu.make_inputs.make_inputs().items():
        committed = TokenFile.read(FOLDER / "inputs" / f"{name}.npz")
        for array in ARRAYS:
            np.testing.assert_array_equal(getattr(committed, array), getattr(made, array), err_msg=f"{name} {array}")


def test_flops_are_those_of_palm(gpu: Any, tmp_path: Path) -> None:
    """6N + 12·L·H·Q·T (Appendix B), N counted from the model's own matrices."""
    setting = gpu.context.Context(torch.device("cpu"), gpu.context.TINY)
    config = gpu.speed.make_training_config(setting, (2, 4, 32))
    model = gpu.speed.Trainer(config, setting.corpus(1000), tmp_path).model
    matrices = sum(parameter.numel() for parameter in [*model.matrices(), model.wte.weight])
    assert (
        gpu.context.count_flops_per_token(config, setting.games.size)
        == 6 * matrices + 12 * 2 * 4 * 8 * config.block_size
    )
