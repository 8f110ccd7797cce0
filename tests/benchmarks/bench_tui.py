"""The terminal UI on many runs and games: the real command in a pseudo-terminal, timed from outside.

    python tests/benchmarks/bench_tui.py [--runs 100000] [--games 1000000] [--keys 120] [--json]

Prints the cold start (command to first picture), how long from the key to the first rows of this many runs and of this
many games, key to paint (median, 95th percentile) idle and while another process writes 1,000 rows a second, the jump
to the last run, the memory of the process, and the longest step of the event loop while keys lead through all rooms.
Goals: cold start within 0.8 s, runs within 0.5 s, games within 1 s, keys under 0.1 s at the 95th percentile, no step
above 0.05 s, 200 MB, filters and orders of a million games within 0.3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
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
import threading
import time
import traceback
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
RESULTS = ("1-0", "0-1", "1/2-1/2")
FILTERS = ("plies>190 result:1-0", "1-0", "checkmate !0-1", "plies>1000", "run:match-7")
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


def fill_games(folder: Path, games: int) -> None:
    """This many games of 60 plies in matches of 10,000, older than the other runs, as `run play` writes them."""
    with Database.open(folder / "registry.db") as database:
        moves = (np.arange(60) % 4096).astype("<u2").tobytes()
        for begin in range(0, games, 10_000):
            spec_hash = digest_of({"games": begin})
            run_id = uuid_of(spec_hash)
            row = {
                "run_id": run_id, "match": 0, "attempt_id": NOBODY, "opening_plies": 0, "plies": 60, "result": "1-0",
                "termination": "checkmate", "turns": 30, "first_try_legal": 29, "tries": bytes(30), "moves": moves,
                "move_hash": 1, "opening_number": 0, "seconds": 0.5,
            }  # fmt: skip
            with database.write() as session:
                session.execute(insert(tables.Run), [run_row(-1 - begin, spec_hash) | {"kind": "play"}])
                name = name_row(0, run_id) | {"value": f"match-{begin // 10_000}"}
                session.execute(insert(tables.Annotation), [name])
                numbers = range(min(10_000, games - begin))
                told = [{"unit": n, "plies": 20 + n % 180, "result": RESULTS[n % 3]} for n in numbers]
                session.execute(insert(tables.Game), [row | each for each in told])


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


def room(screen: Screen, key: bytes, word: str) -> float:
    """Seconds from the key of a room to this word on the screen."""
    screen.quiet(0.5)
    began = time.perf_counter()
    os.write(screen.main, key)
    screen.until(word)
    return time.perf_counter() - began


def measured(folder: Path, runs: int, games: int, number: int) -> dict[str, Any]:
    screen = Screen(folder)
    try:
        return timed(screen, folder, runs, games, number)
    finally:
        screen.close()


def timed(screen: Screen, folder: Path, runs: int, games: int, number: int) -> dict[str, Any]:
    screen.until("chessreg")
    found: dict[str, Any] = {"first picture s": time.perf_counter() - screen.started}
    screen.until("runs in all")
    found["with data s"] = time.perf_counter() - screen.started
    if not runs:
        return found
    time.sleep(2.0)  # the rooms' code is read aside
    found["runs s"] = room(screen, b"4", f"run-{runs - 1} ")
    found["keys"] = keys(screen, number)
    began = time.perf_counter()
    os.write(screen.main, b"G")
    screen.until(f"match-{(games - 1) // 10_000} " if games else "run-0 ")
    found["to the last run s"] = time.perf_counter() - began
    stop = multiprocessing.Event()
    writer = multiprocessing.Process(target=write_rows, args=(str(folder / "registry.db"), stop))
    writer.start()
    os.write(screen.main, b"g")
    time.sleep(1.0)  # let the writer reach its rate
    found["keys while 1,000 rows/s are written"] = keys(screen, number)
    stop.set()
    writer.join()
    if games:
        found["games s"] = room(screen, b"5", "checkmate")
        found["games, second time s"] = (room(screen, b"2", "No job"), room(screen, b"5", "checkmate"))[1]
    found["memory MB"] = screen.megabytes
    return found


def filters(folder: Path) -> dict[str, tuple[float, float]]:
    """Seconds (by the clock, of the CPU) from words to the first rows of all games that hold them, and to those of an
    order: what `/` and `>` wait for. The last asks for the rows at the end."""
    from chessreg.session import open_session
    from tui.data.result_rows import columns_of, results
    from tui.data.table_filter import View

    found = {}
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        pages = results(session, "game")
        columns = tuple(columns_of("game", pages.page(0), with_run=True))
        asked = [(text, View(text, columns=columns)) for text in FILTERS]
        asked += [
            ("sorted by plies", View("", "plies", True, columns)),
            ("the last page of it", View("", "plies", True, columns)),
        ]
        for name, view in asked:
            began, cpu = time.perf_counter(), time.process_time()
            narrowed = pages.narrowed(view)
            narrowed.page((narrowed.count - 1) // 200 if name.startswith("the last") else 0)
            found[name] = (time.perf_counter() - began, time.process_time() - cpu)
    return found


# -- steps of the event loop ------------------------------------------------------------------------------------------

TOUR = "4jjG g /x\x1b\r5jj\r\x1b7\r\x1b8\t\t3j\r\x1b21?\x1b".replace("\x1b", "!").replace("\r", "*").replace("\t", ">")
NAMED = {"!": "escape", "*": "enter", ">": "tab", " ": "space", "?": "question_mark", "/": "slash"}


class Steps:
    """Times every step of the event loop, and looks where the long ones are. Seconds by the clock, and of the CPU: on a
    busy machine others take some of the first."""

    def __init__(self) -> None:
        self.long: list[tuple[float, float, str]] = []
        self.began = 0.0
        self.where = ""
        self.loop_thread = threading.get_ident()
        self._real = asyncio.events.Handle._run

    def __enter__(self) -> Steps:
        real, steps = self._real, self

        def run(handle: asyncio.Handle) -> None:
            steps.where, steps.began = "", time.perf_counter()
            cpu = time.thread_time()
            real(handle)
            took, steps.began = time.perf_counter() - steps.began, 0.0
            if took > 0.01:
                steps.long.append((took, time.thread_time() - cpu, steps.where))

        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.events.Handle._run = self._real  # type: ignore[method-assign]
        self.loop_thread = 0

    def _watch(self) -> None:
        while self.loop_thread:
            time.sleep(0.005)
            began = self.began
            if began and not self.where and time.perf_counter() - began > 0.025:
                frame = sys._current_frames().get(self.loop_thread)
                names = [f"{f.name} {Path(f.filename).name}:{f.lineno}" for f in traceback.extract_stack(frame)]
                self.where = " < ".join(reversed(names[-6:]))


async def longest_steps(folder: Path) -> list[tuple[float, float, str]]:
    """The longest steps of the event loop (by the clock, of the CPU, where) while keys lead through the rooms."""
    from tui.app import ChessregApp
    from tui.entries import read
    from tui.registry import open_session

    gc.disable()  # as the command does
    read()
    url = f"sqlite:///{folder / 'registry.db'}"
    app = ChessregApp(lambda: open_session(url, folder / "store"), str(folder))
    async with app.run_test(size=(WIDE, HIGH)) as pilot:
        await pilot.pause(2.0)
        with Steps() as steps:
            for key in TOUR:
                await pilot.press(NAMED.get(key, key))
                await pilot.pause(0.3)
    return sorted(steps.long, key=lambda step: step[1], reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--games", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_STATE_HOME"] = temporary  # what was remembered elsewhere decides no room here
        empty, full = Path(temporary) / "empty", Path(temporary) / "full"
        fill(empty, 0)
        measured(empty, 0, 0, 0)  # once for the byte code and the file cache
        found: dict[str, Any] = {"load before": os.getloadavg()[0], "empty": measured(empty, 0, 0, 0)}
        fill(full, options.runs)
        fill_games(full, options.games)
        runs = measured(full, options.runs, options.games, options.keys)
        steps = asyncio.run(longest_steps(full))
        found |= {
            "full": runs,
            "filters of games s": filters(full) if options.games else {},
            "longest steps ms": [(round(1000 * took), round(1000 * cpu), at) for took, cpu, at in steps[:6]],
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    start = found["empty"]
    print(f"load before {found['load before']:.1f}")
    print(
        f"cold start to a picture {start['first picture s']:.2f} s (goal 0.8), {start['with data s']:.2f} s to its text"
    )
    print(f"home of {options.runs:,} runs and {options.games:,} games after {runs['with data s']:.2f} s")
    print(f"{options.runs:,} runs on the screen {runs['runs s']:.2f} s after the key (goal 0.5)")
    if options.games:
        again = runs["games, second time s"]
        print(f"{options.games:,} games {runs['games s']:.2f} s after the key, {again:.2f} s a second time (goal 1)")
    for name in ("keys", "keys while 1,000 rows/s are written"):
        took = runs[name]
        print(f"{name}: median {took['median ms']:.0f} ms, p95 {took['p95 ms']:.0f} ms (goal 100)")
    print(f"to the last run {runs['to the last run s']:.2f} s; memory {runs['memory MB']:.0f} MB (goal 200)")
    for name, (took, cpu) in found["filters of games s"].items():
        print(f"{options.games:,} games, {name}: {took:.2f} s, {cpu:.2f} s of CPU (goal 0.3)")
    print("longest steps of the event loop (goal 50 ms):")
    for took, cpu, where in found["longest steps ms"]:
        print(f"  {took} ms, {cpu} ms of CPU: {where}")


if __name__ == "__main__":
    main()
