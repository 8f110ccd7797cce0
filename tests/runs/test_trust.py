"""A digest is trusted by a file that `trust.save_digest` wrote, and by nothing else in the settings folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chessreg.errors import BadInputError
from chessreg.runs import trust
from chessreg.runs.kind import find_kind

OURS, OTHER = trust.hash_content(b"ours"), trust.hash_content(b"other")
Row = dict[str, object]


@pytest.fixture(autouse=True)
def settings_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_what_was_added_is_trusted() -> None:
    trust.save_digest(OURS, Path("/home/user/my_kind.py"))
    assert [trust.is_trusted(digest) for digest in (OURS, OTHER)] == [True, False]
    assert [row.path for row in trust.list_trusted()] == ["/home/user/my_kind.py"]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {**row, "digest": OTHER},
        lambda row: {**row, "digest": OURS.upper()},
        lambda row: {**row, "since": "yesterday"},
        lambda row: {**row, "path": 3},
        lambda row: {**row, "more": 1},
        lambda row: {"digest": OURS},
        lambda row: [row],
        lambda row: None,
    ],
)
def test_a_file_of_that_name_with_another_content_trusts_nothing(change: Callable[[Row], object]) -> None:
    trust.save_digest(OURS)
    file = trust.trust_folder() / f"{OURS}.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert not trust.is_trusted(OURS)
    assert not trust.is_trusted(OTHER)
    assert trust.list_trusted() == []


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"{"], ids=["empty", "bytes", "deep", "cut"])
def test_a_file_that_is_not_json_trusts_nothing(content: bytes) -> None:
    trust.save_digest(OURS)
    (trust.trust_folder() / f"{OURS}.json").write_bytes(content)
    assert not trust.is_trusted(OURS)
    assert trust.list_trusted() == []


def test_a_kind_in_a_folder_whose_name_is_not_utf8_is_refused_before_it_runs(tmp_path: Path) -> None:
    """A registry could not record where it was."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "my_kind.py").write_text("raise SystemExit")
    with pytest.raises(BadInputError, match="is not UTF-8"):
        find_kind(str(folder / "my_kind.py"))
