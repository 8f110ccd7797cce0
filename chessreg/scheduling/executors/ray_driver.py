"""The process that connects to Ray for an executor: `python -m chessreg.scheduling.executors.ray_driver [ADDRESS]`.

It is a separate process because Ray ends its drivers when a cluster stops, and connects to one cluster at a time. It
reads pickled (method, arguments) from stdin and writes pickled results to stdout.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from chessreg.errors import BadInputError, ChessregError
from chessreg.folders import get_cache_folder
from chessreg.registry.causes import Cause
from chessreg.scheduling.executors import Placement, SubmissionStatus
from chessreg.scheduling.executors.ray_cluster import NODE_ADDRESS_VARIABLE
from chessreg.scheduling.executors.ray_shard import NOTE_FILE, ShardActor
from chessreg.scheduling.executors.ray_staging import HomeActor
from chessreg.scheduling.worker import read_json_or_none, write_record
from store.process import ProcessId, get_machine_name, identify_process

NAMESPACE = "chessreg"
START_TIMEOUT_S = 60.0
SILENT_ACTOR_TIMEOUT_S = 5.0  # after which a cancelled actor that never responded counts as never started
NODE_CHECK_INTERVAL_S = 5.0
SHARED_GPU_FRACTION = 0.5  # of a GPU, for submissions that may share it


class RayDriver:
    """A connection to one cluster."""

    def __init__(self, address: str) -> None:
        import ray

        self.ray = ray
        self.asks: dict[str, Any] = {}  # handle → pending request for its status
        self.statuses: dict[str, SubmissionStatus] = {}
        self.cancel_times: dict[str, float] = {}  # handle → when a shard that had not answered yet was cancelled
        connect = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}
        if node := os.environ.get(NODE_ADDRESS_VARIABLE):
            connect["_node_ip_address"] = node
        # Not address="auto": for a cluster that has ended, Ray waits for minutes and then crashes.
        ray.init(address=address or find_ray_address() or start_head(), **connect)
        self.node_id = ray.get_runtime_context().get_node_id()
        self.home_name = get_home_actor_name(self.node_id)
        self.checked_at = time.monotonic()  # when this machine's node was known to be alive
        atexit.register(self.leave)

    # -- interface ------------------------------------------------------------------------------------------------

    def submit(self, works: list[dict[str, Any]]) -> dict[str, str]:
        """Create an actor for each submission unless it has one already. Ray starts it when resources are free."""
        handles = {}
        for work in works:
            folder = Path(work["folder"])
            note = read_json_or_none(folder / NOTE_FILE) or {}
            if note.get("actor") and "ended" not in note and self._make_actor(note["actor"]) is not None:
                handles[work["job"]] = make_actor_handle(
                    note["actor"], folder
                )  # its supervisor died before recording it
                continue
            handles[work["job"]] = self._create_actor(work, folder)
        return handles

    def poll(self, handles: list[str]) -> dict[str, SubmissionStatus]:
        """Return handle → status of each submission. Raises ConnectionError if this machine's node has ended."""
        if time.monotonic() - self.checked_at > NODE_CHECK_INTERVAL_S:
            if not any(node["Alive"] and node["NodeID"] == self.node_id for node in self.ray.nodes()):
                raise ConnectionError("this machine's node has ended")  # the next driver connects to its successor
            self.checked_at = time.monotonic()
        for handle in handles:
            if handle in self.asks:
                continue
            parsed_handle = json.loads(handle)
            note = read_json_or_none(Path(parsed_handle["folder"]) / NOTE_FILE) or {}
            actor = None
            if note.get("actor") == parsed_handle["actor"] and "ended" in note:
                state, code, cause, message = note["ended"]
                self.statuses[handle] = SubmissionStatus(state, code, cause and Cause(cause), message)
            elif (actor := self._make_actor(parsed_handle["actor"])) is None:
                self._end(handle, SubmissionStatus("ended", None, Cause.LOST, "Ray does not know it anymore"))
            else:
                if handle not in self.statuses:  # this machine's node, and thus its home actor, may be another one now
                    actor.use_home.remote(self._get_home_actor())
                self.asks[handle] = actor.status.remote()
                placement = Placement(parsed_handle["actor"], reason="all nodes are busy")
                self.statuses.setdefault(handle, SubmissionStatus("waiting", placement=placement))
        handle_of_ask = {self.asks[handle]: handle for handle in handles if handle in self.asks}
        if handle_of_ask:
            ready_asks, _ = self.ray.wait(list(handle_of_ask), num_returns=len(handle_of_ask), timeout=0.1)
            for answer in ready_asks:
                self._record_answer(handle_of_ask[answer], answer)
        for handle, since in list(self.cancel_times.items()):
            if self.statuses[handle].state != "waiting":
                del self.cancel_times[handle]
            elif time.monotonic() - since > SILENT_ACTOR_TIMEOUT_S:
                self.asks.pop(handle, None)
                self._end(handle, SubmissionStatus("ended", None, Cause.KILLED, "cancelled before it began"))
        return {handle: self.statuses[handle] for handle in handles}

    def cancel(self, handle: str) -> None:
        """Ask an actor to end its work."""
        parsed_handle = json.loads(handle)
        actor = self._make_actor(parsed_handle["actor"])
        if (handle in self.statuses and self.statuses[handle].state == "ended") or actor is None:
            return
        actor.cancel.remote()  # an actor that has not started receives it at its start
        if self.poll([handle])[handle].state == "waiting":
            self.cancel_times.setdefault(handle, time.monotonic())

    # -- implementation -------------------------------------------------------------------------------------------

    def _create_actor(self, work: dict[str, Any], folder: Path) -> str:
        """Create an actor with the resources that `work` needs, and return its handle."""
        ray = self.ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus, gpus = get_required_resources(work, nodes)
        name = f"{work['job']}-{os.urandom(4).hex()}"
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / NOTE_FILE, {"actor": name})
        log, order = folder / "log.txt", read_json_or_none(folder / "work.json")
        base = hashlib.sha256(f"{get_machine_name()}:{order and order['store']}".encode()).hexdigest()[:12]
        work_of_actor = {**work, "actor": name, "base": base, "order": order, "threads": max(int(cpus), 1)}
        work_of_actor["log_size"] = log.stat().st_size if log.exists() else 0
        actor = ray.remote(ShardActor).options(
            name=name, namespace=NAMESPACE, lifetime="detached", num_cpus=cpus, num_gpus=gpus, max_restarts=0
        )
        actor.remote(self._get_home_actor(), work_of_actor)
        return make_actor_handle(name, folder)

    def _get_home_actor(self) -> Any:
        """Return the actor on this machine through which nodes without its store read inputs and return results."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self.ray.remote(HomeActor)
            .options(
                name=self.home_name,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=3,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.node_id, soft=False),
            )
            .remote()
        )

    def _make_actor(self, name: str) -> Any:
        try:
            return self.ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return None

    def _record_answer(self, handle: str, answer: Any) -> None:
        """Store the status in an actor's answer. An actor that died counts as ended."""
        from ray.exceptions import OutOfMemoryError, RayActorError, RayError

        del self.asks[handle]
        try:
            status: SubmissionStatus = self.ray.get(answer)
        except OutOfMemoryError:
            status = SubmissionStatus("ended", None, Cause.OOM, "Ray killed it: out of memory")
        except RayActorError as error:
            cause_line = next((line for line in str(error).splitlines() if "cause" in line or "died" in line), "")
            status = SubmissionStatus(
                "ended", None, Cause.LOST, f"its node or its actor died: {cause_line.strip()[:200]}".rstrip(": ")
            )
        except RayError:
            return  # retried by the next poll
        if status.state == "ended":
            self._end(handle, status)
        else:
            self.statuses[handle] = status

    def _end(self, handle: str, status: SubmissionStatus) -> None:
        """Record the end in the submission's folder for later executors, and release its resources in the cluster."""
        self.statuses[handle] = status
        parsed_handle = json.loads(handle)
        folder = Path(parsed_handle["folder"])
        if folder.is_dir() and (read_json_or_none(folder / NOTE_FILE) or {}).get("actor") == parsed_handle["actor"]:
            write_record(folder / NOTE_FILE, {"actor": parsed_handle["actor"], "ended": list(status[:4])})
        actor = self._make_actor(parsed_handle["actor"])
        if actor is not None:
            self.ray.kill(actor)

    def leave(self) -> None:
        """At exit, end the home actor, and the Ray started for chessreg if no submissions are left."""
        with suppress(Exception):
            remaining_handles = [
                a["name"] for a in self.ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE
            ]
            if all(name.startswith("home-") for name in remaining_handles):
                home = self._make_actor(self.home_name)
                if home is not None:
                    self.ray.kill(home)
                self.ray.shutdown()
                stop_head()


def get_required_resources(work: dict[str, Any], nodes: list[dict[str, float]]) -> tuple[float, float]:
    """Return the CPUs and GPUs of a submission. Raises BadInputError if no node has them."""
    most_cpus = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
    most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    device = work["device"]
    gpu = (
        0.0
        if device == "cpu" or (device == "auto" and not most_gpus)
        else SHARED_GPU_FRACTION
        if work["share_gpu"]
        else float(work["devices"])
    )
    if gpu > most_gpus > 0:
        raise BadInputError(f"--devices {gpu:.0f}, but no node of this Ray has more than {most_gpus:.0f} GPUs")
    if gpu > most_gpus:
        raise BadInputError(f"--device {device}, but no node of this Ray has a GPU", "--device cpu")
    cpus = float(work["threads"])
    if not cpus:  # the available CPUs divided by the parallel shards
        cpus = max(1.0, min(most_cpus, sum(node.get("CPU", 0.0) for node in nodes) // work["shards"]))
    if cpus > most_cpus:
        raise BadInputError(f"--threads {cpus:.0f}, but no node of this Ray has more than {most_cpus:.0f} CPUs")
    return cpus, gpu


def get_home_actor_name(node_id: str) -> str:
    """Return the name of the home actor of this user on a node of this machine."""
    return f"home-{get_machine_name()}-{os.getuid()}-{node_id}"


def get_head_record_file() -> Path:
    """Return the file that identifies the Ray process started for chessreg on this machine."""
    return get_cache_folder() / f"ray-head-{get_machine_name()}.json"  # several machines may share a home folder


def find_ray_address() -> str:
    """Return the address of the Ray of this machine. Empty if none responds."""
    address_file = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    for address in (
        os.environ.get("RAY_ADDRESS", ""),
        address_file.read_text(encoding="utf-8").strip() if address_file.exists() else "",
    ):
        host, _, port = address.rpartition(":")
        with suppress(OSError, ValueError):
            socket.create_connection((host, int(port)), 3.0).close()
            return address
    return ""


def start_head() -> str:
    """Start Ray on this machine in a separate session, so that it outlives this process, and return its address.

    Raises ChessregError if it does not start.
    """
    tool = shutil.which("ray") or str(Path(sys.executable).with_name("ray"))
    argv = [tool, "start", "--head", "--block", "--port=0", "--include-dashboard=false", "--disable-usage-stats"]
    with open(os.devnull, "wb") as null_file:
        head = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=null_file, stderr=null_file, start_new_session=True
        )
    get_head_record_file().parent.mkdir(parents=True, exist_ok=True)
    write_record(get_head_record_file(), identify_process(head.pid).record())
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (address := find_ray_address()):
        if head.poll() is not None or time.monotonic() > deadline:
            raise ChessregError("Ray did not start on this machine", "run `ray start --head` to see why")
        time.sleep(0.3)
    return address


def stop_head() -> None:
    """Stop the Ray that chessreg started on this machine, and no other."""
    process = ProcessId.from_record(read_json_or_none(get_head_record_file()))
    if process is not None and process.is_gone() is False:
        os.kill(process.pid, signal.SIGTERM)
        get_head_record_file().unlink(missing_ok=True)


def make_actor_handle(actor: str, folder: Path) -> str:
    """Return the handle of an actor."""
    return json.dumps({"actor": actor, "folder": str(folder)})


def serve_requests(address: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until stdin is closed. Errors are returned as answers."""
    driver: RayDriver | None = None
    while True:
        try:
            verb, arguments = pickle.load(requests)
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            driver = driver or RayDriver(address)
            answer = "done", getattr(driver, verb)(*arguments)
        except BadInputError as error:
            answer = "refused", (error.message, error.hint)
        except Exception as error:
            answer = "failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        pickle.dump(answer, answers)
        answers.flush()


def main() -> None:
    """Answer requests from standard input on a copy of standard output, where Ray cannot print."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps Ray's output out of the answers
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    serve_requests(sys.argv[1] if len(sys.argv) > 1 else "", sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
