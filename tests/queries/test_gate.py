"""A user's SQL can read the registry's snapshot and nothing else."""

import pytest

from chessreg.errors import BadInputError, ChessregError
from chessreg.queries import run_query, run_sql

REFUSED = [
    "INSERT INTO run VALUES (1)",
    "DELETE FROM game",
    "UPDATE run SET kind = 'x'",
    "DROP TABLE game",
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE MACRO x() AS 1",
    "COPY run TO '/tmp/x.csv'",
    "COPY (SELECT 1) TO '/tmp/x.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '/tmp/x'",
    "ATTACH '/tmp/x.db'",
    "ATTACH ':memory:' AS x",
    "INSTALL sqlite",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET memory_limit = '1TB'",
    "RESET memory_limit",
    "CALL pragma_version()",
    "BEGIN TRANSACTION",
    "VACUUM",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE game",
    "",
    "-- nothing",
    "SELEC 1",
    "SELECT * FROM (DELETE FROM game RETURNING *)",
]
NO_WAY_OUT = [
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM read_parquet('https://example.org/x.parquet')",
    "SELECT getenv('HOME')",
    "SELECT * FROM secret",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_anything_but_one_select_is_refused(sql, empty):
    with pytest.raises(BadInputError) as caught:
        run_sql(empty, sql)
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("sql", ["INSTALL sqlite", "LOAD httpfs", "force install sqlite"])
def test_what_is_refused_is_called_as_it_was_typed(sql, empty):
    name = "LOAD" if "LOAD" in sql else "INSTALL"
    with pytest.raises(BadInputError, match=f"^{name} is not allowed"):
        run_sql(empty, sql)


@pytest.mark.parametrize("sql", NO_WAY_OUT)
def test_a_select_reaches_no_file_network_environment_or_variable(sql, empty):
    secret = [{"a": 1}]  # a variable of the caller that DuckDB could otherwise read
    with pytest.raises(ChessregError):
        run_sql(empty, sql)
    assert secret


def test_what_selects_may_be_written_in_any_of_its_forms(database, make):
    make.play(make.checkpoint("a"), [{}, {}])
    for sql in ("FROM game", "SELECT * FROM game;", "VALUES (1), (2)", "WITH g AS (FROM game) FROM g",
                "SELECT 1 UNION ALL SELECT 2", "  -- a remark\nSELECT unit FROM game -- and one"):  # fmt: skip
        assert len(run_sql(database, sql)) == 2
    assert {"column_name": "moves", "column_type": "BLOB"}.items() <= next(
        row for row in run_sql(database, "DESCRIBE game").rows if row["column_name"] == "moves"
    ).items()
    assert "games" in {row["name"] for row in run_sql(database, "SHOW TABLES").rows}
    assert len(run_sql(database, "SUMMARIZE game")) == 17


def test_rows_without_an_order_come_in_the_order_of_their_values(database, make):
    make.play(make.checkpoint("a"), [{"plies": p} for p in (9, 3, 7)])
    assert [row["plies"] for row in run_sql(database, "SELECT plies FROM game").rows] == [3, 7, 9]
    assert [r["plies"] for r in run_sql(database, "SELECT plies FROM game ORDER BY plies DESC").rows] == [9, 7, 3]


@pytest.mark.parametrize(
    "text",
    ["1 = 1) UNION SELECT * FROM run --", "1; DROP TABLE game", "true ORDER BY 1", "true GROUP BY 1", "", "true) --"],
)
def test_where_is_one_condition(text, database, make):
    make.play(make.checkpoint("a"), [{}])
    if not text:
        assert len(run_query(database, "elo", where=text)) == 1  # no condition
        return
    with pytest.raises(BadInputError):
        run_query(database, "elo", where=text)
