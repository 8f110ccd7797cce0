"""Tables fit the terminal: default columns, one line per row, and a line that names the columns left out."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from chessreg import text_table
from chessreg.errors import ChessregError
from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind
from chessreg.queries.catalogue import MOST_DEFAULTS, list_entries, parse_entry
from chessreg.queries.render import choose_columns, format_table, render_result
from chessreg.registry.database import Database
from chessreg.rows import format_rows

from ..conftest import queries_with_runs

DEMO = Path(__file__).parent.parent / "fixtures" / "demo" / "demo.zip"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extractall(folder)
    with Database.open(next(folder.rglob("registry.db")), create=False) as database:
        yield database


@pytest.fixture(scope="module")
def results_of_all(demo):
    return {entry.title: run_query(demo, entry) for entry in queries_with_runs(demo)}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_table_has_one_line_per_row_within_the_width(results_of_all, width):
    assert sum(len(result) > 0 for result in results_of_all.values()) > 15
    for title, result in results_of_all.items():
        lines = format_table(result, width).splitlines()
        assert max(map(len, lines), default=0) <= width, title
        numbered = [line for line in lines if line.split()[:1] and line.split()[0].isdigit()]
        assert [int(line.split()[0]) for line in numbered] == list(range(1, len(result) + 1)), title


def test_every_query_declares_keys_and_answers_of_at_most_nine_columns():
    for entry in list_entries():
        assert entry.default.keys, entry.title
        assert entry.default.answers, entry.title
        assert len(set(entry.default.names)) == len(entry.default.names) <= MOST_DEFAULTS
        assert entry.question.endswith("?"), entry.title
        assert entry.topic != "others", entry.title


LONG_KEYS = {"causes of no skill effect": ("of",)}  # texts that no line has room for: --wide shows them


def test_rows_of_a_printed_table_differ_in_its_key_columns(results_of_all):
    """Untrained twins were rows with the name of their trained model: `weights` was not printed."""
    for title, result in results_of_all.items():
        shown, _ = choose_columns(result)
        defaults = result.entry.default
        keys = [name for name in shown if name not in (*defaults.answers, *defaults.counts)]
        keys += [name for name in LONG_KEYS.get(title, ()) if name not in keys]
        rows = [tuple(str(row[name]) for name in keys) for row in result.rows]
        assert len(set(rows)) == len(rows), f"{title}: {keys}"
    probes = results_of_all["best probe layers"]
    assert {"weights", "selected_on"} <= set(choose_columns(probes)[0])
    assert {row["weights"] for row in probes.rows} == {"trained", "untrained"}


def test_the_answer_stays_in_a_narrow_terminal(results_of_all):
    result = results_of_all["probe accuracy by layer"]
    text = format_table(result, 40)
    assert "accuracy" in text
    assert "not shown: " in text
    assert "(--wide)" in text
    shown = result.rows[0]["accuracy"]
    assert f"{shown:.1f} [" in text


def test_a_line_names_the_runs_of_each_row_unless_a_column_does(results_of_all):
    result = results_of_all["probe accuracy by layer"]
    *_, runs, hidden = format_table(result, 120).splitlines()
    names = list(dict.fromkeys(row["run"] for row in result.rows))
    assert runs.startswith(f"runs: 1-{sum(row['run'] == names[0] for row in result.rows)} {names[0]}; ")
    assert "run" not in re.findall(r"\w+", hidden)
    assert "runs: " not in format_table(result, 30)  # it does not fit
    assert "run: " not in format_table(result.select_columns(["run", "layer"]), 120)


def test_wide_and_chosen_columns_are_printed_whole(results_of_all):
    result = results_of_all["probe accuracy by layer"]
    assert set(choose_columns(result)[0]) < set(choose_columns(result, wide=True)[0])
    assert format_table(result, 60, wide=True) == render_result(result, "records"), "it does not fit"
    assert "── row" not in format_table(result, 600, wide=True)
    assert "not shown" not in format_table(result, 600, wide=True)
    assert choose_columns(result.select_columns(["run", "layer"]))[0] == ["run", "layer"]
    for format in ("markdown", "latex"):
        assert len(render_result(result, format, wide=True)) > len(render_result(result, format))


def test_unscored_games_are_counted_where_no_game_has_a_score(database, make):
    make.play(make.checkpoint("reference"), [{"result": "*", "termination": "move_limit"}] * 3)
    result = run_query(database, "wins by level")
    names, same = choose_columns(result)
    assert "unscored" in {*names, *same}
    (row,) = [line for line in format_table(result, 80).splitlines() if line.startswith("1 ")]
    assert row.split()[-1] == "3"
    make.play(make.checkpoint("scored"), [{"result": "1-0"}])
    assert "unscored" not in choose_columns(run_query(database, "wins by level", checkpoint=["scored"]))[0]


def test_rows_behind_a_row_lose_columns_from_the_right_that_do_not_fit(database, make):
    make.play(make.checkpoint("reference"), [{"result": "1-0"}, {"result": "0-1"}])
    behind = query_rows_behind(database, "elo by intervention", 1)
    whole = format_table(behind)
    assert "not shown" not in whole
    text = format_table(behind, 35)
    assert all(len(line) <= 35 for line in text.splitlines())
    assert "board" in text
    assert "not shown: " in text
    assert "── row 2 ──" in format_table(behind, 35, wide=True)


def test_records_have_every_column_of_each_row(results_of_all):
    result = results_of_all["probe accuracy by layer"]
    lines = render_result(result, "records").splitlines()
    assert sum(line.startswith("── row ") for line in lines) == len(result)
    names, same = choose_columns(result, wide=True)
    assert len(lines) == len(result) * (1 + len(names) + len(same))


@pytest.mark.parametrize("header", ["a; zzz; n", "a", "a; b; n; n", "a, b, c, d, e, f, g, h, i; n", "hid; a"])
def test_a_wrong_list_of_default_columns_is_refused(header):
    columns = "".join(f"--   {name}: text\n" for name in "abcdefghin") + "--   hid [hidden]: text\n"
    text = f"""-- title: t
-- paper: p
-- kinds: probe
-- made by: chessreg run probe
-- default: {header}
-- columns:
{columns}
-- statement: base
SELECT 1
-- statement: table
SELECT 1
-- statement: rows
SELECT 1
"""
    with pytest.raises(ChessregError, match="default"):
        parse_entry(text, Path("t.sql"))


def test_long_keys_keep_both_ends_and_wide_characters_count_twice():
    cells = {"edit": ["contrastive:white_elo L5-6 x-0.8", "棋" * 20], "n": ["1", "2"]}
    text_table.shorten_to_fit(["edit", "n"], ["edit"], {"edit": "edit", "n": "n"}, cells, 23)
    assert cells["edit"][0] == "contrastiv…5-6 x-0.8"
    lines = text_table.draw_table(["edit", "n"], list(zip(*cells.values(), strict=True)), [False, True])
    assert {text_table.measure_column("", [line]) for line in lines[1:]} <= {23}


def test_a_list_that_is_too_wide_drops_its_last_column_and_keeps_names_whole():
    row = {"name": "mine-untrained", "tokenizer": "pgn-char-32", "seed": 0, "source": "random-init"}
    headings = {name: name for name in row}
    lines, hidden = format_rows([row], headings, 34)
    assert (lines[-1].split(), hidden.omitted_names) == (["mine-untrained", "pgn-char-32", "0"], ["source"])
    lines, hidden = format_rows([row], headings, 31)
    assert (lines[-1].split(), hidden.omitted_names) == (["mine-untrained", "pgn-…r-32", "0"], ["source"])
    lines, hidden = format_rows([row], headings, 20)
    assert (lines[-1].split(), hidden.omitted_names) == (["mine-untrained"], ["tokenizer", "seed", "source"])


def test_a_list_leaves_out_columns_without_a_value_and_names_them():
    rows = [
        {"name": "mine", "tokens_seen": None, "tags": [], "seed": 0},
        {"name": "yours", "tokens_seen": None, "tags": [], "seed": None},
    ]
    headings = {"name": "name", "tokens_seen": "tokens seen", "tags": "tags", "seed": "seed"}
    lines, hidden = format_rows(rows, headings)
    assert lines[0].split() == ["name", "seed"]
    assert hidden == ([], ["tokens seen", "tags"])
    assert hidden.describe(80, "--json") == ["without a value: tokens seen, tags (--json)"]
    rows[1]["tags"] = ["paper"]
    assert format_rows(rows, headings)[1].empty == ["tokens seen"]
    lines, hidden = format_rows(rows, headings, 12)
    assert hidden.describe(80, "--json") == ["not shown: seed (--json); without a value: tokens seen (--json)"]
    assert len(hidden.describe(40, "--json")) == 2
    lines, hidden = format_rows([{"name": None, "tags": None}], {"name": "name", "tags": "tags"})
    assert (lines[0], hidden.empty) == ("name", ["tags"])
    assert format_rows([{"name": "mine", "why": None}], {"name": "name", "why": ""})[1].empty == []
