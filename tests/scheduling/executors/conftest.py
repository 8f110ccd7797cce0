"""The clusters that executors are tested on."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from chessreg.runs import trust
from chessreg.scheduling.executors import Executor

SLURM = """\
ClusterName=chessreg
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=1
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 Port={daemon} CPUs=5 RealMemory=500
PartitionName=main Nodes={host} Default=YES PriorityTier=1
PartitionName=steady Nodes={host} PriorityTier=1 PreemptMode=OFF
PartitionName=urgent Nodes={host} PriorityTier=10
"""


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test run that is killed leaves no daemon


def slurm(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real Slurm of one node with 5 CPUs; its folder. Partition urgent preempts jobs in main, not in steady."""
    host = get_host_name()
    yield from start_slurm(tmp_path_factory.mktemp("slurm"), SLURM, [host])


def get_host_name() -> str:
    return socket.gethostname().partition(".")[0]


def start_slurm(folder: Path, settings: str, nodes: Sequence[str]) -> Iterator[Path]:
    """Yield the folder of a real Slurm with these nodes, all on this machine. `settings` is a format of slurm.conf."""
    path = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
    daemons = {name: shutil.which(name, path=path) for name in ("slurmctld", "slurmd", "sbatch", "scontrol")}
    if absent := [name for name, found in daemons.items() if found is None]:
        pytest.skip(f"no {' and '.join(absent)} here: make deps")
    controller, *ports = free_ports(1 + len(nodes))
    places = {"controller": controller, "daemon": ",".join(map(str, ports))}
    config = folder / "slurm.conf"
    config.write_text(settings.format(host=get_host_name(), folder=folder, user=psutil.Process().username(), **places))
    (folder / "state").mkdir()
    for node in nodes:
        (folder / f"spool-{node}").mkdir()
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(config)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, argv in enumerate(
            [
                [daemons["slurmctld"], "-D", "-i", "-f", str(config)],
                *([daemons["slurmd"], "-D", "-f", str(config), "-N", node] for node in nodes),
            ]
        ):
            with (folder / f"slurm-{number}.out").open("wb") as out:
                started.append(subprocess.Popen(argv, stdout=out, stderr=out, preexec_fn=die_with_parent))  # type: ignore[arg-type]
        wait_for_idle(folder, started)
        yield folder
    finally:
        stop_slurm(started)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def wait_for_idle(folder: Path, daemons: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 300
    while True:
        listed = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True)
        if listed.stdout.split()[:1] == ["idle"]:
            return
        if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in daemons):
            said = " / ".join(p.read_text(errors="replace")[-300:] for p in sorted(folder.glob("slurm*.out")))
            pytest.skip(f"Slurm does not come up here: {listed.stdout} {listed.stderr} {said}")
        time.sleep(0.05)


def stop_slurm(daemons: list[subprocess.Popen[bytes]]) -> None:
    """The jobs first, then the daemons; nothing remains, in any of their states."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "--signal=KILL", "--full", "--me"], capture_output=True, timeout=10)
        subprocess.run(["scancel", "--me"], capture_output=True, timeout=10)
        deadline = time.monotonic() + 10
        while slurm("squeue", "-h") and time.monotonic() < deadline:
            time.sleep(0.1)
    for daemon in daemons:
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A real Ray of two nodes with 2 CPUs each; the second works in a separate store."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    store = tmp_path_factory.mktemp("node")
    try:
        cluster.add_node(num_cpus=2, object_store_memory=80_000_000, env_vars={"CHESSREG_NODE_STORE": str(store)})
        yield RayCluster(cluster.address, store, cluster)
    finally:
        cluster.shutdown()


class RayCluster(NamedTuple):
    address: str
    node_store: Path  # of the second node
    cluster: Any


@pytest.fixture(scope="module")
def ray_executors(ray_cluster: RayCluster) -> Iterator[Callable[[], Executor]]:
    """Makes executors that follow each other; to save time they share the process that is connected to Ray."""
    from chessreg.scheduling.executors.ray import RayExecutor

    first = RayExecutor(ray_cluster.address, grace=0.5)
    assert first.poll(['{"actor": "nobody", "folder": "/nowhere"}'])

    def make() -> Executor:
        made = RayExecutor(ray_cluster.address, grace=0.5)
        made._driver = first._driver
        return made

    yield make
    first.close()


@pytest.fixture
def here_polled_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder as the current one, with a default profile that asks Slurm often."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_profiles(tmp_path, "[default]\npoll = 0.2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_profiles(folder: Path, text: str) -> None:
    """Write ./.chessreg/profiles.toml in `folder`, and trust it."""
    path = folder / ".chessreg" / "profiles.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    trust.trust_reference(str(path))
