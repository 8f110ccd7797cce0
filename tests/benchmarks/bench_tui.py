"""The terminal UI on many runs: the real command in a pseudo-terminal, timed from outside.

    python tests/benchmarks/bench_tui.py [--runs 100000] [--keys 120] [--json]

Prints how long the first picture takes on an empty registry and on this many runs (their difference is what the runs
cost), key to paint (median, 95th percentile) idle and while another process writes 1,000 rows a second, the jump to
the last run, and the memory of the process. Goals: the runs cost under 0.5 s, 0.8 s cold start, keys under 0.1 s at
the 95th percentile, 200 MB.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import insert

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import digest_of, new_id, uuid_of
from store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("cache", "probe", "edit", "play", "train")
WIDE, HIGH = 160, 48
NOBODY = UUID(int=0)


def fill(folder: Path, runs: int) -> None:
    """This many runs with a spec, a name, an attempt and complete units each."""
    Store.create(folder / "store")
    with Database.open(folder / "registry.db") as database:
        machine = {
            "id": new_id(), "host": "bench", "platform": "linux", "cpu": "x", "cores": 2, "memory_bytes": 1,
            "gpus": [], "python": "3.11", "last_seen": NOW,
        }  # fmt: skip
        if runs:
            with database.write() as session:
                session.execute(insert(tables.Machine), [machine])
        for begin in range(0, runs, 10_000):
            with database.write() as session:
                numbers = range(begin, min(runs, begin + 10_000))
                hashes = {n: digest_of({"bench": n}) for n in numbers}
                made = [run_row(n, hashes[n]) for n in numbers]
                session.execute(insert(tables.Run), made)
                session.execute(insert(tables.Attempt), [attempt_row(row, machine["id"]) for row in made])
                names = [name_row(n, row["id"]) for n, row in enumerate(made, begin)]
                session.execute(insert(tables.Annotation), names)


def run_row(n: int, spec_hash: str) -> dict[str, Any]:
    spec = {"seed": n, "replicate": 0, "checkpoint": "run:" + "a" * 64, "dataset": "dataset:" + "b" * 64, "games": 100,
            "layers": list(range(8)), "learning_rate": 0.001, "label": "piece", "positions": "dots"}  # fmt: skip
    return {
        "id": uuid_of(spec_hash), "kind": KINDS[n % len(KINDS)], "version": 1, "spec": spec, "spec_hash": spec_hash,
        "given": ["games"], "units": 100, "created_at": NOW + timedelta(seconds=n),
        "completed_at": NOW if n % 50 else None,
    }  # fmt: skip


def attempt_row(run: dict[str, Any], machine_id: Any) -> dict[str, Any]:
    return {
        "id": new_id(), "run_id": run["id"], "machine_id": machine_id, "executor": "foreground", "how": {}, "argv": [],
        "pid": 1, "pid_started": 0.0, "boot_id": "x", "started_at": NOW, "checked_in_at": NOW,
        "next_check_in_seconds": 60.0, "ended_at": NOW, "state": "finished", "cause": "finished", "exit_code": 0,
        "units_done": 100, "chessreg_version": "0", "code": {}, "environment": {},
    }  # fmt: skip


def name_row(n: int, run_id: Any) -> dict[str, Any]:
    return {"id": new_id(), "noun": "run", "target": run_id.hex, "word": "name", "value": f"run-{n}",
            "withdrawn": False, "host": "bench", "at": NOW}  # fmt: skip


def write_rows(path: str, stop: Event) -> None:
    """1,000 metric points a second, in transactions of 100, as a job's ingest does."""
    with Database.open(path) as database:
        spec_hash = digest_of({"bench": "writer"})
        with database.write() as session:
            session.execute(insert(tables.Run), [run_row(10**9, spec_hash)])
        step = 0
        while not stop.is_set():
            due = time.monotonic() + 0.1
            common = {"run_id": uuid_of(spec_hash), "unit": 0, "name": "loss", "attempt_id": NOBODY, "value": 1.0}
            rows = [{**common, "step": step + n} for n in range(100)]
            with database.write() as session:
                session.execute(insert(tables.MetricPoint), rows)
            step += 100
            time.sleep(max(0.0, due - time.monotonic()))


class Screen:
    """`chessreg tui` in a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "chessreg.cli", "--registry", str(folder / "registry.db"), "--store",
                   str(folder / "store"), "tui"]  # fmt: skip
        self.main, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", HIGH, WIDE, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=worker, stdout=worker, stderr=worker, env=environment, start_new_session=True
        )
        os.close(worker)

    def until(self, word: str, seconds: float = 120.0) -> float:
        """Seconds until the output has this word."""
        began, seen = time.perf_counter(), b""
        while word.encode() not in seen:
            if time.perf_counter() - began > seconds:
                raise SystemExit(f"{word!r} did not come within {seconds} s")
            seen += self.read(0.5)
        return time.perf_counter() - began

    def read(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self.main], [], [], seconds)
        return os.read(self.main, 1 << 16) if ready else b""

    def quiet(self, seconds: float = 0.15) -> None:
        """Read what still comes, until nothing does for a moment."""
        while self.read(seconds):
            pass

    def key(self, key: bytes) -> float:
        """Seconds from a key to the first output after it."""
        began = time.perf_counter()
        os.write(self.main, key)
        if not self.read(10.0):
            raise SystemExit(f"{key!r} was not answered within 10 s")
        return time.perf_counter() - began

    @property
    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1000

    def close(self) -> None:
        os.write(self.main, b"q")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        os.close(self.main)


def keys(screen: Screen, number: int) -> dict[str, float]:
    """Key to paint over down, up and pages, in milliseconds."""
    times = []
    for n in range(number):
        screen.quiet(0.03)
        times.append(1000 * screen.key((b"j", b"j", b"k", b"\x1b[6~", b"\x1b[5~", b"j")[n % 6]))
    return {"median ms": float(np.median(times)), "p95 ms": float(np.percentile(times, 95)), "max ms": max(times)}


def measured(folder: Path, runs: int, number: int) -> dict[str, Any]:
    screen = Screen(folder)
    screen.until("chessreg")
    found: dict[str, Any] = {"first picture s": time.perf_counter() - screen.started}
    screen.until(f"{runs:,} runs" if runs else "no games yet")
    found["with data s"] = time.perf_counter() - screen.started
    if runs:
        screen.quiet()
        found["keys"] = keys(screen, number)
        began = time.perf_counter()
        os.write(screen.main, b"G")
        screen.until("run-0 ")
        found["to the last run s"] = time.perf_counter() - began
        stop = multiprocessing.Event()
        writer = multiprocessing.Process(target=write_rows, args=(str(folder / "registry.db"), stop))
        writer.start()
        os.write(screen.main, b"g")
        time.sleep(1.0)  # let the writer reach its rate
        found["keys while 1,000 rows/s are written"] = keys(screen, number)
        stop.set()
        writer.join()
        found["memory MB"] = screen.megabytes
    screen.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = {}
        for runs in (0, options.runs):
            folder = Path(temporary) / str(runs)
            fill(folder, runs)
            measured(folder, 0, 0) if not runs else None  # once for the byte code and the file cache
            found[f"{runs} runs"] = measured(folder, runs, options.keys)
    empty, full = found["0 runs"], found[f"{options.runs} runs"]
    full["cost of the runs s"] = full["with data s"] - empty["with data s"]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"cold start to a picture {empty['first picture s']:.2f} s (goal 0.8)")
    print(
        f"{options.runs:,} runs on the screen after {full['with data s']:.2f} s, an empty registry after "
        f"{empty['with data s']:.2f} s: the runs cost {full['cost of the runs s']:.2f} s (goal 0.5)"
    )
    for name in ("keys", "keys while 1,000 rows/s are written"):
        took = full[name]
        print(f"{name}: median {took['median ms']:.0f} ms, p95 {took['p95 ms']:.0f} ms (goal 100)")
    print(f"to the last run {full['to the last run s']:.2f} s; memory {full['memory MB']:.0f} MB (goal 200)")


if __name__ == "__main__":
    main()
