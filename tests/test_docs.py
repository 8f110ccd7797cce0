"""README and the pages of docs/: every command exists, every link leads somewhere, README is short, examples run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from chessreg.api import Registry
from chessreg.cli.root import root, run_command_line
from chessreg.errors import ChessregError
from chessreg.queries import stats
from chessreg.queries.catalogue import find_entry

from .documents import ELLIPSIS, PAGES, ROOT, Command, check_command, code_lines, commands, commands_in, inline_code

README = (ROOT / "README.md").read_text()
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
MOST_LINES, MOST_WORDS, FIRST_COMMAND = 140, 1000, 20
LITERAL = re.compile(
    r"\b(mend|mends|mended|beside|anew|goes on|go on|taken in|takes in|of others|stranger|shall|to be had|nobody|"
    r"whoever|so many|as one likes|of your own|of its own|of one's own|looked at|told)\b",
    re.IGNORECASE,
)  # literal translations, which plain English says in another way


REFUSED = {"run cache --model x", "run probe --cache fit --epochs -1"}  # examples of exit codes


def test_every_environment_variable_is_documented():
    sources = [path.read_text() for package in ("chessreg", "store", "tui") for path in (ROOT / package).rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bCHESSREG_[A-Z_]*[A-Z]\b", text)}
    assert used == set(re.findall(r"`(CHESSREG_[A-Z_]+)`", TEXTS["docs/environment.md"]))


NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs_and_no_error(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) / 2
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    assert len(path.read_bytes()) < 100_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebooks_run_on_the_registry_of_the_demo(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="no notebook runner here: pip install 'chessreg[docs]'")
    nbformat = pytest.importorskip("nbformat")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )  # for `!chessreg`
    subprocess.run([sys.executable, "-m", "chessreg.cli", "demo"], cwd=project, check=True, capture_output=True)
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, 4)
        client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(project)}})
        client.execute()


@pytest.mark.slow
def test_the_site_builds_with_every_link_leading_somewhere(tmp_path):
    pytest.importorskip("mkdocs_gen_files", reason="no mkdocs here: pip install 'chessreg[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/reference/queries/best-probe-layers.html").is_file()
    assert not [*(tmp_path / "site").rglob("*.pyc")]


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_and_option_exists(page):
    wrong = []
    for command in commands(TEXTS[page]):
        line = " ".join(command.arguments)
        try:
            check_command(root, command)
        except (click.UsageError, ChessregError) as error:
            if line not in REFUSED:
                wrong.append(f"chessreg {line}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chessreg run nothing --cache fit", "nothing"),
        ("chessreg run probe --cache fit --unknown 3", "unknown"),
        ("chessreg run probe --epochs 3", "cache"),
        ("chessreg run probe … --unknown", "unknown"),
        ("chessreg query elo --format cuneiform", "cuneiform"),
        ("chessreg dataset split sample", "parts"),
        ("chessreg run play --checkpoint a --policy telepathy", "telepathy"),
        ("chessreg dataset burn sample", "burn"),
        *((f"chessreg {line}", "") for line in sorted(REFUSED)),
        ('chessreg query "moonlight sonata"', "moonlight sonata"),
        ('chessreg query "elo by intervention" --show checkpoint,moon', "moon"),
        ('chessreg plot "moonlight sonata"', "moonlight sonata"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line, message):
    ((*arguments,),) = commands_in(line)
    with pytest.raises((click.UsageError, ChessregError), match=message):
        check_command(root, Command(tuple(arguments), False))


@pytest.mark.parametrize("page", TEXTS)
def test_every_target_of_make_exists(page):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = [*code_lines(TEXTS[page]), *inline_code(TEXTS[page])]
    assert {match for line in shown for match in re.findall(r"^make (\w+)", line)} <= targets


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [*TEXTS, "CONTRIBUTING.md", "RESULTS.md", "RELIABILITY.md", "SECURITY.md", "ARCHITECTURE.md"]
)
def test_every_link_leads_to_a_file_and_a_heading(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


def test_the_columns_of_datasets_are_documented():
    from chessreg.games.datasets.positions import make_position_schema
    from chessreg.games.datasets.rows import make_game_schema

    section = TEXTS["docs/python.md"].partition("## Columns of a dataset")[2].partition("\n## ")[0]
    games, positions = section.split("| positions |")
    for table, schema in ((games, make_game_schema()), (positions, make_position_schema())):
        named = {name for line in table.splitlines() if line.startswith("| `")
                 for name in re.findall(r"`(\w+)`", line.split("|")[1])}  # fmt: skip
        assert named == {*schema.names, "duplicate"}


def test_every_page_is_in_the_index():
    linked = set(re.findall(r"\]\(((?:results/)?[\w-]+\.md)\)", TEXTS["docs/index.md"]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in PAGES if path != ROOT / "README.md"}
    assert linked == pages - {"index.md"}


@pytest.mark.parametrize("page", TEXTS)
def test_no_page_is_empty(page):
    assert len(TEXTS[page].split()) > 100


def test_readme_is_short_and_begins_with_a_command():
    lines = README.splitlines()
    assert len(lines) <= MOST_LINES
    assert len(README.split()) <= MOST_WORDS
    assert re.search("^ {4}(make|pip|uv|chessreg) ", "\n".join(lines[:FIRST_COMMAND]), re.MULTILINE)


def test_the_owner_of_the_repository_is_a_placeholder_in_one_place():
    *before, after = README.partition("<!-- OWNER")
    assert "OWNER" not in before[0]
    assert set(re.findall(r"https://github.com/(\w+)/chessreg", after)) == {"OWNER"}
    assert not [page for page, text in TEXTS.items() if page != "README.md" and "OWNER" in text]


def test_readme_shows_only_tables_of_the_demo():
    blocks = [block for block in re.split(r"\n\n", README) if block.lstrip().startswith("$ chessreg query")]
    assert blocks
    assert all(block in TEXTS["docs/demo.md"] for block in blocks)


def test_the_caption_of_the_picture_is_what_it_shows():
    from html import unescape

    svg = unescape((ROOT / "tui" / "pictures" / "edit.svg").read_text()).replace("\xa0", " ")
    piece, square, clean, edited = re.findall(
        r"\*The probe removes the (\w+) on (\w\d)\. The model stops playing (\S+) and plays (\S+)\.\*", README
    )[0]
    letter = {"knight": "N", "bishop": "B", "rook": "R", "queen": "Q", "king": "K", "pawn": "P"}[piece]
    assert f"{letter} off {square}" in svg
    assert re.findall(r"writes (\w+)", re.sub("<[^>]+>", "", svg)) == [clean, edited]


@pytest.mark.parametrize("page", TEXTS)
def test_the_text_is_plain_english(page):
    prose = re.sub(r"(?s:```.*?```)|`[^`]*`|^ {4}.*$|<!--.*?-->", "", TEXTS[page], flags=re.MULTILINE)
    assert not LITERAL.findall(prose)
    assert prose.count(";") <= 3 * (len(prose.split()) // 1000 + 1)
    sentences = re.split(r"(?<=[.!?:])\s+|\n\n|\n[-|#]|\|", prose)
    assert not [sentence for sentence in sentences if len(re.findall(r"[A-Za-z]{2,}", sentence)) > 25]


@pytest.fixture
def in_world(world: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, object]]:
    """Run the Python snippets of a page, in order and with the same names, on the world's registry."""
    monkeypatch.setenv("CHESSREG_REGISTRY", str(world / "registry.db"))
    monkeypatch.setenv("CHESSREG_STORE", str(world / "store"))

    def run(page: str) -> dict[str, object]:
        names: dict[str, object] = {}
        for snippet in re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL):
            exec(snippet, names)
        return names

    return run


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_snippets_run(page, in_world):
    names = in_world(page)
    assert names["probe"].shape == (32, 64, 13)
    assert names["residual"].shape == (len(names["ratings"]), 32)
    assert len(names["table"]) > 0
    if page == "docs/python.md":
        assert names["attention"].shape[-1] == names["attention"].shape[-2] == len(names["tokens"])
    names["reg"].close()


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_every_method_of_the_registry_exists(page):
    used = set(re.findall(r"\breg\.(\w+)\(", TEXTS[page]))
    assert used
    assert used <= set(dir(Registry))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["with options", "plain"])
def test_the_queries_and_plots_of_the_pages_run(plain, tmp_path, monkeypatch, capsys):
    """On the small registry. Commands that name a run of another registry may report that it was not found.

    Queries without options also have recorded answers in test_demo_registry, so that a quick test only finds them.
    """
    with zipfile.ZipFile(ROOT / "tests/fixtures/demo/demo.zip") as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHESSREG_REGISTRY", str(next(tmp_path.rglob("registry.db"))))
    asked = {
        command.arguments
        for page, text in TEXTS.items()
        if page != "docs/extending.md"  # its example has a separate test
        for command in commands(text)
        if command.arguments[0] in ("query", "plot")
        and len(command.arguments) > 1
        and ELLIPSIS not in command.arguments
    }
    assert len(asked) > 40
    monkeypatch.setattr(stats, "RESAMPLES", 20)
    titles = {each for each in asked if each[0] == "query" and len(each) == 2 and each[1] != "--list"}
    for _, title in titles:
        find_entry(title)
    failed = []
    for arguments in sorted(titles if plain else asked - titles):
        code, error = run_command_line(list(arguments)), capsys.readouterr().err
        if code and not ("--run" in arguments and code == 3 and "was not found" in error):
            failed.append(f"chessreg {' '.join(arguments)}: {error}")
    assert not failed, "\n".join(failed)


def test_the_example_of_a_kind_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"```python\n(.*?)```", TEXTS["docs/extending.md"], re.DOTALL)
    Path("checks_kind.py").write_text(source)
    shown = [" ".join(words) for line in code_lines(TEXTS["docs/extending.md"]) for words in commands_in(line)]
    assert len(shown) == 2
    for line in code_lines(TEXTS["docs/extending.md"]):
        for words in commands_in(line):
            assert run_command_line(words) == 0
    assert "20" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["RELIABILITY.md", "SECURITY.md"])
def test_every_test_that_a_promise_names_exists(page):
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", (ROOT / page).read_text())
    assert len(named) > 10
    for file, function in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert not function or f"def {function}(" in path.read_text(), function
