"""The rules of the house, as tests: who may import whom, style, types."""

from __future__ import annotations

import ast
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


def opens_text_without_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes text in the locale's encoding. ruff's PLW1514 follows no variable, so that it sees
    a third of these."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if name in ("read_text", "write_text"):
        return len(call.args) < (1 if name == "read_text" else 2)
    if name in ("run", "Popen", "check_output"):
        return bool({"text", "universal_newlines"} & keywords.keys())
    if name not in ("open", "fdopen", "TextIOWrapper"):
        return False
    of_path = name == "open" and isinstance(call.func, ast.Attribute)
    if of_path and not call.args and "mode" not in keywords:
        return "path" in ast.unparse(call.func).lower()  # an object of another type has an `open()` too
    mode = keywords.get("mode", call.args[0 if of_path else 1] if len(call.args) > (not of_path) else ast.Constant("r"))
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwaxt+")


def test_text_files_are_opened_as_utf_8() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for package in ("chessreg", "store", "tui", "alembic", "migrations")
        for path in sorted((ROOT / package).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and opens_text_without_encoding(call)
    ]
    assert not found, "\n".join(['add encoding="utf-8":', *found])


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("path.write_text(text, encoding='utf-8')", False),
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("open(path, mode='a')", True),
        ("path.open()", True),
        ("path.open('w')", True),
        ("path.open('xb')", False),
        ("os.fdopen(handle, 'w')", True),
        ("subprocess.run(command, text=True)", True),
        ("os.open(path, os.O_RDONLY)", False),
        ("Database.open(url)", False),
        ("bar.open()", False),
    ],
)
def test_text_without_an_encoding_is_seen(source: str, wanted: bool) -> None:
    (call,) = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    assert opens_text_without_encoding(call) is wanted


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
