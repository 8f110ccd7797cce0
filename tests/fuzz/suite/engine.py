"""One target in a separate process: millions of inputs, the errors, time and memory of each."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mutate import Mutator
from targets import TARGETS, World, expected

SECONDS = 5  # of processor time for one input
BEGINNING = 400.0  # seconds until the first input: libraries are imported
STUCK = 240.0  # seconds for one input, of a thread that waits or a library that does not come back
MEGABYTES = 1024  # that one input may add
OURS = tuple(str(Path(__file__).resolve().parents[3] / part) + os.sep for part in ("chessreg", "store", "tui"))
CHEAP = (
    0.05  # seconds of processor time: of costlier inputs lines are watched less often, which takes ten times as long
)
KEPT = 2048  # bytes of an input that is kept because it reaches new lines


class HangError(BaseException):
    """An input took longer than SECONDS. No Exception: parsers that catch those must not catch it."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fault(name: str, world: World, data: bytes) -> tuple[str, str] | None:
    """Where and how the target fails on an input, and the traceback; None when it reads it or refuses it in words."""
    memory = peak()
    try:
        with world.fresh(), limited():
            TARGETS[name].run(world, data)
    except expected() as error:
        said = getattr(error, "message", None) or str(error)
        if not said.strip() and not type(error).__module__.startswith("click"):
            return f"{type(error).__name__} without a message", traceback.format_exc()
    except (Exception, HangError) as error:
        place = "?"
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith(OURS):
                place = f"{Path(frame.f_code.co_filename).relative_to(Path(OURS[0]).parent)}:{line}"
        return f"{type(error).__name__} at {place}", traceback.format_exc()
    if peak() - memory > MEGABYTES:
        return f"holds {peak() - memory} MB more", ""
    return None


def peak() -> int:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Lines:
    """Which lines of chessreg have run."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.line if frame.f_code.co_filename.startswith(OURS) else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        sys.settrace(self)
        threading.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]


def smaller(name: str, world: World, data: bytes, key: str, seconds: float = 10.0) -> bytes:
    """A shorter input that fails in the same way."""
    deadline, size = time.monotonic() + seconds, max(1, len(data) // 2)
    while size:
        at = 0
        while at < len(data) and time.monotonic() < deadline:
            shorter = data[:at] + data[at + size :]
            found = fault(name, world, shorter)
            if found and found[0] == key:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def work(name: str, seed: int, seconds: float, corpus: Path, out: Path, count: Any) -> None:
    """Try inputs until the time is over. Findings go to `out`, inputs that reach new lines to `out/kept`."""
    os.environ.update(
        {"CHESSREG_REGISTRY": "/nonexistent/registry.db", "XDG_CONFIG_HOME": str(out), "OMP_NUM_THREADS": "1"}
    )
    said = os.open(out / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    goal, world, lines = TARGETS[name], World(), Lines()
    found: dict[str, bytes] = {}
    try:
        seeds = [*goal.seeds(world), *(path.read_bytes() for path in sorted(corpus.glob("*")))]
        for data in seeds[:8]:
            fault(name, world, data)  # imports are not lines that an input reaches
        before = time.process_time()
        for data in seeds:
            fault(name, world, data)
        every = 4 if (time.process_time() - before) / len(seeds) < CHEAP else 16
        for data in seeds:
            with lines.watching():
                fault(name, world, data)
        command = world.commands.changed if "command" in goal.forms else None
        mutator, began, reached = Mutator(seed, seeds, goal.words, command), time.monotonic(), len(lines.seen)
        while time.monotonic() - began < seconds:
            data = mutator.changed(mutator.random.choice(goal.forms))
            (out / "now").write_bytes(data)
            trace = lines.watching() if count.value % every == 0 else contextlib.nullcontext()
            with trace:
                failed = fault(name, world, data)
            count.value += 1
            if failed and failed[0] not in found:
                key, told = failed
                found[key] = smaller(name, world, data, key)
                stem = out / hashlib.sha256(key.encode()).hexdigest()[:12]
                stem.write_bytes(found[key])
                stem.with_suffix(".txt").write_text(f"{key}\n\n{told}", errors="replace")
            if len(lines.seen) > reached:
                reached = len(lines.seen)
                mutator.pool.append(data)
                if len(data) <= KEPT:
                    (out / "kept").mkdir(exist_ok=True)
                    (out / "kept" / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
        (out / "lines").write_text(str(reached))
        (out / "now").unlink(missing_ok=True)
    finally:
        world.close()


def fuzz(name: str, seconds: float, seed: int, corpus: Path, out: Path) -> tuple[int, dict[str, str]]:
    """Fuzz one target; returns the number of inputs tried and the failures, by kind.

    An input that kills or hangs the process is a finding; another process continues.
    """
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0, lock=False)
    failures: dict[str, str] = {}
    while (left := deadline - time.monotonic()) > 0:
        process = context.Process(target=work, args=(name, seed, left, corpus, out, count))
        process.start()
        last, since = count.value, time.monotonic()
        while process.is_alive():
            process.join(0.2)
            if count.value != last:
                last, since = count.value, time.monotonic()
            elif time.monotonic() - since > (STUCK if last else BEGINNING):
                process.kill()
                process.join()
        if process.exitcode:
            now = out / "now"
            key = f"ended with {process.exitcode}" if process.exitcode != -signal.SIGKILL else "did not come back"
            failures[key] = str(now) if now.exists() else "before the first input"
            if not now.exists():
                break
            now.rename(out / f"killed-{hashlib.sha256(now.read_bytes()).hexdigest()[:12]}")
        seed += 1_000_003
    for path in sorted(out.glob("*.txt")):
        failures[path.read_text().split("\n", 1)[0]] = str(path)
    return count.value, failures
