"""The catalogue: every file is whole, is found by its names, and gives its rows in one order only."""

import re
import subprocess
import sys

import pytest

from chessreg.errors import ChessregError, NotFoundError
from chessreg.queries import run_query
from chessreg.queries.ask import CatalogueQuestion
from chessreg.queries.catalogue import find_entry, list_entries, parse_entry
from chessreg.queries.engine import open_shared_engine
from chessreg.queries.gate import parse_select
from chessreg.queries.scope import Scope, resolve_scope
from chessreg.queries.summary import CORRECTIONS, FUNCTIONS, PLAIN, list_added_columns

EVERY = [entry.title for entry in list_entries()]


@pytest.mark.parametrize("title", EVERY)
def test_every_statement_says_a_total_order(title, empty):
    entry, engine = find_entry(title), open_shared_engine(empty)
    question = CatalogueQuestion(engine, entry, Scope(), resolve_scope(empty, Scope()), "paper")
    keys = {
        "table": ["cell"],
        "rows": ["run_place", "unit"],
        "skipped": ["states", "run", "reason", "hint"],
    }  # never by a run's id, which is a hash
    for name in {"table", "clusters", "rows", "skipped"} & entry.statements.keys():
        tree = parse_select(engine.parser(), question.build_statement(name))
        [order] = [m for m in tree["statements"][0]["node"]["modifiers"] if m["type"] == "ORDER_MODIFIER"]
        said = [o["expression"] for o in order["orders"]]
        columns = [e.get("function_name") or e.get("column_names", ["ALL"])[-1] for e in said]
        if name == "clusters":
            assert len(columns) == 1  # ORDER BY ALL
            assert said[0]["class"] == "STAR"
        else:
            assert columns[: len(keys[name])] == keys[name]


@pytest.mark.parametrize("title", EVERY)
def test_an_empty_registry_has_the_columns_of_the_header_with_their_types(title, empty):
    result, entry = run_query(empty, title), find_entry(title)
    assert len(result) == 0
    ends = re.compile("_(low|high)$")
    named = [c.name for c in entry.columns if not ends.search(c.name)]
    assert [c for c in result.columns if not ends.search(c)] == named
    assert {c.name for c in entry.columns} <= set(result.columns)
    types = {field.name: str(field.type) for field in result.to_arrow().schema}
    for statistic in entry.statistics:
        assert {types[name] for name in list_added_columns(statistic)} == {"double"}
    assert {types.get("checkpoint", "string"), types.get("checkpoint_id", "string")} == {"string"}
    assert "int32" not in types.values()
    assert all(column.text for column in entry.columns)
    assert entry.made_by.startswith("chessreg run ")
    assert result.notes[0].startswith("no runs yet")
    assert entry.made_by in result.notes[0]


@pytest.mark.parametrize("title", [entry.title for entry in list_entries() if entry.statistics])
def test_statistics_are_known_functions_of_columns_of_the_clusters(title, empty):
    entry, engine = find_entry(title), open_shared_engine(empty)
    question = CatalogueQuestion(engine, entry, Scope(), resolve_scope(empty, Scope()), "paper")
    columns = []
    if "clusters" in entry.statements:
        columns = engine.answer({"": question.build_statement("clusters")}, question.parameters)[""].column_names
        assert {*(["part", "number"] if entry.stored_names else ["cell"]), "clusters"} <= set(columns)
    for statistic in entry.statistics:
        assert statistic.function in {*FUNCTIONS, *PLAIN, *CORRECTIONS}
        shown = {column.name for column in entry.columns}
        assert set(statistic.arguments) <= (shown if statistic.function in CORRECTIONS else set(columns))


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
        assert find_entry(name).title == title


def test_a_near_miss_is_suggested():
    with pytest.raises(NotFoundError) as caught:
        find_entry("elo by interventoin")
    assert caught.value.exit_code == 3
    assert '"elo by intervention"' in caught.value.hint
    assert find_entry("board intervention").title == "board intervention legality"
    with pytest.raises(NotFoundError, match="query 'xyzzy' does not exist") as caught:
        find_entry("xyzzy")
    assert caught.value.hint == "chessreg query --list"


def test_a_header_line_that_is_not_understood_is_named(tmp_path):
    with pytest.raises(ChessregError, match=r"x\.sql, line 2: not understood: -- color: red"):
        parse_entry("-- title: x\n-- color: red\n", tmp_path / "x.sql")
    with pytest.raises(ChessregError, match=r"x\.sql has no paper, kinds, made by, base, table, rows"):
        parse_entry("-- title: x\n", tmp_path / "x.sql")


HEADER = "-- title: x\n-- paper: none\n-- kinds: play\n-- made by: chessreg run play\n"
WHOLE = HEADER + "".join(f"-- statement: {name}\nSELECT '{name}'\n" for name in ("cells", "base", "table", "rows"))


def shared(*lines):
    return HEADER + "".join(f"{line}\n" for line in lines)


def test_a_query_takes_the_statements_of_the_file_beside_it(tmp_path):
    (tmp_path / "whole.sql").write_text(WHOLE)
    own = ["-- statement: table", "SELECT 'own'", "-- statement: rows", "SELECT 2"]
    path = tmp_path / "part.sql"
    path.write_text(shared("-- statements of: whole.sql to base", *own))
    entry = find_entry(str(path))
    assert [*entry.statements.items()] == [
        ("cells", "SELECT 'cells'"), ("base", "SELECT 'base'"), ("table", "SELECT 'own'"), ("rows", "SELECT 2")
    ]  # fmt: skip
    assert [*entry.relations] == ["cells", "base"]
    digest = entry.digest
    (tmp_path / "whole.sql").write_text(WHOLE.replace("SELECT 'rows'", "SELECT 'others'"))
    assert find_entry(str(path)).digest == digest  # missing values do not count
    (tmp_path / "whole.sql").write_text(WHOLE.replace("SELECT 'cells'", "SELECT 'changed'"))
    assert find_entry(str(path)).digest != digest


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["-- statements of: whole.sql"], "part.sql: statements of: 'whole.sql' is not FILE.sql to NAME"),
        (["-- statements of: ../whole.sql to base"], "'../whole.sql to base' is not FILE.sql to NAME"),
        (["-- statements of: none.sql to base"], "part.sql: statements of: none.sql does not exist in its folder"),
        (["-- statements of: whole.sql to paired"], "part.sql: statements of: whole.sql has no statement paired"),
        (["-- statements of: part.sql to base"], "part.sql shares them from another file"),
        (["-- statements of: other.sql to base"], "other.sql shares them from another file"),
        (["-- statements of: broken.sql to base"], "broken.sql, line 1: not understood: -- color: red"),
        (["-- statements of: bytes.sql to base"], "bytes.sql is not a query: 'utf-8' codec"),
        (
            ["-- statements of: whole.sql to base", "-- statement: cells", "SELECT 1"],
            "declares statements that it also shares .*: cells",
        ),
        (["-- statements of: whole.sql to base", "-- statements of: whole.sql to base"], "line 6: a second"),
    ],
)  # fmt: skip
def test_statements_that_cannot_be_taken_are_said(lines, message, tmp_path):
    for name, text in {"whole": WHOLE, "other": shared("-- statements of: whole.sql to rows"),
                       "broken": "-- color: red\n"}.items():  # fmt: skip
        (tmp_path / f"{name}.sql").write_text(text)
    (tmp_path / "bytes.sql").write_bytes(b"\xff\xfe")
    path = tmp_path / "part.sql"
    path.write_text(shared(*lines, "-- statement: table", "SELECT 1", "-- statement: rows", "SELECT 2"))
    with pytest.raises(ChessregError, match=message):
        find_entry(str(path))


def test_no_query_repeats_the_statements_of_another():
    """Three statements or more that two files have in common are one file's, and taken from there."""
    queries = [
        (entry, {*entry.statements.items()} - {(n, entry.statements[n]) for n in entry.shared_names})
        for entry in list_entries()
    ]
    for number, (entry, own) in enumerate(queries):
        for other, others in queries[:number]:
            assert len(own & others) < 3, (entry.path.name, other.path.name)


def test_no_query_takes_json_apart():
    """JSON values of a row or a spec are typed columns of a view. `needs` reads the tables, without views."""
    for entry in list_entries():
        for name, sql in entry.statements.items():
            assert not re.search(r"json|->", sql, re.IGNORECASE), (entry.path.name, name)


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from chessreg.cli.query import query; query(['--list'], standalone_mode=False); "
        "print(*sorted({m.partition('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "elo by intervention" in done.stdout
    heavy = {"torch", "transformers", "zarr", "textual", "ray", "duckdb", "pyarrow", "pandas"}
    assert not heavy & set(done.stderr.split())


def test_the_columns_of_the_rows_behind_every_table_are_explained(database):
    from chessreg.queries.ask import build_question
    from chessreg.queries.row_columns import describe_row_columns
    from chessreg.queries.scope import Scope

    for entry in list_entries():
        question = build_question(database, entry, Scope(), "paper", None)
        question.base_where.append("cell = 1")
        answer = question.engine.answer({"rows": question.build_statement("rows")}, question.parameters, None)
        unknown = [c.name for c in describe_row_columns(entry, answer["rows"].column_names) if not c.text]
        assert not unknown, entry.title
