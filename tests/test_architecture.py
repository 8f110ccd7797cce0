"""The rules of the architecture, as tests: allowed imports, style, types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@cache
def trees() -> dict[Path, ast.Module]:
    """Every Python file of the product, relative to the checkout, parsed."""
    return {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for package in ("chessreg", "store", "tui", "alembic", "migrations")
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def check(*command: str) -> None:
    """Run a checker in the checkout; its output is the failure's text."""
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
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path, tree in trees().items()
        for call in ast.walk(tree)
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


MOST_PARAMETERS = 10
LONGER: set[str] = set()
"""Functions that still have more."""


def functions() -> Iterator[tuple[str, int]]:
    """Every function of the product as `path:name`, with the number of its parameters apart from self and cls."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len(set(known) - {"self", "cls"}) + bool(node.args.vararg) + bool(node.args.kwarg)
                yield f"{path}:{node.name}", count


NAMED_ONCE = ("chessreg", "store", "tui")


def class_names() -> Iterator[str]:
    """Yield the name of each class of the product that is not nested in another: a nested one has its owner's name."""
    for path, tree in trees().items():
        if path.parts[0] in NAMED_ONCE:
            yield from (node.name for node in tree.body if isinstance(node, ast.ClassDef))


def test_a_class_name_means_one_thing() -> None:
    assert [name for name, count in Counter(class_names()).items() if count > 1] == []


def function_names() -> Iterator[str]:
    """Functions of modules, without special methods, the `main` of a program, and the commands of the command line,
    which are named as they are typed."""
    for path, tree in trees().items():
        if path.parts[0] in NAMED_ONCE:
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    is_command = "cli" in path.parts and node.decorator_list
                    if not (is_command or node.name == "main" or node.name.startswith("__")):
                        yield node.name


def test_a_function_name_means_one_thing() -> None:
    assert [name for name, count in Counter(function_names()).items() if count > 1] == []


def test_no_function_has_more_than_ten_parameters() -> None:
    assert {name for name, count in functions() if count > MOST_PARAMETERS} == LONGER


def imports(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module → the modules that it imports anywhere, also in functions and for types only."""
    found: dict[str, set[str]] = {}
    for name, tree in modules.items():
        wanted: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    wanted.add(inner if inner in modules else node.module)
        found[name] = wanted & modules.keys() - {name}
    return found


def rings(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set[str](), [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [set(ring) for ring in found if ring]


def test_no_files_import_each_other_even_for_types_only() -> None:
    modules = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in trees().items()
        if path.parts[0] in ("chessreg", "store", "tui")
    }
    assert rings(imports(modules)) == []


def test_a_ring_is_found_however_it_is_closed() -> None:
    types = "if TYPE_CHECKING:\n    from a.b import B"
    inside = "def f():\n    from a import c"
    modules = {"a": "", "a.b": inside, "a.c": "import a.d", "a.d": types, "e": "import a.b"}
    assert rings(imports({name: ast.parse(source) for name, source in modules.items()})) == [{"a.b", "a.c", "a.d"}]


@pytest.mark.timeout(900)  # a minute where nothing else runs
def test_the_types_hold() -> None:
    check("mypy")  # writing the cache takes a fifth of the first run, and later runs read only changed files


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
