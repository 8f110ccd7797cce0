"""Every kind that writes arrays, on a disk that becomes full at any point: one line with the path, and nothing half
written. With space again, the same command ends."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.runs.kind import find_kind

from ..full_disk import no_space_beyond

WRITERS = ("safetensors.numpy.save_file", "safetensors.torch.save_file", "torch.save", "numpy.save")
KINDS = {  # kind and settings → the writers that it meets
    "probe": ("--epochs 1", ["safetensors.numpy.save_file"]),
    "vector": ("--keep-sums", ["safetensors.numpy.save_file"]),
    "vector of a model": (
        "--source contrastive-uncached --checkpoint reference --dataset sample:fit --first-ply 4",
        ["numpy.save", "safetensors.numpy.save_file"],
    ),
    "markov": ("", ["safetensors.numpy.save_file"]),
    "train": ("--steps 2 --n-layer 1 --batch-tokens 512", ["torch.save", "safetensors.torch.save_file"]),
    "sae": ("", ["torch.save", "safetensors.numpy.save_file"]),
    "finetune": ("", ["torch.save", "safetensors.torch.save_file"]),
}


@contextmanager
def full_for(writer: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """In the block, the disk is full whenever this function of a library writes. Yields the calls."""
    module, _, name = writer.rpartition(".")
    calls: list[str] = []

    def write(*arguments: Any, **named: Any) -> None:
        calls.append(writer)
        with no_space_beyond(100):
            real(*arguments, **named)

    with monkeypatch.context() as patched:
        real: Callable[..., None] = getattr(__import__(module, fromlist=[name]), name)
        patched.setattr(writer, write)
        yield calls


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "finetune" else name for name in KINDS]
)
def test_a_full_disk_is_said_with_its_path_and_leaves_nothing(name, pristine_world, tmp_path, monkeypatch, capsys):
    world = shutil.copytree(pristine_world, tmp_path / "world")
    more, writers = KINDS[name]
    what = name.partition(" ")[0]
    words = shlex.split(more) if " " in name else [*shlex.split(find_kind(what).example), *shlex.split(more)]
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    for writer in writers:
        with full_for(writer, monkeypatch) as calls:
            assert run_command_line([*place, "run", what, *words]) == 1
        assert calls, f"{writer} is not what {name} writes with"
        said = capsys.readouterr().err
        assert f"the disk is full at {world / 'store'}" in said
        assert "unexpected" not in said
        assert not list((world / "store" / "tmp").iterdir())
        assert not list((world / "store" / "runs").rglob("*.tmp"))
    assert run_command_line([*place, "run", what, *words]) == 0, capsys.readouterr().err
