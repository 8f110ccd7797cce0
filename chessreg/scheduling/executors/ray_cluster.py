"""A few machines that this one reaches over ssh, as one Ray cluster for `--on ray`.

The first machine is the head, so that shards continue while this one sleeps. This machine joins without CPUs: through
it, nodes read inputs and return results (`ray_staging.py`). Ray's cluster launcher (`ray up`, for on-premise clusters)
is not used, because it accepts every host key and copies the private key to the head.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shlex
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chessreg import child
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.folders import get_state_folder
from chessreg.scheduling.executors.ray_node import describe_machine
from chessreg.scheduling.worker import read_json_or_none, write_record

DEFAULT_PORT = 6379  # Ray's own
WITHDRAW_TIMEOUT_S = 40.0
SSH_FAILED = 255  # exit status of ssh if it cannot connect
SSH = ("ssh", "-4", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=3")
NODE_ADDRESS_VARIABLE = "CHESSREG_RAY_NODE"  # IP of this machine's node, if several nodes run on it
THIS_MACHINE = ""  # among the destinations of ssh


@dataclass
class Cluster:
    """A cluster that was started from this machine. Destinations are in the order of `up`; the first is the head."""

    head: str  # IP:PORT
    token: str
    python: dict[str, str]  # destination of ssh → its Python with chessreg
    addresses: dict[str, str] = field(default_factory=dict)  # destination → IP, also of this machine

    def save(self) -> None:
        """Write the record."""
        write_record(get_cluster_file(), asdict(self))

    def make_requests(self, verb: str, destinations: Iterable[str], callback: str = "") -> dict[str, dict[str, Any]]:
        """Return the request to each destination."""
        head_box, common = next(iter(self.python)), {"verb": verb, "head": self.head, "token": self.token}
        return {
            box: common | {"address": self.addresses.get(box), "is_head": box == head_box}
            | {"has_work": box != THIS_MACHINE}
            | {"callback": callback if box != THIS_MACHINE else ""}
            for box in destinations
        }  # fmt: skip


@contextmanager
def lock_cluster() -> Iterator[None]:
    """Keep other commands from changing the cluster. Raises ChessregError if one is at work."""
    get_cluster_file().parent.mkdir(parents=True, exist_ok=True)
    with get_cluster_file().with_suffix(".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ChessregError("another `chessreg cluster` is starting or stopping machines", "wait for it") from None
        yield


def get_cluster_file() -> Path:
    """Return the path of the file that records the cluster started from this machine."""
    return get_state_folder() / "cluster.json"


def read_cluster() -> Cluster | None:
    """Return the cluster that was started from this machine, or None."""
    record = read_json_or_none(get_cluster_file())
    return Cluster(**record) if record else None


def build_driver_environment(address: str) -> dict[str, str]:
    """Return the environment in which a process of this machine connects to the cluster at `address`."""
    cluster = read_cluster()
    if cluster is None or address != cluster.head:
        return {}
    settings = {"AUTH_MODE": "token", "AUTH_TOKEN": cluster.token}
    environment = {NODE_ADDRESS_VARIABLE: cluster.addresses.get(THIS_MACHINE, "")}
    return {f"RAY_{name}": value for name, value in settings.items()} | environment


@lock_cluster()
def start_cluster(destinations: Iterable[str], python: str, port: int = DEFAULT_PORT) -> list[dict[str, Any]]:
    """Start Ray on the destinations and this machine, or add them to the cluster that runs. Return its nodes.

    Raises ChessregError if a machine cannot be reached or does not fit. The machines added by this call are then
    stopped.
    """
    boxes = list(dict.fromkeys(destinations))
    if bad_boxes := [box for box in boxes if not box.strip() or box.startswith("-")]:
        raise BadInputError(f"{bad_boxes[0]!r} is not a destination of ssh", "chessreg cluster up box1 user@box2")
    earlier_cluster, cluster = read_cluster(), read_cluster() or Cluster("", secrets.token_hex(32), {})
    descriptions = require_answers(
        ask_machines({box: {"verb": "describe"} for box in boxes}, dict.fromkeys(boxes, python))
    )
    for box, machine in descriptions.items():
        require_equal_versions(box, python, machine["versions"])
        cluster.addresses[box] = machine["address"]
    cluster.python |= dict.fromkeys(boxes, python)
    first_box = next(iter(cluster.python))
    cluster.head = cluster.head or f"{cluster.addresses[first_box]}:{port}"
    client = descriptions[boxes[0]]["client"]
    with socket.socket() as callback:
        try:
            callback.bind((client, 0))
        except OSError:
            hint = "run this on a machine in their network, or connect to them through a VPN"
            raise ChessregError(f"{boxes[0]} sees this machine as {client}, which is not its address", hint) from None
        callback.listen()
        cluster.addresses[THIS_MACHINE] = client
        cluster.save()
        try:
            peer, other_boxes = (
                f"{client}:{callback.getsockname()[1]}",
                [box for box in cluster.addresses if box != first_box],
            )
            head = require_answers(ask_machines(cluster.make_requests("start", [first_box], peer), cluster.python))
            if (
                earlier_cluster is not None and head[first_box]["started"]
            ):  # the other nodes belong to the head that has ended
                ask_machines(cluster.make_requests("stop", other_boxes), cluster.python)
            require_answers(ask_machines(cluster.make_requests("start", other_boxes, peer), cluster.python))
        except BaseException:
            added_boxes = [
                box for box in cluster.addresses if earlier_cluster is None or box not in earlier_cluster.addresses
            ]
            stop_answers = ask_machines(cluster.make_requests("stop", added_boxes), cluster.python)
            if any("error" in answer for answer in stop_answers.values()):
                raise  # the record remains for `cluster down`
            if earlier_cluster is not None:
                earlier_cluster.save()
            else:
                get_cluster_file().unlink(missing_ok=True)
            raise
    return list_nodes()


def list_nodes() -> list[dict[str, Any]]:
    """Return a row for each machine of the cluster: its address, state, CPUs and GPUs. Empty without a cluster."""
    cluster = read_cluster()
    if cluster is None:
        return []
    answers = ask_machines(cluster.make_requests("status", [*cluster.python, THIS_MACHINE]), cluster.python)
    return [
        {
            "machine": box or "this machine",
            "address": cluster.addresses.get(box),
            "state": answer.get("state") or f"unknown: {answer['error']}",
            "cpus": answer.get("cpus") if box else 0,
            "gpus": answer.get("gpus") if box else 0,
        }
        for box, answer in answers.items()
    ]


@lock_cluster()
def stop_cluster(forget: bool = False) -> list[str]:
    """Stop Ray on every machine of the cluster. Return the machines on which it was running.

    Raises ChessregError if a machine does not answer. The record is then kept for another call, except with `forget`.
    """
    cluster = read_cluster()
    if cluster is None:
        return []
    answers = ask_machines(cluster.make_requests("stop", [*cluster.python, THIS_MACHINE]), cluster.python)
    if not forget:
        require_answers(answers)
    get_cluster_file().unlink(missing_ok=True)
    return [box or "this machine" for box, answer in answers.items() if answer.get("stopped")]


def require_equal_versions(box: str, python: str, versions: Mapping[str, str | None]) -> None:
    """Raise ChessregError unless `box` has the Python, chessreg and Ray of this machine, as Ray requires."""
    for name, local_version in describe_machine({})["versions"].items():
        if (remote_version := versions[name]) != local_version:
            hint = f"ssh {box} {python} -m pip install {name}=={local_version}" if name != "Python" else "--python PATH"
            raise ChessregError(
                f"{box} has {f'{name} {remote_version}' if remote_version else f'no {name}'}, "
                f"this machine {local_version}",
                hint,
            )


# -- requests over ssh ------------------------------------------------------------------------------------------------


def ask_machines(requests: Mapping[str, dict[str, Any]], python: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Send requests to several machines at the same time and return the answers. On Ctrl-C, withdraw all."""
    requests_by_box: dict[str, MachineRequest] = {}
    try:
        for box, request in requests.items():
            requests_by_box[box] = MachineRequest(box, python.get(box, ""), request)
        return {box: each.read_answer() for box, each in requests_by_box.items()}
    finally:
        for each in requests_by_box.values():
            each.close()


def require_answers(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers. Raises ChessregError with the errors among them."""
    failures = {box or "this machine": answer for box, answer in answers.items() if "error" in answer}
    if failures:
        errors = "; ".join(f"{box}: {answer['error']}" for box, answer in failures.items())
        raise ChessregError(errors, next(iter(failures.values()))["hint"])
    return answers


class MachineRequest:
    """A request to `ray_node` on another machine, or on this one. Closing stdin withdraws it."""

    def __init__(self, box: str, python: str, request: dict[str, Any]) -> None:
        self.box, self.python = box, python
        command = child.build_python_command("chessreg.scheduling.executors.ray_node")
        if box:
            command = [*SSH, "--", box, shlex.join([python, *command[1:]])]
        try:
            self.process = subprocess.Popen(
                command,
                env=child.build_child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C must not reach ssh: the request is withdrawn instead
            )
        except FileNotFoundError:
            raise NotFoundError("ssh is not installed", "install OpenSSH's client") from None
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def read_answer(self) -> dict[str, Any]:
        """Return the answer, or `error` and `hint` without one."""
        assert self.process.stdout
        lines = [line.strip() for line in self.process.stdout if line.strip()]
        for line in lines:
            if line.startswith('{"'):
                answer: dict[str, Any] = json.loads(line)
                return answer
        status = self.process.wait()
        hint = f"install chessreg[ray] there, or name its Python, which is not {self.python}: --python"
        if status == SSH_FAILED:
            hint = f"ssh {self.box} must work without a password"
        return {"error": lines[-1] if lines else f"exit status {status}", "hint": hint}

    def close(self) -> None:
        """Withdraw the request unless it was answered, and wait until the other side has ended."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(WITHDRAW_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
