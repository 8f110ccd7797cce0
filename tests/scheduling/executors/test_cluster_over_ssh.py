"""`chessreg cluster` with real machines: two network namespaces with sshd, joined to this one by a bridge."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from chessreg import child
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.scheduling.launch import Order
from chessreg.session import Session

from ..conftest import Desk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
KIND = f"{Path(__file__).parent / 'sent_kind.py'}:Sent"
SSHD = """\
Port 22
HostKey /tmp/host_key
AuthorizedKeysFile /tmp/authorized_keys
PermitRootLogin yes
StrictModes no
UsePAM yes
PidFile none
SetEnv XDG_CACHE_HOME=/tmp/cache PYTHONPATH={path}
"""
START = """\
hostname {name} && mount --bind {folder} /tmp && mount -t tmpfs none /run && mkdir /run/sshd &&
exec /usr/sbin/sshd -D -e -f /tmp/sshd_config"""


def must(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Boxes:
    """Machines box1 and box2: each has its own network, processes, host name and /tmp. This machine is on their
    network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, os.getpid() % 250
        self.bridge = f"cgr{self.number}"
        self.here = f"10.215.{self.number}.1"
        self.addresses = {name: f"10.215.{self.number}.{place}" for place, name in enumerate(("box1", "box2"), 2)}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def make(self) -> None:
        must("ip", "link", "add", self.bridge, "type", "bridge")
        must("ip", "addr", "add", f"{self.here}/24", "dev", self.bridge)
        must("ip", "link", "set", self.bridge, "up")
        must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key")
        must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "other_key")
        for name, address in self.addresses.items():
            space, near = f"{self.bridge}-{name}", f"{self.bridge}{name[-1]}"
            must("ip", "netns", "add", space)
            must("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
            must("ip", "link", "set", near, "master", self.bridge, "up")
            must("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            must("ip", "-n", space, "link", "set", "eth0", "up")
            must("ip", "-n", space, "link", "set", "lo", "up")
            own = self.folder / name
            own.mkdir()
            must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", own / "host_key")
            shutil.copy(self.folder / "key.pub", own / "authorized_keys")
            (own / "sshd_config").write_text(SSHD.format(path=child.ROOT))
            words = ["ip", "netns", "exec", space, "unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child"]
            words += ["--mount-proc", "sh", "-c", START.format(name=name, folder=own)]
            with (self.folder / f"{name}.log").open("wb") as log:
                self.daemons[name] = subprocess.Popen(words, stdout=log, stderr=log)
        known = "".join(
            f"{address} {(self.folder / name / 'host_key.pub').read_text()}" for name, address in self.addresses.items()
        )
        (self.folder / "known_hosts").write_text(known)
        hosts = "".join(f"Host {name}\n HostName {address}\n" for name, address in self.addresses.items())
        common = f"Host *\n User root\n IdentitiesOnly yes\n UserKnownHostsFile {self.folder}/known_hosts\n"
        for program, key in (("bin", "key"), ("refused", "other_key")):
            (self.folder / program).mkdir()
            (self.folder / program / "config").write_text(f"{hosts}{common} IdentityFile {self.folder}/{key}\n")
            ssh = self.folder / program / "ssh"
            ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/{program}/config "$@"\n')
            ssh.chmod(0o755)
        deadline = time.monotonic() + 60
        while any(subprocess.run([self.folder / "bin/ssh", name, "true"]).returncode for name in self.addresses):
            assert time.monotonic() < deadline, [path.read_text() for path in self.folder.glob("*.log")]
            time.sleep(0.2)

    def remove(self) -> None:
        for daemon in self.daemons.values():
            daemon.kill()  # all processes of its namespace end with it
            daemon.wait()
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", f"{self.bridge}-{name}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)

    def list_processes(self, name: str) -> list[str]:
        """The command lines of Ray's processes on a machine."""
        listed = subprocess.run(
            [self.folder / "bin/ssh", name, "ps", "axww", "-o", "args"], capture_output=True, text=True
        )
        assert listed.returncode == 0, listed.stderr
        return [line for line in listed.stdout.splitlines() if "ray" in line and "ps axww" not in line]

    def list_files(self, name: str) -> list[str]:
        return [path.name for path in (self.folder / name).glob("chessreg-ray-*")]


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boxes]:
    if absent := [
        name for name in ("sshd", "ssh", "ip", "unshare") if not shutil.which(name, path="/usr/sbin:/usr/bin:/bin")
    ]:
        pytest.skip(f"no {' and '.join(absent)} here")
    if os.geteuid() != 0:
        pytest.skip("no network namespaces here: not root")
    made = Boxes(tmp_path_factory.mktemp("boxes"))
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield made
    finally:
        made.remove()


@pytest.fixture
def cluster(boxes: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs `chessreg cluster` with these words; afterwards nothing of the cluster is left anywhere."""
    for kind in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("PATH", f"{boxes.folder}/bin:{os.environ['PATH']}")

    def run(*words: str, status: int = 0) -> Any:
        command = [sys.executable, "-m", "chessreg", "cluster", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=child.build_child_environment())
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stderr if status else done.stdout)

    yield run
    run("down")
    for name in boxes.addresses:
        assert boxes.list_processes(name) == []
        assert boxes.list_files(name) == []
    assert not list(Path(tempfile.gettempdir()).glob("chessreg-ray-*")), "of this machine's node"


def test_up_launch_status_down(
    boxes: Boxes, cluster: Callable[..., Any], make_desk: Callable[..., Desk], session: Session, tmp_path: Path
) -> None:
    rows = cluster("up", "box1", "box2")
    assert [(row["machine"], row["state"]) for row in rows] == [
        ("box1", "running"), ("box2", "running"), ("this machine", "running")
    ]  # fmt: skip
    assert [row["address"] for row in rows] == [*boxes.addresses.values(), boxes.here]
    assert [row["state"] for row in cluster("up", "box1", "box2")] == ["running"] * 3, "again changes nothing"
    desk = make_desk(session, tmp_path)
    (tmp_path / "words.txt").write_text("a chess game ")
    found = find_kind(KIND)
    how = found.options(device="cpu", threads=os.cpu_count())
    spec = found.spec(file=str(tmp_path / "words.txt"), gate="/tmp/gate")
    desk.launch(Order(found, spec, how, ("file", "gate"), "sent", "ray", shards=2))
    desk.until(lambda: desk.said().count("2 of 2 units to do") == 2)
    record = json.loads(next((tmp_path / "cache/chessreg").glob("cluster-node-*.json")).read_text())
    os.kill(record["process"]["pid"], signal.SIGTERM)  # this machine leaves, and its shards continue
    for name in boxes.addresses:
        (boxes.folder / name / "gate").touch()
    psutil.wait_procs([psutil.Process(record["process"]["pid"])], 60)
    cluster("up", "box1")
    desk.until(lambda: all(job.ended_at for job in desk.jobs()), 120)
    assert desk.states() == ["finished", "finished"], desk.said() + str([job.message for job in desk.jobs()])
    made = {row.name: (session.store.path(row.digest) / "copy.txt").read_text() for row in desk.rows(tables.Output)}
    assert made == {f"copy-{n}": f"a chess game {n}" for n in range(4)}
    assert {Path(a.log).read_text().split(" on ")[1].split(",")[0] for a in desk.rows(tables.Attempt)} == {
        "box1",
        "box2",
    }
    desk.supervisor.executors["ray"].close()
    assert {row["state"] for row in cluster("status")} == {"running"}
    assert set(cluster("down")["stopped"]) == {"box1", "box2", "this machine"}
    assert cluster("status") == []


def test_each_failure_is_one_line_and_leaves_nothing(
    boxes: Boxes, cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*words: str, status: int = 1) -> str:
        return str(cluster("up", *words, status=status)["error"])

    assert "box3: ssh: Could not resolve hostname box3" in fail("box1", "box3")
    assert "No such file" in fail("box1", "--python", "/nowhere/python")
    assert "No module named" in fail("box1", "--python", "/usr/bin/python3")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{boxes.folder}/refused:{os.environ['PATH']}")
        assert "Permission denied" in fail("box1")
    other = boxes.folder / "box2" / "python"  # an environment with another Ray
    other.write_text(f'#!/bin/sh\nexport PYTHONPATH=/tmp/other:$PYTHONPATH\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    info = boxes.folder / "box2" / "other" / "ray-2.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.0.0\n")
    assert "box2 has ray 2.0.0, this machine" in fail("box2", "--python", "/tmp/python")

    words = [boxes.folder / "bin/ssh", "box1", shlex.join([sys.executable, "-c", LISTEN])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taken:
        assert taken.stdout
        assert taken.stdout.readline()
        assert "box1: port 6379: Address already in use" in fail("box1", "box2")
        taken.communicate()

    space = f"{boxes.bridge}-box2"
    must("ip", "-n", space, "route", "add", "blackhole", f"{boxes.addresses['box1']}/32")
    try:
        assert f"box2: cannot connect to {boxes.addresses['box1']}:6379" in fail("box1", "box2"), (
            "box1 is stopped again"
        )
    finally:
        must("ip", "-n", space, "route", "del", "blackhole", f"{boxes.addresses['box1']}/32")
    assert cluster("status") == []


LISTEN = """
import socket, sys
listening = socket.create_server(("0.0.0.0", 6379))
print("listening", flush=True)
sys.stdin.read()"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_an_interrupted_start(
    boxes: Boxes, cluster: Callable[..., Any], sent: signal.Signals
) -> None:
    """After kill -9, `cluster down` stops the nodes that had started."""
    command = [sys.executable, "-m", "chessreg", "cluster", "up", "box1", "box2"]
    starting = subprocess.Popen(command, env=child.build_child_environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not any("raylet" in line for line in boxes.list_processes("box2")):
        assert starting.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    starting.send_signal(sent)
    said = starting.communicate()[1]
    if sent is signal.SIGINT:
        assert (starting.returncode, said.strip()) == (130, "interrupted")
        assert cluster("status") == []
        assert boxes.list_processes("box1") == []
    else:
        assert "box1" in cluster("down")["stopped"]


def test_every_port_requires_the_token(boxes: Boxes, cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster("up", "box1")
    head = f"{boxes.addresses['box1']}:6379"
    for token, accepted in (("0" * 64, False), (None, True)):
        code = f"import ray; ray.init(address={head!r}, _node_ip_address={boxes.here!r}); print(len(ray.nodes()))"
        record = json.loads((tmp_path / "state/chessreg/cluster.json").read_text())
        env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token or record["token"]}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
        assert (done.returncode == 0) is accepted, done.stdout + done.stderr
        assert ("2" in done.stdout) is accepted
    assert (tmp_path / "state/chessreg/cluster.json").stat().st_mode & 0o777 == 0o600
    listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True).stdout
    assert ":8265" not in listening, "no dashboard"
    shown = [word for line in boxes.list_processes("box1") for word in line.split() if record["token"] in word]
    assert shown == [], "the token is in no command line"


def test_a_node_that_dies_starts_again_and_a_machine_that_is_gone_can_be_forgotten(
    boxes: Boxes, cluster: Callable[..., Any]
) -> None:
    cluster("up", "box1", "box2")
    must(boxes.folder / "bin/ssh", "box2", "pkill -KILL raylet")
    deadline = time.monotonic() + 120
    while [row["state"] for row in cluster("status")] != ["running", "not running", "running"]:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert {row["state"] for row in cluster("up", "box2")} == {"running"}
    near = f"{boxes.bridge}2"
    must("ip", "link", "set", near, "down")
    try:
        assert "box2: ssh: connect to host" in cluster("down", status=1)["error"]
        assert cluster("down", "--forget")["stopped"] == [], "the others have been stopped"
    finally:
        must("ip", "link", "set", near, "up")
    deadline = time.monotonic() + 180
    while boxes.list_processes("box2"):
        assert time.monotonic() < deadline, "a node ends once it sees that its head has ended"
        time.sleep(0.5)
    shutil.rmtree(boxes.folder / "box2" / boxes.list_files("box2")[0])
