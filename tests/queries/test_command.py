"""`chessreg query` as it is typed: data on stdout, talk on stderr, and its exit codes."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys

import pytest

from chessreg.cli.root import run_command_line
from chessreg.queries.published import list_published_values
from chessreg.registry.database import Database
from store import Store
from tests.quick import quick_first


@pytest.fixture
def type_(tmp_path, monkeypatch, capsys):
    """Type a command; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHESSREG_REGISTRY", str(tmp_path / "registry.db"))
    Store.create(tmp_path / "store")  # the missing registry: reading commands report it

    def typed(*words):
        capsys.readouterr()
        code = run_command_line(["query", *words])
        return (code, *capsys.readouterr())

    return typed


@pytest.fixture
def filled(database, make):
    checkpoint = make.checkpoint("reference")
    make.play(checkpoint, [{}, {"result": "0-1"}], name="plain")
    make.play(checkpoint, [{"result": "0-1"}] * 2, intervention=make.intervention(checkpoint), name="edited")
    return make


def test_a_table_on_stdout_and_its_provenance_on_stderr_on_request(type_, filled):
    assert "query " not in type_("elo by intervention")[2]
    code, out, err = type_("elo by intervention", "--provenance")
    assert code == 0
    assert "contrastive:skill L3-5 x0.1" in out
    assert "query " not in out
    *warnings, footer = err.splitlines()
    assert footer.startswith("elo by intervention: 2 rows; query ")
    assert "row 2: no control direction has played: --intervention.control random plays one" in warnings


def test_csv_on_stdout_holds_only_data(type_, filled):
    _, out, _ = type_("elo", "--format", "csv")
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("checkpoint,intervention,vector,color,")


def test_json_is_one_document_with_meta_and_nothing_on_stderr(type_, filled):
    code, out, err = type_("elo", "--json", "--run", "plain")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["n"] for row in document["rows"]] == [2]
    assert document["meta"]["scope"] == {"run": ["plain"]}


def test_an_empty_registry_gives_a_helpful_line_and_typed_columns(type_, database):
    code, out, err = type_("elo by intervention")
    assert (code, out) == (0, "")
    assert err.startswith("no runs yet; chessreg run play produces the rows of this table\ncolumns: checkpoint, ")
    code, out, aliased = type_("elo")
    assert (code, out) == (0, "")
    assert aliased.startswith('this is "elo by intervention": How strong is the model')
    assert aliased.endswith(err)
    code, out, _ = type_("elo", "--format", "csv")
    assert (code, out.count("\n")) == (0, 1)


def test_rows_behind_a_line_of_the_table(type_, filled):
    code, out, _ = type_("elo", "--rows", "2", "--json")
    assert code == 0
    assert [(row["run"], row["unit"]) for row in json.loads(out)["rows"]] == [("edited", 0), ("edited", 1)]
    code, _, err = type_("elo", "--rows", "3")
    assert (code, err.splitlines()[0]) == (4, "error: row 3 does not exist")


def test_many_rows_behind_a_row_are_a_screenful_with_their_total(type_, make):
    make.play(make.checkpoint("reference"), [{}] * 49 + [{"result": "0-1"}], name="long")
    code, out, err = type_("elo by intervention", "--rows", "1")
    assert (code, out.splitlines()[-1].split()[0]) == (0, "40")
    assert "result" in out.splitlines()[-42].split()  # the games after the first 40 have another result
    assert err.splitlines()[0] == "the first 40 rows of 50: --max-rows 0 prints all"
    for words, last in ((("--max-rows", "0"), "50"), (("--max-rows", "3"), "3")):
        _, out, err = type_("elo by intervention", "--rows", "1", *words)
        assert out.splitlines()[-1].split()[0] == last
        assert ("--max-rows 0 prints all" in err) == (last == "3")
    assert len(json.loads(type_("elo by intervention", "--rows", "1", "--json")[1])["rows"]) == 50
    assert len(type_("elo by intervention", "--rows", "1", "--format", "csv")[1].splitlines()) == 51
    _, out, err = type_("elo by intervention", "--rows", "1", "--records")
    assert (out.count("── row"), err.splitlines()[0]) == (40, "the first 40 rows of 50: --max-rows 0 prints all")
    _, out, err = type_("--sql", "SELECT unit FROM games ORDER BY unit", "--max-rows", "2")
    assert (out.splitlines()[-1].split(), err) == (["2", "1"], "the first 2 rows of 50: --max-rows 0 prints all\n")
    code, _, err = type_("--sql", "SELECT unit FROM games", "--max-rows", "2", "--format", "csv")
    assert (code, "other formats have all rows" in err) == (2, True)


def test_long_lines_name_records_unless_a_terminal_gets_them(type_, filled):
    _, out, err = type_("elo by intervention", "--wide")
    longest = max(map(len, out.splitlines()))
    assert longest > 160
    assert err.splitlines()[0] == f"lines have up to {longest} characters: --records prints each row as a block"
    assert "characters" not in type_("elo by intervention", "--records")[2]
    assert "characters" not in type_("elo by intervention", "--show", "checkpoint,score")[2]


@pytest.mark.slow
def test_only_the_columns_that_are_asked_for_with_their_intervals(type_, filled):
    code, out, _ = type_("elo", "--show", "intervention, score,n", "--format", "csv")
    assert code == 0
    assert out.splitlines()[0] == "intervention,score,score_low,score_high,n"
    code, out, _ = type_("elo", "--show", "intervention,score")
    assert (code, out.split()[:3]) == (0, ["#", "intervention", "score"])
    code, out, _ = type_("elo", "--show", "checkpoint_id,score")  # a column that else is hidden
    assert (code, out.split()[:4]) == (0, ["#", "checkpoint", "id", "score"])
    assert "stopped" not in type_("elo")[1]
    code, out, _ = type_("elo", "--show", "stopped,n,minus_random")  # they hold nothing, and else are left out
    assert (code, " ".join(out.splitlines()[:2]).split()) == (0, ["delta", "#", "stopped", "n", "random"])
    code, out, err = type_("elo", "--show", "scor")
    assert (code, out) == (4, "")
    assert err == "error: column 'scor' does not exist\nhint: did you mean score?\n"


@pytest.mark.slow
def test_published_numbers_beside_ours(type_, filled):
    code, out, err = type_("elo", "--published", "--format", "markdown")
    assert code == 0
    assert "\n| 8 layer random | none | 15.7 | 50.0 [" in out
    assert re.search(r"0 of \d+ rows are comparable", err)
    _, every, _ = type_("elo", "--published", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(every)))) == sum(
        v.query == "elo by intervention" for v in list_published_values()
    )


def test_sql_of_ones_own(type_, filled):
    code, out, _ = type_("--sql", "SELECT run, count(*) AS n FROM games GROUP BY run", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == [{"run": "edited", "n": 2}, {"run": "plain", "n": 2}]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["elo by interventoin"], 3, 'hint: did you mean "elo by intervention"'),
        (["elo", "--checkpoint", "refrence"], 3, "reference"),
        (["--sql", "DROP TABLE game"], 4, "error: DROP is not allowed"),
        (["--sql", "SELECT * FROM nowhere"], 4, "nowhere"),
        (["elo", "--where", "1 = 1; DELETE FROM run"], 4, "--where is one SQL condition"),
        (["elo", "--since", "soon"], 4, "'soon' is not a date"),
        (["elo", "--output", "x.xls"], 4, ".xls"),
        ([], 2, "--list prints all queries"),
        (["elo", "--sql", "SELECT 1"], 2, "give the NAME of a query, or --sql"),
        (["--sql", "SELECT 1", "--tag", "x"], 2, "apply to named queries"),
        (["elo", "--format", "xls"], 2, "xls"),
    ],
)
def test_what_cannot_be_done_is_one_line_a_hint_and_an_exit_code(type_, filled, words, code, said):
    status, out, err = type_(*words)
    assert (status, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_errors_as_json(type_, filled):
    code, out, err = type_("elo by interventoin", "--json")
    assert (code, out) == (3, "")
    assert json.loads(err)["error"] == "query 'elo by interventoin' does not exist"


def test_sql_in_place_of_a_name_is_told_where_it_goes(type_, filled):
    sql = "select state\nfrom runs where run = 'plain'"
    code, out, err = type_(sql)
    assert (code, out) == (3, "")
    said, hint = err.splitlines()
    assert said == "error: an SQL statement requires --sql"
    words = shlex.split(hint.removeprefix("hint: chessreg query "))
    assert type_(*words)[0] == 0
    assert type_("selected games")[2].startswith("error: query 'selected games' does not exist")


def test_a_phrase_without_a_match_suggests_queries_with_runs(type_, filled):
    code, out, err = type_("are the games too short")
    assert (code, out) == (3, "")
    assert 'hint: did you mean "games by termination" or ' in err
    assert "skill of other games" not in err, "it has no runs here"
    code, _, err = type_("score by intervention")
    assert code == 0
    assert 'this is "elo by intervention": ' in err


def test_a_wrong_name_makes_no_registry(type_, tmp_path):
    assert type_("xyzzy")[0] == 3
    assert not (tmp_path / "registry.db").exists()


def test_the_list_and_what_the_columns_mean(type_):
    assert "elo by intervention" in type_("--list")[1]
    rows = json.loads(type_("--list", "--json")[1])
    assert {"title", "topic", "question", "aliases", "paper", "made_by", "has_runs"} == set(rows[0])
    code, out, _ = type_("elo", "--columns")
    assert code == 0
    assert "on the same openings" in out


def test_a_file_is_written_and_named_on_stderr(type_, filled, tmp_path):
    code, out, err = type_("elo", "--output", "table.tex")
    assert (code, out) == (0, "")
    assert "table.tex: 2 rows as latex" in err
    assert r"\toprule" in (tmp_path / "table.tex").read_text()


def test_rows_that_wait_are_taken_in_first(type_, tmp_path, monkeypatch, database, make):
    from store import Store
    from store.fragments import FragmentWriter

    monkeypatch.setenv("CHESSREG_STORE", str(tmp_path / "store"))
    run = make.run("toy", 1, done=0)
    with FragmentWriter(Store.create(tmp_path / "store"), run.id.hex, run.attempt_id.hex) as writer:
        key = {"run_id": run.id.hex, "attempt_id": run.attempt_id.hex}
        writer.add("score", {**key, "unit": 0, "split": "toy", "item": 3, "n": 1, "correct": 1})
        writer.add("unit_range", {**key, "start": 0, "stop": 1})
    assert type_("--sql", "SELECT item, correct FROM score", "--format", "csv")[1] == "item,correct\n3,1\n"


@pytest.mark.parametrize("sql", quick_first(1, ["SELECT 1 AS one", "SELECT nonsense"]))
def test_nothing_of_duckdbs_binding_is_told_at_the_end(tmp_path, sql):
    Database.open(tmp_path / "registry.db").close()
    command = [sys.executable, "-m", "chessreg.cli", "--registry", str(tmp_path / "registry.db"), "query", "--sql", sql]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if "one" in sql else 4), done.stderr
    assert "nanobind" not in done.stderr
    assert ("1" in done.stdout) == ("one" in sql)


def test_the_list_of_queries_needs_neither_sqlalchemy_nor_the_engine(filled):
    code = (
        "import sys\n"
        "from chessreg.cli.root import run_command_line\n"
        "status = run_command_line(['--registry', sys.argv[1], 'query', '--list'])\n"
        "print([name for name in ('sqlalchemy', 'duckdb', 'numpy', 'pydantic') if name in sys.modules], status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(filled.database.place.path)], capture_output=True, text=True, check=True
    )
    assert "elo by intervention" in done.stdout
    assert done.stdout.splitlines()[-1] == "[] 0"
