"""A skipped test is a gap: it needs a reason from the list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAMPLE = """
import pytest

def test_listed(): pytest.skip("Stockfish is not installed (sudo apt-get install stockfish)")
@pytest.mark.skipif(True, reason="reads /proc/locks")
def test_marked(): pass
def test_unlisted(): pytest.importorskip("no_such_package")
@pytest.mark.skip(reason="flaky")
def test_marked_without_need(): pass
@pytest.mark.xfail
def test_expected(): assert False
"""


def test_an_unlisted_skip_fails(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "test_whole_file.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "--continue-on-collection-errors", "-q", "-c"]
    command += ["/dev/null", "--rootdir", tmp_path, "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert "1 failed, 2 skipped, 1 xfailed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    for line in ("test_sample.py::test_unlisted", "test_sample.py::test_marked_without_need", "test_whole_file.py"):
        assert line in done.stdout.partition("short test summary")[2]
    assert "Skipped: could not import 'no_such_package'" in done.stdout
