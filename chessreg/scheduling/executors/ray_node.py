"""The node of one machine: `python -m chessreg.scheduling.executors.ray_node`, started over ssh by `chessreg cluster`.

It reads a request as one line of JSON from stdin and writes one answer to stdout. If stdin is closed before the answer,
the request is withdrawn, and a node that it was starting is stopped.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import psutil

from chessreg import child
from chessreg.errors import ChessregError
from chessreg.folders import get_cache_folder
from chessreg.registry.provenance import get_chessreg_version
from chessreg.scheduling.worker import read_json_or_none, write_record
from store.files import keep_private
from store.process import ProcessId, get_machine_name, identify_process

START_TIMEOUT_S, STOP_TIMEOUT_S, CONNECT_TIMEOUT_S = 90.0, 20.0, 5.0
STARTED_TEXT = "Ray runtime started"  # printed by ray start
SMALL_OBJECT_STORE_BYTES = 200_000_000  # of the launching machine, which runs no shards


def describe_machine(request: dict[str, Any]) -> dict[str, Any]:
    """Return the versions that must be equal in a cluster, and both addresses of the ssh connection."""
    try:
        ray: str | None = version("ray")
    except PackageNotFoundError:
        ray = None
    client, _, server = os.environ.get("SSH_CONNECTION", "  ").split(" ")[:3]
    versions = {"Python": python_version(), "chessreg": get_chessreg_version(), "ray": ray}
    return {"versions": versions, "address": server, "client": client}


def start_node(request: dict[str, Any]) -> dict[str, Any]:
    """Start Ray with the request's `head`, `address`, `token`, `is_head`, `has_work` and `callback`, unless it runs.

    Raises ChessregError if a node of another cluster runs on this machine, a port is taken, or a machine cannot be
    reached.
    """
    earlier_record = read_json_or_none(get_node_record_file())
    if earlier_record is not None and is_running(earlier_record):
        if earlier_record["token"] != request["token"]:
            raise ChessregError(
                "a node of another cluster runs on this machine",
                "on the machine that started it: chessreg cluster down",
            )
        return {"started": False}
    if earlier_record is not None:
        shutil.rmtree(earlier_record["folder"], ignore_errors=True)
    if request["is_head"]:
        require_free_port(int(request["head"].rpartition(":")[2]))
    for peer in filter(None, (None if request["is_head"] else request["head"], request["callback"])):
        require_connection(peer)
    folder = Path(tempfile.mkdtemp(prefix="chessreg-ray-"))
    log, token = folder / "start.log", folder / "token"
    token.write_text(request["token"], encoding="utf-8")
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            build_ray_command(request, folder),
            env=child.build_child_environment() | build_ray_environment(token),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
            cwd="/",
        )
    try:
        get_node_record_file().parent.mkdir(parents=True, exist_ok=True)
        record = {"process": identify_process(process.pid).record(), "folder": str(folder), "token": request["token"]}
        write_record(get_node_record_file(), record)
        deadline = time.monotonic() + START_TIMEOUT_S
        while STARTED_TEXT not in (text := log.read_text(encoding="utf-8", errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ChessregError(f"Ray did not start: {(text.strip().splitlines() or ['no output'])[-1]}")
            if select.select([sys.stdin], [], [], 0.2)[0]:
                raise ChessregError("the request was withdrawn")
    except BaseException:
        stop_node(request)
        raise
    return {"started": True}


def build_ray_command(request: dict[str, Any], folder: Path) -> list[str]:
    """Return the command that starts the node in the foreground, without a dashboard."""
    words = ["start", "--block", f"--node-ip-address={request['address']}", f"--temp-dir={folder}"]
    words += ["--disable-usage-stats"]
    if request["is_head"]:
        words += ["--head", f"--port={request['head'].rpartition(':')[2]}", "--include-dashboard=false"]
    else:
        words += [f"--address={request['head']}"]
    if not request["has_work"]:
        words += ["--num-cpus=0", "--num-gpus=0", f"--object-store-memory={SMALL_OBJECT_STORE_BYTES}"]
    return child.build_python_command("ray.scripts.scripts", *words)


def build_ray_environment(token: Path) -> dict[str, str]:
    """Return the environment of Ray's processes. Every one of their ports requires the token."""
    settings = {"AUTH_MODE": "token", "AUTH_TOKEN_PATH": str(token), "GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    return {f"RAY_{name}": value for name, value in settings.items()} | {"NO_COLOR": "1"}


def stop_node(request: dict[str, Any]) -> dict[str, Any]:
    """Stop the node and all its processes, and remove its files. Does nothing if no node of this token runs on this
    machine.
    """
    record = read_json_or_none(get_node_record_file())
    if record is None or record["token"] != request["token"]:
        return {"stopped": False}
    if running_process := is_running(record):
        top = psutil.Process(record["process"]["pid"])
        family = [*top.children(recursive=True), top]
        top.terminate()
        for process in psutil.wait_procs(family, STOP_TIMEOUT_S)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    shutil.rmtree(record["folder"], ignore_errors=True)
    get_node_record_file().unlink(missing_ok=True)
    return {"stopped": running_process}


def describe_node(request: dict[str, Any]) -> dict[str, Any]:
    """Return whether the node runs, and the CPUs and GPUs of this machine."""
    from chessreg.scheduling.executors.local import count_cores, read_gpus

    record = read_json_or_none(get_node_record_file())
    is_node_running = record is not None and record["token"] == request["token"] and is_running(record)
    return {"state": "running" if is_node_running else "not running", "cpus": count_cores(), "gpus": len(read_gpus())}


def get_node_record_file() -> Path:
    """Return the file that identifies this machine's node."""
    return get_cache_folder() / f"cluster-node-{get_machine_name()}.json"  # machines may share a home folder


def is_running(note: dict[str, Any]) -> bool:
    """Return whether the process of a node's record is running."""
    process = ProcessId.from_record(note["process"])
    return process is not None and process.is_gone() is False


def require_free_port(port: int) -> None:
    """Raise ChessregError if a port of this machine is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ChessregError(f"port {port}: {os.strerror(error.errno or 0)}", "choose another with --port") from None


def require_connection(peer: str) -> None:
    """Raise ChessregError if this machine cannot connect to `HOST:PORT`."""
    host, _, port = peer.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        hint = "Ray's machines connect to each other on all ports: use one network or a VPN, and open the firewall"
        raise ChessregError(f"cannot connect to {peer}: {error.strerror or error}", hint) from None


VERBS = {"describe": describe_machine, "start": start_node, "stop": stop_node, "status": describe_node}


def main() -> None:
    """Answer the one JSON request on standard input with one line of JSON."""
    keep_private()
    request = json.loads(sys.stdin.readline())
    try:
        answer = VERBS[request["verb"]](request)
    except ChessregError as error:
        answer = {"error": error.message, "hint": error.hint}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
