"""Probabilities of next tokens on disk: read as they were written, and damaged or hostile files are one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.experiments.edit.three_boards import KIND, read_case, write_group

CONDITIONS = ["clean", "target"]
GZIP = {"name": "gzip", "configuration": {"level": 5}}


@pytest.fixture
def group(tmp_path: Path) -> Path:
    path = tmp_path / "probabilities.zarr"
    values = np.random.default_rng(0).random((5, 2, 72), np.float32)
    write_group(path, [10, 11, 12, 13, 14], CONDITIONS, values)
    return path


def changed(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the metadata of the group, or of an array in it."""

    def apply(group: Path) -> None:
        path = group / file / "zarr.json"
        metadata = json.loads(path.read_text())
        change(metadata)
        path.write_text(json.dumps(metadata))

    return apply


def written(file: str, content: bytes) -> Callable[[Path], None]:
    """Put another content in the place of a file."""

    def apply(group: Path) -> None:
        (group / file).write_bytes(content)

    return apply


def chunks_of(*shape: int) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata["chunk_grid"]["configuration"].update(chunk_shape=shape)


DAMAGED = {
    "empty": written("zarr.json", b""),
    "another text": written("zarr.json", b"a letter"),
    "null": written("zarr.json", b"null"),
    "deep": written(f"{KIND}/zarr.json", b"[" * 100_000),
    "no conditions": changed("", lambda metadata: metadata["attributes"].clear()),
    "a number of conditions": changed("", lambda metadata: metadata["attributes"].update(conditions=2)),
    "too many conditions": changed("", lambda metadata: metadata["attributes"].update(conditions=["a", "b", "c"])),
    "a huge shape": changed(KIND, lambda metadata: metadata.update(shape=[1 << 50, 2, 72])),
    "many chunks": changed(KIND, lambda metadata: metadata.update(shape=[5000, 2000, 7200])),
    "huge chunks": changed(KIND, chunks_of(1 << 31, 2, 72)),
    "no chunks": changed(KIND, chunks_of(0, 2, 72)),
    "a negative shape": changed(KIND, lambda metadata: metadata.update(shape=[-1, 2, 72])),
    "fewer cases": changed(KIND, lambda metadata: metadata.update(shape=[4, 2, 72])),
    "another type": changed(KIND, lambda metadata: metadata.update(data_type="string")),
    "packed": changed(
        KIND, lambda metadata: metadata["codecs"].append({"name": "gzip", "configuration": {"level": 5}})
    ),
    "a cut chunk": written(f"{KIND}/c/0/0/0", b"\0" * 100),
    "a missing chunk": lambda group: (group / KIND / "c/0/0/0").unlink(),
    "a missing array": lambda group: (group / "unit" / "zarr.json").unlink(),
}


def test_a_case_is_read_by_its_unit(group: Path) -> None:
    case = read_case(group, 12)
    assert case is not None
    assert list(case) == CONDITIONS
    np.testing.assert_array_equal(case["target"], np.random.default_rng(0).random((5, 2, 72), np.float32)[2, 1])
    assert read_case(group, 15) is None


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_one_error_and_takes_no_memory(group: Path, damage: str) -> None:
    DAMAGED[damage](group)
    with pytest.raises(BadInputError, match=f"{group} is damaged: ") as caught:
        read_case(group, 12)
    assert caught.value.hint == "chessreg doctor --digests"
