"""Rendering: the same bytes every time, intervals and bounds as people read them, nothing lost for programs."""

import csv
import io
import json
import re
from datetime import date

import pytest

from chessreg.errors import BadInputError
from chessreg.queries import render, run_query, run_sql
from chessreg.queries.ask import stream_sql
from chessreg.queries.engine import _ENGINES, QueryEngine
from chessreg.queries.render import FORMATS, render_result
from chessreg.queries.result import QueryResult
from chessreg.registry import migrations

from ..conftest import queries_with_runs


@pytest.fixture
def results(database, make):
    """A little of everything: games that won, lost and stopped; probes; edits."""
    checkpoint = make.checkpoint("reference")
    edit = make.intervention(checkpoint)
    ends = [{}, {"result": "0-1"}, {"result": "1/2-1/2", "termination": "stalemate"},
            {"result": "*", "termination": "move_limit", "adjudication_cp": 30}]  # fmt: skip
    make.play(checkpoint, [ends[n % 4] | {"opening_number": n // 2} for n in range(40)], name="plain")
    make.play(checkpoint, [ends[n % 3] | {"opening_number": n // 2} for n in range(40)], intervention=edit)
    make.play(checkpoint, [ends[1]] * 20, intervention=make.intervention(checkpoint, scale=-3))
    scores = {
        (layer, split): [(64, 20 + 7 * g % 40) for g in range(9)]
        for layer in (0, 1)
        for split in ("validation", "test")
    }
    make.probe(checkpoint, scores, name="board")
    states = [
        (g, {"clean": (5, g % 4, 0.9 + g / 1000, 0.1 * (g % 7)), "edit": (g % 5, 3, 1 / 3, 1 / (g + 1.1))})
        for g in range(12)
    ]
    make.edit(checkpoint, states, intervention=make.intervention(checkpoint, "probe:piece", (5,), 1.5))
    make.legality(checkpoint, [[(True, 0.9), (g % 3 > 0, None), (True, 1 / (g + 1.3))] for g in range(12)])
    return database


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elo by intervention", "board intervention legality"])
def test_the_same_query_again_and_again_on_eight_threads_gives_the_same_bytes(results, name):
    seen = set()
    for _ in range(6):
        _ENGINES[results] = QueryEngine(results, threads=8)  # nothing kept from the time before
        result = run_query(results, name)
        assert len(result) >= 1
        seen.add(tuple(render_result(result, format) for format in FORMATS))
    assert len(seen) == 1


@pytest.mark.slow
def test_every_query_gives_the_same_bytes_on_one_thread_and_on_eight(results):
    def answers(threads, titles):
        _ENGINES[results] = QueryEngine(results, threads=threads)
        return {title: answer for title in titles if len(answer := run_query(results, title))}

    def shown(found):
        return {title: [render_result(answer, format) for format in FORMATS] for title, answer in found.items()}

    one = answers(1, [entry.title for entry in queries_with_runs(results)])
    assert shown(answers(8, one)) == shown(one)  # a table without rows has the same bytes
    assert {"elo by intervention", "best probe layers", "probe f1 by class", "board intervention legality"} <= {*one}


def test_bounds_and_intervals_as_people_read_them(results):
    text = render_result(run_query(results, "elo", where="score = 0"), "table", wide=True)
    assert "0.000 [≤ 0.139]" in text
    assert " [≤ -317]" in text
    assert "inf" not in text
    assert "nan" not in text


def test_what_every_row_shares_stands_above_the_table(results):
    text = render_result(run_query(results, "elo"), "table")
    first, header, *_ = text.splitlines()
    assert first.startswith("checkpoint") is False
    assert "policy retry:5" in first
    assert "policy" not in header
    assert "checkpoint_id" not in text
    assert header.split()[:3] == ["#", "checkpoint", "intervention"]


def test_latex_has_booktabs_and_escapes(results):
    text = render_result(run_query(results, "elo"), "latex")
    assert text.startswith("% elo by intervention: Karvonen 2024, Tables 3 and 7 and Figure 2\n")
    assert r"\toprule" in text
    assert r"\bottomrule" in text
    assert "first try legal" not in text, "only the default columns"
    assert r"first try legal \%" in render_result(run_query(results, "elo"), "latex", wide=True)
    assert r"$\leq$" in text
    assert "≤" not in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.replace(r"\&", "").count("&") for line in body}) == 1
    odd = run_sql(results, "SELECT 'a_b & 50% \\ {x} ~^$#' AS x")
    assert r"a\_b \& 50\% \textbackslash{} \{x\} \textasciitilde{}\textasciicircum{}\$\#" in render_result(odd, "latex")


def test_markdown_is_a_table_with_pipes_escaped(results):
    lines = render_result(run_sql(results, "SELECT 'a|b' AS x, 1.5 AS y"), "markdown").splitlines()
    assert lines == ["| x | y |", "| --- | ---: |", "| a\\|b | 1.500 |"]


def test_csv_json_and_parquet_have_every_column_and_exact_numbers(results):
    import pyarrow as pa
    import pyarrow.parquet as pq

    result = run_query(results, "elo")
    rows = list(csv.DictReader(io.StringIO(render_result(result, "csv"))))
    assert [list(row) for row in rows] == [result.columns] * len(result)
    assert [float(row["score"]) for row in rows] == [row["score"] for row in result.rows]
    assert rows[0]["intervention_id"] == ""
    document = json.loads(render_result(result, "json"))
    assert document["rows"] == result.rows
    assert document["meta"]["query"] == "elo by intervention"
    assert {"name": "n", "unit": "games", "text": "games played"} in document["columns"]
    table = pq.read_table(pa.BufferReader(render_result(result, "parquet")))
    assert table.to_pylist() == result.rows
    assert json.loads(table.schema.metadata[b"chessreg"])["query_hash"] == result.meta["query_hash"]
    assert result.to_pandas()["score"].tolist() == [row["score"] for row in result.rows]


def test_odd_values_come_out_of_every_format(results):
    sql = """SELECT NULL AS nothing, true AS yes, [1, NULL] AS list, {'a': 1} AS struct, 'x\ny' AS lines,
        TIMESTAMPTZ '2026-01-01' AS at_, DATE '2026-01-02' AS day, 'nan'::DOUBLE AS nan, '\\xAB'::BLOB AS bytes,
        170141183460469231731687303715884105727::HUGEINT AS huge"""
    result = run_sql(results, sql)
    for name in FORMATS:
        assert render_result(result, name)
    [row] = json.loads(render_result(result, "json"))["rows"]
    assert (row["nothing"], row["yes"], row["list"], row["struct"]) == (None, True, [1, None], {"a": 1})
    assert (row["nan"], row["bytes"], row["day"]) == (None, "ab", "2026-01-02")


def test_a_file_is_written_whole_in_the_format_of_its_name(results, tmp_path):
    result = run_query(results, "elo")
    for suffix, name in render.SUFFIXES.items():
        path = tmp_path / f"table{suffix}"
        assert render.write_result(result, path) == name
        data = render_result(result, name)
        assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    with pytest.raises(BadInputError, match=r"results cannot be written to \.xls"):
        render.write_result(result, tmp_path / "table.xls")
    with pytest.raises(BadInputError, match="cannot write"):
        render.write_result(result, tmp_path / "nowhere" / "table.csv")
    assert sorted(p.name for p in tmp_path.glob("*table*")) == sorted(f"table{s}" for s in render.SUFFIXES)


def test_the_footer_names_what_the_numbers_rest_on(results):
    result = run_query(results, "games by termination")
    line = render.format_provenance(result)
    assert line.startswith("games by termination: 6 rows; query ")
    assert f"registry schema {migrations.get_head_revision()}" in line
    assert f"data {results.data_version()}" in line
    assert "100 game" in line


def test_settings_are_printed_as_they_are_written(results):
    from chessreg.queries.result import QueryResult

    answer = run_sql(results, "SELECT 8e-05 AS rate, 0.9995 AS beta, 0.25 AS share, 29635706880.0::DOUBLE AS flops, "
                     "2.0::DOUBLE AS steps, '' AS unit")  # fmt: skip
    [row] = answer.rows
    numbers = ["8e-05", "0.9995", "0.250", "29,635,706,880"]
    assert [render.format_result_cell(answer, row, name) for name in row][:5] == [*numbers, "2.000"]
    beside = QueryResult(answer.table, {**answer.meta, "published": True})
    assert [render.format_result_cell(beside, row, name) for name in row][:5] == [*numbers, "2"]


HOSTILE = (
    "a\n\\input{/etc/passwd}%\r\u2028# title\n<script>alert(1)</script> [x](javascript:y) ![i](z) `code` *b* __c__ a|b "
    "a\\|b &lt;b&gt; $x$ ^^M \x1b[2J\u202e {}~"
)


def test_names_of_others_stand_in_markdown_and_latex_as_text_of_one_line(results):
    sql = "SELECT range AS n, $hostile AS same, $hostile || range AS other FROM range(2)".replace(
        "$hostile", "'" + HOSTILE.replace("'", "''") + "'"
    )
    result = run_sql(results, sql)
    same = QueryResult(result.table, result.meta, column_notes=tuple(map(result.column, result.columns)))
    assert "same" in render.choose_columns(same)[1], "it is told in the caption"
    for wanted in (result, same):
        captions = 2 if wanted is same else 0
        text = render_result(wanted, "markdown")
        lines = text.splitlines()
        assert len(lines) == 4 + captions
        html = re.sub(r"\\[!-/:-@\[-`{-~]", "", text)  # escaped characters are text
        assert not re.search(r"[<*`]|\]\(|__|&\w", html), html
        cells = [len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) for line in lines[captions:]]
        assert cells == [cells[0]] * 4
        text = render_result(wanted, "latex")
        lines = text.splitlines()
        assert len(lines) == 8 + (wanted is same)
        commands = set(re.findall(r"\\[A-Za-z]+", text))
        assert commands <= {
            *(r"\begin", r"\end", r"\toprule", r"\midrule", r"\bottomrule"),
            *(r"\textbackslash", r"\textasciitilde", r"\textasciicircum"),
        }
        body = text.partition("tabular}{")[2]
        assert not re.search(r"(?<!\\)[%#$]", body), body
        assert {c for c in text if not c.isprintable()} == {"\n"}


def test_every_type_of_duckdb_comes_out_as_duckdb_writes_it(results):
    """Its least and its largest value, infinity and NULL: of 128 bits, of times, of lists of these."""
    result = run_sql(results, "SELECT * EXCLUDE (empty_struct) FROM test_all_types()")
    for name in FORMATS:
        assert render_result(result, name)
    low, high, none = result.rows
    assert set(none.values()) == {None}
    assert (low["hugeint"], high["hugeint"]) == (str(-(2**127)), str(2**127 - 1))
    assert (low["uhugeint"], high["uhugeint"]) == ("0", str(2**128 - 1))
    assert (high["time"], high["bit"], high["union"]) == ("24:00:00", "10101", "5")
    assert (low["date"], high["bignum"][:5]) == ("-5877641-06-25", "17976")
    assert high["date_array"] == "[1970-01-01, infinity, -infinity, NULL, 2022-05-12]"
    sql = """SELECT 'infinity'::TIMESTAMP AS t, '-infinity'::DATE AS d, 'infinity'::TIMESTAMPTZ AS z,
        7::UHUGEINT AS small, [340282366920938463463374607431768211455::UHUGEINT, 1] AS list,
        'infinity'::TIMESTAMP_NS AS ns,
        [1::HUGEINT] AS one, 9223372036854775808::HUGEINT AS beyond, '290309-12-22'::DATE AS far,
        '9999-12-31'::DATE AS last"""
    row = run_sql(results, sql).rows[0]
    assert (row["t"], row["d"], row["z"], row["ns"]) == ("infinity", "-infinity", "infinity", "infinity")
    assert (row["small"], row["beyond"], row["one"]) == (7, "9223372036854775808", [1])
    assert (row["list"], row["far"], row["last"]) == (f"[{2**128 - 1}, 1]", "290309-12-22", date(9999, 12, 31))
    whole = [part.rows for part in stream_sql(results, sql)]
    assert [row for part in whole for row in part] == [row]
