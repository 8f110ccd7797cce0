"""`chessreg doctor`: find problems of this installation and print the commands that fix them."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click

from chessreg.cli.base import Home, add_json_option, pass_home, print_json, print_table
from chessreg.errors import ChessregError
from chessreg.plugins import format_system_install_command, install_command
from store.errors import StoreError
from store.files import describe_os_error

FREE_BYTES = 2 * 2**30  # the demo's caches fit into this
REQUIRED_PACKAGES = (
    *("adbc_driver_postgresql", "adbc_driver_sqlite", "alembic", "chess", "click", "duckdb", "huggingface_hub"),
    *(
        "matplotlib",
        "numpy",
        "psutil",
        "psycopg",
        "pyarrow",
        "pydantic",
        "rich",
        "rust_pgn_reader_python_binding",
        "safetensors",
        "sqlalchemy",
    ),
    *("textual", "torch", "transformer_lens", "transformers", "uuid_utils", "zarr", "zstandard"),
)
OPTIONAL = {  # module → the package that provides it, and its use
    "ray": ("ray", "launching on a Ray cluster"),
    "obstore": ("obstore", "stores in S3"),
    "onnx": ("onnx", "import of ONNX graphs"),
    "tensorstore": ("tensorstore", "import of orbax folders"),
    "textual_serve": ("textual-serve", "the TUI in a browser"),
    "textual_image": ("textual-image", "boards as images in the TUI"),
    "peft": ("peft", "LoRA fine-tuning of language models"),
    "mcp": ("mcp", "a server for AI agents"),
}


@dataclass(frozen=True)
class Check:
    """One check and its result. `missing` and `broken` stop work; `optional` affects only the named feature."""

    check: str
    state: Literal["ok", "missing", "broken", "optional"]
    detail: str
    hint: str = ""


@click.command()
@click.option(
    "--fix",
    is_flag=True,
    help="Apply fixes that lose no data. When left out: change nothing.",
)
@click.option("--digests", is_flag=True, help="Read every byte of every artifact and array again.")
@add_json_option
@pass_home
@click.pass_context
def doctor(ctx: click.Context, home: Home, fix: bool, digests: bool) -> None:
    """Find problems and print the command that installs or fixes each. Without --fix nothing is changed.

    Checks programs, registry and store; attempts and jobs whose process is gone or silent; waiting results; leftovers
    of crashes; missing and misplaced bytes. Exit status 1 if a required part is missing or broken.
    """
    checks = [check for look in LOOKS for check in run_checks(look, home)]
    if home.place.path is None or home.place.path.exists():
        checks += run_checks(partial(check_work, fix=fix, digests=digests), home)
    rows = [asdict(check) for check in checks]
    if home.json:
        print_json(rows)
    else:
        print_table(rows, name_empty=False)
    if any(check.state in ("missing", "broken") for check in checks):
        ctx.exit(1)


def check_work(home: Home, fix: bool, digests: bool) -> Iterator[Check]:
    """Check jobs, attempts and bytes."""
    from chessreg import doctor as health
    from store import Store

    problems, database = 0, home.database()
    if not home.store_path.exists():
        if (missing_store := health.find_missing_store(database, home.store_path)) is not None:
            yield Check(missing_store.check, "broken", missing_store.detail, missing_store.hint)
        return
    store = Store.open_existing(home.store_path)
    for problem in health.find_problems(database, store, home.registry_reference, digests=digests):
        problems += 1
        if not fix:
            yield Check(problem.check, "broken", problem.detail, problem.hint)
            continue
        outcome = health.apply_fix(problem)
        state: Literal["ok", "broken"] = "ok" if outcome.startswith("fixed") else "broken"
        yield Check(problem.check, state, f"{problem.detail}: {outcome}", "" if state == "ok" else problem.hint)
    for attempt in health.find_remote_bytes(database, store):
        yield Check(attempt.check, "optional", attempt.detail, attempt.hint)
    if not problems:
        note = "" if digests else "; bytes were not read: --digests does"
        yield Check("work", "ok", f"attempts, jobs, results and files agree with the registry{note}")


def run_checks(look: Callable[[Home], Iterator[Check]], home: Home) -> Iterator[Check]:
    """Yield the checks of one function; an exception is reported as a failed check."""
    try:
        yield from look(home)
    except (ChessregError, StoreError) as error:
        function = look.func if isinstance(look, partial) else look
        yield Check(function.__name__.removeprefix("check_"), "broken", error.message, error.hint)


def check_python(home: Home) -> Iterator[Check]:
    """Yield the Python version and whether the required packages are installed."""
    yield Check("python", "ok", platform.python_version())
    missing_packages = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing_packages:
        yield Check("packages", "missing", ", ".join(missing_packages), install_command("chessreg"))
    else:
        yield Check("packages", "ok", f"{len(REQUIRED_PACKAGES)} present")


def check_programs(home: Home) -> Iterator[Check]:
    """Yield whether Stockfish, git and tmux are installed. Only Stockfish and git are needed."""
    from chessreg.games.engines.opponents import find_stockfish

    try:
        yield Check("stockfish", "ok", str(find_stockfish()))
    except ChessregError as error:
        yield Check("stockfish", "missing", error.message, error.hint)
    yield _check_program("git", "missing", "attempts record no commit without it")
    yield _check_program("tmux", "optional", "keeps a terminal's work when it closes")


def _check_program(name: str, absent: Literal["missing", "optional"], purpose: str) -> Check:
    path = shutil.which(name)
    if path:
        return Check(name, "ok", path)
    return Check(name, absent, f"not installed: {purpose}", format_system_install_command(name) or f"install {name}")


def check_registry(home: Home) -> Iterator[Check]:
    """Check whether the registry answers, is writable, and has the right schema."""
    from chessreg.registry import migrations
    from chessreg.registry.sqlite import find_network_file_system

    place = home.place
    if place.path is not None:
        folder = place.path.parent
        kind = find_network_file_system(place.path)
        if kind is not None:
            detail = f"{folder} is on {kind}: one process at a time writes, the others read"
            yield Check(
                "file system", "optional", detail, "PostgreSQL serves several machines: --registry postgresql://…"
            )
        if not place.path.exists():
            yield _check_writable("registry", folder)
            yield Check("schema", "optional", f"the registry {place.path} does not exist yet", "chessreg init")
            return
        yield _check_writable("registry", folder, place.path)
        yield from _is_open_to_all("registry", place.path)
        yield from _check_sqlite(place.path)
    schema = migrations.read_schema_status(place)
    if place.path is None:
        yield Check("postgresql", "ok", f"{place.masked_location} answers")
    hint = {"behind": "chessreg db upgrade", "unknown": "pip install -U chessreg", "empty": "chessreg init"}
    if schema.state == "equal":
        yield Check("schema", "ok", schema.head)
    elif schema.state == "empty":
        yield Check("schema", "optional", f"{place.masked_location} holds no registry yet", hint["empty"])
    else:
        detail = f"{schema.state}: the registry has {schema.current}, this version needs {schema.head}"
        yield Check("schema", "broken", detail, hint.get(schema.state, "use a separate database for chessreg"))
    if place.path is None:
        yield _check_program("pg_dump", "optional", "`chessreg db backup` uses it")


def _check_sqlite(path: Path) -> Iterator[Check]:
    """Check the two copies of SQLite in this process, and the integrity of the file's pages."""
    from chessreg.queries.source import get_adbc_sqlite_version
    from chessreg.registry import sqlite

    package = sqlite.dbapi.__name__.partition(".")[0]
    detail = f"{sqlite.dbapi.sqlite_version} writes ({package}), {get_adbc_sqlite_version()} reads (ADBC)"
    if sqlite.is_log_safe(sqlite.dbapi.sqlite_version_info):
        yield Check("sqlite", "ok", detail)
    else:
        yield Check("sqlite", "optional", f"{detail}: {sqlite.OLD_SQLITE_WARNING}", install_command("pysqlite3"))
    level = sqlite.read_synchronous_mode()
    if level == "NORMAL":
        detail = "synchronous=NORMAL: the last commits may go when the power goes (RELIABILITY.md promises FULL)"
        yield Check("durability", "optional", detail, "unset CHESSREG_SYNCHRONOUS")
    else:
        yield Check("durability", "ok", f"synchronous={level}: a commit is on the disk when it returns")
    error = sqlite.check_integrity(path)
    if error:
        hint = f"put back a copy: `chessreg db backup` made them in {path.parent / 'backups'}"
        yield Check(
            "pages", "broken", f"{path}: {error[0]}" + (f" and {len(error) - 1} more" if error[1:] else ""), hint
        )
    else:
        yield Check("pages", "ok", f"PRAGMA quick_check finds nothing wrong in {path}")


def check_store(home: Home) -> Iterator[Check]:
    """Yield whether the store can be written, whether other users can write to it, and the free disk space."""
    from store import Store, StoreError

    root = home.store_path
    if not root.exists():
        yield _check_writable("store", root.parent)
    else:
        try:
            Store(root)
            yield Check("store", "ok", f"{root} can be written")
            yield from _is_open_to_all("store", root)
        except StoreError as error:
            yield Check("store", "broken", error.message, error.hint)
    existing_folder = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(existing_folder).free
    detail = f"{free / 2**30:.1f} GiB free on {existing_folder}"
    if free < FREE_BYTES:
        yield Check("disk", "broken", detail, "free some space, or give --store a folder on another disk")
    else:
        yield Check("disk", "ok", detail)


def _check_writable(name: str, folder: Path, file: Path | None = None) -> Check:
    """Check whether the folder, or the nearest existing one above it, and the file are writable."""
    existing_folder = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing_folder):
            pass
    except OSError as error:
        return Check(
            name,
            "broken",
            f"{existing_folder} cannot be written: {describe_os_error(error)}",
            f"chmod u+w {shlex.quote(str(existing_folder))}",
        )
    if file is not None and not os.access(file, os.W_OK):
        return Check(name, "broken", f"{file} is read-only", f"chmod u+w {shlex.quote(str(file))}")
    return Check(name, "ok", f"{file or folder} can be written")


def _is_open_to_all(name: str, path: Path) -> Iterator[Check]:
    """Yield a check with the fix if every user of this machine can read the file, as older versions created files under
    a usual umask."""
    from store.files import is_shared

    if path.stat().st_mode & stat.S_IROTH and all(above.stat().st_mode & stat.S_IXOTH for above in path.parents):
        users = "o" if is_shared(path if path.is_dir() else path.parent) else "go"
        hint = f"chmod -R {users}-rwx {shlex.quote(str(path))}"
        yield Check(name, "optional", f"every user of this machine can read {path}", hint)


def check_extras(home: Home) -> Iterator[Check]:
    """Yield which optional packages are installed, with the command that installs a missing one."""
    for module, (package, purpose) in OPTIONAL.items():
        if importlib.util.find_spec(module) is None:
            yield Check(package, "optional", f"not installed: {purpose}", install_command(package))
        else:
            yield Check(package, "ok", purpose)


def check_accelerator(home: Home) -> Iterator[Check]:
    """Yield the GPUs, and a warning if the installed torch cannot use them."""
    from chessreg.registry.machine import describe_this_machine

    machine = describe_this_machine()
    if machine["gpus"] and not machine["cuda"]:
        detail = f"{', '.join(machine['gpus'])} unused: torch {machine['torch']} is built for the CPU"
        yield Check("gpu", "optional", detail, "install torch for CUDA: https://pytorch.org/get-started/locally")
    else:
        yield Check("gpu", "ok", ", ".join(machine["gpus"]) or f"none; {machine['cores']} CPU cores")


LOOKS: tuple[Callable[[Home], Iterator[Check]], ...] = (
    check_python,
    check_programs,
    check_registry,
    check_store,
    check_extras,
    check_accelerator,
)
