"""Texts are plain English: idioms that read like a literal translation stay below two per 1,000 words.

Counted are Markdown files, docstrings and comments of each package, the comments of queries, and all help, errors and
labels together. The list grows: add phrases over which a reader stumbles.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_PER_1000_WORDS = 2.0
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
IDIOMS = re.compile(
    r"""
    \b(is|are|was|were|be)\ (no|none)\b(?!\ (longer|more))          # is not a …, does not exist
    |\bmend(s|ed|ing)?\b|\banew\b|\bshall\b|\bto\ be\ had\b         # fix, again, must, available
    |\b(tells?|told)\b                                              # report, print, warn
    |\bwhat\ (is|was|are|were|has|had|a|an|the|it|its|they|others|comes?|goes|runs?|ends?|holds?|needs?|made|makes
              |each|every|belongs?)\b                               # name the thing
    |\bwho(ever)?\ (asks?|reads?|calls?|wants?|needs?|starts?|runs?|opens?|closes?|knows|gave)\b
    |\bbesides?\b|\b(goes|went|gone)\ on\b|\b(takes?|taken|took)\ in\b(?!\ order)
    |\bthose\ (that|which|who|of)\b|\bthat\ there\ (is|are|was|were)\b|\bthere\ (is|are)\ none\b
    |\b(has|have|had)\ not\b(?=\ (a|an|the|any|all|both|one)\b|[.,;:]|$)
    |\b(so|as)\ many\b(?!\ as)|\bso\ much\b|\bof\ others\b|\ba\ stranger('s)?\b
    |\bnobody\b|\bwhoever\b|\bwhatever\b|\bwherever\b|\bof\ (its|their|your|his|my|our)\ own\b
    |\blook(s|ed)?\ at\b|,\ too\b|\bas\ it\ (stands|lies|comes)\b|\bwherein\b|\bthereof\b|\bwhence\b
    |\bsays?\ (so|which|what|how|who|where|when|whether|why)\b|\bfor\ want\ of\b
    |\bhow\ (many|much)\ \w+\ there\ (is|are)\b
    |\bwhat\b(?=[^.?!]*(\.|;|$))(?![^.!]*\?)                         # a clause as a noun, not a question
    |\b(says?|said)\ (nothing|of\ it|otherwise)\b|\bnothing\ says\b|\bis\ said\ to\b
    |\bfor\ (ever|good)\b|\bto\ (its|their)\ end\b|\bin\ the\ place\ of\b|\bknows\ no\b|\bwants?\b(?!\ to)
    |\bspecification\ [0-9]                                        # cite the paper or the published code
    |\b(stands?|lies)\ (in|beside|there|for\ all)\b|\bof\ which\ there\b|\bgoes\ (by|with)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


QUERY_CODE = re.compile(r"--\s+(aliases|beside|\w+ = )")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def messages(tree: ast.Module) -> Iterator[str]:
    """Texts of three words or more that are not docstrings: help, errors, labels."""
    inside = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                inside.add(id(first.value))
        if id(node) in inside or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        inside.update(map(id, parts))
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
        if len(WORD.findall(text)) >= 3 and "SELECT" not in text:
            yield text


def count(texts: Iterator[str]) -> tuple[int, list[str]]:
    """Return the number of words, and each idiom with the words around it."""
    words, found = 0, []
    for text in texts:
        plain = " ".join(re.sub(r"`[^`]*`", "X", text).split())
        words += len(WORD.findall(plain))
        found += [plain[max(0, m.start() - 30) : m.end() + 30] for m in IDIOMS.finditer(plain)]
    return words, found


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


PACKAGES = [
    "docs",
    "store",
    "tests",
    "migrations",
    "tui",
    *(f"chessreg/{path.parent.name}" for path in (ROOT / "chessreg").glob("*/__init__.py")),
]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))


def require_few(words: int, found: list[str]) -> None:
    assert len(found) <= max(1.0, MOST_PER_1000_WORDS * words / 1000), "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_are_plain(package: str) -> None:
    texts = [
        text for path in sources(package) for text in (*docstrings(parsed(path)), *comments(path.read_text("utf-8")))
    ]
    require_few(*count(iter(texts)))


def test_docstrings_and_comments_of_top_modules_are_plain() -> None:
    paths = sorted((ROOT / "chessreg").glob("*.py"))
    require_few(
        *count(text for path in paths for text in (*docstrings(parsed(path)), *comments(path.read_text("utf-8"))))
    )


def test_comments_of_queries_are_plain() -> None:
    """The comments explain a query's columns to users. Lines that name columns, aliases or statistics are code."""
    lines = [line for path in (ROOT / "chessreg").rglob("*.sql") for line in path.read_text("utf-8").splitlines()]
    texts = (line.lstrip("- ") for line in lines if line.startswith("--") and not QUERY_CODE.match(line))
    require_few(*count(texts))


def test_help_errors_and_labels_are_plain() -> None:
    paths = sources("chessreg", "store", "tui")
    require_few(*count(text for path in paths for text in messages(parsed(path))))


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_plain(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    require_few(*count(iter([text])))


@pytest.mark.parametrize(
    "text",
    ["there is no file", "A file that nobody reads.", "what the run holds", "it goes on", "It shows what differs."],
)
def test_an_idiom_is_found(text: str) -> None:
    assert count(iter([text]))[1]
