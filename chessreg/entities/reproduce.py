"""What made a run, as commands in order; and an exact run once more, apart, to see whether it agrees."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from chessreg.entities import entity
from chessreg.entities.merge import MergeReport, merge_registry
from chessreg.errors import BadInputError
from chessreg.registry import lineage, names, tables
from chessreg.registry.database import Database
from chessreg.runs import attempt, transfer
from chessreg.runs.ingest import TABLES
from chessreg.runs.kind import RESULT_TABLES, recorded
from chessreg.terminal import visible

if TYPE_CHECKING:
    from store import Store

NOT_COMPARED = frozenset({"attempt_id", "seconds"})


@dataclass
class Again:
    """A run done once more: rows that are the same, and keys of those that are not."""

    same: int = 0
    differing: list[str] = field(default_factory=list)  # "score unit 3 test 17"
    outputs_same: int = 0
    outputs_differing: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not self.differing and not self.outputs_differing


# -- what made it -----------------------------------------------------------------------------------------------------


def steps(session: Session, run_id: UUID) -> list[dict[str, Any]]:
    """All that a run rests on and the run itself, in an order in which it can be made: what, name, command."""
    root = lineage.tree(session, lineage.Node("run", run_id.hex), up=True)
    ordered: dict[lineage.Node, None] = {}

    def visit(branch: lineage.Branch) -> None:
        for inner in branch.branches:
            visit(inner)
        ordered.setdefault(branch.node)

    visit(root)
    facts = lineage.describe(session, ordered)
    return [
        {"noun": node.noun, "id": node.id, "name": facts[node]["name"], "state": facts[node]["state"]}
        | {"command": command(session, node, facts[node]["name"])}
        for node in ordered
    ]


def command(session: Session, node: lineage.Node, name: str | None) -> str:
    """The command that makes this thing, in one line that a shell can be given."""
    if node.noun == "file":
        return f"# a file with content {node.id[:12]}"
    noun = entity(node.noun)
    row = session.get(noun.table, UUID(hex=node.id))
    if row is None:
        return f"# {node.noun} {node.id[-6:]} is not in this registry"
    line, remark = noun.made_by(session, row)
    named = f" --name {shlex.quote(name)}" if name and line else ""
    return visible(f"{line}{named}{'  # ' + remark if remark else ''}".strip())


# -- once more --------------------------------------------------------------------------------------------------------


def again(
    database: Database,
    store: Store,
    run_id: UUID,
    on_progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> Again:
    """Do an exact run once more in a home of its own, and compare every row and output.

    That home has the run's inputs and nothing else; it is gone afterwards. Raises BadInputError for a run that is not
    complete or of a statistical kind, NotFoundError when the inputs' bytes are not here.
    """
    from store import Store as StoreOf

    with database.read() as session:
        run = session.get_one(tables.Run, run_id)
        record = session.get_one(tables.KindRecord, (run.kind, run.version))
        short = run_id.hex[-6:]
        if run.completed_at is None:
            raise BadInputError(f"run {short} is not complete", f"chessreg run --resume {short}")
        tree = lineage.tree(session, lineage.Node("run", run_id.hex), up=True)
        inputs = [node for node in dict.fromkeys(lineage.nodes(tree)) if node != tree.node]
        needed = transfer.items(session, inputs)
        spec, given, version, source = run.spec, tuple(run.given), run.version, record.source
    kind = recorded(source)
    if kind.version != version:
        raise BadInputError(
            f"run {short} was made by version {version} of kind {kind.name}; this chessreg has version {kind.version}",
            "check out the commit that `chessreg reproduce` prints",
        )
    missing = [item for item in needed if not item.here(store)]
    if missing:
        transfer.pull(database, store, missing)
    with tempfile.TemporaryDirectory(prefix="chessreg-again-", dir=store.tmp) as folder:
        home = Path(folder)
        scratch = StoreOf.create(home / "store")
        for item in needed:
            link(store, scratch, item)
        with Database.open(home / "registry.db") as there:
            runs = {UUID(hex=node.id) for node in inputs if node.noun == "run"}
            merge_registry(there, database, MergeReport(), runs)
            attempt.run(kind, kind.spec(**spec), kind.options(), there, scratch, given=given, on_progress=on_progress)
            return compared(database, there, run_id)


def link(store: Store, scratch: Store, item: transfer.Item) -> None:
    """Let the scratch store see the bytes of an input without copying them."""
    if item.array is not None:
        source, target = store.array(item.array), scratch.array(item.array)
    else:
        source = store.path(item.digest)
        target = scratch.artefacts / item.digest[:2] / item.digest
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        target.symlink_to(source, target_is_directory=True)


def compared(database: Database, there: Database, run_id: UUID) -> Again:
    """The rows and outputs of one run in two registries."""
    found = Again()
    for family in RESULT_TABLES:
        table = TABLES[family]
        key = [column.name for column in table.primary_key if column.name != "run_id"]
        ours, theirs = (rows_of(home, family, key, run_id) for home in (database, there))
        for place in sorted(ours.keys() | theirs.keys(), key=repr):
            if ours.get(place) == theirs.get(place):
                found.same += 1
            else:
                found.differing.append(f"{family} {' '.join(map(str, place))}")
    made = []
    for home in (database, there):
        with home.read() as session:
            outputs = select(tables.Output.name, tables.Output.digest).where(tables.Output.run_id == run_id)
            rows = [*session.execute(outputs).tuples()]
            for table in names.with_arrays():
                groups = select(table.path, table.digest).where(table.run_id == run_id)
                rows += session.execute(groups).tuples()
            made.append(dict(rows))
    for name in sorted(made[0].keys() | made[1].keys()):
        if made[0].get(name) == made[1].get(name):
            found.outputs_same += 1
        else:
            found.outputs_differing.append(name)
    return found


def rows_of(database: Database, family: str, key: list[str], run_id: UUID) -> dict[tuple[Any, ...], dict[str, Any]]:
    table = TABLES[family]
    with database.read() as session:
        rows = session.execute(select(table).where(table.c.run_id == run_id)).mappings()
        return {
            tuple(row[name] for name in key): {n: v for n, v in row.items() if n not in NOT_COMPARED} for row in rows
        }
