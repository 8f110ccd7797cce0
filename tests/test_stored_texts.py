"""Texts that look like prose but are data keep their values: rewording one would change a number, a hash or a row.

`fixtures/stored_texts.json` holds the values. `python tests/test_stored_texts.py` writes it again: do so only after a
change that is meant to change stored results, and raise the version of the kinds concerned.
"""

from __future__ import annotations

import ast
import enum
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chessreg.games.boards.adjudication import Termination
from chessreg.noise import Stream
from chessreg.registry import tables
from chessreg.registry.tables.annotations import AnnotationWord
from chessreg.runs.kind import find_kind, load_kinds

ROOT = Path(__file__).resolve().parents[1]
GOLDEN_FILE = Path(__file__).parent / "fixtures" / "stored_texts.json"
GOLDEN: dict[str, Any] = json.loads(GOLDEN_FILE.read_text())
ENUMS: tuple[type[enum.StrEnum], ...] = (
    *(Stream, Termination, AnnotationWord, tables.ArtifactState, tables.AttemptState, tables.Cause, tables.JobState),
)
SQL_STRING = re.compile(r"'((?:[^']|'')*)'")


def closed_values(schema: Any) -> set[str]:
    """Return the constants and enumerated values anywhere in a JSON schema, as text."""
    if isinstance(schema, list):
        return set().union(*map(closed_values, schema))
    if not isinstance(schema, dict):
        return set()
    own = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    nested = [closed_values(value) for key, value in schema.items() if key not in ("default", "examples")]
    return set(map(str, own)).union(*nested)


def kind_columns(name: str) -> dict[str, dict[str, list[str]]]:
    """Return result table → column → closed values of the extra columns of a kind; `run` holds its settings."""
    columns: dict[str, dict[str, list[str]]] = {}
    for table, schema in find_kind(name).schemas.items():
        definitions = [schema, *schema.get("$defs", {}).values()]
        fields = [item for each in definitions for item in each.get("properties", {}).items()]
        columns[table] = {}
        for field, values in sorted((field, closed_values(value)) for field, value in fields):
            columns[table][field] = sorted({*columns[table].get(field, ()), *values})
    return columns


def sql_texts(folder: Path) -> list[str]:
    """Return the strings with a space in the statements (not the comments) of the SQL files in `folder`, sorted."""
    texts = set[str]()
    for path in folder.glob("*.sql"):
        lines = (line.partition(" -- ")[0] for line in path.read_text().splitlines() if not line.startswith("--"))
        texts |= {text for text in SQL_STRING.findall("\n".join(lines)) if " " in text}
    return sorted(texts)


def current_values() -> dict[str, Any]:
    """Return the content of the golden file, except the hand-written list `literals`, from the code."""
    folders = sorted({path.parent for path in (ROOT / "chessreg").rglob("*.sql")})
    return {
        "enums": {each.__name__: {member.name: member.value for member in each} for each in ENUMS},
        "kinds": {name: kind_columns(name) for name in sorted(load_kinds())},
        "sql": {folder.relative_to(ROOT).as_posix(): sql_texts(folder) for folder in folders},
    }


def literal_keys(path: Path) -> Iterator[str]:
    """Yield each call that draws with a literal text in its key, as `file:line`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("generator", "uniform"):
            parts = [part for argument in node.args for part in ast.walk(argument)]
            if any(
                isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isalpha()
                for part in parts
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("section", ["enums", "kinds", "sql"])
def test_stored_texts_keep_their_values(section: str) -> None:
    assert current_values()[section] == GOLDEN[section]


@pytest.mark.parametrize("package", sorted(GOLDEN["literals"]))
def test_stored_literals_are_still_written(package: str) -> None:
    """Reasons, codes and names in rows and reports, and parts of other programs' messages that code matches."""
    source = "".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    assert [text for text in GOLDEN["literals"][package] if not re.search(f"""["']{re.escape(text)}""", source)] == []


def test_every_draw_names_its_stream() -> None:
    files = [path for path in (ROOT / "chessreg").rglob("*.py") if path.name != "noise.py"]
    drawing = [path for path in files if "chessreg.noise import" in path.read_text()]
    assert [place for path in drawing for place in literal_keys(path)] == []


if __name__ == "__main__":
    text = json.dumps(current_values() | {"literals": GOLDEN["literals"]}, indent=1, ensure_ascii=False, sort_keys=True)
    GOLDEN_FILE.write_text(text + "\n")
