"""The examples in docstrings are run, in every module whose source has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules_with_examples() -> list[str]:
    """The names of the modules with at least one `>>>`. Only these are imported, which keeps this test short."""
    paths = (path for package in ("chessreg", "store", "tui") for path in sorted((ROOT / package).rglob("*.py")))
    with_examples = (path.relative_to(ROOT).with_suffix("") for path in paths if ">>> " in path.read_text("utf-8"))
    return [".".join(path.parts).removesuffix(".__init__") for path in with_examples]


def test_the_examples_in_docstrings_hold(capsys: pytest.CaptureFixture[str]) -> None:
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules_with_examples()}
    if failed := [name for name, result in results.items() if result.failed]:
        pytest.fail(f"examples fail in {', '.join(failed)}:\n{capsys.readouterr().out}", pytrace=False)
    assert sum(result.attempted for result in results.values()) > 100
