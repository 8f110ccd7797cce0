"""Fork test processes from one that has already imported the modules of commands.

It has also read the machine, the installed packages, the state of the git checkout and the catalogue.
"""

import gc
import multiprocessing
import sys
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy.orm import configure_mappers

from chessreg.queries.catalogue import list_entries
from chessreg.registry import machine, provenance, tables

gc.set_threshold(100_000, 20, 20)  # as in the command: imports create many objects but no garbage
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([
    "tests.forked",
    "chessreg.cli.root", "chessreg.session", "chessreg.models.language_model", "chessreg.kinds", "chessreg.queries.ask",
    "chessreg.scheduling.launch", "chessreg.experiments.cache", "chessreg.experiments.play",
    "chessreg.experiments.imported", "chessreg.entities.reproduce", "chessreg.registry.migrations",
    "alembic.command", "duckdb", "pandas", "pyarrow",
])  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
asked, listed = provenance.read_repository_state, provenance.read_packages
of_checkout, packages = asked(ROOT), cache(lambda path: listed())


def repository_state(folder: Path) -> dict[str, Any] | None:
    return of_checkout if folder.is_relative_to(ROOT) else asked(folder)


provenance.read_repository_state, provenance.read_packages = repository_state, lambda: packages(tuple(sys.path))
provenance.read_packages()
machine.describe_this_machine()
list_entries()
configure_mappers()
assert tables.Run.__mapper__.configured
