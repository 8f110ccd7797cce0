"""What an executor starts: `python -m chessreg.scheduling.worker FOLDER/work.json`, one try at one job.

It reads the registry and never writes it. What it found out goes into fragments; how it went goes into its folder:

    work.json      what to do; written by the supervisor
    process.json   who is at it: pid, host, boot, try, attempt; written at the start
    outcome.json   how the try ended: cause, message, exit code, which disk was full; written at the end
    lock           held while it works, so that two supervisors that follow each other never start it twice
    log.txt        what it says, over all tries
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from chessreg.errors import ChessregError, first_line, of_own_kind
from chessreg.masking import masked_streams
from chessreg.terminal import visible
from store.files import find_error_file, is_disk_full, keep_private, read_json
from store.process import this_process

BUSY_STATUS = 75  # exit status (EX_TEMPFAIL): another process is at this job
NO_SPACE_STATUS = 73  # exit status (EX_CANTCREAT): the disk is full, perhaps too full for outcome.json
PROGRESS_INTERVAL_S = 5.0


def main(path: Path) -> int:
    """Do the attempt that this file describes; returns the exit status: 0 finished, 130 stopped by a signal."""
    folder = path.parent
    keep_private(shared_by=folder)
    try:
        with (folder / "lock").open("w", encoding="utf-8") as lock, masked_streams():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return BUSY_STATUS
            return run_try(path)
    except OSError as error:
        if is_disk_full(error):
            return NO_SPACE_STATUS
        raise


def run_try(path: Path) -> int:
    """What `main` does with the lock held. Raises OSError where its files cannot be written."""
    folder, order, here = path.parent, json.loads(path.read_text(encoding="utf-8")), this_process().record()
    write_log(f"== try {order['try']} of {order['title']} on {here['host']}, process {here['pid']}, {here['since']}")
    write_record(folder / "process.json", {**here, "try": order["try"], "attempt": None})
    outcome = attempt_order(order, folder, here)
    write_log(f"== {format_outcome(outcome)}")
    write_record(folder / "outcome.json", {**outcome, "try": order["try"]})
    return int(outcome["exit_code"])


def format_outcome(outcome: dict[str, Any]) -> str:
    """How it ended, for its log. What was stopped here may have been cancelled: the job's state says so."""
    cause, message = outcome["cause"], outcome["message"]
    if cause == "finished":
        cause = "complete"
    return str(message if cause == "killed" else f"{cause}: {message}" if message else cause)


def attempt_order(order: dict[str, Any], folder: Path, here: dict[str, Any]) -> dict[str, Any]:
    """Do it; returns cause, message, exit code and attempt. No error gets out."""
    from store.errors import StoreError

    attempt: list[Any] = []

    def begun(started: Any) -> None:
        attempt.append(started)
        write_record(folder / "process.json", {**here, "try": order["try"], "attempt": started.id.hex})

    cause, message, code, full = "finished", None, 0, None
    try:
        if do_shard(order, folder, begun):
            cause, message, code = "killed", "stopped when it was asked to", 130
    except KeyboardInterrupt:
        cause, message, code = "killed", "interrupted", 130
    except (ChessregError, StoreError) as error:
        full = find_full_disk(error, order)
        hint = f" ({error.hint})" if error.hint and not full else ""
        cause, message, code = "failed", error.message + hint, error.exit_code
    except BaseException as error:
        traceback.print_exc()
        full = find_full_disk(error, order)
        own = of_own_kind(error)
        where = f" (your kind {own.name} raised it: {own.file}, line {own.line})" if own else ""
        cause, message, code = "failed", f"{type(error).__name__}: {first_line(error)}{where}", 1
    if attempt and cause == "failed" and attempt[0].cause:
        cause = attempt[0].cause  # oom, diverged, engine_died
    return {
        "cause": cause,
        "message": message,
        "exit_code": NO_SPACE_STATUS if full else code,
        "full": full,
        "attempt": attempt[0].id.hex if attempt else None,
        "units_done": attempt[0].task.units_done if attempt else 0,
    }


def find_full_disk(error: BaseException, order: dict[str, Any]) -> str | None:
    """A path on the disk that was full, where that is what the error says: the store's, unless the error names one."""
    if not is_disk_full(error, Path(order["store"])):
        return None
    return str(getattr(error, "path", None) or find_error_file(error) or order["store"])


def do_shard(order: dict[str, Any], folder: Path, begun: Callable[[Any], None]) -> bool:
    """Do the missing units of the shard; returns whether it was interrupted."""
    from chessreg.registry.database import Database
    from chessreg.registry.engines import ServerUnreachableError
    from chessreg.runs.attempt import AttemptOrigin, RunAttempt
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.kind import find_recorded_kind as find
    from chessreg.runs.resolve import find_missing_units, require_runnable, resolve_spec
    from chessreg.runs.spec import settings_from
    from store import Store

    kind = find(order["source"])
    spec = settings_from(kind.spec, order["spec"])
    granted = read_grants()
    options = kind.options(**order["execution_options"])
    options = options.model_copy(update=granted_settings(options, granted))
    with Database.open(None, create=False, on_wait=write_log) as database:
        # Where this machine calls the store by another name (a Slurm profile's `store`), the environment says so.
        inputs = Inputs(database, Store(os.environ.get("CHESSREG_JOB_STORE") or order["store"]))
        while True:
            try:
                resolved = resolve_spec(kind, spec, inputs)
                if resolved.run_id.hex != order["run"]:
                    raise ChessregError(
                        f"kind {kind.name} is not what it was when this was launched (version {kind.version} now)",
                        "launch it again",
                    )
                units = resolved.units - (kind.reduce is not None)
                wanted = shard_units(units, resolved.units, order["shard"], order["shards"])
                missing = [unit for unit in find_missing_units(inputs, resolved) if unit in wanted]
                if not missing:
                    write_log("nothing is missing")
                    return False
                require_runnable(resolved, None, inputs)
                break
            except ServerUnreachableError as error:  # in the midst of a transaction: again, as soon as it answers
                write_log(error.message)
        write_log(f"{len(missing)} of {len(wanted)} units to do; {describe_grants(granted)}")
        log = os.environ.get("CHESSREG_JOB_LOG") or str(folder / "log.txt")
        where = AttemptOrigin(order["executor"], UUID(order["job"]), log, granted=granted, ingests=False)
        attempt = RunAttempt(
            resolved, options, inputs, tuple(order["explicit"]), missing, make_progress_logger(), where
        )
        begun(attempt)
        return attempt.go()


def shard_units(units: int, every: int, shard: int, shards: int) -> range:
    """Units of a shard: an even part of `units`; shard = shards is what comes after all (the reduce), of `every`."""
    if shard == shards:
        return range(units, every)
    return range(units * shard // shards, units * (shard + 1) // shards)


def read_grants() -> dict[str, Any]:
    """What the executor gave this process: CPU threads, and a GPU's number on this machine."""
    granted: dict[str, Any] = {}
    if os.environ.get("CHESSREG_THREADS", "").isdigit():
        granted["granted_threads"] = int(os.environ["CHESSREG_THREADS"])
    if os.environ.get("CHESSREG_GPU"):
        granted["granted_gpu"] = os.environ["CHESSREG_GPU"]
    return granted


def granted_settings(options: Any, granted: dict[str, Any]) -> dict[str, Any]:
    """Execution options that follow: no more threads than given; of the GPUs only one can be seen, the given one."""
    settings: dict[str, Any] = {}
    if not options.threads and "granted_threads" in granted:
        settings["threads"] = granted["granted_threads"]
    if "granted_gpu" in granted and options.device.startswith("cuda"):
        settings["device"] = "cuda"
    return settings


def describe_grants(granted: dict[str, Any]) -> str:
    threads = f"{granted['granted_threads']} threads" if "granted_threads" in granted else "all threads"
    return f"GPU {granted['granted_gpu']}, {threads}" if "granted_gpu" in granted else threads


def make_progress_logger() -> Callable[[float, str], None]:
    """Says in the log how far it is, every few seconds."""
    last = time.monotonic()

    def report(fraction: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL_S:
            last = time.monotonic()
            write_log(f"{fraction:6.1%} {text}".rstrip())

    return report


def write_log(text: str) -> None:
    with suppress(OSError):  # a log that cannot grow is no reason to fail
        print(f"{datetime.now(UTC):%H:%M:%S} {visible(text)}", flush=True)


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(content), encoding="utf-8")
    aside.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """What is there, or None."""
    try:
        record: dict[str, Any] = read_json(path)
        return record
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    faulthandler.enable(all_threads=False)  # at a crash below Python the log has the lines that led to it
    status = main(Path(sys.argv[1]))
    if "duckdb" not in sys.modules:  # which reports as leaked what is not collected
        gc.freeze()  # nothing is left to collect
    sys.exit(status)
