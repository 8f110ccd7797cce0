"""A training on two nodes of a real Slurm: one job, one attempt, the losses of one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.train import TextSpec, TrainOptions
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.scheduling.executors import ResourceNeeds
from chessreg.scheduling.executors.local import MachineSlots
from chessreg.scheduling.executors.slurm_script import SlurmProfile, make_script
from chessreg.scheduling.launch import Order
from chessreg.session import Session, open_session

from ..conftest import Desk
from .conftest import SLURM, start_slurm, write_profiles
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
    "steps": 200, "batch_tokens": 512, "warmup_steps": 2,
}  # fmt: skip


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Path]:
    """A Slurm of two nodes, both on this machine."""
    one = "NodeName={host} NodeAddr=127.0.0.1 Port={daemon} CPUs=5"
    assert one in SLURM
    text = SLURM.replace(one, "NodeName=left,right NodeHostname={host} NodeAddr=127.0.0.1 Port={daemon} CPUs=2")
    yield from start_slurm(tmp_path, text.replace("Nodes={host}", "Nodes=left,right"), ("left", "right"))


def find_process(rank: int) -> psutil.Process | None:
    """The worker that torchrun started with this rank."""
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            if "chessreg.scheduling.worker" in process.info["cmdline"] and process.environ().get("RANK") == str(rank):
                return process
    return None


def test_a_training_on_two_nodes_is_one_attempt_a_launch_with_the_losses_of_one_process(
    two_nodes: Path, world_session: Session, pristine_world: Path, make_desk: Callable[[Session, Path], Desk]
) -> None:
    """The process of the second node is killed; the attempt is lost, and the next one resumes."""
    desk = make_desk(world_session, two_nodes)
    write_profiles(two_nodes, "[default]\npoll = 0.2\n")
    spec = TextSpec(**TINY)
    how: dict[str, Any] = {"device": "cpu", "threads": 1, "log_steps": 10, "autocast": False}
    order = Order(
        find_kind("train"), spec, TrainOptions(**how, nodes=2, checkpoint_seconds=0.01), tuple(TINY), on="slurm"
    )
    before = {attempt.id for attempt in desk.rows(tables.Attempt)}
    desk.launch(order)
    desk.until(lambda: list(world_session.store.runs.glob("*/state.pt")))
    second = find_process(1)
    assert second is not None
    second.kill()
    desk.until(lambda: all(job.ended_at for job in desk.jobs()) or desk.jobs()[0].tries == 2)
    first = next(attempt for attempt in desk.rows(tables.Attempt) if attempt.id not in before)
    assert str(first.cause) == "lost", desk.said()
    desk.finish()
    if desk.states() != ["finished"]:
        desk.launch(order)
        desk.finish()
    assert desk.states()[-1] == "finished", desk.said()
    attempts = [attempt for attempt in desk.rows(tables.Attempt) if attempt.id not in before]
    assert {(a.executor, a.execution_options["nodes"]) for a in attempts} == {("slurm", 2)}
    assert len(attempts) == 2
    alone = Path(shutil.copytree(pristine_world, two_nodes / "alone"))
    with open_session(str(alone / "registry.db"), alone / "store") as session:
        assert session.run(spec, TrainOptions(**how)).run_id == attempts[0].run_id
        wanted = read_losses(session, attempts[0].run_id)
    assert len(wanted) == TINY["steps"] // 10
    assert read_losses(world_session, attempts[0].run_id) == pytest.approx(wanted, abs=1e-4)


def read_losses(session: Session, run_id: Any) -> list[float]:
    point = tables.MetricPoint
    with session.database.read() as sql:
        chosen = select(point.value).where(point.run_id == run_id, point.name == "loss").order_by(point.step)
        return list(sql.scalars(chosen))
