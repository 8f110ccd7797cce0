"""The library as a notebook uses it: every method does the same as the command of its name."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import chess
import click
import pytest
import torch

import chessreg
from chessreg.api import Registry
from chessreg.cli.root import root, run_command_line
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.probe import ProbeSpec
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.rows import MOST_SHOWN, Rows, to_plain

from .queries.test_any_value import DEMO


@pytest.fixture
def printed(pristine_world: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON document that a command prints of the world's registry."""

    def command(*words: str) -> Any:
        capsys.readouterr()
        assert run_command_line(["--registry", str(pristine_world), *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


@pytest.fixture
def reg(pristine_world: Path) -> Any:
    with chessreg.open(str(pristine_world)) as session:
        yield session


def test_a_registry_is_opened_where_there_is_one_and_made_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="typo"):
        chessreg.open(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    with chessreg.init(tmp_path / "new"), chessreg.open(tmp_path / "new") as reg:
        assert reg.runs() == []
        assert repr(reg.runs()) == "no rows"


def test_lists_are_those_of_the_commands(reg: Registry, printed: Any) -> None:
    assert to_plain(reg.runs()) == printed("runs", "list")
    assert to_plain(reg.runs("kind:cache")) == printed("runs", "list", "kind:cache") != []
    assert to_plain(reg.runs(sort="-units")) == printed("runs", "list", "--sort", "-units")
    assert to_plain(reg.datasets()) == printed("dataset", "list")
    assert to_plain(reg.checkpoints()) == printed("checkpoint", "list")
    assert to_plain(reg.things("cache")) == printed("cache", "list")
    assert to_plain(reg.status()["going"]) == printed("status")["going"] == []


def test_tables_comparisons_and_lineage_are_those_of_the_commands(reg: Registry, printed: Any) -> None:
    asked = "SELECT kind, count(*) AS n FROM runs GROUP BY kind ORDER BY kind"
    assert reg.sql(asked).rows == printed("query", "--sql", asked)["rows"]
    first, second = (row["name"] for row in reg.runs("kind:cache")[:2])
    assert to_plain(reg.compare(first, second).as_dict()) == printed("compare", first, second)
    assert to_plain({way: tree.as_dict() for way, tree in reg.lineage(first).items()}) == printed("lineage", first)
    assert reg.published("elo by intervention").rows == printed("query", "elo by intervention", "--published")["rows"]
    with pytest.raises(BadInputError, match="SELECT"):
        reg.sql("DROP TABLE run")


def test_ids_have_one_form_everywhere(reg: Registry) -> None:
    nouns = ("cache", "probe", "vector", "checkpoint", "dataset")
    rows = [*reg.runs(), *(row for noun in nouns for row in reg.things(noun)), *reg.status()["ended"]]
    ids = [value for row in rows for name, value in row.items() if name == "id" or name.endswith("_id")]
    assert len(ids) > len(rows)
    assert all(value is None or re.fullmatch("[0-9a-f]{32}", value) for value in ids)
    run = reg.runs()[0]
    same = {reg.id("run", str(form)) for form in (run["id"], run["id"][-6:], UUID(run["id"]), run["name"])}
    assert same == {run["id"]}
    assert reg.compare(*(UUID(row["id"]) for row in reg.runs("kind:cache")[:2])).subjects
    text = repr(reg.runs())
    assert run["id"] not in text
    assert re.search(rf"^{run['id'][-6:]} .* {run['state']} ", text, re.M), text


def test_a_list_is_a_table_for_people_and_data_frames(reg: Registry) -> None:
    runs = reg.runs()
    text = repr(runs)
    assert "kind" in text.splitlines()[0]
    assert all(row["kind"] in text for row in runs[:MOST_SHOWN])
    frame = runs.to_pandas()
    assert frame["id"].tolist() == [row["id"] for row in runs]
    assert runs.to_arrow().num_rows == len(runs)
    many = Rows([{"text": f"<b>{n}</b>"} for n in range(MOST_SHOWN + 5)], {"text": "text"})
    assert repr(many).endswith("… and 5 more")
    html = many._repr_html_()
    assert "<td>&lt;b&gt;0&lt;/b&gt;</td>" in html
    assert "<b>0" not in html
    assert html.endswith("<p>… and 5 more</p>")
    result = reg.sql("SELECT '<i>' AS a, 1.5 AS b")
    assert "<td>&lt;i&gt;</td>" in result._repr_html_()
    assert "1.5" in repr(result)


def test_what_is_said_of_a_run_is_kept_and_taken_back(pristine_world: Path, tmp_path: Path) -> None:
    reg = chessreg.open(shutil.copytree(pristine_world, tmp_path / "world"))
    run = reg.runs()[0]["id"]
    reg.name(run, "renamed")
    reg.tag("renamed", "paper")
    reg.note("renamed", "read again")
    reg.invalidate("renamed", "wrong games")
    [row] = reg.runs("renamed")
    assert (row["name"], row["tags"], row["invalid"]) == ("renamed", ["paper"], "wrong games")
    reg.annotate("renamed", "invalid", withdrawn=True)
    reg.annotate("renamed", "tag", "paper", withdrawn=True)
    [row] = reg.runs("renamed")
    assert (row["tags"], row["invalid"]) == ([], None)
    with pytest.raises(NotFoundError):
        reg.tag("nothing", "paper")


def test_games_and_models_come_in_by_path(tmp_path: Path, shared_games: Path) -> None:
    with chessreg.init(tmp_path / "reg") as reg:
        added = reg.add_dataset(shared_games, name="mine")
        assert re.fullmatch("[0-9a-f]{32}", added)
        assert added == reg.id("dataset", "mine") == reg.show("dataset", added)["id"]
        assert [row["id"] for row in reg.datasets()] == [added]
        assert reg.add_dataset(str(shared_games)) == added
        with pytest.raises(NotFoundError):
            reg.import_checkpoint(tmp_path / "none.pt")


@pytest.fixture
def shared_games(tmp_path: Path) -> Path:
    path = tmp_path / "games.pgn"
    path.write_text('[Event "x"]\n[Result "1-0"]\n\n1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0\n')
    return path


TERMINAL_ONLY = {"demo", "completion", "tui", "uci", "mcp", "supervisor run", "supervisor start", "supervisor stop"}
ANNOTATIONS = {
    "name",
    "note",
    "tag",
    "untag",
    "star",
    "unstar",
    "pin",
    "unpin",
    "archive",
    "restore",
    "invalidate",
    "unmark",
}


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    context = click.Context(group)
    for word in group.list_commands(context):
        found, full = group.get_command(context, word), f"{name} {word}".strip()
        if hasattr(found, "list_commands") and full not in ("run", "launch"):
            yield from commands(found, full)
        else:
            yield full, found


def test_every_command_has_a_counterpart_in_python() -> None:
    without = set()
    for name, command in commands(root):
        document = any("--json" in option.opts for option in command.params)  # Registry.command returns it
        word = name.split()[-1]
        if not (document or word in ANNOTATIONS or hasattr(Registry, name)):
            without.add(name)
    assert without == TERMINAL_ONLY
    assert all(hasattr(Registry, name) for name in ("command", "annotate", "run", "launch"))


def test_a_command_returns_its_document_and_raises_its_error(pristine_world: Path, tmp_path: Path) -> None:
    with chessreg.open(shutil.copytree(pristine_world, tmp_path / "world")) as reg:
        assert reg.show("checkpoint", "reference")["name"] == "reference"
        assert reg.command("runs", "show", "reference-fit")["kind"] == "cache"
        reg.split_dataset("sample", {"a": 0.25, "b": 0.75}, seed=3)
        assert {"a", "b"} <= {part["name"] for part in reg.show("dataset", "sample")["parts"]}
        with pytest.raises(NotFoundError, match="nothing"):
            reg.show("checkpoint", "nothing")
        with pytest.raises(BadInputError, match="--typo"):
            reg.command("runs", "list", "--typo")
        folder = tmp_path / "exported"
        reg.export_checkpoint("reference", folder)
        assert (folder / "config.json").is_file()
        assert "reference-fit" in json.dumps(reg.reproduce("reference-fit"))


def test_models_vectors_and_reports_are_read_as_they_come(reg: Registry) -> None:
    model = reg.model("reference")
    ids = model.encoding.encode(";1.e4 e5")
    torch.testing.assert_close(model.logits(ids), model.logits(torch.tensor([ids.tolist()])))
    assert model.activations(ids, ["blocks.0.hook_resid_post"])["blocks.0.hook_resid_post"].shape[:2] == (1, len(ids))
    with pytest.raises(BadInputError, match="several layers"):
        reg.vector("skill")
    first, second = (row["name"] for row in reg.runs("kind:cache")[:2])
    assert first in repr(reg.compare(first, second)).splitlines()[0]
    assert "<table>" in reg.compare(first, second)._repr_html_()
    tree = repr(reg.lineage("reference-board")["up"])
    assert tree.splitlines()[0] == "run reference-board"
    assert "  cache: run reference-fit" in tree.splitlines()
    report = reg.run(ProbeSpec(cache="reference-fit", epochs=1))
    assert repr(report) == f"probe run {report.run_id.hex[-6:]}: complete, 2 of 2 units"
    ranks = repr(BoardFrame.from_fen(chess.STARTING_FEN)).splitlines()
    assert (len(ranks), ranks[0], ranks[-1]) == (8, "rnbqkbnr", "RNBQKBNR")


def test_a_plot_is_a_figure(reg: Registry, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nothing to plot"):
        reg.plot("probe accuracy by layer")
    with zipfile.ZipFile(DEMO) as demo:
        demo.extractall(tmp_path)
    [registry] = tmp_path.rglob("registry.db")
    with chessreg.open(registry) as of_demo:
        axes = of_demo.plot("probe accuracy by layer").axes
        assert "layer" in {axis.get_xlabel() for axis in axes}
