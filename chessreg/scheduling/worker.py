"""The worker that executors start: `python -m chessreg.scheduling.worker FOLDER/work.json`, one attempt at one job.

It reads the registry and never writes it. Results are written as fragments, and the attempt's state into its folder:

    work.json      the order; written by the supervisor
    process.json   the process: pid, host, boot, try, attempt; written at the start
    outcome.json   how the attempt ended: cause, message, exit code, full disk, time limit; written at the end
    lock           held while the worker runs, so that successive supervisors never start it twice
    log.txt        the output of all attempts
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from chessreg.errors import ChessregError, find_custom_kind, get_first_line
from chessreg.masking import mask_streams
from chessreg.terminal import make_visible
from store.files import find_error_file, is_disk_full, keep_private, read_json
from store.process import get_this_process

BUSY_STATUS = 75  # exit status (EX_TEMPFAIL): another process is executing this job
NO_SPACE_STATUS = 73  # exit status (EX_CANTCREAT): the disk is full, perhaps too full for outcome.json
PROGRESS_INTERVAL_S = 5.0


def main(path: Path) -> int:
    """Execute the attempt that this file describes. Return the exit status: 0 finished, 130 stopped by a signal."""
    folder = path.parent
    keep_private(shared_by=folder)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # `--nodes`
        return run_under_torchrun(path)
    return run_alone(path)


def run_under_torchrun(path: Path) -> int:
    """Execute the attempt as rank 0 of the processes that torchrun started, or follow rank 0.

    Return the exit status.
    """
    from chessreg.models.ranks import follow_torchrun_group, release_torchrun_group

    if os.environ["RANK"] == "0":
        try:
            return run_alone(path)
        finally:
            release_torchrun_group()
    options = json.loads(path.read_text(encoding="utf-8"))["execution_options"]
    follow_torchrun_group(int(os.environ.get("CHESSREG_THREADS", "1")), str(options.get("device", "auto")))
    return 0


def run_alone(path: Path) -> int:
    """Execute the attempt. Return the exit status."""
    folder = path.parent
    try:
        with (folder / "lock").open("w", encoding="utf-8") as lock, mask_streams():
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
    """Execute the attempt while the lock is held, and return its exit status. Raises OSError if its files cannot be
    written.
    """
    folder, order, process = path.parent, json.loads(path.read_text(encoding="utf-8")), get_this_process().record()
    write_log(
        f"== try {order['try']} of {order['title']} on {process['host']}, process {process['pid']}, {process['since']}"
    )
    write_record(folder / "process.json", {**process, "try": order["try"], "attempt": None})
    outcome = run_order(order, folder, process)
    write_log(f"== {format_outcome(outcome)}")
    write_record(folder / "outcome.json", {**outcome, "try": order["try"]})
    return int(outcome["exit_code"])


def format_outcome(outcome: dict[str, Any]) -> str:
    """Return how the attempt ended, for its log."""
    cause, message = outcome["cause"], outcome["message"]
    if cause == "finished":
        cause = "complete"
    return str(message if cause == "killed" else f"{cause}: {message}" if message else cause)


def run_order(order: dict[str, Any], folder: Path, here: dict[str, Any]) -> dict[str, Any]:
    """Execute an order. Return cause, message, exit code and attempt. Raises no errors."""
    from store.errors import StoreError

    attempt: list[Any] = []

    def record_start(process: Any) -> None:
        attempt.append(process)
        write_record(folder / "process.json", {**here, "try": order["try"], "attempt": process.id.hex})

    cause, message, code, full_record = "finished", None, 0, None
    warnings: list[int] = []

    def stop_before_limit(number: int, frame: Any) -> None:
        warnings.append(number)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGUSR1, stop_before_limit)  # Slurm's warning of the time limit (`--signal`)
    try:
        if do_shard(order, folder, record_start):
            cause, message, code = "killed", "stopped on request", 130
    except KeyboardInterrupt:
        cause, message, code = "killed", "interrupted", 130
    except (ChessregError, StoreError) as error:
        full_record = find_full_disk(error, order)
        hint = f" ({error.hint})" if error.hint and not full_record else ""
        cause, message, code = "failed", error.message + hint, error.exit_code
    except BaseException as error:
        traceback.print_exc()
        full_record = find_full_disk(error, order)
        custom_kind = find_custom_kind(error)
        origin = (
            f" (your kind {custom_kind.name} raised it: {custom_kind.file}, line {custom_kind.line})"
            if custom_kind
            else ""
        )
        cause, message, code = "failed", f"{type(error).__name__}: {get_first_line(error)}{origin}", 1
    if attempt and cause == "failed" and attempt[0].cause:
        cause = attempt[0].cause  # oom, diverged, engine_died
    return {
        "cause": cause,
        "message": message,
        "exit_code": NO_SPACE_STATUS if full_record else code,
        "full": full_record,
        "limit": bool(warnings),
        "attempt": attempt[0].id.hex if attempt else None,
        "units_done": attempt[0].task.units_done if attempt else 0,
    }


def find_full_disk(error: BaseException, order: dict[str, Any]) -> str | None:
    """Return a path on the full disk that an error reports (default: the store), or None for other errors."""
    if not is_disk_full(error, Path(order["store"])):
        return None
    return str(getattr(error, "path", None) or find_error_file(error) or order["store"])


def do_shard(order: dict[str, Any], folder: Path, on_start: Callable[[Any], None]) -> bool:
    """Execute the missing units of the shard. Return whether it was interrupted."""
    from chessreg.registry.database import Database
    from chessreg.registry.engines import ServerUnreachableError
    from chessreg.runs.attempt import AttemptOrigin, RunAttempt
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.kind import find_recorded_kind as find
    from chessreg.runs.resolve import find_missing_units, require_runnable, resolve_spec
    from chessreg.runs.spec import parse_settings
    from store import Store

    kind = find(order["source"])
    spec = parse_settings(kind.spec, order["spec"])
    grants = read_grants()
    options = kind.options(**order["execution_options"])
    options = options.model_copy(update=apply_granted_resources(options, grants))
    with Database.open(None, create=False, on_wait=write_log) as database:
        # CHESSREG_JOB_STORE is the store's path on this machine if it differs (a Slurm profile's `store`).
        inputs = Inputs(database, Store(os.environ.get("CHESSREG_JOB_STORE") or order["store"]))
        while True:
            try:
                resolved_spec = resolve_spec(kind, spec, inputs)
                if resolved_spec.run_id.hex != order["run"]:
                    raise ChessregError(
                        f"kind {kind.name} has changed since the launch (its version is {kind.version} now)",
                        "launch it again",
                    )
                units = resolved_spec.units - (kind.reduce is not None)
                shard_units = select_shard_units(units, resolved_spec.units, order["shard"], order["shards"])
                missing_units = [unit for unit in find_missing_units(inputs, resolved_spec) if unit in shard_units]
                if not missing_units:
                    write_log("nothing is missing")
                    return False
                require_runnable(resolved_spec, None, inputs)
                break
            except ServerUnreachableError as error:  # during a transaction: repeat it once the server responds
                write_log(error.message)
        write_log(f"{len(missing_units)} of {len(shard_units)} units to do; {describe_grants(grants)}")
        log = os.environ.get("CHESSREG_JOB_LOG") or str(folder / "log.txt")
        origin = AttemptOrigin(order["executor"], UUID(order["job"]), log, granted=grants, ingests=False)
        attempt = RunAttempt(
            resolved_spec, options, inputs, tuple(order["explicit"]), missing_units, make_progress_logger(), origin
        )
        on_start(attempt)
        return attempt.execute()


def select_shard_units(units: int, every: int, shard: int, shards: int) -> range:
    """Return the units of shard number `shard` of `shards`, counted from 0: an equal part of the first `units` units.
    Number `shards` is the reduce, which has the remaining units up to `every`."""
    if shard == shards:
        return range(units, every)
    return range(units * shard // shards, units * (shard + 1) // shards)


def read_grants() -> dict[str, Any]:
    """Return the CPU threads and the GPU that the executor granted to this process."""
    grants: dict[str, Any] = {}
    if os.environ.get("CHESSREG_THREADS", "").isdigit():
        grants["granted_threads"] = int(os.environ["CHESSREG_THREADS"])
    if os.environ.get("CHESSREG_GPU"):
        grants["granted_gpu"] = os.environ["CHESSREG_GPU"]
    return grants


def apply_granted_resources(options: Any, grants: dict[str, Any]) -> dict[str, Any]:
    """Return the execution options that follow from the granted resources."""
    settings: dict[str, Any] = {}
    if not options.threads and "granted_threads" in grants:
        settings["threads"] = grants["granted_threads"]
    if "granted_gpu" in grants and options.device.startswith("cuda"):
        settings["device"] = "cuda"
    return settings


def describe_grants(grants: dict[str, Any]) -> str:
    """Return the granted resources in words."""
    threads = f"{grants['granted_threads']} threads" if "granted_threads" in grants else "all threads"
    return f"GPU {grants['granted_gpu']}, {threads}" if "granted_gpu" in grants else threads


def make_progress_logger() -> Callable[[float, str], None]:
    """Return a progress callback that logs every few seconds."""
    last = time.monotonic()

    def report(fraction: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL_S:
            last = time.monotonic()
            write_log(f"{fraction:6.1%} {text}".rstrip())

    return report


def write_log(text: str) -> None:
    """Print a line with the time."""
    with suppress(OSError):  # a full log must not fail the attempt
        print(f"{datetime.now(UTC):%H:%M:%S} {make_visible(text)}", flush=True)


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    part_path = path.with_name(f"{path.name}.{os.getpid()}")
    part_path.write_text(json.dumps(content), encoding="utf-8")
    part_path.replace(path)


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    try:
        record: dict[str, Any] = read_json(path)
        return record
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    faulthandler.enable(all_threads=False)  # logs the Python stack of a crash below Python
    status = main(Path(sys.argv[1]))
    if "duckdb" not in sys.modules:  # which would report uncollected objects as leaks
        gc.freeze()  # faster exit
    sys.exit(status)
