"""Staging for Ray nodes without the launch's store: copying inputs out and outputs back.

In both directions one side pulls from the other side's store through an actor there. Fragments, log and outcome are
sent after the bytes that they refer to.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.folders import get_cache_folder
from chessreg.scheduling.worker import write_record
from store.errors import NotInStoreError
from store.places import ObjectSource

if TYPE_CHECKING:
    from chessreg.registry.database import Database
    from chessreg.runs.transfer import TransferItem
    from store import Store
    from store.fragments import Fragment

PIECE_BYTES = 16 << 20  # per message
HOME_POLL_S = 2.0
NODE_STORE_VARIABLE = "CHESSREG_NODE_STORE"  # on a node: folder to use in place of the launch's store


class StoreActor:
    """An actor that gives other nodes read access to the artifacts and arrays of a store on its node, and nothing
    else."""

    def list_keys(self, root: str, prefix: str) -> list[str]:
        """Return the paths of all files in the folder `prefix`, relative to `root`."""
        files = (path for path in self._resolve_key(root, prefix).rglob("*") if path.is_file())
        return sorted(path.relative_to(root).as_posix() for path in files)

    def exists(self, root: str, key: str) -> bool:
        """Return whether a file exists."""
        return self._resolve_key(root, key).is_file()

    def _resolve_key(self, root: str, key: str) -> Path:
        """Return the path of a key. Raises StoreError unless `root` is a store and the key is in an artifact or
        array."""
        from store import Store
        from store.errors import StoreError
        from store.files import format_safe_path

        store, path = Store(root, read_only=True), Path(root) / format_safe_path(key)
        if not any(path.resolve().is_relative_to(folder.resolve()) for folder in (store.artifacts, store.arrays)):
            raise StoreError(f"{key!a} is not an artifact or array of the store {root}")
        return path

    def read(self, root: str, key: str, offset: int) -> bytes:
        """Return up to PIECE_BYTES bytes of a file from `offset`."""
        with self._resolve_key(root, key).open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)


class ActorStore(ObjectSource):
    """The store in the folder `root` of another node, read through a StoreActor there."""

    def __init__(self, actor: Any, root: str) -> None:
        self.actor, self.root, self.url = actor, root, f"{root} on another node"

    def _ask(self, verb: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self.actor, verb).remote(self.root, *arguments))

    def _has_object(self, key: str) -> bool:
        return bool(self._ask("exists", key))

    def _list_keys(self, prefix: str) -> list[str]:
        return list(self._ask("list_keys", prefix))

    def _read(self, key: str) -> Iterator[bytes]:
        offset, more = 0, True
        while more:
            try:
                piece = self._ask("read", key, offset)
            except FileNotFoundError:
                raise NotInStoreError(f"{key} does not exist in {self.url}") from None
            yield piece
            offset, more = offset + len(piece), len(piece) == PIECE_BYTES


class HomeActor(StoreActor):
    """Runs on the supervisor's machine, with its store, registry and job folders. Repeated calls have no further
    effect."""

    def inputs(self, registry: str, store: str, order: dict[str, Any]) -> tuple[list[TransferItem], str | bytes]:
        """Return the items that a job reads, and its registry: the URL, or a compressed copy of a SQLite file."""
        import zstandard

        from chessreg.registry.database import Database
        from chessreg.registry.migrations import back_up_registry
        from store import Store
        from store.files import make_staging_path

        home_store = Store(store)
        with Database.open(registry, create=False) as database:
            items, place = list_input_items(database, home_store, order), database.place
        if place.path is None:
            return items, registry
        copy = back_up_registry(place, make_staging_path(home_store.tmp, "registry"))
        try:
            return items, zstandard.ZstdCompressor(level=1, threads=-1).compress(copy.read_bytes())
        finally:
            copy.unlink()

    def take(
        self, store: str, name: str, fragment: bytes, attempt: str, items: list[TransferItem], node: ActorStore
    ) -> None:
        """Fetch the bytes of `items` from `node`, place the fragment for ingest in the store, and record the locations.

        `name` and `fragment` are the file name and the bytes of the fragment, and `attempt` is the id of its attempt.
        """
        from chessreg.registry.machine import describe_this_machine
        from chessreg.registry.tables.types import get_utc_now
        from chessreg.runs.attempt import to_fragment_row
        from chessreg.runs.transfer import fetch_item
        from store import Store
        from store.files import keep_private
        from store.fragments import Fragment, FragmentWriter, place_file

        keep_private(shared_by=Path(store))
        home_store = Store(store)
        for item in items:
            fetch_item(home_store, item, node)
        run_id = Fragment.from_path(home_store.incoming / name).run_id
        if not (home_store.incoming / name).exists() and not (home_store.ingested / run_id / name).exists():
            place_file(home_store, fragment, home_store.incoming / name)
        if artifacts := [item.digest for item in items if item.array is None]:
            machine = describe_this_machine()
            with FragmentWriter(home_store, run_id, attempt) as writer:
                writer.add("machine", to_fragment_row(machine))
                for digest in artifacts:
                    row = {"digest": digest, "uri": str(home_store.path(digest)), "machine_id": machine["id"]}
                    writer.add("artifact_location", to_fragment_row({**row, "verified_at": get_utc_now()}))

    def note(self, folder: str, log: bytes, offset: int, files: dict[str, bytes]) -> None:
        """Write new log bytes at `offset` and small files, each atomically, into a job's folder."""
        with os.fdopen(os.open(f"{folder}/log.txt", os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.seek(offset)
            file.write(log)
        for name, data in files.items():
            part_path = Path(f"{folder}/{name}.{os.getpid()}")
            part_path.write_bytes(data)
            part_path.replace(f"{folder}/{name}")


class HomeChangedError(Exception):
    """Raised when the home machine has another home actor than the one that was asked."""


class NodeStore:
    """The data of a submission on a node without the launch's store: a local store and a local folder."""

    def __init__(self, home: Any, work: dict[str, Any]) -> None:
        self.home, self.work = home, work
        base = Path(os.environ.get(NODE_STORE_VARIABLE) or get_cache_folder() / "node")
        self.root = base / work["base"]
        self.folder = base / "works" / work["actor"]
        self.store: Store | None = None
        self.sent_files: dict[str, bytes] = {}
        self.log_bytes = 0  # sent bytes of the log

    def ask_home(self, verb: str, *arguments: Any) -> Any:
        """Call a method of the home actor. Raises HomeChangedError if another one replaces it before it has answered.

        Ray waits forever for an actor whose node has died.
        """
        import ray

        home = self.home
        answer = getattr(home, verb).remote(*arguments)
        while not ray.wait([answer], timeout=HOME_POLL_S)[0]:
            if self.home is not home:
                raise HomeChangedError(f"the home machine left the cluster during {verb}")
        return ray.get(answer)

    def stage(self, is_cancelled: Callable[[], bool]) -> tuple[Path, list[str], dict[str, str]]:
        """Fetch the inputs unless cancelled meanwhile. Return folder, command and environment of the submission."""
        self.folder.mkdir(parents=True, exist_ok=True)
        env = dict(self.work["env"])
        if (order := self.work["order"]) is not None:
            write_record(self.folder / "work.json", order)
            env |= self._fetch_inputs(order, env["CHESSREG_REGISTRY"], is_cancelled)
        folder_prefix = f"{self.work['folder']}/"
        argv = [
            str(self.folder / part[len(folder_prefix) :]) if part.startswith(folder_prefix) else part
            for part in self.work["argv"]
        ]
        if not Path(argv[0]).exists() and shutil.which(argv[0]) is None:
            argv[0] = sys.executable
        return self.folder, argv, env

    def _fetch_inputs(self, order: dict[str, Any], registry: str, is_cancelled: Callable[[], bool]) -> dict[str, str]:
        """Copy the inputs into this node's store. Return the environment that names the store and the registry."""
        import zstandard

        from chessreg.runs.transfer import fetch_item
        from store import Store

        self.store = Store.create(self.root)
        items, copy = self.ask_home("inputs", registry, order["store"], order)
        for item in items:
            if not is_cancelled():
                fetch_item(self.store, item, ActorStore(self.home, order["store"]))
        if isinstance(copy, bytes):
            registry = str(self.folder / "registry.db")
            Path(registry).write_bytes(zstandard.ZstdDecompressor().decompress(copy))
        log = f"{self.work['folder']}/log.txt"  # the path that the attempt records
        return {"CHESSREG_REGISTRY": registry, "CHESSREG_JOB_STORE": str(self.root), "CHESSREG_JOB_LOG": log}

    def send(self, is_last: bool = False) -> None:
        """Send new data home, in an order in which nothing refers to data that is not there yet.

        With `is_last`, also send the outcome of the submission and remove its folder on this node.
        """
        self._note("process.json")
        if self.store is not None:
            self._send_fragments(self.store)
        if is_last:
            self._note("outcome.json")
            shutil.rmtree(self.folder, ignore_errors=True)

    def _note(self, name: str) -> None:
        """Send the new bytes of the log, and a small file if it has changed."""
        files = {}
        if (path := self.folder / name).exists() and (data := path.read_bytes()) != self.sent_files.get(name):
            files[name] = data
        with (self.folder / "log.txt").open("rb") as log:
            log.seek(self.log_bytes)
            while (new := log.read(PIECE_BYTES)) or files:
                offset = self.work["log_size"] + self.log_bytes
                self.ask_home("note", self.work["folder"], new, offset, files)
                self.log_bytes += len(new)
                self.sent_files |= files
                files = {}

    def _send_fragments(self, store: Store) -> None:
        """Send every fragment in this node's store, including fragments left by shards that died."""
        import ray

        from store.errors import CorruptError
        from store.fragments import list_pending

        node = ActorStore(ray.get_runtime_context().current_actor, str(self.root))
        for fragment in list_pending(store):
            attempt, items = "", []
            try:
                data = fragment.path.read_bytes()
                attempt, items = fragment.read_header()["attempt"], list_output_items(fragment)
            except (NotInStoreError, FileNotFoundError):  # sent by another shard of this node
                continue
            except CorruptError:
                pass  # the home machine quarantines it
            self.ask_home("take", self.work["order"]["store"], fragment.name, data, attempt, items, node)
            fragment.path.unlink(missing_ok=True)


def list_input_items(database: Database, store: Store, order: dict[str, Any]) -> list[TransferItem]:
    """Return the items that a job may read: its inputs, and the inputs' own sources without activations."""
    from chessreg.registry import lineage, tables
    from chessreg.registry.identity import make_uuid
    from chessreg.runs.kind import find_recorded_kind
    from chessreg.runs.resolve import list_references
    from chessreg.runs.spec import parse_settings
    from chessreg.runs.transfer import list_node_items, list_reference_items

    items: dict[str, TransferItem] = {}
    for reference in list_references(parse_settings(find_recorded_kind(order["source"]).spec, order["spec"])).values():
        items |= {item.digest: item for item in list_reference_items(database, reference)}
        with database.read() as session:
            if reference.startswith("run:"):
                runs = [lineage.Node("run", make_uuid(reference.removeprefix("run:").partition("/")[0]).hex)]
            else:
                rows = session.query(tables.Checkpoint).filter_by(artifact=reference.removeprefix("sha256:"))
                runs = [lineage.make_node(row) for row in rows]
            for node in (
                above for run in runs for above in lineage.iter_nodes(lineage.build_tree(session, run, up=True))
            ):
                items |= {item.digest: item for item in list_node_items(session, node) if item.array is None}
    return [item for item in items.values() if item.is_in(store)]


def list_output_items(fragment: Fragment) -> list[TransferItem]:
    """Return the items that a fragment's rows refer to."""
    from chessreg.registry import names
    from chessreg.runs.transfer import TransferItem

    arrays = {table.__tablename__ for table in names.list_array_tables()}
    items = []
    for table, rows in fragment.read():
        for row in rows:
            if table == "artifact":
                items.append(TransferItem(row["digest"], str(row["kind"]), row["bytes"]))
            elif table in arrays:
                name = row["path"].removeprefix("arrays/")
                items.append(TransferItem(row["digest"], "activations", row["bytes"], array=name))
    return items
