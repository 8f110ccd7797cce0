"""The data screens: every noun against its command, charts against the numbers of `probe list` and `vector list`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import chess
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from chessreg.cli.root import run_command_line
from chessreg.entities import load_entity
from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.experiments.sae import SaeSpec
from chessreg.games.datasets.bags import encode_record, write_bag
from chessreg.lab.question import list_checkpoint_choices
from chessreg.models.importers import UnrecordedSettings
from chessreg.registry import lineage
from chessreg.session import open_session
from tui import show
from tui.data import entity_rows
from tui.data.launch_form import list_candidates
from tui.data.query_answers import list_scope_words
from tui.model_process import ModelProcess
from tui.screens.boards import BoardScreen
from tui.screens.lineage import LineageScreen
from tui.screens.things import DataScreen, ThingScreen
from tui.widgets.chart import ChartView
from tui.widgets.table import PageTable


async def test_every_noun_has_its_list(drive, studied: Path, command: Any) -> None:
    async with drive(studied, size=(160, 45), start="data") as driver:
        assert isinstance(driver.screen, DataScreen)
        (games,) = command("dataset", "list")
        line = next(line for line in driver.lines if " games " in line and "fit test" in line)
        assert f" {games['games']} " in line
        assert f" {games['plies']} " in line
        await driver.press("tab")
        for row in command("checkpoint", "list"):
            assert any((row["name"] or "") in line and f"{row['parameters']:,}" in line for line in driver.lines)
        line = next(line for line in driver.lines if " untrained " in line)
        assert " deep " in line  # whose twin it is
        await driver.press("tab")
        for row in command("cache", "list"):
            line = next(line for line in driver.lines if f" {row['name']} " in line)
            assert show.format_size(row["bytes"]) in line
            (same,) = [line for line in driver.lines if "same in all rows: " in line]
            assert f" rows {row['rows']} · " in same
        await driver.press("tab", "tab")
        assert "[vectors 2]" in driver.text
        assert "random" in driver.text
        await driver.press("tab")
        assert "[SAEs 0]" in driver.text
        assert "no SAEs yet: chessreg run sae" in driver.text
        await driver.press("y")
        assert driver.app.clipboard == "chessreg sae list"


@pytest.mark.slow
async def test_the_accuracy_chart_has_the_numbers_of_probe_list(drive, studied: Path, command: Any) -> None:
    told = command("probe", "list", "--run", "deep-board")
    assert len(told) == 3
    async with drive(studied, size=(160, 45), start="data") as driver:
        await driver.press("tab", "tab", "tab")
        await driver.stand_on("deep-board")
        await driver.press("enter")
        chart = driver.screen.query_one(ChartView).chart
        series = {series.label: series.points for series in chart.panels[0].series}
        for split in ("validation", "test"):
            assert [(p.x, p.y) for p in series[split]] == [(row["layer"], row[f"{split}_accuracy"]) for row in told]
        for row in told:
            line = next(line for line in driver.lines if f"blocks.{row['layer']}.hook_resid_post" in line)
            assert f"{100 * row['test_accuracy']:.1f} %" in line
        await driver.press("tab")
        classes = command("query", "probe f1 by class", "--run", "deep-board")["rows"]
        assert f"[F1 by class, layer {classes[0]['layer']}]" in driver.text
        assert len(classes) == 13
        for row in classes:
            line = next(line for line in driver.lines if f" {row['name']} " in line)
            assert f"{row['f1']:.4f}" in line


@pytest.mark.slow
async def test_norms_by_layer_and_cosines_are_those_of_the_vectors(drive, studied: Path, command: Any) -> None:
    told = command("vector", "list", "--run", "skill")
    near = command("vector", "show", "skill", "--layer", "1")["cosines"]
    async with drive(studied, size=(160, 45), start="data") as driver:
        await driver.press("tab", "tab", "tab", "tab")
        await driver.stand_on("skill")
        await driver.press("enter")
        chart = driver.screen.query_one(ChartView).chart
        series = {series.label: series.points for series in chart.panels[0].series}
        assert [(p.x, p.y) for p in series["vector"]] == [(row["layer"], row["norm"]) for row in told]
        assert [p.y for p in series["high side"]] == [row["norm_high"] for row in told]
        await driver.press("tab")
        (other,) = near
        line = next(line for line in driver.lines if line.strip("│› ").startswith("1 "))
        assert f"{other['cosine']:+.4f}" in line
        assert "same in all rows: of control " in driver.text
        await driver.find_row("control")
        await driver.press("enter")
        assert isinstance(driver.screen, ThingScreen)
        assert "vector control" in driver.way


async def test_a_checkpoint_tells_its_twin_its_tokens_and_how_often_it_is_legal(drive, studied, command: Any) -> None:
    told = command("checkpoint", "show", "deep")
    assert told["first_try_legal"] is not None
    async with drive(studied, size=(160, 45), start="data") as driver:
        await driver.press("tab")
        await driver.stand_on("deep")
        await driver.press("enter")
        assert f"{100 * told['first_try_legal']:.1f} % legal on the first try" in driver.text
        assert "tokens seen: unknown" in driver.text
        await driver.press("escape")
        await driver.stand_on("untrained")
        await driver.press("enter")
        assert "random-init control of deep" in driver.text
        await driver.press("L")
        assert isinstance(driver.screen, LineageScreen)
        assert "checkpoint deep" in driver.text


@pytest.mark.slow
async def test_a_latent_opens_the_positions_at_which_it_is_strongest(drive, studied: Path, tmp_path: Path) -> None:
    shutil.copytree(studied, tmp_path / "own")
    with open_session(str(tmp_path / "own" / "registry.db"), tmp_path / "own" / "store") as session:
        spec = SaeSpec(cache="cache-fit", layers=(0,), expansions=(2,), tokens=400, batch_tokens=100, boards=2)
        session.run(spec, name="features")
    async with drive(tmp_path / "own", size=(160, 45), start="data") as driver:
        await driver.press("tab", "tab", "tab", "tab", "tab")
        assert "[SAEs 1]" in driver.text
        await driver.stand_on("features")
        await driver.press("enter")
        assert "loss recovered" in driver.head
        (row,) = driver.screen.query_one(PageTable).source_rows
        assert f" {row['loss_recovered']:.4g} " in driver.text
        assert row["explained_variance"] is None, "the residual is the same at all of its tokens"
        await driver.press("tab", "tab", "tab")
        assert "fires at" in driver.text
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        assert "of its strongest" in driver.text


@pytest.mark.slow
async def test_a_model_of_values_and_its_sae_have_their_screens(drive, studied: Path, tmp_path: Path) -> None:
    """DeepMind's action values: the checkpoint, an SAE without cross-entropies, and boards of a latent."""
    shutil.copytree(studied, tmp_path / "own")
    fixture = Path(__file__).parents[1] / "fixtures" / "searchless_chess" / "action-value.npz"
    boards = [chess.Board()]
    for number in range(60):
        boards.append(boards[-1].copy())
        boards[-1].push(list(boards[-1].legal_moves)[number % 7 % boards[-1].legal_moves.count()])
    write_bag(tmp_path / "states.bag", [encode_record(board.fen(), None, 0.5) for board in boards])
    with open_session(str(tmp_path / "own" / "registry.db"), tmp_path / "own" / "store") as session:
        given = UnrecordedSettings(heads=2)
        import_checkpoint(session.database, session.store, fixture, name="values", unrecorded_settings=given)
        add_dataset(session.database, session.store, [tmp_path / "states.bag"], name="states")
        spec = SaeSpec(
            checkpoint="values", dataset="states", layers=(0,), expansions=(2,), tokens=400, batch_tokens=100, boards=2
        )
        session.run(spec, name="of-values")
    async with drive(tmp_path / "own", size=(160, 45), start="data") as driver:
        await driver.press("tab", "tab", "tab", "tab", "tab")
        await driver.stand_on("of-values")
        await driver.press("enter")
        (row,) = driver.screen.query_one(PageTable).source_rows
        assert (row["loss_recovered"], row["explained_variance"] is None) == (None, False)
        await driver.press("tab", "tab", "tab")
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        assert "of its strongest" in driver.text


async def test_a_cache_is_verified_byte_by_byte(drive, studied: Path, tmp_path: Path, command: Any) -> None:
    told = command("cache", "verify", "cache-fit")
    assert told["groups"] == 1
    shutil.copytree(studied, tmp_path / "own")
    async with drive(tmp_path / "own", size=(120, 40), start="data") as driver:
        await driver.press("tab", "tab")
        await driver.stand_on("cache-fit")
        await driver.press("enter", "V")
        assert "every byte matches the published digests" in driver.notices
        with open_session(str(tmp_path / "own" / "registry.db"), tmp_path / "own" / "store") as session:
            with session.database.read() as sql:
                (row,) = load_entity("cache").rows(sql, "cache-fit")
            chunk = next(p for p in (session.store.root / row["groups"][0]["path"]).rglob("c.*"))
        chunk.chmod(0o644)
        chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
        await driver.press("V")
        assert "has changed since publication" in driver.text
    place = ["--registry", str(tmp_path / "own" / "registry.db"), "--store", str(tmp_path / "own" / "store")]
    assert run_command_line([*place, "cache", "verify", "cache-fit"]) == 1


async def test_words_about_a_dataset_are_its_own(drive, studied: Path, tmp_path: Path) -> None:
    shutil.copytree(studied, tmp_path / "own")
    async with drive(tmp_path / "own", size=(160, 45), start="data") as driver:
        await driver.press("asterisk", "t")
        for key in "best":
            await driver.pilot.press(key)
        await driver.press("enter")
        assert "★ games" in driver.text
    place = str(tmp_path / "own" / "registry.db"), tmp_path / "own" / "store"
    with open_session(*place) as session, session.database.read() as sql:
        (row,) = load_entity("dataset").rows(sql, "games")
    assert (row["starred"], row["tags"]) == (True, ["best"])


async def test_an_empty_registry_says_what_makes_each(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, start="data") as driver:
        for words in ("dataset add", "import checkpoint", "run cache", "run probe", "run vector", "run sae"):
            assert words in driver.text
            await driver.press("tab")


def test_a_list_reads_the_words_about_what_it_lists_and_not_those_about_every_run(studied: Path) -> None:
    """Of a million runs with names all were read, several times for each noun."""
    every: list[str] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        words = parameters.values() if isinstance(parameters, dict) else parameters
        if "annotation_now" in statement and "run" in map(str, words):
            every.append(statement)

    with open_session(str(studied / "registry.db"), studied / "store") as session:
        event.listen(Engine, "before_cursor_execute", note)
        try:
            rows = entity_rows.list_entities(session)
            things = [
                entity_rows.load_details(session, noun, one["thing"]) for noun, of in rows.items() for one in of[:1]
            ]
            with session.database.read() as sql:
                list_checkpoint_choices(sql)
                lineage.describe_nodes(sql, [lineage.Node("run", row["thing"].hex) for row in rows["probe"]])
            list_candidates(session, "checkpoint")
            words = list_scope_words(session)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert len(things) > 4
    assert any(word.startswith("run:") for word in words)
    assert not every


async def test_games_are_added_from_a_file_and_split(drive, world: Path, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "files"
    (folder / "below").mkdir(parents=True)
    shutil.copy(world / "games.pgn", folder / "below" / "new games.pgn")
    monkeypatch.chdir(folder)
    ran: list[list[str]] = []
    async with drive(tmp_path, start="data", size=(120, 30)) as driver:
        monkeypatch.setattr(driver.app, "run_command", lambda words, *rest, **named: ran.append(list(words)))
        await driver.press("A")
        assert "below/" in driver.text
        await driver.press("enter", "slash")
        await driver.type("new")
        await driver.press("enter", "enter")
        assert "chessreg dataset add new games.pgn" in driver.text
        await driver.press("enter")
    assert ran == [["dataset", "add", str(folder / "below" / "new games.pgn"), "--name", "new-games"]]
    async with drive(world, start="data", size=(120, 30)) as driver:
        monkeypatch.setattr(driver.app, "run_command", lambda words, *rest, **named: ran.append(list(words)))
        await driver.press("S", "enter")
    assert ran[1] == ["dataset", "split", "games", "--parts", "fit=0.8,test=0.2"]


async def test_a_file_is_picked_by_its_path_and_what_was_typed_about_it_is_offered_again(
    drive, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path / "a-folder-with-a-name-that-is-longer-than-a-line-of-eighty-columns" / "below"
    folder.mkdir(parents=True)
    for name in ("one.pth", "two.pth"):
        (folder / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    ran: list[list[str]] = []
    async with drive(tmp_path, start="data", size=(80, 24)) as driver:
        monkeypatch.setattr(driver.app, "run_command", lambda words, *rest, **named: ran.append(list(words)))
        await driver.press("tab", "tab", "tab", "A", "e")
        await driver.type(f"{folder.parent.name}/none")
        await driver.press("enter")
        assert f"{folder.parent}/none does not exist" in driver.notices
        assert str(folder.parent) in "".join(line.strip() for line in driver.lines[1:5])
        assert driver.screen.folder == folder.parent  # as far as it was right
        for wrong in "~nobody-is-called-so/one.pth", "a" * 300:  # no home, and longer than a name may be
            await driver.press("e", "ctrl+u")
            await driver.type(wrong)
            await driver.press("enter")
            assert f"{folder.parent}/{wrong} does not exist" in driver.notices
            assert driver.screen.folder == folder.parent
        await driver.press("enter", "minus")
        assert driver.screen.query_one(PageTable).current_row["path"] == folder
        await driver.press("e")
        await driver.type("below/two.pth")
        await driver.press("enter")
        assert "chessreg import probe two.pth" in driver.text
        assert "--checkpoint" in driver.text
        await driver.type(" --checkpoint 'my model'")
        await driver.press("enter")
        await driver.press("A")
        assert driver.screen.query_one(PageTable).current_row["path"] == folder / "two.pth"
        await driver.press("enter")
        assert "--name two --checkpoint 'my model'" in driver.text
        await driver.press("ctrl+u")
        await driver.type("plain")
        await driver.press("enter", "A", "k", "enter", "ctrl+u")
        await driver.type("it's")
        await driver.press("enter")
        assert "No closing quotation" in driver.notices
    assert ran == [
        ["import", "probe", str(folder / "two.pth"), "--name", "two", "--checkpoint", "my model"],
        ["import", "probe", str(folder / "two.pth"), "--name", "plain"],
    ]


async def test_a_command_tells_that_it_is_at_work_what_it_said_last_and_what_went_wrong(
    drive, tmp_path: Path, monkeypatch: Any
) -> None:
    real, gate = ModelProcess.make_environment, asyncio.Event()

    async def held(self: ModelProcess) -> Any:
        await gate.wait()
        return await real(self)

    monkeypatch.setattr(ModelProcess, "make_environment", held)
    async with drive(tmp_path, start="data", size=(120, 30)) as driver:
        driver.app.run_command(["dataset", "add", str(tmp_path / "none.pgn"), "--name", "x"], done_text="added")
        async with asyncio.timeout(300):
            while "running: dataset add" not in driver.lines[0]:
                await asyncio.sleep(0.05)
        gate.set()
        await driver.once(lambda: "running:" not in driver.lines[0], "its end")
        driver.app.run_command(["dataset", "add", str(tmp_path / "none.pgn"), "--name", "x"], done_text="added")
        await driver.settle()
        assert "none.pgn" in driver.notices.splitlines()[-1]
        (tmp_path / "no.pgn").write_text("1. e5 *")
        driver.app.run_command(["dataset", "add", str(tmp_path / "no.pgn"), "--name", "x"], done_text="added")
        await driver.settle()
        assert "no.pgn" in driver.notices.splitlines()[-2]
        assert "PGN of standard chess" in driver.notices.splitlines()[-1]
        await driver.press("tab", "A", "y")
        assert driver.app.clipboard == "chessreg import checkpoint FILE --name NAME"


@pytest.mark.slow
async def test_a_datasets_games_and_positions_are_looked_at_from_the_data_room(
    drive, world: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(world, tmp_path / "world"))
    positions = folder / "positions.csv"
    positions.write_text(
        "fen,best,eval\n4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1,a1a8,29998\n4k3/8/8/8/8/8/8/4K2R b K - 0 1,e8d7,35\n"
    )
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    assert run_command_line([*place, "dataset", "add", str(positions), "--name", "endings"]) == 0
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        offered = [(row["value"], row["about"]) for row in list_candidates(session, "dataset")]
    assert offered[0] == ("endings", "2 positions"), "a form's list tells what a dataset holds"
    assert offered[1][1].endswith(" games")
    async with drive(folder, size=(120, 40), start="data") as driver:
        await driver.stand_on("endings")
        await driver.press("v")
        assert "data › endings rows" in driver.way
        assert driver.head.split() == ["position", "best", "move", "ply", "FEN"]
        assert " a1a8 " in driver.text
        assert "e2e4" not in driver.text, "no row of another dataset"
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        assert "endings position 0" in driver.text
        assert "evaluation #2" in driver.text
        assert "= a1-a8 best a1a8" in driver.text
        await driver.press("escape", "escape")
        await driver.stand_on("games")
        await driver.press("enter", "v")
        assert "dataset games › rows" in driver.way
        assert driver.head.split()[0] == "game"
        assert "same in all rows: result * · plies 40" in driver.text
        await driver.press("tab", "slash")
        await driver.type("game<2")
        await driver.press("enter", "enter")
        assert "games game 0" in driver.text
        await driver.press("escape", "escape", "escape")
        assert "dataset games" in driver.way
        await driver.press("escape", "tab")
        assert "v games" not in driver.lines[-1]
        await driver.press("v")
        assert isinstance(driver.screen, DataScreen)


def test_fields_leave_out_what_is_empty_or_internal_and_name_nested_values() -> None:
    from tui.screens.base import is_id, list_shown_fields

    digest = "0f" * 32
    row = {
        "name": "games", "tags": [], "starred": False, "legal": False, "rank": 3, "moves": b"12", "id": digest,
        "layers": [3, 4], "read": [f"dataset:{digest}"], "report": {"games": 24, "found": {"both_elos": 2}},
        "games": 24,
    }  # fmt: skip
    fields = dict(list_shown_fields(row))
    assert fields == {
        "name": "games", "legal": "no", "id": digest, "layers": "3, 4", "read": [f"dataset:{digest}"],
        "report found both elos": "2", "games": "24",
    }  # fmt: skip
    assert [name for name, value in fields.items() if is_id(value)] == ["id", "read"]
