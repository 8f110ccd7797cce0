"""Pictures of runs, comparisons, lineage and data at 80x24 and 200x60, each with the numbers that it must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chessreg.entities import load_entity
from chessreg.entities.vector import RelativeNorm
from chessreg.queries.compare import compare_runs
from chessreg.session import Session
from tui.model_process import ModelProcess


@pytest.fixture
def subject(studied: Path) -> Path:
    """The registry that pictures show."""
    return studied


def tabs(number: int) -> list[str]:
    return ["tab"] * number


def test_runs_sorted_and_marked(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("greater_than_sign", "greater_than_sign")
        await driver.stand_on("board", "longer", mark=True)

    picture(steps, "name ▲", "marked: board", "●")


def test_columns(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("C")

    picture(steps, "kind of experiment", "yes")


@pytest.mark.trained
def test_a_comparison(picture: Any, study: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.stand_on("board", "longer", mark=True)
        await driver.press("c", "tab")

    metric = next(
        m for m in compare_runs(study.database, ["board", "longer"]).metrics if m.name.startswith("accuracy, test")
    )
    picture(steps, "baseline board", "[metrics", metric.differences[1].format_value("+"))


@pytest.mark.slow
def test_what_differs(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.stand_on("board", "longer", mark=True)
        await driver.press("c")

    picture(steps, "baseline board", "[differing 1]", "epochs")


@pytest.mark.trained
def test_curves(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.stand_on("train-0", "train-1", mark=True)
        await driver.press("c", *tabs(3))

    picture(steps, "[curves 4]", "heldout_loss", "● train-0", "■ train-1", " 6 ", " 12")


def test_a_lineage(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.stand_on("edits")
        await driver.press("L")

    picture(steps, "└── test_cache: cache cache-test", "lineage of edits", "inputs")


def test_datasets(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press()

    picture(steps, "[datasets 1]", "fit test", " 960 ", start="data")


def test_checkpoints(picture: Any, study: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press(*tabs(1))

    with study.database.read() as sql:
        rows = load_entity("checkpoint").rows(sql)
    picture(steps, "[checkpoints 5]", *(f"{row['parameters']:,}" for row in rows), "untrained", start="data")


@pytest.mark.trained
def test_probes(picture: Any, study: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press(*tabs(3))

    with study.database.read() as sql:
        row = next(row for row in load_entity("probe").rows(sql) if row["name"] == "board")
    picture(steps, "[probes 3]", f"{100 * row['test_accuracy']:.1f} %", start="data")


@pytest.mark.trained
def test_accuracy_by_layer(picture: Any, study: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press(*tabs(3))
        await driver.stand_on("deep-board")
        await driver.press("enter")

    with study.database.read() as sql:
        rows = [row for row in load_entity("probe").rows(sql) if row["name"] == "deep-board"]
    shares = [f"{100 * row['test_accuracy']:.1f} %" for row in rows]
    picture(steps, "● validation", "■ test", *shares, start="data")


@pytest.mark.slow
@pytest.mark.trained
def test_f1_by_class(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press(*tabs(3))
        await driver.stand_on("board")
        await driver.press("enter", "tab")

    picture(steps, "[F1 by class, layer 0]", "Opp. King", "█", start="data")


@pytest.mark.trained
def test_norms_by_layer(picture: Any, study: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(self: ModelProcess, run: str) -> list[RelativeNorm]:
        return [RelativeNorm(layer, 0.5, 100.0) for layer in range(3)]

    monkeypatch.setattr(ModelProcess, "measure_scales", measured)

    async def steps(driver: Any) -> None:
        await driver.press(*tabs(4))
        await driver.stand_on("skill")
        await driver.press("enter")

    with study.database.read() as sql:
        vectors = load_entity("vector").rows(sql, "skill")
    picture(steps, "● vector", "■ high side", *(f"{row['norm']:.4g}" for row in vectors), start="data")


def test_saes(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press(*tabs(5))

    picture(steps, "[SAEs 0]", "no SAEs yet", start="data")


def test_light_colors(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("T")
        await driver.stand_on("board", mark=True)

    picture(steps, "marked: board")


@pytest.mark.slow
@pytest.mark.trained
def test_high_contrast(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("T", "T")
        await driver.stand_on("board")
        await driver.press("enter", "enter")

    picture(steps, "probability of", "reads")
