"""The tools for AI agents: 60 questions about the demo's registry, asked through the protocol by a scripted client.

The expected answers are read from the registry's file with SQLite alone.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

import chessreg
from chessreg.cli.root import run_command_line
from tests.quick import quick_first

from .queries.test_any_value import DEMO

# Imported by the tests: every process of a run of all tests reads this file, and mcp takes a second.
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="requires mcp: pip install 'chessreg[mcp]'")

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agents")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extractall(path)
    return path


def connect(folder: Path, writable: bool = False) -> Any:
    """Return a context manager whose value calls a tool and returns its document, or the text of its error."""
    from mcp.client import Client

    from chessreg.agents.server import make_server

    @contextmanager
    def opened() -> Iterator[Ask]:
        with (
            chessreg.open(folder, read_only=not writable) as reg,
            anyio.from_thread.start_blocking_portal() as portal,
            portal.wrap_async_context_manager(Client(make_server(reg))) as client,
        ):

            def ask(tool: str, **arguments: Any) -> Any:
                result = portal.call(client.call_tool, tool, arguments)
                [content] = result.content
                return content.text if result.is_error else json.loads(content.text)

            ask.tools = lambda: portal.call(client.list_tools).tools  # type: ignore[attr-defined]
            yield ask

    return opened()


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Any]:
    with connect(folder) as asked:
        yield asked


@pytest.fixture(scope="module")
def stored(folder: Path) -> Iterator[Callable[..., Any]]:
    """The first row of a SELECT on the registry's file: one value, or a list of values."""
    with closing(sqlite3.connect(folder / "registry.db")) as file:

        def first(select: str) -> Any:
            row = file.execute(select).fetchone()
            return row[0] if len(row) == 1 else list(row)

        yield first


def id_of(name: str, noun: str = "run") -> str:
    return f"(SELECT target FROM annotation WHERE noun = '{noun}' AND word = 'name' AND value = '{name}')"


def row(**wanted: Any) -> Callable[[Any], Any]:
    """Return the function that finds the only row with these values in an answer."""

    def find(answer: Any) -> Any:
        [found] = [r for r in answer["rows"] if all(r.get(name) == value for name, value in wanted.items())]
        return found

    return find


def value(column: str, **wanted: Any) -> Callable[[Any], Any]:
    return lambda answer: row(**wanted)(answer)[column]


def total(answer: Any) -> int:
    return int(answer["total_rows"])


def first(column: str) -> Callable[[Any], Any]:
    return lambda answer: answer["rows"][0][column]


def ups(answer: Any) -> str:
    return "\n".join(answer["up"])


def downs(answer: Any) -> str:
    return "\n".join(answer["down"])


PLAIN = {"name": "games by termination", "where": "runs = 'plain'"}
BOARD = {"name": "best probe layers", "where": "label = 'piece' AND weights = 'trained' AND selected_on = 'test'"}
DIFFERENCE = {"runs": ["reference-board", "untrained-board"]}

QUESTIONS: list[tuple[str, str, dict[str, Any], Callable[[Any], Any], Any]] = [
    # question; tool; arguments; where the answer is; a SELECT or the value
    ("How many runs are there?", "status", {},
     lambda a: a["counts"]["run"], "SELECT count(*) - 1 FROM run"),
    ("How many probes?", "status", {}, lambda a: a["counts"]["probe"], "SELECT count(*) FROM probe"),
    ("How many checkpoints?", "status", {}, lambda a: a["counts"]["checkpoint"], "SELECT count(*) FROM checkpoint"),
    ("How many caches?", "status", {}, lambda a: a["counts"]["cache"], "SELECT count(*) FROM activation_cache"),
    ("Is anything running?", "status", {}, lambda a: a["queued_or_running"], []),
    ("Where is the registry?", "status", {}, lambda a: Path(a["registry"]).name, "registry.db"),
    ("How many runs measure legality?", "list_things", {"noun": "run", "words": "kind:legality"}, total,
     "SELECT count(*) FROM run WHERE kind = 'legality'"),
    ("Which runs are tagged paper?", "list_things", {"noun": "run", "words": "tag:paper"},
     lambda a: {r["name"] for r in a["rows"]}, {"plain", "edits"}),
    ("Which runs are invalid?", "list_things", {"noun": "run", "words": "invalid"}, first("name"), "tries"),
    ("Did any run fail?", "list_things", {"noun": "run", "words": "state:failed"}, total, 0),
    ("Which datasets are there?", "list_things", {"noun": "dataset"}, lambda a: {r["name"] for r in a["rows"]},
     {"sample", "lessons"}),
    ("How many games has the dataset sample?", "list_things", {"noun": "dataset"}, value("games", name="sample"),
     f"SELECT games FROM dataset WHERE id = {id_of('sample', 'dataset')}"),
    ("Which checkpoint has a name?", "list_things", {"noun": "checkpoint"},
     lambda a: {r["name"] for r in a["rows"]} >= {"reference", "untrained"}, True),
    ("How many layers has the reference?", "show", {"noun": "checkpoint", "reference": "reference"},
     lambda a: a["layers"], f"SELECT layers FROM checkpoint WHERE id = {id_of('reference', 'checkpoint')}"),
    ("How many parameters has it?", "show", {"noun": "checkpoint", "reference": "reference"},
     lambda a: a["parameters"], f"SELECT parameters FROM checkpoint WHERE id = {id_of('reference', 'checkpoint')}"),
    ("Which tokenizer does it use?", "show", {"noun": "checkpoint", "reference": "reference"},
     lambda a: a["tokenizer"], f"SELECT tokenizer FROM checkpoint WHERE id = {id_of('reference', 'checkpoint')}"),
    ("How many tokens has it seen?", "show", {"noun": "checkpoint", "reference": "reference"},
     lambda a: a["tokens_seen"], f"SELECT tokens_seen FROM checkpoint WHERE id = {id_of('reference', 'checkpoint')}"),
    ("What are the untrained weights?", "show", {"noun": "checkpoint", "reference": "untrained"},
     lambda a: a["source_format"], "random-init"),
    ("With which learning rate was it trained?", "show", {"noun": "run", "reference": "trained"},
     lambda a: a["spec"]["learning_rate"],
     f"SELECT json_extract(spec, '$.learning_rate') FROM run WHERE id = {id_of('trained')}"),
    ("For how many steps?", "show", {"noun": "run", "reference": "trained"}, lambda a: a["spec"]["steps"],
     f"SELECT json_extract(spec, '$.steps') FROM run WHERE id = {id_of('trained')}"),
    ("With which seed?", "show", {"noun": "run", "reference": "trained"}, lambda a: a["spec"]["seed"],
     f"SELECT json_extract(spec, '$.seed') FROM run WHERE id = {id_of('trained')}"),
    ("When was the cache completed?", "show", {"noun": "run", "reference": "reference-fit"},
     lambda a: a["completed_at"][:19].replace("T", " "),
     f"SELECT substr(completed_at, 1, 19) FROM run WHERE id = {id_of('reference-fit')}"),
    ("Which kind is the run sweep?", "show", {"noun": "run", "reference": "sweep"}, lambda a: a["kind"], "edit"),
    ("On which machine did the match run?", "list_things", {"noun": "run", "words": "plain"},
     value("host", name="plain"),
     "SELECT host FROM machine"),
    ("How do the plain games end?", "query", PLAIN, first("termination"),
     f"SELECT termination FROM game WHERE run_id = {id_of('plain')} GROUP BY termination"),
    ("How many plain games are there?", "query", PLAIN, first("n"),
     f"SELECT count(*) FROM game WHERE run_id = {id_of('plain')}"),
    ("Against whom did it play?", "query", PLAIN, first("opponent"),
     f"SELECT opponent FROM match WHERE run_id = {id_of('plain')}"),
    ("Which openings?", "query", PLAIN, first("opening"), f"SELECT opening FROM match WHERE run_id = {id_of('plain')}"),
    ("With which policy?", "query", PLAIN, first("policy"),
     f"SELECT policy FROM match WHERE run_id = {id_of('plain')}"),
    ("Which games are behind that row?", "rows_behind", {**PLAIN, "row": 1}, lambda a: {r["run"] for r in a["rows"]},
     {"plain"}),
    ("How many plies has its first game?", "rows_behind", {**PLAIN, "row": 1}, value("plies", unit=0),
     f"SELECT plies FROM game WHERE run_id = {id_of('plain')} AND unit = 0"),
    ("Which board shows it?", "rows_behind", {**PLAIN, "row": 1}, value("board", unit=3), "plain:3"),
    ("How does the first plain game end?", "board", {"reference": "plain:0"},
     lambda a: a["boards"] - 1, f"SELECT plies FROM game WHERE run_id = {id_of('plain')} AND unit = 0"),
    ("What is the start of it?", "board", {"reference": "plain:0", "ply": 0}, lambda a: a["fen"].split()[0],
     "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR"),
    ("What does the dataset's first game look like?", "board", {"reference": "sample:0", "ply": 0},
     lambda a: len(a["text"]) >= 9, True),
    ("What is the rating of sample-model.pt?", "query", {"name": "ratings"}, value("rating", player="sample-model.pt"),
     "SELECT rating FROM rating WHERE player = 'sample-model.pt'"),
    ("With which interval?", "query", {"name": "ratings"},
     lambda a: [row(player="sample-model.pt")(a)[c] for c in ("rating_low", "rating_high")],
     "SELECT low, high FROM rating WHERE player = 'sample-model.pt'"),
    ("From how many games?", "query", {"name": "ratings"}, value("games", player="sample-model.pt"),
     "SELECT games FROM rating WHERE player = 'sample-model.pt'"),
    ("By which estimator?", "query", {"name": "ratings"}, value("estimator", player="sample-model.pt"),
     "SELECT estimator FROM rating WHERE player = 'sample-model.pt'"),
    ("How many games did sample-model.pt win?", "query", {"name": "elo by intervention"},
     value("w", opponent="stockfish:0@time=0.1"),
     f"SELECT count(*) FROM game WHERE run_id = {id_of('others')} AND match = 0 AND result = '1-0'"),
    ("Which layer is best for the board?", "query", BOARD, first("layer"),
     f"SELECT unit FROM score WHERE run_id = {id_of('reference-board')} GROUP BY unit "
     "ORDER BY sum(correct) * 1.0 / sum(n) DESC LIMIT 1"),
    ("Is the probe better than one of untrained weights?", "query", BOARD,
     lambda a: a["rows"][0]["minus_untrained_low"] > 0, True),
    ("Is it better than the most frequent class?", "query", BOARD,
     lambda a: a["rows"][0]["minus_majority_high"] < 0, True),
    ("Which run is that?", "query", BOARD, first("runs"), "reference-board"),
    ("How do the two probe runs differ?", "compare_runs", DIFFERENCE, lambda a: set(a["differing"]["settings"]),
     {"cache", "test_cache"}),
    ("From which caches do they read?", "compare_runs", DIFFERENCE, lambda a: a["differing"]["settings"]["cache"],
     ["reference-fit", "untrained-fit"]),
    ("Is layer 0 different?", "compare_runs", DIFFERENCE,
     lambda a: next(m["differences"][1]["low"] < 0 < m["differences"][1]["high"] for m in a["metrics"]
                    if m["metric"] == "accuracy, test, layer 0"), True),
    ("What was the probe fitted on?", "lineage", {"reference": "reference-board"},
     lambda a: all(name in ups(a) for name in ("reference-fit", "reference-test", "trained", "lessons", "sample")),
     True),
    ("Was it fitted on the untrained cache?", "lineage", {"reference": "reference-board"},
     lambda a: "untrained" in ups(a), False),
    ("What depends on the checkpoint?", "lineage", {"reference": "trained"},
     lambda a: all(name in downs(a) for name in ("reference-board", "edits", "plain", "skill")), True),
    ("Which runs use the dataset lessons?", "lineage", {"reference": "lessons"}, lambda a: "trained" in downs(a), True),
    ("What are the inputs of the ratings?", "lineage", {"reference": "ratings"}, lambda a: "others" in ups(a), True),
    ("Which number does the paper give?", "published", {"name": "probe accuracy by layer", "limit": 1}, first("paper"),
     "Karvonen 2024"),
    ("Is it comparable?", "published", {"name": "probe accuracy by layer", "limit": 1},
     lambda a: a["rows"][0]["comparison"].startswith("not comparable"), True),
    ("Which table answers questions about win rates?", "list_queries", {"phrase": "win rate"},
     lambda a: len(a["rows"]), 1),
    ("Are there probes in this registry?", "list_queries", {"phrase": "probe accuracy by layer"},
     first("has_runs"), True),
    ("Are there autoencoders?", "list_queries", {"phrase": "sae reconstruction"}, first("has_runs"), False),
    ("How many games end in mate?", "sql",
     {"select": "SELECT count(*) AS n FROM games WHERE termination = 'checkmate'"},
     first("n"), "SELECT count(*) FROM game WHERE termination = 'checkmate'"),
    ("How long is the vector at layer 1?", "sql",
     {"select": "SELECT norm FROM vector JOIN runs USING (run_id) WHERE run = 'skill' AND layer = 1"}, first("norm"),
     f"SELECT norm FROM vector WHERE run_id = {id_of('skill')} AND layer = 1"),
    ("Which tables are there?", "sql", {"select": "SHOW TABLES", "limit": 500},
     lambda a: {"runs", "games", "checkpoints"} <= {r["name"] for r in a["rows"]}, True),
]  # fmt: skip


def test_there_are_sixty_questions() -> None:
    assert len(QUESTIONS) == 60


@pytest.mark.parametrize(
    ("question", "tool", "arguments", "read", "expected"), quick_first(20, QUESTIONS), ids=[q[0] for q in QUESTIONS]
)
def test_a_question_has_the_stored_answer(
    ask: Any, stored: Any, question: str, tool: str, arguments: dict[str, Any], read: Any, expected: Any
) -> None:
    answer = ask(tool, **arguments)
    assert isinstance(answer, dict), answer
    known = stored(expected) if isinstance(expected, str) and expected.startswith("SELECT") else expected
    found = read(answer)
    assert found == (pytest.approx(known) if isinstance(known, float) else known)


def test_nothing_can_be_written(folder: Path, ask: Any) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    before = {path: path.read_bytes() for path in files}
    assert all(tool.annotations.read_only_hint for tool in ask.tools())
    assert "Unknown tool" in ask("annotate", noun="run", reference="plain", key="note", text="x")
    for select in ("DELETE FROM run", "COPY (SELECT 1) TO 'x.csv'", "SELECT 1; SELECT 2", "INSTALL httpfs"):
        assert isinstance(ask("sql", select=select), str), select
    assert "disabled" in ask("sql", select="SELECT * FROM read_text('/etc/hostname')")
    for _, tool, arguments, *_ in QUESTIONS[::5]:
        ask(tool, **arguments)
    assert [path.name for path in files if path.read_bytes() != before[path]] == []


def test_a_file_is_not_a_query(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.sql"
    path.write_text("-- title: own\n-- statement: table\nSELECT 1")
    for name in (str(path), "own.sql", "./markov.py"):
        assert "is a file" in ask("query", name=name)


def test_errors_are_one_text_with_a_hint(ask: Any) -> None:
    assert ask("show", noun="run", reference="plan").startswith("Error executing tool show: run 'plan' was not found")
    assert ask("lineage", reference="board").count("untrained-board") == 1
    assert "unknown noun" in ask("list_things", noun="nonsense")
    assert "has no board at ply 99" in ask("board", reference="plain:0", ply=99)
    assert "99999" in ask("board", reference="reference-board:0", item=99999)
    assert "greater than or equal" in ask("query", name="ratings", limit=0)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("sql", {"select": "SELECT * FROM runs, games LIMIT 300"}), ("published", {"name": "probe accuracy by layer"})],
)
def test_pages_of_a_large_answer_are_bounded_and_add_up(ask: Any, tool: str, arguments: dict[str, Any]) -> None:
    from chessreg.agents.server import MAX_ANSWER_CHARS

    rows: list[Any] = []
    while True:
        answer = ask(tool, **arguments, limit=500, offset=len(rows))
        assert len(json.dumps(answer, ensure_ascii=False)) <= MAX_ANSWER_CHARS
        rows += answer["rows"]
        if "next_offset" not in answer:
            break
        assert answer["next_offset"] == len(rows)
    assert len(rows) == answer["total_rows"] > len(answer["rows"])


def test_long_texts_and_lists_are_shortened_with_a_mark() -> None:
    from chessreg.agents.server import bound_answer

    answer = json.loads(bound_answer({"text": "a" * 5000, "list": list(range(900)), "deep": {"nan": float("nan")}}))
    assert answer["text"].endswith("… (5,000 characters)")
    assert answer["list"][-1] == "… (900 items)"
    assert answer["deep"]["nan"] is None


def test_a_writable_server_names_tags_and_notes(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "own")
    with connect(tmp_path / "own", writable=True) as ask:
        assert ask("annotate", noun="run", reference="plain", key="note", text="read by an agent") == {
            "note": "read by an agent"
        }
        ask("annotate", noun="checkpoint", reference="untrained", key="tag", text="control")
        assert "validation error" in ask("annotate", noun="run", reference="plain", key="archive", text="x")
        [found] = [r for r in ask("list_things", noun="checkpoint")["rows"] if r["name"] == "untrained"]
        assert found["tags"] == ["control"]


def test_the_command_serves_on_stdin_and_stdout(folder: Path) -> None:
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-m", "chessreg.cli", "--registry", str(folder / "registry.db"), "mcp"]

    async def talk() -> Any:
        root = Path(__file__).parents[1]
        server = StdioServerParameters(command=sys.executable, args=words, cwd=str(root), env=dict(os.environ))
        async with Client(stdio_client(server)) as client:
            return await client.call_tool("query", {"name": "ratings"})

    [content] = anyio.run(talk).content
    assert json.loads(content.text)["total_rows"] == 3


def test_without_the_package_one_line_names_it(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "chessreg.agents.server", raising=False)
    assert run_command_line(["--registry", str(folder / "registry.db"), "mcp"]) == 4
    assert "the package mcp is not installed" in capsys.readouterr().err
