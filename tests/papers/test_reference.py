"""The tables of the reference result, from some of its own rows: queries give the answers recorded with them
(tests/fixtures/karvonen/make.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from chessreg.registry.database import Database

from ..fixtures.karvonen.make import tables

FOLDER = Path(__file__).parent.parent / "fixtures" / "karvonen"
TABLES = json.loads((FOLDER / "tables.json").read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("reference") / "registry.db"
    path.write_bytes(zstandard.ZstdDecompressor().decompress((FOLDER / "reference.db.zst").read_bytes()))
    with Database.open(path, create=False) as database:
        return tables(database)


@pytest.mark.parametrize("title", TABLES)
def test_a_table_is_what_it_was(found, title):
    assert len(found[title]) == len(TABLES[title])
    for row, golden in zip(found[title], TABLES[title], strict=True):
        assert row == {
            name: pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
            for name, value in golden.items()
        }
