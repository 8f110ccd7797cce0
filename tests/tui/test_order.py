"""The user sees rows in the order of names and times, never in that of a hash: a hash depends on trained weights, whose
last bits depend on the processor."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3  # Python's own: the wheel's has no iterdump
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind
from chessreg.queries.result import QueryResult
from chessreg.rows import to_plain
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.data.pages import PAGE_ROWS
from tui.data.result_rows import list_results

from ..conftest import queries_with_runs

HASHES = {
    "run": ("id", "spec_hash"), "checkpoint": ("id", "artifact"), "dataset": ("id", "identity", "artifact"),
    "artifact": ("digest",), "intervention": ("id",), "engine": ("id", "sha256"), "machine": ("id",),
}  # fmt: skip
HEX = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{6})(?![0-9a-f])")
COMPLEMENT = str.maketrans("0123456789abcdef", "fedcba9876543210")


class Mirror:
    """A registry as another machine could have made it: the same in everything but hashes, whose order is reversed."""

    def __init__(self, folder: Path, of: Path) -> None:
        self.folder, self.of = folder, of
        shutil.copytree(of / "store", folder / "store")
        with closing(sqlite3.connect(of / "registry.db")) as source:
            columns = [(table, column) for table, columns in HASHES.items() for column in columns]
            found = [row[0] for t, c in columns for row in source.execute(f'SELECT "{c}" FROM "{t}"') if row[0]]
            self.other = {hash: hash.translate(COMPLEMENT) for hash in found}
            self.other |= {hash[-6:]: other[-6:] for hash, other in self.other.items()}  # as lists show them
            dump = "\n".join(source.iterdump())
        with closing(sqlite3.connect(folder / "registry.db")) as target:
            target.executescript("PRAGMA foreign_keys = OFF;\n" + HEX.sub(lambda h: self.other.get(h[0], h[0]), dump))
        self.back = {other: hash for hash, other in self.other.items()}

    def back_in(self, text: str) -> str:
        """The messages of the mirror, with the recorded hashes."""
        return HEX.sub(lambda found: self.back.get(found[0], found[0]), text)


@pytest.fixture(scope="module")
def mirror(studied: Path, tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    return Mirror(tmp_path_factory.mktemp("mirror"), studied)


@pytest.fixture(scope="module")
def pair(mirror: Mirror) -> Iterator[tuple[Session, Session]]:
    """Both worlds, open: as it is, and mirrored."""
    with open_session(*place(mirror.of)) as world, open_session(*place(mirror.folder)) as other:
        yield world, other


def place(folder: Path) -> tuple[str, Path]:
    return str(folder / "registry.db"), folder / "store"


def printed(folder: Path, command: str) -> str:
    """The output of a command in this world."""
    registry, store = place(folder)
    words = ["--registry", registry, "--store", str(store), *shlex.split(command)]
    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as told:
        assert run_command_line(words) == 0, f"{command}\n{told.getvalue()}"
    return said.getvalue().replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    "command",
    quick_first(5, [
        "runs list", "cache list", "game list", "lineage edits", "compare board longer deep-board",
        "runs list --sort kind", "runs list --sort state", "probe list", "vector list", "checkpoint list",
        "dataset list", "machines", "lineage bigram", "lineage games", "compare plain sure", "compare train-0 train-1",
    ]),
)  # fmt: skip
def test_a_list_is_in_no_order_of_hashes(mirror: Mirror, command: str) -> None:
    expected = printed(mirror.of, f"{command} --json")
    assert expected.count("\n") > 10
    assert mirror.back_in(printed(mirror.folder, f"{command} --json")) == expected


@pytest.mark.slow
def test_queries_and_the_rows_behind_them_are_in_no_order_of_hashes(mirror: Mirror, pair: Any) -> None:
    def rows(result: QueryResult) -> str:
        return json.dumps(to_plain(result.rows))

    compared, filled = 0, 0
    for entry in queries_with_runs(pair[0].database):
        world = run_query(pair[0].database, entry.title, partial=True)
        if not len(world):  # nothing is in any order
            continue
        filled += 1
        assert mirror.back_in(rows(run_query(pair[1].database, entry.title, partial=True))) == rows(world), entry.title
        world, other = (query_rows_behind(session.database, entry.title, 1, partial=True) for session in pair)
        assert mirror.back_in(rows(other)) == rows(world), f"the rows behind {entry.title}"
        compared += len(world)
    assert filled > 15
    assert compared > 30


@pytest.mark.parametrize("result_table", ["game", "trial", "score", "metric_point"])
def test_rows_of_all_runs_are_in_no_order_of_hashes(pair: Any, result_table: str) -> None:
    def runs(session: Session) -> list[str]:
        pages = list_results(session, result_table)
        return [row["run"] for number in range(-(-pages.count // PAGE_ROWS)) for row in pages.read_page(number)]

    world, other = map(runs, pair)
    assert len(world) > len(set(world)) > 1
    assert other == world
