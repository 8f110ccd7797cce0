"""Processes that a fault strikes at a seeded moment.

An actor is a fork of this process, which has imported everything and holds no connection: a real, independent process
with a pid, at a fiftieth of the cost of a fresh interpreter. Its moments are counted: whenever it opens a file for
writing, makes a folder, renames, removes or syncs something, and before each SQL statement and commit. A fault strikes
at the n-th.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from disk import Disk

EVENTS = frozenset(("os.rename", "os.remove", "os.mkdir", "os.truncate", "subprocess.Popen"))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ERRORS = ("EIO", "ENOSPC")
FILE = "file"  # a moment of a file, at which a call can fail
SECONDS = 120.0  # longer than this counts as a hang
UNHEARD = 120  # how Python ends when all went well but its last words found no room


@dataclass(frozen=True)
class Fault:
    """The fault and its moment: SIGTERM, SIGKILL, SIGSTOP, full (a disk without room), torn (a disk that stores other
    bytes than were written), EIO or ENOSPC (of one call, or of `spell` in turn), clock (steps by `spell` seconds).

    A full disk lasts `spell` moments (0: to the end), and takes `room` bytes of a file.
    """

    what: str
    moment: int
    spell: int = 0
    room: int = 0


class Moments:
    """How many moments of an actor have passed, and whether its fault has struck: memory shared with it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    @property
    def passed(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    @passed.setter
    def passed(self, number: int) -> None:
        self._memory[:8] = number.to_bytes(8, "little")

    @property
    def struck(self) -> int:
        """The pid that was struck; 0: none yet."""
        return int.from_bytes(self._memory[8:], "little")

    @struck.setter
    def struck(self, pid: int) -> None:
        self._memory[8:] = pid.to_bytes(8, "little")


def arm(fault: Fault | None, moments: Moments) -> None:
    """Count this process's moments from now on, and strike it when its time has come. It cannot be undone."""
    from sqlalchemy import Engine, event

    from store import artifacts

    count, lying, failing, me = 0, False, 0, os.getpid()

    def tick(*about: Any) -> None:
        nonlocal count, lying, failing
        if os.getpid() != me:  # our fork has its own fault, or none
            return
        count += 1
        moments.passed = count
        if fault is None:
            return
        if count == fault.moment:
            if fault.what == "torn":
                lying = True
                return
            if fault.what in ERRORS:
                failing = fault.spell or 1
            else:
                moments.struck = os.getpid()
            if fault.what == "full":
                limit(fault.room)
            elif fault.what == "clock":
                step_clock(fault.spell)
            elif fault.what not in ERRORS:
                os.kill(os.getpid(), getattr(signal, fault.what))
        elif fault.what == "full" and fault.spell and count == fault.moment + fault.spell:
            limit(resource.RLIM_INFINITY)
        if failing and about == (FILE,):
            failing, moments.struck = failing - 1, os.getpid()
            number = getattr(errno, fault.what)
            raise OSError(number, os.strerror(number))

    fsync_one = os.fsync

    def fsync(handle: int) -> None:
        tick(FILE)
        fsync_one(handle)

    os.fsync = fsync  # type: ignore[assignment]
    synced = artifacts.sync_tree

    def fsync_tree(folder: Path) -> None:
        nonlocal lying
        synced(folder)
        if lying:  # the disk has taken the bytes, and holds others
            lying, moments.struck = False, os.getpid()
            path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    artifacts.sync_tree = fsync_tree

    def heard(name: str, about: Any) -> None:
        if name in EVENTS or (name == "open" and isinstance(about[2], int) and about[2] & WRITING):
            tick(FILE)

    sys.addaudithook(heard)
    event.listen(Engine, "before_cursor_execute", tick)
    event.listen(Engine, "commit", tick)


def limit(size: int) -> None:
    """No file of this process can be written past this size: a disk without room. Python ignores SIGXFSZ."""
    sys.dont_write_bytecode = True  # Python 3.11 would leave it cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def step_clock(seconds: int) -> None:
    """The clock of this process is set."""
    from chessreg.registry.tables import types

    now, nanoseconds = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: nanoseconds() + seconds * 10**9

    class Stepped(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Stepped:
            return super().now(zone) + timedelta(seconds=seconds)

    types.datetime = Stepped  # type: ignore[misc]


class Actor:
    """A forked process at work."""

    def __init__(self, pid: int, moments: Moments) -> None:
        self.pid, self.moments = pid, moments
        self.code: int | None = None

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self) -> int:
        """Its exit status (minus the signal that killed it). Raises TimeoutError, and kills it, when it hangs."""
        deadline = time.monotonic() + SECONDS
        while not self.ended():
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"process {self.pid} hung")
            time.sleep(0.002)
        assert self.code is not None
        return self.code

    def wait_for_stop(self) -> bool:
        """Wait until its fault has stopped it; False when it ended before."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not self.ended():
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return False
            time.sleep(0.002)
        return False

    def wait_for(self, moment: int) -> bool:
        """Wait until this number of moments has passed; False if it ended before."""
        while self.moments.passed < moment:
            if self.ended():
                return False
            time.sleep(0.0005)
        return True


def act(
    work: Callable[[], int | None],
    said: Path,
    fault: Fault | None = None,
    moments: Moments | None = None,
    disk: Disk | None = None,
) -> Actor:
    """Fork a process that does this; its output is appended to the file `said`. The caller holds no connection.

    With `moments` given its own moments are not counted: they are those of its future child. A `disk` records its
    syncs.
    """
    counted = moments is None
    moments = moments or Moments()
    pid = os.fork()
    if pid:
        return Actor(pid, moments)
    code = 1
    try:
        code = _be(work, said, fault, moments if counted else None, disk)
    except BaseException:
        limit(resource.RLIM_INFINITY)  # so that its cause of death can be read
        traceback.print_exc()
    finally:
        leave(code)


def _be(
    work: Callable[[], int | None], said: Path, fault: Fault | None, moments: Moments | None, disk: Disk | None
) -> int:
    os.setsid()
    talk_to(said)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    if disk is not None:
        disk.watch()
    if moments is not None:
        arm(fault, moments)
    try:
        return work() or 0
    except Exception as error:  # as the command line does: one line and an exit status
        print(f"{type(error).__name__}: {error}")
        return 1


def talk_to(path: Path) -> None:
    """Everything that this process says goes to the end of a file from now on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def leave(code: int) -> NoReturn:
    """End this fork as a process ends that had nothing but its own: no exit handler of the parent runs."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or UNHEARD
    finally:
        os._exit(code)
