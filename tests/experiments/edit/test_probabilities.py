"""Probabilities of next tokens on disk: read as they were written, and damaged or hostile files are one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.edit.three_boards import ARTIFACT_KIND, read_case_probabilities, write_probability_group

CONDITIONS = ["clean", "target"]


@pytest.fixture
def group(tmp_path: Path) -> Path:
    path = tmp_path / "probabilities.safetensors"
    values = np.random.default_rng(0).random((5, 2, 72), np.float32)
    write_probability_group(path, [10, 11, 12, 13, 14], CONDITIONS, values)
    return path


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Change the header of a file."""

    def apply(content: bytes) -> bytes:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[end:]

    return apply


def conditions(value: str) -> Callable[[bytes], bytes]:
    return changed(lambda header: header["__metadata__"].update(conditions=value))


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "another text": lambda content: b"a letter",
    "null": lambda content: (4).to_bytes(8, "little") + b"null",
    "deep": lambda content: (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "a huge header": lambda content: b"\xff" * 8 + content[8:],
    "no conditions": changed(lambda header: header.pop("__metadata__")),
    "conditions that are not JSON": conditions("clean"),
    "a number of conditions": conditions("2"),
    "too many conditions": conditions('["a", "b", "c"]'),
    "a huge shape": changed(lambda header: header[ARTIFACT_KIND].update(shape=[1 << 50, 2, 72])),
    "a negative shape": changed(lambda header: header[ARTIFACT_KIND].update(shape=[-1, 2, 72])),
    "another shape": changed(lambda header: header[ARTIFACT_KIND].update(shape=[10, 72])),
    "fewer cases": changed(lambda header: header[ARTIFACT_KIND].update(shape=[4, 2, 90])),
    "another type": changed(lambda header: header[ARTIFACT_KIND].update(dtype="I32")),
    "a cut file": lambda content: content[:-100],
    "a missing array": changed(lambda header: header.pop("unit")),
}


def test_a_case_is_read_by_its_unit(group: Path) -> None:
    case = read_case_probabilities(group, 12)
    assert case is not None
    assert list(case) == CONDITIONS
    np.testing.assert_array_equal(case["target"], np.random.default_rng(0).random((5, 2, 72), np.float32)[2, 1])
    assert read_case_probabilities(group, 15) is None


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_one_error(group: Path, damage: str) -> None:
    group.write_bytes(DAMAGED[damage](group.read_bytes()))
    with pytest.raises(BadInputError, match=f"{group} is damaged: ") as caught:
        read_case_probabilities(group, 12)
    assert caught.value.hint == "chessreg doctor --digests"


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is damaged: FileNotFoundError"):
        read_case_probabilities(tmp_path / "nothing.safetensors", 0)
