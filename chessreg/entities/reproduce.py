"""The commands that recreate a run, and the repetition of a run in a scratch home to compare its results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from chessreg.entities import load_entity
from chessreg.entities.bundled import list_bundled_digests
from chessreg.entities.merge import MergeReport, merge_registry
from chessreg.errors import BadInputError
from chessreg.games.boards.moves import unpack_moves
from chessreg.models import devices
from chessreg.registry import lineage, names, read, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.runs import attempt, transfer
from chessreg.runs.ingest import TABLES
from chessreg.runs.kind import Kind, find_kind_of_record
from chessreg.runs.resolve import list_references
from chessreg.runs.spec import ExecutionOptions, Spec, build_settings, parse_settings
from chessreg.terminal import make_visible
from store import places
from store.errors import StoreError
from store.files import hash_file

if TYPE_CHECKING:
    from store import Store

UNCOMPARED_COLUMNS = frozenset({"attempt_id", "seconds", "move_hash"})  # move_hash is derived from the moves


@dataclass
class ColumnDifference:
    """How one column differs: in how many rows, by how much at most, and the first difference as text."""

    rows: int = 0
    largest: float | None = None  # largest difference of numbers; `relative`: as a fraction of the value
    relative: float | None = None
    first: str = ""

    def add(self, place: str, then: Any, now: Any) -> None:
        """Add the values of one row before and after."""
        self.rows += 1
        for one, other in pair_numbers(then, now):
            by = abs(other - one)
            self.largest = max(by, self.largest or 0.0)
            self.relative = max(by / max(abs(one), abs(other), 1e-300), self.relative or 0.0)
        self.first = self.first or f"{place}: {format_difference(then, now)}"

    def describe(self) -> str:
        """Return the difference as text.

        For example `3 rows, by at most 2.2e-16 (1e-15 of the value); first score unit 0 test 3: 17 then, 18 now`.
        """
        size = "" if self.largest is None else f", by at most {self.largest:.2g} ({self.relative:.2g} of the value)"
        return f"{self.rows:,} row{'s' * (self.rows > 1)}{size}; first {self.first}"


@dataclass
class RepeatedRun:
    """The result of repeating a run: the number of equal rows, and the keys and columns of different ones."""

    same: int = 0
    differing: list[str] = field(default_factory=list)  # "score unit 3 test 17"
    columns: dict[str, ColumnDifference] = field(default_factory=dict)  # "score.correct", "trial.detail.half", …
    newer: set[str] = field(default_factory=set)  # columns that the recorded rows lack; not compared
    outputs_same: int = 0
    outputs_differing: list[str] = field(default_factory=list)
    outputs_kept: list[str] = field(default_factory=list)  # outputs whose bytes were missing from the store
    engines: dict[str, tuple[str, str]] = field(default_factory=dict)  # role → then and now; only different engines

    @property
    def is_equal(self) -> bool:
        """Return whether all rows and outputs are equal."""
        return not self.differing and not self.outputs_differing

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON document."""
        return {"agrees": self.is_equal} | asdict(self) | {"newer": sorted(self.newer)}

    def row(self, table: str, place: str, then: dict[str, Any] | None, now: dict[str, Any] | None) -> None:
        """Compare the old and the new version of one row. None: that version does not exist. `place` names the row in
        the report."""
        if then is None or now is None:
            differing_columns: dict[str, tuple[Any, Any]] = {
                "(whole row)": ("missing", "present") if then is None else ("present", "missing")
            }
        else:
            earlier_values, later_values = flatten_row(then), flatten_row(now)
            self.newer |= {f"{table}.{name}" for name in later_values.keys() - earlier_values.keys()}
            differing_columns = {
                name: (v, later_values.get(name)) for name, v in earlier_values.items() if v != later_values.get(name)
            }
        if not differing_columns:
            self.same += 1
            return
        self.differing.append(place)
        for name, values in differing_columns.items():
            self.columns.setdefault(f"{table}.{name}", ColumnDifference()).add(place, *values)


UNPACKERS: dict[str, Callable[[bytes], list[Any]]] = {
    "moves": lambda packed_moves: [move.uci() for move in unpack_moves(packed_moves)],
    "counts": lambda packed_counts: np.frombuffer(packed_counts, "<i4").tolist(),
    "tries": list,
}


def flatten_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with unpacked lists, and the kind's custom columns as `detail.NAME`."""
    values = {name: unpack_value(name, value) for name, value in row.items()}
    detail = values.pop("detail", None)
    return values | {f"detail.{name}": value for name, value in (detail if isinstance(detail, dict) else {}).items()}


def unpack_value(name: str, value: Any) -> Any:
    """Return the list packed in `value`. Other bytes become hexadecimal digits; other values are returned unchanged."""
    if not isinstance(value, bytes):
        return value
    try:
        return UNPACKERS[name](value)
    except (KeyError, ValueError):
        return value.hex()


def pair_numbers(then: Any, now: Any) -> list[tuple[float, float]]:
    """Return the pairs of numbers in two values or in two lists of equal length. Other values give no pairs."""
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [pair for both in zip(then, now, strict=True) for pair in pair_numbers(*both)]
    are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (then, now))
    return [(float(then), float(now))] if are_numbers else []


def format_difference(then: Any, now: Any) -> str:
    """Return two different values as text; for lists, such as moves, the first index (from 0) at which they differ."""
    if isinstance(then, list) and isinstance(now, list):
        pairs = enumerate(zip_longest(then, now, fillvalue="the end"))
        place, (then, now) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
        return f"from place {place}: {then} then, {now} now"
    return f"{then} then, {now} now"


# -- commands --------------------------------------------------------------------------------------------------------


def list_steps(session: Session, run_id: UUID) -> list[dict[str, Any]]:
    """Return noun, id, name, state and command of a run and all its inputs, in an order in which they can be made."""
    root = lineage.build_tree(session, lineage.Node("run", run_id.hex), up=True)
    ordered_nodes: dict[lineage.Node, None] = {}

    def visit(branch: lineage.Branch) -> None:
        for inner in branch.branches:
            visit(inner)
        ordered_nodes.setdefault(branch.node)

    visit(root)
    facts = lineage.describe_nodes(session, ordered_nodes)
    return [
        {"noun": node.noun, "id": node.id, "name": facts[node]["name"], "state": facts[node]["state"]}
        | build_step(session, node, facts[node]["name"])
        for node in ordered_nodes
        if node.noun != "file"  # named in the command that reads it
    ]


def build_step(session: Session, node: lineage.Node, name: str | None) -> dict[str, Any]:
    """Return the step that makes this entity.

    `command` makes it, or is a comment if the entity is not in this registry. `files` has the name and sha256 of each
    file that the command reads. `afterwards` lists the commands that follow it. `name` is the thing's own name.
    """
    noun = load_entity(node.noun)
    row = session.get(noun.table, UUID(hex=node.id))
    if row is None:
        return {"command": f"# {node.noun} {node.id[-6:]} is not in this registry", "files": [], "afterwards": []}
    line, remark = noun.describe_origin(session, row)
    name_option = f" --name {shlex.quote(name)}" if name and line else ""
    files = [{"name": file, "sha256": digest} for file, digest in noun.list_source_files(session, row)]
    commands = [make_visible(command) for command in noun.list_following_commands(session, row)]
    command = make_visible(f"{line}{name_option}{'  # ' + remark if remark else ''}".strip())
    return {"command": command, "files": files, "afterwards": commands}


SHA256SUM = 'command -v sha256sum >/dev/null || sha256sum() { shasum -a 256 "$@"; }'
"""macOS has `shasum` only."""


def resolve_step_files(step: dict[str, Any], store: Store) -> dict[str, Any]:
    """Return a step of `build_step` in which files are those of a user: named as in the command, with the SHA-256 of
    their bytes. It is None for the bundled sample and for a file whose bytes are not in this store."""
    command, files = step["command"], []
    for file in step["files"]:
        name, digest = resolve_file(file["name"], file["sha256"], store)
        if name:
            command = command.replace(file["sha256"], shlex.quote(name))
        files.append({"name": name, "sha256": digest})
    return {**step, "command": command, "files": files}


def write_script_lines(steps: list[dict[str, Any]], store: Store) -> list[str]:
    """Return the lines of a shell script that makes everything in `steps` (steps of `build_step`) in an empty folder.

    It first checks its input files by their SHA-256. Raises BadInputError if two of them have the same name.
    """
    files: dict[str, str] = {}
    commands = []
    for step in (resolve_step_files(step, store) for step in steps):
        for file in step["files"]:
            if file["sha256"] and files.setdefault(file["name"], file["sha256"]) != file["sha256"]:
                raise BadInputError(
                    f"two different files are named {file['name']}", "list the steps with their files: --json"
                )
        commands += [step["command"], *step["afterwards"]]
    lines = ["#!/bin/sh", "set -e"]
    if files:
        lines += ["# These files are read; copy them to this folder first.", SHA256SUM]
        lines += ["sha256sum --check --quiet <<'FILES'"]
        lines += [make_visible(f"{digest}  {name}") for name, digest in files.items()]
        lines += ["FILES"]
    return [*lines, "test -e .chessreg/registry.db || chessreg init", *commands]


def resolve_file(name: str, digest: str, store: Store) -> tuple[str, str | None]:
    """Return a file's name and the SHA-256 of its bytes.

    The SHA-256 is None for a bundled file (named `sample`) and for one whose bytes are not in this store. A file
    without a name is named by its digest.
    """
    if not digest.startswith("sha256:"):
        return name, digest
    try:
        file = store.artifact(digest.removeprefix("sha256:")).file
    except StoreError:
        return name, None
    content = hash_file(file)
    if content in list_bundled_digests():
        return "sample", None
    return name or f"{content[:12]}{file.suffix}", content


# -- repetition --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScratchHome:
    """A temporary home with only a run's inputs, in which the run can be repeated with its recorded settings."""

    database: Database
    store: Store
    kind: Kind
    spec: Spec
    options: ExecutionOptions
    explicit: tuple[str, ...]

    def run(self, spec: Spec, on_progress: Callable[[float, str], None]) -> UUID:
        """Run this spec and return its run's id. Raises KeyboardInterrupt if a signal interrupted it."""
        report = attempt.run_spec(
            self.kind, spec, self.options, self.database, self.store, explicit=self.explicit, on_progress=on_progress
        )
        if report.missing:
            raise KeyboardInterrupt
        return report.run_id


def is_repeatable(database: Database, run_id: UUID) -> bool:
    """Return whether a run's spec gives the same rows again on this machine."""
    with database.read() as session:
        run = session.get_one(tables.Run, run_id)
        kind = find_kind_of_record(session.get_one(tables.KindRecord, (run.kind, run.version)))
        return kind.replays(parse_settings(kind.spec, run.spec))


def repeat_run(
    database: Database,
    store: Store,
    run_id: UUID,
    on_progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> RepeatedRun:
    """Repeat the run `run_id` in a temporary home and compare every row and output. `on_progress(fraction, text)`
    reports progress.

    An output that is missing from the store is added to it if it has the registered digest. Raises the errors of
    `open_scratch_home` and of the run, and KeyboardInterrupt after a signal. Nothing is kept then.
    """
    with open_scratch_home(database, store, run_id) as home:
        home.run(home.spec, on_progress)
        outcome = compare_repetition(database, home.database, run_id, home.kind.clocked)
        if not store.read_only:
            with database.read() as session:
                artifacts = transfer.collect_items(session, [lineage.Node("run", run_id.hex)])
            fetched_items = transfer.fetch_available(
                database, store, artifacts, places.open_place(str(home.store.root))
            )
            outcome.outputs_kept = [item.what for item in fetched_items]
        return outcome


@contextmanager
def replicate_run(
    database: Database,
    store: Store,
    run_id: UUID,
    on_progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> Iterator[tuple[Database, UUID]]:
    """Run the next replicate of run `run_id` in a temporary home. Yields that home's registry, which has both runs, and
    the new run's id.

    The replicate is not added to this registry, where it would be pooled with the run. `on_progress` and errors are
    those of `repeat_run`.
    """
    with open_scratch_home(database, store, run_id, with_itself=True) as home:
        spec = home.spec.model_copy(update={"replicate": home.spec.replicate + 1})
        yield home.database, home.run(spec, on_progress)


@contextmanager
def open_scratch_home(
    database: Database, store: Store, run_id: UUID, *, with_itself: bool = False
) -> Iterator[ScratchHome]:
    """Make a temporary home with the inputs of a run (and the run itself if `with_itself`), and delete it afterwards.

    Raises BadInputError if the run is not complete or another version of its kind made it, NotFoundError if bytes of an
    input are missing.
    """
    from store import Store as StoreOf

    with database.read() as session:
        run = session.get_one(tables.Run, run_id)
        record = session.get_one(tables.KindRecord, (run.kind, run.version))
        short_id = run_id.hex[-6:]
        if run.completed_at is None:
            raise BadInputError(f"run {short_id} is not complete", f"chessreg run --resume {short_id}")
        kind, version, explicit_names, recorded_options = (
            find_kind_of_record(record),
            run.version,
            tuple(run.explicit),
            read_execution_options(session, run_id),
        )
        if kind.version != version:
            raise BadInputError(
                f"run {short_id} needs version {version} of kind {kind.name}, but version {kind.version} is installed",
                "check out the commit that `chessreg reproduce` prints",
            )
        spec = parse_settings(kind.spec, run.spec)
        references = [
            ref.removeprefix("run:").partition("/")[0] for ref in list_references(spec).values() if ref[:4] == "run:"
        ]
        roots = [lineage.Node("run", id.hex) for id in (run_id, *map(make_uuid, references))]
        trees = [lineage.build_tree(session, root, up=True) for root in roots]
        inputs = [
            node for node in dict.fromkeys(n for tree in trees for n in lineage.iter_nodes(tree)) if node != roots[0]
        ]
        input_items = transfer.collect_items(session, inputs)
    missing_items = [item for item in input_items if not item.is_in(store)]
    if missing_items:
        transfer.pull_items(database, store, missing_items)
    options = build_settings(
        kind.options, {name: value for name, value in recorded_options.items() if name in kind.options.model_fields}
    )
    with store.open_scratch("reproduce") as home:
        scratch = StoreOf.create(home / "store")
        for item in input_items:
            link_input(store, scratch, item)
        with Database.open(home / "registry.db") as scratch_database:
            runs = {UUID(hex=node.id) for node in inputs if node.noun == "run"} | ({run_id} if with_itself else set())
            merge_registry(scratch_database, database, MergeReport(), runs)
            yield ScratchHome(scratch_database, scratch, kind, spec, options, explicit_names)


def read_execution_options(session: Session, run_id: UUID) -> dict[str, Any]:
    """Return the execution options of the attempt that did most of a run, because batch size and threads affect the
    last digits.

    If `threads` was not set, it is the number of threads used, unless this machine has fewer cores.
    """
    attempts = session.scalars(select(tables.Attempt).where(tables.Attempt.run_id == run_id))
    ordered_attempts = sorted(attempts, key=lambda attempt: (attempt.units_done or 0, attempt.started_at))
    recorded_options = dict(ordered_attempts[-1].execution_options) if ordered_attempts else {}
    threads = recorded_options.get("used_threads", [])
    if not recorded_options.get("threads") and len(threads) == 1 and threads[0] <= devices.count_usable_cores():
        recorded_options["threads"] = threads[0]
    return recorded_options


def link_input(store: Store, scratch: Store, item: transfer.TransferItem) -> None:
    """Link the bytes of an input into the scratch store without copying them."""
    if item.array is not None:
        source, target = store.get_array_path(item.array), scratch.get_array_path(item.array)
    else:
        source = store.path(item.digest)
        target = scratch.artifacts / item.digest[:2] / item.digest
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.symlink_to(source, target_is_directory=True)


def compare_repetition(
    database: Database, repeated_database: Database, run_id: UUID, clocked_metrics: Collection[str] = ()
) -> RepeatedRun:
    """Compare the rows and outputs of one run in two registries, but no metric points named in `clocked_metrics`."""
    comparison = RepeatedRun(engines=find_engine_differences(database, run_id, repeated_database, run_id))
    for result_table in RESULT_TABLES:
        table = TABLES[result_table]
        key = [column.name for column in table.primary_key if column.name != "run_id"]
        original_rows, repeated_rows = (
            read_result_rows(home, result_table, key, run_id) for home in (database, repeated_database)
        )
        for place in sorted(original_rows.keys() | repeated_rows.keys(), key=repr):
            if (
                result_table == "metric_point"
                and (original_rows.get(place) or repeated_rows[place])["name"] in clocked_metrics
            ):
                continue
            comparison.row(
                result_table,
                f"{result_table} {' '.join(map(str, place))}",
                original_rows.get(place),
                repeated_rows.get(place),
            )
    differing_outputs = []
    for home in (database, repeated_database):
        with home.read() as session:
            outputs = select(tables.Output.name, tables.Output.digest).where(tables.Output.run_id == run_id)
            rows = [*session.execute(outputs)]
            for table in names.list_array_tables(session):
                groups = select(table.path, table.digest).where(table.run_id == run_id)
                rows += session.execute(groups)
            differing_outputs.append(dict(rows))
    for name in sorted(differing_outputs[0].keys() | differing_outputs[1].keys()):
        if differing_outputs[0].get(name) == differing_outputs[1].get(name):
            comparison.outputs_same += 1
        else:
            comparison.outputs_differing.append(name)
    return comparison


def find_engine_differences(
    database: Database, run_id: UUID, repeated_database: Database, repeated_id: UUID
) -> dict[str, tuple[str, str]]:
    """Return role → the engines of a run and of its repetition, for roles in which they differ. `none`: no recorded
    engine."""
    with database.read() as session:
        then = read.describe_run_engines(session, run_id)
    with repeated_database.read() as session:
        now = read.describe_run_engines(session, repeated_id)
    pairs = {role: (then.get(role, "none"), now.get(role, "none")) for role in {**then, **now}}
    return {role: pair for role, pair in pairs.items() if pair[0] != pair[1]}


def read_result_rows(
    database: Database, result_table: str, key: list[str], run_id: UUID
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of `result_table` of run `run_id` by the values of the `key` columns, without columns that are
    not compared.
    """
    table = TABLES[result_table]
    with database.read() as session:
        rows = session.execute(select(table).where(table.c.run_id == run_id)).mappings()
        return {
            tuple(row[name] for name in key): {n: v for n, v in row.items() if n not in UNCOMPARED_COLUMNS}
            for row in rows
        }
