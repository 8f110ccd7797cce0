"""Readers report a lack of memory as such, not as damage of the file."""

from __future__ import annotations

import ast
import errno
from pathlib import Path

import numpy as np
import pytest

from chessreg.errors import BadInputError, is_out_of_memory, reraise_lack_of_memory
from chessreg.experiments.vector.sums import read_group_sums
from chessreg.models.importers.source import read_npz

ROOT = Path(__file__).resolve().parents[1]
BROAD = ("Exception", "RuntimeError", "OSError", "MemoryError", "ArrowException", "DAMAGE_ERRORS", "_DAMAGE")
DAMAGE_WORDS = ("damaged", "cannot be read", "not a saved state", "not a tokenizer", "cannot be unpacked")
CHECKS = ("reraise_lack_of_memory", "is_out_of_memory", "ENOMEM", "strerror", "describe_os_error")
SMALL_FILES = {"read_settings", "read_config"}  # of at most a few MiB


def list_handlers():
    """Yield place and text of every handler of broad errors that reports damage of a file."""
    for path in sorted((ROOT / "chessreg").rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.type is not None:
                    types, text = ast.unparse(node.type), "\n".join(map(ast.unparse, node.body))
                    is_broad = any(each in types for each in BROAD)
                    if is_broad and "raise" in text and any(word in text for word in DAMAGE_WORDS):
                        yield f"{path.relative_to(ROOT)}:{function.name}", text


def test_every_reader_that_reports_damage_excludes_a_lack_of_memory():
    handlers = list(list_handlers())
    assert len(handlers) > 20
    unchecked = [place for place, text in handlers if not any(check in text for check in CHECKS)]
    assert [place for place in unchecked if place.rpartition(":")[2] not in SMALL_FILES] == []


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "no memory"), RuntimeError("can't allocate memory")]
)
def test_a_lack_of_memory_is_raised_again_and_damage_is_not(error):
    assert is_out_of_memory(error)
    with pytest.raises(type(error)):
        reraise_lack_of_memory(error)
    reraise_lack_of_memory(ValueError("bad header"))


def test_a_shape_that_the_file_cannot_hold_is_damage(tmp_path, monkeypatch):
    path = tmp_path / "sums.npy"
    np.save(path, np.zeros((2, 3), np.float32))
    damaged = path.read_bytes().replace(b"(2, 3), }" + b" " * 15, b"(2222222222, 33333), }" + b" " * 2)
    (tmp_path / "damaged.npy").write_bytes(damaged)
    with pytest.raises(Exception, match=r"damaged.npy is damaged"):
        read_group_sums(tmp_path / "damaged.npy")
    monkeypatch.setattr(np, "load", lambda path, **how: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        read_group_sums(path)
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    with pytest.raises(MemoryError):
        read_npz(tmp_path / "a.npz")
    monkeypatch.undo()
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes().replace(b"(3,), }", b"(9,), }"))
    with pytest.raises(BadInputError, match="is damaged"):
        read_npz(tmp_path / "b.npz")
