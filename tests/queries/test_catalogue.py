"""The catalogue: every file is whole, is found by its names, and gives its rows in one order only."""

import re
import subprocess
import sys

import pytest

from chessreg.errors import ChessregError, NotFoundError
from chessreg.queries import run_query
from chessreg.queries.ask import Asked
from chessreg.queries.catalogue import entries, find, parse
from chessreg.queries.engine import engine_of
from chessreg.queries.gate import parsed
from chessreg.queries.scope import Scope, filters
from chessreg.queries.summary import FUNCTIONS

EVERY = [entry.title for entry in entries()]


@pytest.mark.parametrize("title", EVERY)
def test_every_statement_says_a_total_order(title, database):
    entry, engine = find(title), engine_of(database)
    asked = Asked(engine, entry, Scope(), filters(database, Scope()), "paper")
    keys = {"table": ["cell"], "rows": ["run_place", "unit"]}  # never by a run's id, which is a hash
    for name in {"table", "clusters", "rows"} & entry.statements.keys():
        tree = parsed(engine.parser(), asked.statement(name))
        [order] = [m for m in tree["statements"][0]["node"]["modifiers"] if m["type"] == "ORDER_MODIFIER"]
        said = [o["expression"] for o in order["orders"]]
        columns = [e.get("function_name") or e.get("column_names", ["ALL"])[-1] for e in said]
        if name == "clusters":
            assert len(columns) == 1  # ORDER BY ALL
            assert said[0]["class"] == "STAR"
        else:
            assert columns[: len(keys[name])] == keys[name]


@pytest.mark.parametrize("title", EVERY)
def test_an_empty_registry_has_the_columns_of_the_header_with_their_types(title, database):
    result, entry = run_query(database, title), find(title)
    assert len(result) == 0
    ends = re.compile("_(low|high)$")
    named = [c.name for c in entry.columns if not ends.search(c.name)]
    assert [c for c in result.columns if not ends.search(c)] == named
    types = {field.name: str(field.type) for field in result.to_arrow().schema}
    for statistic in entry.statistics:
        assert {types[statistic.name + end] for end in ("", "_low", "_high")} == {"double"}
    assert {types.get("checkpoint", "string"), types.get("checkpoint_id", "string")} == {"string"}
    assert "int32" not in types.values()
    assert all(column.text for column in entry.columns)
    assert entry.made_by.startswith("chessreg run ")
    assert entry.made_by in result.notes[0]


@pytest.mark.parametrize("title", [entry.title for entry in entries() if entry.statistics])
def test_statistics_are_known_functions_of_columns_of_the_clusters(title, database):
    entry, engine = find(title), engine_of(database)
    asked = Asked(engine, entry, Scope(), filters(database, Scope()), "paper")
    columns = engine.answer({"": asked.statement("clusters")}, asked.parameters)[""].column_names
    assert {"cell", "clusters"} <= set(columns)
    for statistic in entry.statistics:
        assert statistic.function in FUNCTIONS
        assert set(statistic.arguments) <= set(columns)


def test_a_query_is_found_by_title_alias_or_file_name_in_any_case():
    title = "elo by intervention"
    for name in (
        title,
        "Elo by Intervention",
        "elo",
        "elo_by_intervention",
        "karvonen-table-3",
        "  ELO  by intervention",
    ):
        assert find(name).title == title


def test_a_near_miss_is_suggested():
    with pytest.raises(NotFoundError) as caught:
        find("elo by interventoin")
    assert caught.value.exit_code == 3
    assert '"elo by intervention"' in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        find("board intervention")
    assert '"board intervention legality"' in caught.value.hint
    with pytest.raises(NotFoundError, match="there is no query 'xyzzy'") as caught:
        find("xyzzy")
    assert caught.value.hint == "chessreg query --list"


def test_a_header_line_that_is_not_understood_is_named(tmp_path):
    with pytest.raises(ChessregError, match=r"x\.sql, line 2: not understood: -- colour: red"):
        parse("-- title: x\n-- colour: red\n", tmp_path / "x.sql")
    with pytest.raises(ChessregError, match=r"x\.sql has no paper, kinds, made by, base, table, rows"):
        parse("-- title: x\n", tmp_path / "x.sql")


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from chessreg.cli.query import query; query(['--list'], standalone_mode=False); "
        "print(*sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "elo by intervention" in done.stdout
    heavy = {"torch", "transformers", "zarr", "textual", "ray", "duckdb", "pyarrow", "pandas"}
    assert not heavy & set(done.stderr.split())
