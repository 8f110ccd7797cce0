"""What runs on the nodes of a Ray cluster: a `Shard` a work.

A shard's node may lack the store. Then the shard fetches what its work needs from the home, works in a store of its
own, and sends home what it makes: bytes first, then the fragments that speak of them, log and outcome last.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.scheduling import parcels
from chessreg.scheduling.executors.ray_home import Far
from chessreg.scheduling.worker import read

if TYPE_CHECKING:
    from store import Store

NOTE = "ray.json"
BEAT_SECONDS = 0.3
GRACE_SECONDS = 20.0  # from SIGTERM to SIGKILL
NODE_STORE = "CHESSREG_NODE_STORE"  # on a node: a folder to work in, and not in the store of the launch
Ending = tuple[str, int | None, str | None, str | None]  # state, exit code, cause, message: a plain `Seen`


class Shard:
    """One work on one node: a process of its own session, looked after by a thread of this actor."""

    def __init__(self, home: Any, work: dict[str, Any]) -> None:
        self.home, self.work = home, work
        self.child: subprocess.Popen[bytes] | None = None
        self.asked = 0.0  # when SIGTERM was sent
        self.seen: Ending = ("running", None, None, "it is being prepared")
        self.apart: Apart | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def status(self) -> Ending:
        return self.seen

    def cancel(self) -> None:
        """SIGTERM the first time; SIGKILL when that was long ago."""
        now = time.monotonic()
        if not self.asked:
            self.asked = now
            if self.child:
                with suppress(ProcessLookupError):
                    os.kill(self.child.pid, signal.SIGTERM)
        elif now - self.asked > self.work["grace"] and self.child:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)

    def _run(self) -> None:
        try:
            self.seen = self._work()
        except BaseException as error:
            self.seen = ("ended", None, "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}")

    def _work(self) -> Ending:
        from chessreg.scheduling.executors.local import kill_group

        folder, argv, env = Path(self.work["folder"]), list(self.work["argv"]), dict(self.work["env"])
        noted = read(folder / NOTE) or {}
        if NODE_STORE in os.environ or noted.get("actor") != self.work["actor"]:
            self.apart = Apart(self.home, self.work)
            folder, argv, env = self.apart.prepare(argv, env)
        if self.asked:
            return "ended", 143, "killed", "cancelled before it began"
        cwd = Path(self.work["cwd"])
        with (folder / "log.txt").open("ab") as log:
            self.child = subprocess.Popen(
                argv,
                cwd=cwd if cwd.is_dir() else folder,
                env={**os.environ, **granted(self.work["threads"]), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        if self.asked:  # while it was being started
            self.child.terminate()
        self.seen = ("running", None, None, None)
        while os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(BEAT_SECONDS)
            if self.apart:
                self._send()
        kill_group(self.child.pid)
        code = self.child.wait()
        while self.apart and not self._send(last=True):
            if self.asked and time.monotonic() - self.asked > self.work["grace"]:
                return "ended", code, "lost", f"what it made is still in {self.apart.root}: {self.seen[3]}"
            time.sleep(1.0)
        return ended(code)

    def _send(self, last: bool = False) -> bool:
        """Send home what is new; False when home did not answer: it will be sent again."""
        assert self.apart
        try:
            self.apart.send(last)
            return True
        except Exception as error:
            self.seen = ("running", None, None, f"its home does not answer: {str(error).splitlines()[0][:200]}")
            return False


class Apart:
    """A work on a node that does not have its store."""

    def __init__(self, home: Any, work: dict[str, Any]) -> None:
        self.home, self.work = home, work
        base = Path(os.environ.get(NODE_STORE) or Path.home() / ".cache" / "chessreg" / "node")
        self.root = base / work["base"]
        self.folder = base / "works" / work["actor"]
        self.sent: dict[str, bytes] = {}
        self.said = self.before = 0
        self.store: Store | None = None
        self.far: Far | None = None

    def prepare(self, argv: list[str], env: dict[str, str]) -> tuple[Path, list[str], dict[str, str]]:
        """Fetch what the work needs; returns its folder, command and environment here."""
        import ray

        self.folder.mkdir(parents=True, exist_ok=True)
        self.before = ray.get(self.home.size.remote(f"{self.work['folder']}/log.txt"))
        order = ray.get(self.home.content.remote(f"{self.work['folder']}/work.json"))
        if order is not None:
            (self.folder / "work.json").write_bytes(order)
            env = {**env, **self._stock(env)}
        home = f"{self.work['folder']}/"
        argv = [str(self.folder / part.removeprefix(home)) if part.startswith(home) else part for part in argv]
        if not Path(argv[0]).exists() and shutil.which(argv[0]) is None:
            argv[0] = sys.executable
        return self.folder, argv, env

    def _stock(self, env: dict[str, str]) -> dict[str, str]:
        """A store and a registry with what the work needs; the environment that names them."""
        from store import Store

        order = read(self.folder / "work.json")
        assert order
        self.far = Far(self.home, order["store"], env["CHESSREG_REGISTRY"])
        self.store = Store.create(self.root)
        shelf = parcels.StoreShelf(self.store)
        items, registry = self.far.call("parcel", self.work["folder"])
        for item in items:
            parcels.carry(self.far, shelf, item)
        if isinstance(registry, bytes):
            path = self.folder / "registry.db"
            parcels.unpack_registry(registry, path)
            registry = str(path)
        log = f"{self.work['folder']}/log.txt"  # what the attempt says of it: where it will be
        return {"CHESSREG_REGISTRY": registry, "CHESSREG_JOB_STORE": str(self.root), "CHESSREG_JOB_LOG": log}

    def send(self, last: bool = False) -> None:
        """What is new, home: in an order in which nothing speaks of what is not there yet."""
        import ray

        self._small("process.json")
        if self.store is not None:
            self._fragments()
        with (self.folder / "log.txt").open("rb") as log:
            log.seek(self.said)
            while new := log.read(parcels.CHUNK):
                ray.get(self.home.write.remote(f"{self.work['folder']}/log.txt", self.before + self.said, new))
                self.said += len(new)
        if last:
            self._small("outcome.json")
            shutil.rmtree(self.folder, ignore_errors=True)

    def _small(self, name: str) -> None:
        import ray

        with suppress(FileNotFoundError):
            data = (self.folder / name).read_bytes()
            if self.sent.get(name) != data:
                ray.get(self.home.replace.remote(f"{self.work['folder']}/{name}", data))
                self.sent[name] = data

    def _fragments(self) -> None:
        """Every fragment that lies in this node's store: also those of a shard that died before it could send them."""
        from store.errors import CorruptError, NotInStoreError
        from store.fragments import pending

        assert self.store is not None
        assert self.far is not None
        shelf = parcels.StoreShelf(self.store)
        for fragment in pending(self.store):
            attempt: str | None = None
            try:
                data = fragment.path.read_bytes()
                attempt, items = fragment.header()["attempt"], parcels.made(fragment)
            except (NotInStoreError, FileNotFoundError):  # another shard of this node has just sent it
                continue
            except CorruptError:
                items = []  # home sets it aside, where people see it
            for item in items:
                parcels.carry(shelf, self.far, item)
            self.far.call("fragment", fragment.name, data, attempt, items)
            fragment.path.unlink(missing_ok=True)


def end_with_parent() -> None:
    """In a child: be asked to end when the actor dies. Ray says then that the work is lost, and so it shall be."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG; the thread that started it waits for its end


def granted(threads: int) -> dict[str, str]:
    """What Ray gave this actor, in the words of a worker."""
    import ray

    found = {"CHESSREG_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    gpus = ray.get_gpu_ids()
    return found | ({"CHESSREG_GPU": ",".join(str(gpu) for gpu in gpus)} if gpus else {})


def ended(code: int) -> Ending:
    """An exit status in words; negative: the signal."""
    if code >= 0:
        return "ended", code, "finished" if code == 0 else "failed", None
    name = signal.Signals(-code).name
    if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return "ended", 128 - code, "killed", f"killed by {name}"
    return "ended", 128 - code, "failed", f"ended by {name}"
