"""A training on two nodes of a real Slurm: one job, one attempt, the losses of one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.train import TextSpec, TrainOptions
from chessreg.registry import tables
from chessreg.scheduling.executors import ResourceNeeds
from chessreg.scheduling.executors.local import MachineSlots
from chessreg.scheduling.executors.slurm_script import SlurmProfile, make_script

from .conftest import SLURM, start_slurm
from .test_slurm import work


def test_the_script_starts_one_torchrun_per_node(tmp_path: Path) -> None:
    each = work(tmp_path, device="cuda", nodes=2, devices=4)
    argv = ("/venv/bin/python", "-P", "-m", "chessreg.scheduling.worker", f"{each.folder}/work.json")
    each = type(each)(**{**vars(each), "argv": argv})
    text = make_script([each], SlurmProfile(gres="gpu:1", store="/nodes/store"), each.log)
    for line in ("#SBATCH --nodes=2", "#SBATCH --ntasks=2", "#SBATCH --gres=gpu:4", "export PYTHONSAFEPATH=1"):
        assert line in text.splitlines()
    assert "-m torch.distributed.run --nnodes=2 --nproc-per-node=4" in text
    assert text.rstrip().endswith(
        f"-m chessreg.scheduling.worker /nodes/store/runs/r/jobs/{each.folder.name}/work.json"
    )


def test_several_nodes_are_refused_elsewhere(world_session: Any) -> None:
    with pytest.raises(BadInputError, match="--nodes 2 requires Slurm"):
        MachineSlots(4).find(ResourceNeeds("cpu", nodes=2), [])
    with pytest.raises(BadInputError, match="--nodes 2 requires Slurm"):
        world_session.run(TextSpec(**TINY), TrainOptions(nodes=2))


TINY: dict[str, Any] = {
    "architecture": "gpt2", "datasets": ("sample:fit",), "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 63,
    "steps": 12, "batch_tokens": 512, "warmup_steps": 2,
}  # fmt: skip


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Path]:
    """A Slurm of two nodes, both on this machine."""
    host = socket.gethostname().partition(".")[0]
    nodes = "NodeName=left,right NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=2 RealMemory=500"
    text = SLURM.replace("NodeName={host} NodeAddr=127.0.0.1 CPUs=5 RealMemory=500", nodes)
    for name in (
        "SlurmdSpoolDir={folder}/spool",
        "SlurmdPidFile={folder}/slurmd.pid",
        "SlurmdLogFile={folder}/slurmd.log",
    ):
        assert name in text
        text = text.replace(name, f"{name}-%n")
    text = text.replace("Nodes={host}", "Nodes=left,right")
    yield from start_slurm(tmp_path, text, ("left", "right"), host)
