"""The rules of the house, as tests: who may import whom, style, types."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
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
    kept = (ROOT / ".mypy_cache").exists()  # without one: not written either, which takes a fifth of the time
    check("mypy", *([] if kept else ["--no-incremental", "--cache-dir=/dev/null"]))


def test_make_and_uv_install_the_same_versions_of_what_is_declared() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    locked = {package["name"]: package.get("version") for package in lock["package"]}
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    constrained = {plain(name): version for name, _, version in (line.partition("==") for line in lines if line)}
    assert {name: locked.get(name) for name in constrained} == constrained
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    (own,) = (package for package in lock["package"] if package["name"] == project["name"])
    known = {
        (requirement["name"], requirement.get("specifier", "")) for requirement in own["metadata"]["requires-dist"]
    }
    parts = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?([^;]*)(?:;.*)?", line) for line in declared]
    assert {(plain(part[1]), part[2].strip()) for part in parts if part} == known
