"""A broken package or custom file is named, and everything else works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chessreg.entities
import chessreg.experiments
from chessreg.cli.root import run_command_line
from chessreg.errors import ChessregError
from chessreg.runs.kind import find_recorded_kind, load_kinds

POINTS = "[chessreg.kinds]\nmine = mine_kind:Mine\ngood = good_kind:Good\n"
GOOD = """
from chessreg.kinds import Kind
class Good(Kind):
    "A kind that works."
    name, tables = "good", ("score",)
    def units(self, spec, inputs):
        return 1
    def run(self, task):
        task.done(0)
"""
BROKEN = {
    "def broken(:\n": "SyntaxError: invalid syntax, {file} line 1",
    "import no_such_module\n": "ModuleNotFoundError: No module named 'no_such_module'",
    "1 / 0\n": "ZeroDivisionError: division by zero",
    "import sys\nsys.exit(3)\n": "SystemExit: 3",
    "class Mine:\n    pass\n": "mine_kind:Mine is not a named subclass of chessreg.kinds.Kind",
    "Mine = 5\n": "mine_kind:Mine is not a named subclass of chessreg.kinds.Kind",
    "from chessreg.kinds import Kind as Mine\n": "mine_kind:Mine is not a named subclass of chessreg.kinds.Kind",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A package with the kind `mine` of this text and the kind `good`, as pip leaves it."""

    def installed(text: str) -> Path:
        (tmp_path / "lenspkg-0.1.dist-info").mkdir()
        for name, content in (
            ("lenspkg-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: lenspkg\nVersion: 0.1\n"),
            ("lenspkg-0.1.dist-info/entry_points.txt", POINTS),
            ("mine_kind.py", text),
            ("good_kind.py", GOOD),
        ):
            (tmp_path / name).write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path))
        for module in ("mine_kind", "good_kind"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        return tmp_path / "mine_kind.py"

    return installed


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = run_command_line(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_kind_of_a_package_is_named_and_the_others_are_there(
    text: str, package: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    why = f"kind mine of lenspkg 0.1 cannot be loaded: {BROKEN[text].format(file=package(text))}"
    status, out, err = said(capsys, "run", "--help")
    assert (status, why in err, "fault in chessreg" in err) == (0, True, False), err
    assert "  good " in out
    assert "  probe " in out
    status, _, err = said(capsys, "run", "mine")
    assert (status, why in err) == (1, True), err
    assert "good" in load_kinds()
    assert find_recorded_kind("good_kind:Good").name == "good"
    with pytest.raises(ChessregError, match=r"kind mine of lenspkg 0\.1 cannot be loaded"):
        find_recorded_kind("mine_kind:Mine")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\ndef broken(:\n", "zz.py line 2 cannot be loaded: SyntaxError: invalid syntax"),
        ("import no_such_module\n", "zz.py line 1 cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_broken_file_in_a_folder_of_chessreg_is_named_with_its_line(
    text: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "zz.py").write_text(text)
    for house in (chessreg.experiments, chessreg.entities):
        monkeypatch.setattr(house, "__path__", [*house.__path__, str(tmp_path)])
    status, out, err = said(capsys, "run", "--help")
    assert (status, "  probe " in out, why in err, "fault in chessreg" in err) == (0, True, True, False), err
    for words in (("run", "zz"), ("zz", "list")):
        status, _, err = said(capsys, *words)
        assert (status, why in err, "fault in chessreg" in err) == (1, True, False), err


def test_a_broken_encoding_is_named_when_it_is_asked_for_and_the_others_are_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("\ndef broken(:\n")
    script = (
        "import importlib.util, json, sys\n"
        "spec = importlib.util.find_spec('chessreg.encodings')\n"
        f"spec.submodule_search_locations.append({str(tmp_path)!r})\n"
        "sys.modules[spec.name] = made = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(made)\n"
        "try:\n"
        "    made.get_encoding('mine')\n"
        "except Exception as error:\n"
        "    print(json.dumps([made.list_encodings(), str(error)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names, why = json.loads(done.stdout)
    assert "pgn-char-32" in names
    assert "encoding 'mine' does not exist" in why
    assert f"{tmp_path / 'mine.py'} line 2 cannot be loaded: SyntaxError: invalid syntax" in why
