"""No value that a row can hold breaks a catalogue query: extremes, NULLs, odd Unicode and odd JSON in every column."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from chessreg.queries import run_query, run_sql, source, stats
from chessreg.queries.catalogue import list_entries
from chessreg.registry import migrations, sqlite
from chessreg.registry.database import Database
from chessreg.registry.tables import Base

from ..conftest import queries_with_runs

DEMO = Path(__file__).resolve().parents[1] / "fixtures" / "demo" / "demo.zip"
WHOLE = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]
TEXTS = [
    "", "\0", "'; DROP TABLE run; --", "\U0001f600\u202e\x1b[31m", "%_${}", "a" * 3000, "NaN", "1e999", "[", "{", "-",
    "0x", "L0-3", "retry:", "@", ",", "9999-12-31",
]  # fmt: skip
INSIDE = [
    "1e308", "-1e308", "-1", "0", "9223372036854775807", "99999999999999999999", '"x"', '"\\u0000"', "[]", "{}",
    "[[1]]", "true", "null", '""', "[1e308]", "1e999",
]  # fmt: skip
VALUES: list[tuple[type[Any], list[Any]]] = [
    (sa.Boolean, [0, 1]),
    (sa.Integer, WHOLE),
    (sa.Float, [0.0, -0.0, 1e308, -1e308, 5e-324, 2.0**63, 1e19, -1.5]),
    (sa.DateTime, ["0001-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999", "nonsense", ""]),
    (sa.JSON, ["{}", "[]", "[null]", "1", "null", '"text"', "[1e999]", "[[[[1]]]]", "{", "[-1, 99999999999999999999]"]),
    (sa.LargeBinary, [b"", b"\0", b"\xff" * 3, b"\xff" * 200, bytes(range(256))]),
    (sa.String, TEXTS),
]

FOREIGN = ["forty-two", b"\xff\xfe", 1.5, b""]  # SQLite lets any column hold any type


def values_of(column: sa.Column[Any]) -> list[Any]:
    """The possible values of this column; empty for ids, which connect rows."""
    kind = column.type.impl_instance if isinstance(column.type, sa.types.TypeDecorator) else column.type
    if isinstance(kind, sa.Uuid) or column.foreign_keys or column.primary_key:
        return []
    values = next(values for type_, values in VALUES if isinstance(kind, type_))
    return [*values, *FOREIGN, *([None] if column.nullable else [])]


def changed(value: Any, choices: list[Any], drawn: random.Random) -> Any:
    """Another value; of a JSON object mostly the value of one of its keys."""
    if isinstance(value, str) and value.startswith('{"') and drawn.random() < 0.8:
        held = json.loads(value)
        held[drawn.choice(sorted(held))] = "@@@"
        return json.dumps(held).replace('"@@@"', drawn.choice(INSIDE))
    return drawn.choice(choices)


def spoil(path: Path, seed: int) -> None:
    """Give a share of the rows of most columns of every table a value from the edges."""
    drawn = random.Random(seed)
    share = drawn.choice([0.02, 0.1, 0.5])
    connection = sqlite.dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA ignore_check_constraints=ON")
    connection.execute("BEGIN")
    for table in Base.metadata.sorted_tables:
        keys = [column.name for column in table.primary_key]
        if table.name == "registry_state":
            continue
        for column in table.columns:
            choices = values_of(column)
            if not choices or drawn.random() < 0.5:
                continue
            rows = connection.execute(f'SELECT {", ".join(keys)}, "{column.name}" FROM "{table.name}"').fetchall()
            where = " AND ".join(f"{key} = ?" for key in keys)
            picked = [(changed(row[-1], choices, drawn), *row[:-1]) for row in rows if drawn.random() < share]
            connection.executemany(f'UPDATE OR IGNORE "{table.name}" SET "{column.name}" = ? WHERE {where}', picked)
    connection.execute("UPDATE registry_state SET data_version = data_version + 1")
    connection.execute("COMMIT")
    connection.close()


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that breaks a statistic breaks it in the first draws."""
    monkeypatch.setattr(stats, "RESAMPLES", 20)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("any")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extract("registry.db", folder)
    migrations.upgrade_registry(folder / "registry.db")
    return folder / "registry.db"


@contextmanager
def changed_registry(
    registry: Path, folder: Path, *statements: str, rows: Sequence[Sequence[Any]] = ((),)
) -> Iterator[Database]:
    """A copy of the registry after statements that chessreg itself would not make."""
    path = Path(shutil.copyfile(registry, folder / "registry.db"))
    connection = sqlite.dbapi.connect(path)
    connection.execute("PRAGMA ignore_check_constraints=ON")
    for statement in statements:
        connection.executemany(statement, rows)
    connection.execute("UPDATE registry_state SET data_version = data_version + 1")
    connection.commit()
    connection.close()
    with Database.open(path, create=False) as database:
        yield database


def ask_everything(registry: Path, folder: Path, seed: int) -> None:
    path = Path(shutil.copyfile(registry, folder / "registry.db"))
    spoil(path, seed)
    broken = {}
    with Database.open(path, create=False) as database:
        for entry in list_entries():
            try:
                assert run_query(database, entry.title).rows is not None
            except Exception as error:
                broken[entry.title] = repr(error)[:300]
    assert not broken


@pytest.mark.parametrize(
    ("foreign", "batch"),
    [("'forty-two'", "16384"), ("x'fffe'", "16384"), ("1.5", "4"), ("cast(x'ff' as text)", "4")],
)
def test_a_value_of_another_type_than_its_column_is_null_and_others_stay(
    foreign: str, batch: str, registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first rows that are read, or in later ones, when the column's type in Arrow is settled."""
    monkeypatch.setattr(source, "BATCH_ROWS", batch)
    last = (
        "WHERE (run_id, unit, match) = (SELECT run_id, unit, match FROM game ORDER BY 1 DESC, 2 DESC, 3 DESC LIMIT 1)"
    )
    sql = "SELECT plies, seconds, termination, turns FROM game ORDER BY run_id, unit, match"
    with changed_registry(registry, tmp_path) as database:
        before = run_sql(database, sql).rows
    columns = ("plies", "seconds", "termination")
    change = f"UPDATE game SET {', '.join(f'{column} = {foreign}' for column in columns)} {last}"
    with changed_registry(registry, tmp_path, change) as database:
        after = run_sql(database, sql).rows
    assert len(after) == len(before) > 8
    assert after[:-1] == before[:-1]
    assert after[-1]["turns"] == before[-1]["turns"]
    assert after[-1]["plies"] is None
    assert after[-1]["seconds"] == (1.5 if foreign == "1.5" else None)
    if foreign in ("'forty-two'", "1.5"):
        assert after[-1]["termination"] == foreign.strip("'")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_every_catalogue_query_answers(seed: int, registry: Path, tmp_path: Path) -> None:
    ask_everything(registry, tmp_path, seed)


def test_one_scale_of_1e308_is_shown(registry: Path, tmp_path: Path) -> None:
    with changed_registry(registry, tmp_path, "UPDATE intervention SET scale = 1e308") as database:
        assert run_query(database, "elo by intervention").rows
        assert run_sql(database, "SELECT intervention FROM interventions").rows[0]["intervention"].count("x1e+308")


@pytest.mark.slow
def test_values_of_another_type_are_unknown(registry: Path, tmp_path: Path) -> None:
    """SQLite holds text in a column of numbers, where somebody wrote it past chessreg."""
    statements = (
        "UPDATE game SET plies = 'many', seconds = 'some', moves = 'text' WHERE unit = 0",
        "UPDATE intervention SET scale = 'much', layers = x'00', checkpoint_id = 'nobody'",
        "UPDATE run SET units = 'x'",
    )
    with changed_registry(registry, tmp_path, *statements) as database:
        for entry in queries_with_runs(database):
            run_query(database, entry.title)


def test_a_kind_recorded_with_odd_columns_costs_its_own_view_only(registry: Path, tmp_path: Path) -> None:
    odd = ["", '"', "\\", "'", "a.b", "$", "x\ny", "\0", "run_id", "RUN_ID", 'a"; DROP VIEW runs', "[0]"]
    endless = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    schemas: list[Any] = [
        {"score": {"properties": {name: {"type": "integer"} for name in odd}}, "trial": endless},
        {"score": [], "trial": {"properties": []}, "game": {"properties": {"a": 1, "b": {"anyOf": 3}}}},
        [],
    ]
    rows = [
        (name, version, json.dumps(["score", "trial", "nothing", 3]), json.dumps(schema))
        for version, schema in enumerate(schemas, 1)
        for name in ("odd", "", 'a"b', "runs", "score", "\x1b[31m", "select")
    ]
    insert = "INSERT INTO kind SELECT ?, ?, source, ?, ?, determinism FROM kind LIMIT 1"
    with changed_registry(registry, tmp_path, insert, rows=rows) as database:
        assert run_query(database, "elo by intervention").rows
        assert run_sql(database, "SELECT * FROM odd_trial").rows == []
