"""Lineage: what a thing was made from, what was made from it, and what is stale because something it rests on is wrong.

A node is a run, or a dataset, checkpoint or file that no run made. What a run made goes by the run.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names, tables

AT_ONCE = 500  # keys in one IN (…): SQLite takes so many with ease
NOUNS = ("run", "dataset", "checkpoint")


class Node(NamedTuple):
    """`noun` is run, dataset, checkpoint or file; `id` its id in hex (of a file: its digest)."""

    noun: str
    id: str


class Edge(NamedTuple):
    """`field` is what the later thing calls the earlier one: a setting's name, parent, or training data."""

    field: str
    node: Node


Edges = dict[Node, list[Edge]]


@dataclasses.dataclass
class Branch:
    """A node with what hangs on it. `again`: it was drawn in full further up."""

    node: Node
    field: str
    facts: dict[str, Any]
    again: bool = False
    branches: list[Branch] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The tree as one JSON document."""
        own = {"noun": self.node.noun, "id": self.node.id, "field": self.field or None, **self.facts}
        return own | ({"again": True} if self.again else {"branches": [b.as_dict() for b in self.branches]})


def find(session: Session, reference: str) -> Node:
    """The node that a name or id means, of whatever noun. Raises NotFoundError, or BadInputError when several fit."""
    found: dict[Node, str] = {}
    for noun in (*NOUNS, *sorted(names.OF_RUNS)):
        try:
            id = names.resolve(session, noun, reference)
        except NotFoundError:
            continue
        node = Node("run" if noun in names.OF_RUNS else noun, id.hex)
        if noun == "checkpoint" and (maker := session.get_one(tables.Checkpoint, id).run_id):
            node = Node("run", maker.hex)
        found.setdefault(node, noun)
    if not found:
        near = [n for noun in NOUNS for n in names.near_misses(session, noun, reference)]
        hint = f"did you mean {' or '.join(near[:3])}?" if near else "chessreg runs list"
        raise NotFoundError(f"there is no run, dataset or checkpoint {reference!r}", hint)
    if len(found) > 1:
        which = ", ".join(f"{noun} {node.id[-6:]}" for node, noun in found.items())
        raise BadInputError(f"{reference!r} is ambiguous: {which}", "give one of these ids")
    return next(iter(found))


def tree(session: Session, node: Node, *, up: bool) -> Branch:
    """All that `node` was made from (`up`), or all that was made from it, as a tree."""
    step = parents if up else children
    edges: Edges = {}
    frontier = {node}
    while frontier:
        edges |= step(session, frontier)
        frontier = {edge.node for at in frontier for edge in edges[at]} - edges.keys()
    facts = describe(session, edges.keys())
    drawn: set[Node] = set()

    def branch(edge: Edge) -> Branch:
        made = Branch(edge.node, edge.field, facts[edge.node], again=edge.node in drawn and bool(edges[edge.node]))
        drawn.add(edge.node)
        if not made.again:
            made.branches = [branch(next_edge) for next_edge in joined(edges[edge.node])]
        return made

    return branch(Edge("", node))


def nodes(branch: Branch) -> Iterator[Node]:
    """Every node of a tree, the root first; one that is drawn several times comes several times."""
    yield branch.node
    for inner in branch.branches:
        yield from nodes(inner)


def joined(edges: list[Edge]) -> list[Edge]:
    """Edges to the same node as one: `vector layer 3` and `vector layer 4` become `vector layer 3, 4`."""
    fields: dict[Node, list[str]] = defaultdict(list)
    for edge in edges:
        fields[edge.node].append(edge.field)
    found = []
    for node, several in fields.items():
        head = several[0].rpartition(" ")[0] + " "
        same = len(several) > 1 and len(head) > 1 and all(field.startswith(head) for field in several)
        found.append(
            Edge(head + ", ".join(f.removeprefix(head) for f in several) if same else ", ".join(several), node)
        )
    return found


def stale(session: Session) -> dict[UUID, list[Node]]:
    """Runs that rest on something invalid → what that is. A run that is itself invalid is not called stale for it."""
    now, said = names.NOW.c, tables.Annotation
    if session.scalar(select(said.id).where(said.word == tables.Word.INVALID).limit(1)) is None:
        return {}  # nothing ever was: the view need not number every word of the registry
    wrong = [
        Node("run" if noun in names.OF_RUNS else noun, target)
        for noun, target in session.execute(
            select(now.noun, now.target).where(now.word == tables.Word.INVALID.value).distinct().order_by(now.target)
        )
        if noun in NOUNS or noun in names.OF_RUNS
    ]
    found: dict[UUID, list[Node]] = defaultdict(list)
    for source in wrong:
        seen, frontier = {source}, {source}
        while frontier:
            edges = children(session, frontier)
            frontier = {edge.node for at in frontier for edge in edges[at]} - seen
            seen |= frontier
        for node in sorted(seen - {source}):
            if node.noun == "run":
                found[UUID(hex=node.id)].append(source)
    return dict(found)


# -- one step ---------------------------------------------------------------------------------------------------------


def parents(session: Session, of_these: Iterable[Node]) -> Edges:
    """What each of these was made from, one step."""
    edges: Edges = {node: [] for node in of_these}
    read = tables.RunInput
    runs = of(edges, "run")
    rows = in_parts(session, lambda ids: select(read).where(read.run_id.in_(ids)).order_by(read.name), runs)
    by_digest = makers(session, {row.digest for row in rows if row.source_run_id is None})
    for row in rows:
        made_by = Node("run", row.source_run_id.hex) if row.source_run_id else by_digest[row.digest]
        add(edges, Node("run", row.run_id.hex), Edge(row.name, made_by))
    checkpoint = tables.Checkpoint
    for row in in_parts(session, lambda ids: select(checkpoint).where(checkpoint.id.in_(ids)), of(edges, "checkpoint")):
        for edge in checkpoint_parents(session, row):
            add(edges, Node("checkpoint", row.id.hex), edge)
    dataset = tables.Dataset
    for row in in_parts(session, lambda ids: select(dataset).where(dataset.id.in_(ids)), of(edges, "dataset")):
        if row.parent_id:
            add(edges, Node("dataset", row.id.hex), Edge("parent", Node("dataset", row.parent_id.hex)))
    return edges


def checkpoint_parents(session: Session, row: tables.Checkpoint) -> list[Edge]:
    """The checkpoint that an imported one derives from, and those of its training datasets that are here."""
    found = []
    if row.parent_id:
        parent = session.get_one(tables.Checkpoint, row.parent_id)
        found.append(Edge("parent", node_of_checkpoint(parent)))
    for recipe in row.training_datasets or ():
        identity = recipe.removeprefix("dataset:").partition("[")[0]
        id = session.scalar(select(tables.Dataset.id).where(tables.Dataset.identity == identity))
        if id:
            found.append(Edge("training data", Node("dataset", id.hex)))
    return found


def children(session: Session, of_these: Iterable[Node]) -> Edges:
    """What was made from each of these, one step."""
    edges: Edges = {node: [] for node in of_these}
    read, checkpoint, dataset = tables.RunInput, tables.Checkpoint, tables.Dataset
    for row in in_parts(
        session,
        lambda ids: select(read).where(read.source_run_id.in_(ids)).order_by(read.run_id, read.name),
        of(edges, "run"),
    ):
        add(edges, Node("run", row.source_run_id.hex), Edge(row.name, Node("run", row.run_id.hex)))
    made = in_parts(
        session,
        lambda ids: select(checkpoint).where(checkpoint.id.in_(ids) | checkpoint.run_id.in_(ids)),
        of(edges, "checkpoint") + of(edges, "run"),
    )
    for row in made:
        for twin in session.scalars(select(checkpoint).where(checkpoint.parent_id == row.id).order_by(checkpoint.id)):
            add(edges, node_of_checkpoint(row), Edge("parent", node_of_checkpoint(twin)))
    sets = in_parts(session, lambda ids: select(dataset).where(dataset.id.in_(ids)), of(edges, "dataset"))
    for row in sets:
        at = Node("dataset", row.id.hex)
        for part in session.scalars(select(dataset.id).where(dataset.parent_id == row.id).order_by(dataset.id)):
            add(edges, at, Edge("parent", Node("dataset", part.hex)))
        for trained in session.scalars(select(checkpoint).where(checkpoint.run_id.is_(None)).order_by(checkpoint.id)):
            if any(row.identity in recipe for recipe in trained.training_datasets or ()):
                add(edges, at, Edge("training data", Node("checkpoint", trained.id.hex)))
    digests = {row.artefact: node_of_checkpoint(row) for row in made if row.run_id is None and row.artefact}
    digests |= {row.artefact: Node("dataset", row.id.hex) for row in sets}
    digests |= {node.id: node for node in edges if node.noun == "file"}
    for row in in_parts(
        session,
        lambda keys: (
            select(read).where(read.digest.in_(keys), read.source_run_id.is_(None)).order_by(read.run_id, read.name)
        ),
        list(digests),
    ):
        add(edges, digests[row.digest], Edge(row.name, Node("run", row.run_id.hex)))
    return edges


def makers(session: Session, digests: set[str]) -> dict[str, Node]:
    """The node behind each artefact that no run made."""
    found = {digest: Node("file", digest) for digest in digests}
    wanted = sorted(digests)
    dataset, checkpoint = tables.Dataset, tables.Checkpoint
    for row in in_parts(session, lambda keys: select(dataset).where(dataset.artefact.in_(keys)), wanted):
        found[row.artefact] = Node("dataset", row.id.hex)
    for row in in_parts(session, lambda keys: select(checkpoint).where(checkpoint.artefact.in_(keys)), wanted):
        found[row.artefact] = node_of_checkpoint(row)
    return found


def node_of_checkpoint(row: tables.Checkpoint) -> Node:
    return Node("run", row.run_id.hex) if row.run_id else Node("checkpoint", row.id.hex)


def describe(session: Session, which: Iterable[Node]) -> dict[Node, dict[str, Any]]:
    """For people: the name, what it is (a run's kind), and whether it is complete, invalid or stale."""
    wanted = list(which)
    rotten = stale(session)
    now = names.NOW.c
    wrong = set(session.execute(select(now.noun, now.target).where(now.word == tables.Word.INVALID.value)).tuples())
    run, ids = tables.Run, [UUID(hex=node.id) for node in wanted if node.noun == "run"]
    runs = {row.id.hex: row for row in in_parts(session, lambda part: select(run).where(run.id.in_(part)), ids)}
    called = {noun: names.names(session, noun) for noun in NOUNS}
    facts = {}
    for node in wanted:
        row = runs.get(node.id)
        facts[node] = {
            "name": called[node.noun].get(UUID(hex=node.id)) if node.noun in called else None,
            "kind": row.kind if row else node.noun,
            "state": state_of(node, row, (node.noun, node.id) in wrong, rotten),
        }
    return facts


def state_of(node: Node, row: tables.Run | None, invalid: bool, rotten: Mapping[UUID, Any]) -> str:
    """invalid, stale, missing (a run that is not in this registry), partial or complete."""
    if invalid:
        return "invalid"
    if node.noun != "run":
        return "complete"
    if UUID(hex=node.id) in rotten:
        return "stale"
    return "missing" if row is None else "partial" if row.completed_at is None else "complete"


# -- small ------------------------------------------------------------------------------------------------------------


def of(edges: Edges, noun: str) -> list[UUID]:
    return [UUID(hex=node.id) for node in edges if node.noun == noun]


def add(edges: Edges, at: Node, edge: Edge) -> None:
    if at in edges and edge not in edges[at]:
        edges[at].append(edge)


def in_parts(session: Session, statement: Callable[[list[Any]], Any], keys: list[Any]) -> list[Any]:
    """The rows of a statement over many keys, a few hundred at a time."""
    found: list[Any] = []
    for start in range(0, len(keys), AT_ONCE):
        found += session.scalars(statement(keys[start : start + AT_ONCE])).all()
    return found
