"""Moving a stopped training between machines, in commands: pushed on one machine, pulled and resumed on another."""

import os
import signal

from chessreg.cli import launch
from chessreg.models.training import Trainer
from tests.conftest import PUZZLES

TRAIN = (
    "run", "train", "--datasets", "puzzles", "--architecture", "fen-encoder", "--n-layer", "1",
    "--n-head", "2", "--n-embd", "16", "--steps", "6", "--batch-moves", "2", "--warmup-steps", "1", "--threads", "1",
)  # fmt: skip


def test_a_training_that_was_stopped_is_pushed_and_goes_on_where_it_is_pulled(here, tmp_path, monkeypatch):
    (tmp_path / "puzzles.csv").write_text("\n".join(PUZZLES.splitlines()[:4]))
    assert here("dataset", "add", tmp_path / "puzzles.csv", "--name", "puzzles") == 0
    step = Trainer.train_step
    steps = []

    def stopped_at_the_third(self, forward):
        steps.append(self.step)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, forward)

    monkeypatch.setattr(Trainer, "train_step", stopped_at_the_third)
    assert here(*TRAIN, "--checkpoint-seconds", "77") == 130
    run = here.err.split()[-1]
    assert here.err.splitlines()[-1] == (
        f"interrupted: 0 of 1 units are kept, and the saved state of the others; chessreg run --resume {run}"
    )
    orders = []
    monkeypatch.setattr(launch, "launch_in_process", lambda home, given, **options: orders.extend(given))
    assert here("launch", "--resume", run) == 0
    assert (orders[0].options.checkpoint_seconds, orders[0].options.threads) == (77, 0)
    assert here.json("push", run, "--inputs", "--registry-rows", "--to", tmp_path / "share")["states"] == 1
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert here("init") == 0
    assert here("merge", tmp_path / "share") == 0
    for states in (1, 0):  # a second time does nothing
        pulled = here.json("pull", run, "--inputs", "--from", tmp_path / "share" / "store")
        assert pulled["states"] == states
    assert here("run", "--resume", run) == 0
    assert steps == list(range(6)), "no step twice, none left out"
    options = [each["execution_options"] for each in here.json("runs", "show", run)["tries"]]
    assert [(each["checkpoint_seconds"], each["threads"]) for each in options] in (
        [(77, 1), (77, 0)],
        [(77, 0), (77, 1)],
    )


def test_a_merge_is_listed_before_it_is_done(here, tmp_path, monkeypatch):
    (tmp_path / "puzzles.csv").write_text("\n".join(PUZZLES.splitlines()[:4]))
    assert here("dataset", "add", tmp_path / "puzzles.csv", "--name", "puzzles") == 0
    assert here(*TRAIN, "--name", "trained") == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert here("merge", tmp_path / ".chessreg", "--dry-run") == 3
    assert not (tmp_path / "elsewhere" / ".chessreg").exists(), "nothing is made"
    assert here("init") == 0
    assert here("merge", tmp_path / ".chessreg", "--dry-run") == 0
    assert "new, 1/1 units" in here.out
    listed = here.json("merge", tmp_path / ".chessreg", "--dry-run")
    assert [(row["name"], row["done_before"]) for row in listed["runs"]] == [("trained", None)]
    assert here.json("runs", "list") == []
    assert here.json("merge", tmp_path / ".chessreg") == listed["report"]
