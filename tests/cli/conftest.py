"""A folder in which chessreg commands are typed, in this process, through the real entry point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.registry import tables
from chessreg.registry.database import Database


class Here:
    """A folder in which commands are typed, with their output."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.out = self.err = ""

    def __call__(self, *args: str | Path) -> int:
        self._capsys.readouterr()
        status = run_command_line([str(arg) for arg in args])
        self.out, self.err = self._capsys.readouterr()
        return status

    def json(self, *args: str | Path) -> Any:
        assert self(*args, "--json") == 0, self.err
        return json.loads(self.out)

    def state(self) -> tuple[list[str], list[str]]:
        """Every row of the registry and every file of the store, to compare before and after."""
        rows = []
        with Database.open(self.folder / ".chessreg" / "registry.db") as database, database.read() as session:
            for table in tables.Base.metadata.sorted_tables:
                rows += [f"{table.name} {row}" for row in session.execute(table.select())]
        store = self.folder / ".chessreg" / "store"
        return sorted(rows), sorted(str(path) for path in store.rglob("*") if path.is_file())


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHESSREG_REGISTRY", raising=False)
    monkeypatch.delenv("CHESSREG_STORE", raising=False)
    made = Here(tmp_path, capsys)
    assert made("init") == 0, made.err
    return made
