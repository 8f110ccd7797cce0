"""Finding kinds: ours, a user's file, and what is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.runs.kind import kind, kinds

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"


def test_our_kinds_are_found_by_name_and_by_recorded_source():
    assert {"cache", "probe", "vector", "edit", "play", "train"} <= set(kinds())
    for found in kinds().values():
        assert type(kind(found.source)) is type(found)
        assert found.summary.endswith(".")


def test_listing_the_kinds_imports_nothing_heavy():
    code = (
        "from chessreg.runs.kind import kinds; kinds(); import sys;"
        "print(*sorted({'torch', 'transformers', 'zarr', 'textual', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_kind_in_a_file_needs_no_class_name_when_there_is_one():
    assert kind(str(TOY)).name == kind(f"{TOY}:Toy").name == "toy"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("import nothing_of_that_name", BadInputError, "fails to import"),
        ("x = 1", BadInputError, "defines 0 kinds"),
        (
            "from chessreg.runs.kind import Kind\nclass A(Kind):\n    name = 'a'\n    families = ('nonsense',)",
            BadInputError,
            "families",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path, text, error, says):
    path = tmp_path / "odd_kind.py"
    path.write_text(text)
    with pytest.raises(error, match=says):
        kind(str(path))


def test_an_unknown_kind_names_those_there_are():
    with pytest.raises(NotFoundError, match="probe"):
        kind("prob")
