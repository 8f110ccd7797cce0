"""No command imports a library that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chessreg.cli.root import run_command_line

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "tests" / "fixtures" / "demo" / "demo.zip"

SCRIPT = """
import json, shlex, sys
import click
from chessreg.cli.root import root, run_command_line

def command_lines(command, context, words):
    yield [*words, "--help"]
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        yield from command_lines(inner, click.Context(inner, parent=context, info_name=name), [*words, name])

given = json.loads(sys.argv[1])
reports = []
for heavy, lines in given:
    for words in map(shlex.split, lines) if lines else command_lines(root, click.Context(root), []):
        status = run_command_line(words)
        loaded = [name for name in heavy if name in sys.modules]
        reports.append([shlex.join(words), status, loaded])
print("\\nREPORTS", json.dumps(reports))
"""

MODELS = ["torch", "transformers", "transformer_lens", "textual", "matplotlib"]
TABLES = ["duckdb", "pyarrow"]
NO_TABLES = """
init
completion bash
dataset list
checkpoint list
checkpoint show reference
engine list
engine ladder
runs list
runs show reference-board
runs conflicts
runs tag reference-board seen
lineage reference-board
reproduce reference-board
query --list
plot --list
paper list
cache list
cache show reference-fit
cache verify reference-fit
probe list
probe show reference-board
vector list
sae list
game list
status
jobs
machines
supervisor status
db status
config
gc
recover
""".strip().splitlines()
NO_MODELS = """
doctor
query "best probe layers"
query --sql "select 1"
run probe --cache reference-fit --dry-run
run play --checkpoint reference --dry-run
launch probe --cache reference-fit --dry-run
""".strip().splitlines()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, list[str]]]:
    """Every command line, its exit status, and the heavy modules loaded after it: all lines run in one process, in
    which a module stays loaded, so that the first line with a module is the one that imports it."""
    folder = tmp_path_factory.mktemp("imports")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extractall(folder / ".chessreg")
    given = [(MODELS + TABLES, None), (MODELS + TABLES, NO_TABLES), (MODELS, NO_MODELS)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(given)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
    )
    return json.loads(done.stdout.rpartition("REPORTS ")[2])


def test_every_line_is_answered(reports: list[tuple[str, int, list[str]]]) -> None:
    assert len(reports) > 200
    assert [(line, status) for line, status, _ in reports if status] == []


def test_only_commands_that_need_a_heavy_library_import_it(reports: list[tuple[str, int, list[str]]]) -> None:
    assert [(line, loaded) for line, _, loaded in reports if loaded][:1] == []


HOME_SCREEN = """
import asyncio, sys
from pathlib import Path
from tui.app import ChessregApp
from tui.entries import import_screens
from tui.registry import open_tui_session

async def show_home(folder):
    url = f"sqlite:///{folder / 'registry.db'}"
    app = ChessregApp(lambda: open_tui_session(url, folder / "store"), url, start="home")
    async with app.run_test(size=(120, 40)) as pilot:
        while app.screen.at_home is None:
            await pilot.pause(0.05)
        import_screens()  # as the app does in the background
        print("LOADED", *({"torch", "pyarrow", "duckdb", "matplotlib"} & sys.modules.keys()))

asyncio.run(show_home(Path(sys.argv[1])))
"""


def test_home_and_the_code_of_all_screens_load_no_heavy_library(tmp_path: Path) -> None:
    """They stay in memory for days. A screen imports such a library where it first reads rows that need it. NumPy is
    imported in the background, because every board needs it."""
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    assert run_command_line([*place, "init"]) == 0
    done = subprocess.run(
        [sys.executable, "-c", HOME_SCREEN, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
    )
    assert done.stdout.splitlines()[-1] == "LOADED"
