"""Launching as typed: a real supervisor process, a terminal that closes, job files, sweeps, output for scripts."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chessreg.scheduling.presence import Presence
from store import Store
from store.process import get_process_start

GATED = Path(__file__).parent.parent / "kinds" / "gated_kind.py"
PATIENCE = 300.0


@pytest.fixture
def presence(here) -> Iterator[Presence]:
    """The supervisor of this folder; nothing of it outlives the test."""
    found = Presence(Store(here.folder / ".chessreg" / "store"))
    yield found
    (here.folder / "gate").touch()
    who = found.read_holder()
    if who:
        os.kill(who["pid"], signal.SIGKILL)
    for process in found.store.runs.glob("*/jobs/*/process.json"):
        try:
            os.killpg(json.loads(process.read_text())["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture
def gated(here) -> list[str | Path]:
    """`launch` of a kind that stops at a gate after two units, until the test opens it."""
    settings = ["--device", "cpu", "--threads", "1", "--gate", here.folder / "gate"]
    return ["launch", f"{GATED}:Gated", *settings]


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)
    return found


def done(here, reference: str) -> int:
    return sum(row["done"] for row in here.json("jobs", reference))


def test_a_launch_outlives_its_terminal_and_its_supervisor(here, presence, gated):
    """Typed in a terminal that is closed; then the supervisor is killed; every result exists once."""
    command = [sys.executable, "-m", "chessreg.cli", *map(str, gated), "--count", "6", "--shards", "2", "--name", "six"]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would hide from a shell that its terminal has closed
        os.execv("/bin/sh", ["/bin/sh", "-c", '"$@"; echo launched; sleep 600', "sh", *command])
    said = b""
    while b"launched\r\n" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)  # the shell and all that it had in its session get SIGHUP
    os.waitpid(pid, 0)
    until(lambda: done(here, "six") == 4)

    first = presence.read_holder()
    assert first
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: presence.read_holder() is None)
    assert here("jobs", "six") == 0
    assert "chessreg supervisor start" in here.err
    (here.folder / "gate").touch()  # the shards work on without it
    assert here("supervisor", "start") == 0
    assert here("wait", "six") == 0, here.out + here.err
    rows = here.json("jobs", "six")
    assert [(row["state"], row["done"], row["units"], row["tries"]) for row in rows] == [("complete", 3, 3, 1)] * 2
    shown = here.json("runs", "show", "six")
    assert (shown["state"], shown["attempts"]) == ("complete", 2)
    assert here("query", "--sql", "select count(*) as n from gated", "--format", "csv") == 0
    assert here.out.split() == ["n", "6"]


def test_jobs_are_followed_cancelled_and_retried(here, presence, gated):
    launched = here.json(*gated, "--count", "5", "--name", "five")
    assert [(row["status"], row["units"], row["missing"]) for row in launched["runs"]] == [("queued", 5, 5)]
    assert launched["supervisor"]["pid"] == presence.read_holder()["pid"]
    until(lambda: done(here, "five") == 2)
    (row,) = here.json("jobs", launched["group_id"])
    assert row["state"] == "running"
    until(lambda: here.json("jobs", "five")[0]["doing"] == "at the gate")
    (row,) = here.json("jobs", "five")
    assert row["progress"] == pytest.approx(0.4)
    assert row["seconds_left"] > 0
    assert here("jobs") == 0
    assert "at the gate" in here.out
    assert here("wait", "five", "--timeout", "0.1") == 1
    assert "have not ended" in here.err
    assert here("cancel", "five") == 0
    assert here("wait", "five") == 1
    (row,) = here.json("jobs", "five")
    assert (row["state"], row["message"], row["done"]) == ("cancelled", "cancelled", 2)

    (here.folder / "gate").touch()
    assert here("retry", "five") == 0
    assert here("attach", "five", "--json") == 0, here.err
    lines = [json.loads(line) for line in here.out.splitlines()]
    assert (lines[-1]["state"], lines[-1]["done"]) == ("complete", 5)
    detail = here.json("job", "show", "five")
    assert [attempt["cause"] for attempt in detail["attempts"]] == ["killed", "finished"]
    assert here("logs", "five", "--follow") == 0
    assert "try 1" in here.out
    assert "try 2" in here.out
    assert here.out.rstrip().endswith("== complete")
    (log,) = here.json("logs", "five", "--lines", "1")
    assert len(log["lines"]) == 1
    assert here("retry", "five") == 0
    assert "none of these" in here.err
    assert here(*gated, "--count", "5") == 0
    assert "nothing was queued" in here.err
    assert here("supervisor", "stop") == 0
    assert here.json("supervisor", "status")["state"] == "not running"


def test_a_job_file_launches_things_that_name_each_other_and_a_sweep_only_what_is_missing(here, presence):
    text = f"""
shards = 2
[[job]]
kind = "{GATED}:Gated"
name = "scan"
device = "cpu"
threads = 1
grid = {{ count = [2, 3], seed = [0, 1] }}
[[job]]
kind = "{GATED}:Summed"
name = "sum"
count = 2
device = "cpu"
threads = 1
shards = 1
"""
    (here.folder / "job.toml").write_text(text)
    planned = here.json("launch", "job.toml", "--dry-run", "--priority", "3")
    assert planned["group_id"] is None
    names = [(row["name"], row["shards"], row["priority"]) for row in planned["runs"]]
    assert names == [
        ("scan-count2-seed0", 2, 3),
        ("scan-count2-seed1", 2, 3),
        ("scan-count3-seed0", 2, 3),
        ("scan-count3-seed1", 2, 3),
        ("sum", 1, 3),
    ]
    assert here.json("jobs") == []
    assert here("run", f"{GATED}:Gated", "--count", "3") == 0
    (here.folder / "job.toml").write_text(text.replace("seed = [0, 1]", "seed = [0]"))
    assert here("launch", "job.toml", "--wait") == 0, here.out + here.err
    standing = {row["name"]: row["state"] for row in here.json("jobs")}
    assert standing == dict.fromkeys(["scan-count2-seed0", "sum"], "complete")
    (here.folder / "sweep.toml").write_text("[[cells]]\nseed = 0\n[[cells]]\nseed = 7\n")
    again = here.json("launch", f"{GATED}:Gated", "--count", "2", "--sweep", "sweep.toml", "--dry-run")
    assert [row["status"] for row in again["runs"]] == ["complete", "queued"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["launch", "nothing"], 3, "kind of experiment 'nothing' does not exist"),
        (["launch", "gone.toml"], 3, "does not exist"),
        (["launch", str(GATED) + ":Gated", "--on", "moon"], 3, "executor 'moon' does not exist"),
        (["launch", str(GATED) + ":Gated", "--on", ""], 3, "executor '' does not exist"),
        (["launch", str(GATED) + ":Gated", "--on", "local:x"], 4, "no value after a colon"),
        (["launch", str(GATED) + ":Gated", "--on", "slurm:"], 4, "--on slurm: requires a value after the colon"),
        (["launch", str(GATED) + ":Gated", "--on", "ray: "], 4, "--on ray: requires a value after the colon"),
        (
            ["launch", str(GATED) + ":Gated", "--on", "ray", "--address", ""],
            4,
            "--on ray: requires a value after the colon",
        ),
        (["launch", str(GATED) + ":Gated", "--on", "nonsense:x"], 3, "executor 'nonsense' does not exist"),
        (["launch", str(GATED) + ":Gated", "--shards", "0"], 4, "shards"),
        (["launch", str(GATED) + ":Gated", "--count", "0"], 4, "nothing to do"),
        (["launch", str(GATED) + ":Gated", "--sweep", "bad.toml"], 4, "neither grid nor cells"),
        (["launch", "bad.toml"], 4, "no kind"),
        (["launch", "typo.toml"], 4, "no setting cuont"),
        (["launch", "probe", "--cache", "nowhere"], 3, "nowhere"),
        (["cancel", "nothing"], 3, "not found"),
        (["logs", "nothing"], 3, "not found"),
        (["wait", "nothing"], 3, "not found"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_queues_nothing(here, presence, words, status, said):
    (here.folder / "bad.toml").write_text("count = [1, 2]\n")
    (here.folder / "typo.toml").write_text(f'kind = "{GATED}:Gated"\ncuont = 3\n')
    assert here(*words) == status
    assert said in here.err
    assert here.err.count("\n") <= 3
    assert here.json("jobs") == []
    assert presence.read_holder() is None


@pytest.mark.slow
def test_doctor_finds_and_mends_what_crashes_left(here, presence, gated):
    assert here("run", f"{GATED}:Gated", "--count", "2") == 0
    launched = here.json(*gated, "--count", "4", "--name", "four")
    until(lambda: done(here, "four") == 2)
    killed = [presence.read_holder()["pid"]]
    killed += [json.loads(next(presence.store.runs.glob("*/jobs/*/process.json")).read_text())["pid"]]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(get_process_start, killed)))  # a busy machine takes its time
    left = presence.store.tmp / "probe~gone~boot~1~1.0~0123456789abcdef"
    left.mkdir()
    os.utime(left, (0, 0))
    (presence.store.quarantine / f"0.{'0' * 32}.jsonl.zst").write_bytes(b"torn")

    def findings(*words: str) -> dict[str, dict[str, str]]:
        here("doctor", *words, "--json")
        return {check["check"]: check for check in json.loads(here.out) if check["check"] in KNOWN}

    found = findings()
    assert {name for name, check in found.items() if check["state"] == "broken"} == KNOWN
    assert "1 jobs wait or run" in found["supervisor"]["detail"]
    fixed = findings("--fix")
    assert {name for name, check in fixed.items() if check["state"] == "broken"} == {"fragments"}
    assert "recover" in fixed["fragments"]["hint"]
    assert not left.exists()
    assert here("recover", "--list") == 0
    assert "set aside" in here.out
    assert here("wait", launched["group_id"]) == 1
    (row,) = here.json("jobs", "four")
    assert row["state"] in ("killed", "lost")
    (attempt,) = here.json("job", "show", "four")["attempts"]
    assert (attempt["state"], attempt["units_done"]) == ("lost", 2)


KNOWN = {"supervisor", "orphans", "staging", "fragments"}


def test_doctor_sees_bytes_that_are_gone_or_changed(world, tmp_path, capsys):
    import shutil

    from chessreg.cli.root import run_command_line

    shutil.copytree(world, tmp_path / "world")
    place = ["--registry", str(tmp_path / "world" / "registry.db"), "--store", str(tmp_path / "world" / "store")]

    def checks(*words: str) -> list[dict[str, str]]:
        run_command_line(["doctor", *words, "--json", *place])
        return [check for check in json.loads(capsys.readouterr().out) if check["check"] in ("files", "digests")]

    assert checks("--digests") == []
    store = Store(tmp_path / "world" / "store")
    vectors = store.list("vector")
    file = next(path for path in vectors[0].path.iterdir() if path.suffix == ".safetensors")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    shutil.rmtree(next(iter(store.arrays.iterdir())))
    found = checks("--digests")
    assert {check["check"] for check in found} == {"files", "digests"}
    assert "activations" in next(check["detail"] for check in found if check["check"] == "files")


def test_the_supervisor_is_one_and_ends_when_there_is_nothing_to_do(here, presence):
    command = [sys.executable, "-m", "chessreg.scheduling.supervisor", str(presence.store.root), "0.5"]
    env = {**os.environ, "CHESSREG_REGISTRY": str(here.folder / ".chessreg" / "registry.db")}
    assert presence.hold()
    assert presence.read_holder()["pid"] == os.getpid()
    second = subprocess.run(command, env=env, timeout=PATIENCE, check=True, capture_output=True, text=True)
    assert "begins" not in second.stdout
    presence.release()
    third = subprocess.run(command, env=env, timeout=PATIENCE, check=True, capture_output=True, text=True)
    assert "nothing to do" in third.stdout
    assert presence.read_holder() is None


@pytest.mark.slow
def test_waiting_for_what_another_launch_works_at_comes_back_at_its_end(here, presence, gated):
    launch = [*gated, "--count", "3", "--name", "three"]
    assert here(*launch) == 0, here.err
    waiting = subprocess.Popen(
        [sys.executable, "-m", "chessreg.cli", *map(str, launch), "--wait", "--json"], stdout=subprocess.PIPE
    )
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.communicate(timeout=8)
    (here.folder / "gate").touch()
    assert [row["state"] for row in json.loads(waiting.communicate(timeout=PATIENCE)[0])] == ["complete"]
    assert waiting.returncode == 0
    again = here.json(*launch, "--wait")
    assert (again["group_id"], again["runs"][0]["status"]) == (None, "complete")
