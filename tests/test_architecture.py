"""The rules of the house, as tests: who may import whom, style, types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def check(*command: str) -> None:
    """Run a checker in the checkout; what it says is the failure's text."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_floors_import_only_what_is_below_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    if lint_imports(config_filename="pyproject.toml"):
        pytest.fail(capsys.readouterr().out, pytrace=False)


def test_the_linter_has_nothing_to_say() -> None:
    check("ruff", "check", "--no-cache", ".")


def test_the_code_is_formatted() -> None:
    check("ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.timeout(900)  # a minute where nothing else runs
def test_the_types_hold() -> None:
    check("mypy")
