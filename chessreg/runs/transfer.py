"""Transfers between machines: push bytes to a place that others can reach, and pull registered bytes that are
missing."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import lineage, names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.registry.machine import describe_this_machine
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs import trust
from store.errors import StoreError
from store.files import is_disk_full, sync_path
from store.process import is_this_machine

if TYPE_CHECKING:
    from store import Store
    from store.places import ObjectSource, TransferPlace


CACHE_KIND = "cache"  # kind of the artifact rows of groups of activations


@dataclass(frozen=True)
class TransferItem:
    """An artifact, or the group of activations named `array`."""

    digest: str
    what: str  # for messages, such as "probe layer-3 of reference-board"
    bytes: int
    array: str | None = None

    @property
    def key(self) -> str:
        """The folder of the item, relative to the root of a store."""
        return f"arrays/{self.array}" if self.array is not None else f"artifacts/{self.digest[:2]}/{self.digest}"

    def is_in(self, store: Store) -> bool:
        """Return whether the item is in this store."""
        return store.has_content(self.digest, self.array)

    def path(self, store: Store) -> Path:
        """Return the path of the item in this store. It need not exist."""
        return store.get_array_path(self.array) if self.array is not None else store.path(self.digest)


@dataclass
class TransferReport:
    """The items that were moved, and the items that were at the destination already."""

    moved: list[TransferItem] = field(default_factory=list)
    there: list[TransferItem] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.moved)


def collect_items(session: Session, nodes: Iterable[lineage.Node]) -> list[TransferItem]:
    """Return the items of these nodes: outputs of runs, datasets, checkpoints and files, each digest once."""
    items: dict[str, TransferItem] = {}
    for node in nodes:
        for item in list_node_items(session, node):
            items.setdefault(item.digest, item)
    return list(items.values())


def list_node_items(session: Session, node: lineage.Node) -> Iterator[TransferItem]:
    """Yield the items of one node."""
    artifact = tables.Artifact
    if node.noun == "run":
        run_id, short_id = UUID(hex=node.id), node.id[-6:]
        output_rows = select(tables.Output, artifact.bytes).join(artifact, artifact.digest == tables.Output.digest)
        for output, size in session.execute(
            output_rows.where(tables.Output.run_id == run_id).order_by(tables.Output.name)
        ):
            yield TransferItem(output.digest, f"{output.name} of run {short_id}", size)
        for table in names.list_array_tables(session):
            run_rows = select(table).where(table.run_id == run_id).order_by(*table.__table__.primary_key)
            for group in session.scalars(run_rows):
                what = f"activations [{group.start}, {group.stop}) of run {short_id}"
                yield TransferItem(group.digest, what, group.bytes, array=group.path.removeprefix("arrays/"))
        return
    digest: str | None = node.id
    if (table := lineage.list_tables_with_bytes(session).get(node.noun)) is not None:
        digest = session.get_one(table, UUID(hex=node.id)).artifact
    row = session.get(artifact, digest) if digest else None
    if row is not None:
        yield TransferItem(row.digest, f"{node.noun} {node.id[-6:]}", row.bytes)


def find_items(database: Database, references: Iterable[str], *, inputs: bool) -> list[TransferItem]:
    """Return the items of entities by name or id. With `inputs`, include all their inputs."""
    with database.read() as session:
        nodes: dict[lineage.Node, None] = {}
        for reference in references:
            node = lineage.find_node(session, reference)
            nodes[node] = None
            if inputs:
                nodes |= dict.fromkeys(lineage.iter_nodes(lineage.build_tree(session, node, up=True)))
        return collect_items(session, nodes)


def push_items(
    database: Database, store: Store, place: TransferPlace, wanted_items: Iterable[TransferItem]
) -> TransferReport:
    """Copy the items in `wanted_items` to `place`, and record their location. Returns which were sent and which were
    there.

    Raises NotFoundError for bytes that are not in the store.
    """
    report = TransferReport()
    trust.remember_place(place)
    for item in wanted_items:
        is_present = place.has_array(item.array) if item.array is not None else place.has_artifact(item.digest)
        if is_present:
            report.there.append(item)
        else:
            if not item.is_in(store):
                raise NotFoundError(f"{item.what} is not in {store.root}", f"chessreg pull {item.digest[:8]}")
            if item.array is not None:
                place.put_array(store, item.array)
            else:
                place.put_artifact(store, item.digest)
            report.moved.append(item)
        uri = place.make_array_uri(item.array) if item.array is not None else place.make_artifact_uri(item.digest)
        record_location(database, item, uri)
    return report


def pull_items(
    database: Database, store: Store, wanted_items: Iterable[TransferItem], place: TransferPlace | None = None
) -> TransferReport:
    """Fetch missing items from `place`, or from a known location.

    Raises NotFoundError naming the machines that have the bytes if no location is reachable.
    """
    report = TransferReport()
    if place is not None:
        trust.remember_place(place)
    for item in wanted_items:
        if item.is_in(store):
            report.there.append(item)
            path = item.path(store)
            if not is_known_at(database, item, str(path)):  # an earlier pull was interrupted before recording it
                sync_path(path.parent)
                record_location(database, item, str(path))
            continue
        refusals: list[StoreError] = []
        places = itertools.chain([place] if place is not None else [], iter_places(database, item, refusals))
        if not any(try_fetch(store, item, source, refusals) for source in places):
            raise refusals[0] if refusals else NotFoundError(*explain_unreachable(database, item))
        report.moved.append(item)
        record_location(database, item, str(item.path(store)))
    return report


def fetch_available(
    database: Database, store: Store, wanted_items: Iterable[TransferItem], source: TransferPlace
) -> list[TransferItem]:
    """Fetch the missing items that `source` has, and return them. Damaged items are skipped."""
    fetched_items = [item for item in wanted_items if not item.is_in(store) and try_fetch(store, item, source, [])]
    for item in fetched_items:
        record_location(database, item, str(item.path(store)))
    return fetched_items


def try_fetch(store: Store, item: TransferItem, place: TransferPlace, refusals: list[StoreError]) -> bool:
    """Return whether the item was fetched from this place. Damaged bytes are refused and the error added to `refusals`.

    Another place may have an undamaged copy.
    """
    try:
        if place.has_array(item.array) if item.array is not None else place.has_artifact(item.digest):
            fetch_item(store, item, place)
            return True
    except StoreError as error:
        if store.read_only:
            raise NotFoundError(
                f"{item.what} is missing, and the store is read-only",
                f"chessreg pull {item.what.split()[-1]}",
            ) from error
        if is_disk_full(error):
            raise
        refusals.append(error)
    return False


def fetch_item(store: Store, item: TransferItem, source: ObjectSource) -> None:
    """Copy an item from a source unless the store has it. Raises NotInStoreError, or CorruptError for damaged bytes."""
    if item.is_in(store):
        return
    if item.array is not None:
        source.get_array(store, item.array, item.digest)
    else:
        source.get_artifact(store, item.digest)


def iter_places(database: Database, item: TransferItem, refusals: list[StoreError]) -> Iterator[TransferPlace]:
    """Yield the reachable places that are recorded for an item.

    Folders named in a registry are read. A bucket is read, with this user's credentials, only if the user has named it
    on this machine before; other buckets are added to `refusals`.
    """
    from store.places import open_place

    with database.read() as session:
        location = tables.ArtifactLocation
        uris = session.scalars(select(location.uri).where(location.digest == item.digest).order_by(location.uri)).all()
    for uri in uris:
        place_uri = uri.removesuffix(f"/{item.key}")
        if place_uri == uri or not ("://" in place_uri or Path(place_uri).is_absolute()):
            continue
        if "://" in place_uri and not trust.is_remembered_place(place_uri):
            hint = f"if you trust that place: chessreg pull {item.digest[:8]} --from {shlex.quote(place_uri)}"
            refusals.append(StoreError(f"{item.what} is in {place_uri}, which was never used on this machine", hint))
            continue
        try:
            yield open_place(place_uri)
        except (StoreError, ValueError):  # ValueError: a NUL in the path
            continue


def is_known_at(database: Database, item: TransferItem, uri: str) -> bool:
    """Return whether the registry records the item at this URI."""
    with database.read() as session:
        return session.get(tables.ArtifactLocation, (item.digest, uri)) is not None


def record_location(database: Database, item: TransferItem, uri: str) -> None:
    """Record that this machine has seen the item at this URI."""
    machine = describe_this_machine()
    with database.write() as session:
        if database.dialect == "postgresql":  # otherwise two processes may insert the same row
            session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg ingest'))"))
        if session.get(tables.Machine, machine["id"]) is None:
            session.add(tables.Machine(**machine))
        if session.get(tables.Artifact, item.digest) is None:  # a group of activations
            state = tables.ArtifactState.COMPLETE
            session.add(
                tables.Artifact(
                    digest=item.digest, kind=CACHE_KIND, bytes=item.bytes, state=state, created_at=get_utc_now()
                )
            )
        session.flush()
        session.merge(
            tables.ArtifactLocation(digest=item.digest, uri=uri, machine_id=machine["id"], verified_at=get_utc_now())
        )


def explain_unreachable(database: Database, item: TransferItem) -> tuple[str, str]:
    """Return message and hint for bytes that no reachable place has: the machines that have them."""
    with database.read() as session:
        location, machine = tables.ArtifactLocation, tables.Machine
        holders = set(
            session.execute(
                select(machine.host, machine.system_id)
                .join(location, location.machine_id == machine.id)
                .where(location.digest == item.digest)
            ).tuples()
        )
        hosts = {host for host, system in holders if not is_this_machine(host, system)}
        if item.array is not None and not hosts:
            hosts = {host for host, system in find_cache_machines(session, item) if not is_this_machine(host, system)}
    short_digest = item.digest[:6]
    if hosts:
        host_text = " and ".join(sorted(hosts))
        return (
            f"{item.what} ({short_digest}) is only on {host_text}",
            f"run chessreg push {item.what.split()[-1]} --to PLACE there",
        )
    return f"{item.what} ({short_digest}) is registered, but no location of its bytes is known", rerun_command(
        database, item
    )


def rerun_command(database: Database, item: TransferItem) -> str:
    """Return the command that computes these bytes again."""
    run_ids = [select(tables.Output.run_id).where(tables.Output.digest == item.digest)]
    with database.read() as session:
        run_ids += [
            select(table.run_id).where(table.digest == item.digest) for table in names.list_array_tables(session)
        ]
        run_id = next((id for query in run_ids if (id := session.scalar(query.limit(1))) is not None), None)
    return "run the command that made it again" if run_id is None else f"chessreg reproduce {run_id.hex[-6:]} --rerun"


def find_cache_machines(session: Session, item: TransferItem) -> set[tuple[str, str | None]]:
    """Return host name and `system_id` of each machine that wrote a group of activations."""
    attempt, machine = tables.Attempt, tables.Machine
    hosts = select(machine.host, machine.system_id).join(attempt, attempt.machine_id == machine.id)
    machines: set[tuple[str, str | None]] = set()
    for table in names.list_array_tables(session):
        rows = session.execute(hosts.join(table, table.run_id == attempt.run_id).where(table.digest == item.digest))
        machines.update(rows.tuples())
    return machines


# -- inputs of a spec --------------------------------------------------------------------------------------------------


def is_finished(session: Session, reference: str) -> bool:
    """Return whether a `run:` reference is available: the run is complete, or the named output exists."""
    spec_hash, _, output = reference.removeprefix("run:").partition("/")
    run = session.get(tables.Run, make_uuid(spec_hash))
    if run is None:
        return False
    has_output = output and session.get(tables.Output, (run.id, output)) is not None
    return bool(has_output) or run.completed_at is not None


def require_bytes(database: Database, store: Store, field: str, reference: str) -> None:
    """Fetch missing bytes of a finished reference. `field` names the setting in messages.

    Raises NotFoundError with the machine that has the bytes and a command that helps.
    """
    missing_items = [item for item in list_reference_items(database, reference) if not item.is_in(store)]
    try:
        pull_items(database, store, missing_items)
    except NotFoundError as error:
        raise NotFoundError(f"{field}: {error.message}", error.hint) from error


def list_reference_items(database: Database, reference: str) -> list[TransferItem]:
    """Return the items of a reference: artifacts and groups of activations."""
    items = []
    with database.read() as session:
        for digest, what in list_reference_digests(session, reference):
            row = session.get(tables.Artifact, digest)
            items.append(TransferItem(digest, what, row.bytes if row else 0))
        if reference.startswith("run:"):
            run_id = make_uuid(reference.removeprefix("run:").partition("/")[0])
            cache = tables.ActivationCache
            for group in session.scalars(select(cache).where(cache.run_id == run_id).order_by(cache.start)):
                what = f"activations [{group.start}, {group.stop}) of run {run_id.hex[-6:]}"
                items.append(TransferItem(group.digest, what, group.bytes, array=group.path.removeprefix("arrays/")))
    return items


def list_reference_digests(session: Session, reference: str) -> list[tuple[str, str]]:
    """Return (digest, description) of the artifacts of a reference."""
    if reference.startswith("sha256:"):
        digest = reference.removeprefix("sha256:")
        row = session.get(tables.Artifact, digest)
        return [(digest, f"{row.kind if row else 'artifact'} {digest[:6]}")]
    if reference.startswith("dataset:"):
        identity = reference.removeprefix("dataset:").partition("[")[0]
        dataset = session.scalars(select(tables.Dataset).where(tables.Dataset.identity == identity)).first()
        if dataset is None:
            raise NotFoundError(f"dataset {identity[:12]}… is not in this registry", "chessreg dataset add FILE")
        return [(dataset.artifact, f"dataset {dataset.id.hex[-6:]}")]
    spec_hash, _, output = reference.removeprefix("run:").partition("/")
    outputs = select(tables.Output).where(tables.Output.run_id == make_uuid(spec_hash)).order_by(tables.Output.name)
    rows = session.scalars(outputs.where(tables.Output.name == output) if output else outputs).all()
    return [(row.digest, f"{row.name} of run {spec_hash[26:32]}") for row in rows]


def make_unfinished_input_error(kind: str, run_id_hex: str, was_tried: bool) -> BadInputError:
    """Return the error for an input run that is not complete and has no job."""
    short_id = run_id_hex[-6:]
    help = f"chessreg retry {short_id}" if was_tried else f"chessreg launch --resume {short_id}"
    return BadInputError(f"{kind} {short_id} is not complete and has no job", help)
