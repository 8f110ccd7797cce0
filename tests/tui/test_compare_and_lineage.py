"""Runs side by side and the lineage of things, against `chessreg compare` and `chessreg lineage`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from textual.widget import Widget

from chessreg.cli.root import run_command_line
from chessreg.queries.stats import Estimate
from chessreg.registry import read
from chessreg.session import Session
from tui.data import comparison
from tui.screens.compare import CompareScreen
from tui.screens.lineage import LineageScreen
from tui.screens.run import RunScreen
from tui.screens.things import ThingScreen
from tui.widgets.chart import ChartView, find_value_range
from tui.widgets.table import PageTable


async def test_two_marked_runs_have_the_numbers_of_the_command(drive, studied: Path, command: Any) -> None:
    told = command("compare", "board", "longer")
    async with drive(studied, size=(160, 45)) as driver:
        await driver.stand_on("board", "longer", mark=True)
        await driver.press("c")
        assert isinstance(driver.screen, CompareScreen)
        assert "baseline board" in driver.text
        line = next(line for line in driver.lines if " epochs " in line)
        assert line.strip("│› ").split()[-2:] == [str(v) for v in told["differing"]["settings"]["epochs"]] == ["1", "2"]
        await driver.press("tab")
        assert f"[metrics {len(told['metrics'])}]" in driver.text
        for metric in told["metrics"][:8]:
            line = next(line for line in driver.lines if metric["metric"][:30] in line)
            ours, theirs = (Estimate(**value).format_value() for value in metric["values"])
            difference = Estimate(**metric["differences"][1]).format_value("+")
            assert ours in line
            assert theirs in line
            assert difference in line
        assert not any("square_accuracy" in metric["metric"] for metric in told["metrics"])  # squares are not steps
        await driver.press("i")
        assert {"board", "longer", "metric"} <= {line.strip("│ ").split(" ")[0] for line in driver.lines}
        assert "Δ longer" in driver.text
        await driver.press("escape", "b")
        assert "baseline longer" in driver.text
        await driver.press("y")
        assert driver.app.clipboard.startswith("chessreg compare ")


async def test_the_difference_is_the_last_column_to_yield(drive, studied: Path, command: Any) -> None:
    told = command("compare", "board", "longer")
    async with drive(studied, size=(80, 30)) as driver:
        await driver.stand_on("board", "longer", mark=True)
        await driver.press("c", "tab")
        for metric in told["metrics"]:
            assert Estimate(**metric["differences"][1]).format_value("+") in driver.text
        await driver.pilot.resize_terminal(160, 30)
        await driver.press()
        head = next(line for line in driver.lines if "Δ longer" in line).split()
        assert [word for word in head if word in ("board", "longer")] == ["board", "longer", "longer"], "room for all"


@pytest.mark.slow
async def test_loss_curves_lie_over_each_other(drive, studied: Path, command: Any) -> None:
    points = command("compare", "train-0", "train-1", "--curves")
    async with drive(studied, size=(120, 40)) as driver:
        await driver.stand_on("train-0", "train-1", mark=True)
        await driver.press("c", "shift+tab")
        screen = driver.screen
        assert "[curves " in driver.text
        while screen.metric != "loss":
            await driver.press("right_parenthesis")
        chart = screen.query_one(ChartView).chart
        for series in chart.panels[0].series:
            told = [(p["step"], p[series.label]) for p in points if p["metric"] == "loss"]
            assert [(point.x, point.y) for point in series.points] == told
            assert len(told) == 4
        assert "● train-0" in driver.text
        assert "■ train-1" in driver.text
        view = screen.query_one(ChartView)
        assert isinstance(view.parent, Widget)
        assert view.size.height == view.parent.size.height  # all the space that the tables have left
        await driver.press("shift+tab", "shift+tab")  # the metrics: Enter on one opens its curve
        await driver.find_row("heldout_loss")
        await driver.press("enter")
        assert screen.metric == "heldout_loss"
        assert "[curves " in driver.text


@pytest.mark.slow
async def test_machines_stand_side_by_side_and_a_run_alone_by_its_attempts(drive, studied: Path, command: Any) -> None:
    told = command("compare", "cut", "--machines")
    assert len(told) == 2
    async with drive(studied, size=(160, 45)) as driver:
        await driver.stand_on("cut")
        await driver.press("c", "tab", "tab")
        assert "[machines]" in driver.text
        line = next(line for line in driver.lines if "units done" in line)
        assert line.strip("│› ").split()[-2:] == [str(machine["units"]) for machine in told]
        assert sum(machine["units"] for machine in told) == 9
        line = next(line for line in driver.lines if line.strip("│› ").startswith("cores"))
        assert line.strip("│› ").split()[-2:] == [str(machine["cores"]) for machine in told]


async def test_a_run_alone_of_one_attempt_has_nothing_to_be_compared_with(drive, studied: Path) -> None:
    async with drive(studied) as driver:
        await driver.stand_on("toy")
        await driver.press("c")
        assert "cannot be compared by attempts" in driver.text
        assert driver.app.is_running


@pytest.mark.slow
async def test_a_pinned_run_is_the_baseline_until_it_is_unpinned(drive, studied: Path, tmp_path: Path) -> None:
    shutil.copytree(studied, tmp_path / "own")
    async with drive(tmp_path / "own", size=(160, 45)) as driver:
        await driver.stand_on("board", "longer", mark=True)
        await driver.press("c", "b", "B")
        assert "baseline longer (pinned" in driver.text
        await driver.press("b")
        assert "baseline longer" in driver.text
        await driver.press("escape", "c")
        assert "baseline longer (pinned" in driver.text
        await driver.press("B", "b")
        assert "baseline board" in driver.text


def test_long_curves_are_thinned_to_means_and_end_where_they_end() -> None:
    curve = [(step, float(step)) for step in range(10_000)]
    thin = comparison.average_points(curve)
    assert len(thin) <= comparison.MAX_CURVE_POINTS
    assert thin[-1] == (9999, 9999.0)
    assert thin[0][1] == pytest.approx(12.0)
    chart = comparison.make_metric_chart("loss", ["a"], [curve])
    assert find_value_range(chart.list_points()) == (12.0, 9999.0)


# -- lineage ----------------------------------------------------------------------------------------------------------


def labels(branch: dict[str, Any]) -> list[str]:
    own = f"{branch['kind']} {branch['name'] or ''}".rstrip()
    return [own, *(label for inner in branch.get("branches", ()) for label in labels(inner))]


async def test_a_lineage_is_the_tree_of_the_command_and_can_be_walked(drive, studied: Path, command: Any) -> None:
    told = command("lineage", "edits")
    async with drive(studied, size=(120, 45)) as driver:
        await driver.stand_on("edits")
        await driver.press("L")
        screen = driver.screen
        assert isinstance(screen, LineageScreen)
        expected = labels(told["up"]) + labels(told["down"])
        assert screen.query_one(PageTable).count == len(expected)
        for line, label in zip(driver.lines[5:], expected, strict=False):
            assert label in line
        await driver.press("space")
        assert f"{len(labels(told['up'])) - 1} folded" in driver.text
        assert "games 2" in driver.lines[5], "the settings given to the run"
        await driver.press("space", "tab")
        assert "descendants" not in "\n".join(driver.lines[3:-1])
        await driver.find_row("probe board")
        await driver.press("L")
        assert "lineage of board" in driver.way
        await driver.press("enter")
        assert isinstance(driver.screen, RunScreen)
        await driver.press("escape", "escape")
        await driver.find_row("dataset games")
        await driver.press("enter")
        assert isinstance(driver.screen, ThingScreen)
        assert "dataset · 24 games" in driver.text
        await driver.press("L")
        assert "probe board" in driver.text
        await driver.press("y")
        assert driver.app.clipboard == "chessreg lineage a1b2c3"


async def test_a_stale_branch_is_told(drive, studied: Path, tmp_path: Path) -> None:
    shutil.copytree(studied, tmp_path / "own")
    place = ["--registry", str(tmp_path / "own" / "registry.db"), "--store", str(tmp_path / "own" / "store")]
    assert run_command_line([*place, "runs", "invalidate", "board", "--why", "leak"]) == 0
    async with drive(tmp_path / "own", size=(120, 45)) as driver:
        await driver.stand_on("edits")
        await driver.press("L")
        assert " invalid " in next(line for line in driver.lines if "probe board" in line)
        assert "stale" in next(line for line in driver.lines if "edit edits" in line)


async def test_a_run_opens_its_lineage(drive, study: Session, studied: Path) -> None:
    with study.database.read() as sql:
        assert read.read_run(sql, "board")["kind"] == "probe"
    async with drive(studied) as driver:
        await driver.stand_on("deep-board")
        await driver.press("enter", "L")
        assert "lineage of deep-board" in driver.way
        assert "cache deep-fit" in driver.text
