"""The tables of docs/results/junkin.md and of a bundled model's card equal those computed from the sums per game.

tests/fixtures/junkin/clusters.py writes both from a registry. figures.py does not use the queries.
"""

from __future__ import annotations

import re

import pytest

from tests.fixtures.junkin import figures
from tests.quick import quick_first

NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[float]:
    return [float(number.replace("−", "-").replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.parametrize(("path", "name"), quick_first(2, figures.PARTS), ids=[name for _, name in figures.PARTS])
def test_a_table_is_what_the_games_say(path, name) -> None:
    """Words and outcomes are equal, numbers to a unit of their last digit."""
    [printed] = figures.marked(name).findall(path.read_text(encoding="utf-8"))
    computed = figures.PARTS[path, name]()
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", computed)
    assert numbers(printed) == pytest.approx(numbers(computed), abs=0.011)


def test_models_were_asked_the_same_positions() -> None:
    models = figures.models("accuracy")
    first = figures.of("accuracy", models[0])
    assert 5_000 < first["n"].sum() <= 50_000
    for model in models:
        rows = figures.of("accuracy", model)
        assert (rows["game"] == first["game"]).all()
        assert (rows["n"] == first["n"]).all()
        assert (rows["best"] <= rows["legal"]).all()  # the best move is a legal one


def test_lines_are_those_of_the_puzzles_that_were_asked() -> None:
    lines = figures.table("lines")
    for model in figures.models("puzzles"):
        rows = figures.of("puzzles", model)
        assert (rows["rating"] == lines["rating"]).all()
        assert (rows["puzzle"] == range(len(lines["rating"]))).all()
