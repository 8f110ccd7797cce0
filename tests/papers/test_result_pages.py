"""The pages of docs/results: tables and figures equal the committed rows, and verdicts quote their tables."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.quick import quick_first

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("result_figures", ROOT / "docs" / "figures.py")
assert spec is not None
assert spec.loader is not None
figures = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = figures
spec.loader.exec_module(figures)
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "results").glob("*.md"))}
NUMBER = re.compile(r"[−-]?\d[\d,]*(?:\.\d+)?")
INTERVAL = re.compile(r"[−-]?\d[\d.]* \[[−-]?[\d.]+, [−-]?[\d.]+\]")
MOST_BYTES, MOST_ROWS = 60_000, 12


def section(text: str, heading: str) -> str:
    [found] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found


def numbers(text: str) -> list[float]:
    return [float(number.replace("−", "-").replace(",", "")) for number in NUMBER.findall(text)]


def last_digit(text: str) -> list[float]:
    """Return one unit of the last digit of each number."""
    return [10.0 ** -len(number.partition(".")[2]) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("figure", quick_first(4, figures.FIGURES), ids=lambda figure: f"{figure.paper}-{figure.name}")
def test_a_figure_is_drawn_from_the_committed_rows(figure):
    drawn, computed = figures.rows_of_svg(figure.path), figure.table().to_pylist()
    assert len(drawn) == len(computed) > 0
    for row, expected in zip(drawn, computed, strict=True):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, float):
                assert float(row[name]) == pytest.approx(value, rel=1e-3, abs=2e-3), (name, row)
            else:
                assert row[name] == ("" if value is None else str(value))


@pytest.mark.parametrize("figure", figures.FIGURES, ids=lambda figure: f"{figure.paper}-{figure.name}")
def test_a_figure_is_small_and_named_on_its_page(figure):
    svg = figure.path.read_text(encoding="utf-8")
    ET.fromstring(svg)
    assert len(svg.encode()) <= MOST_BYTES
    assert f"]({figure.path.name})" in PAGES[figure.paper]
    assert "prefers-color-scheme: dark" in svg
    title = figure.plot.title
    assert title[0].upper() + title[1:] in svg


def test_every_figure_in_the_folder_is_drawn_by_the_script():
    assert {path.name for path in figures.PAGES.glob("*.svg")} == {figure.path.name for figure in figures.FIGURES}


@pytest.mark.parametrize("paper", PAGES)
def test_published_values_and_ours_are_computed(paper):
    [printed] = figures.junkin.marked("published").findall(PAGES[paper])
    computed = figures.published_table(paper)
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", computed)
    for value, expected, unit in zip(numbers(printed), numbers(computed), last_digit(computed), strict=True):
        assert value == pytest.approx(expected, abs=1.01 * unit)
    assert len(printed.strip().splitlines()) <= 2 + MOST_ROWS


@pytest.mark.parametrize("name", figures.GPU_TABLES)
def test_measurements_on_a_gpu_are_those_of_the_committed_reports(name):
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert figures.junkin.marked(name).findall(page) == [figures.gpu_table(name)]


@pytest.mark.parametrize("paper", PAGES)
def test_a_verdict_has_three_sentences_that_quote_tables_of_its_page(paper):
    verdict = section(PAGES[paper], "Verdict")
    sentences = re.findall(r"[^.]+(?:\.\d[^.]*)*\.(?=\s|$)", verdict.strip())
    assert len(sentences) == 3, sentences
    tables = "\n".join(re.findall(r"^\|.*\|$", PAGES[paper], re.MULTILINE))
    quoted = INTERVAL.findall(verdict)
    assert quoted
    assert [interval for interval in quoted if interval not in tables] == []


@pytest.mark.parametrize("page", ["RESULTS.md", "docs/papers.md", "README.md"])
def test_results_on_other_pages_are_quoted_from_these(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "README.md":  # its quickstart has the table of another registry
        text = text.partition("## Papers reproduced")[2]
    quoted = INTERVAL.findall(text)
    everything = " ".join(PAGES.values())
    assert [interval for interval in quoted if interval not in everything] == []
    assert quoted or page == "README.md"


@pytest.mark.parametrize("paper", PAGES)
def test_no_row_has_an_outcome_without_an_expectation(paper):
    outcomes = re.findall(r"\| (met|missed|not decided) \|$", PAGES[paper], re.MULTILINE)
    assert "| open |" not in PAGES[paper]
    assert (paper == "karvonen") == (not outcomes)
