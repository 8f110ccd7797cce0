"""Lineage: the inputs of an entity, the results derived from it, and the runs that are stale because an input is
invalid.

A node is a run, or a file, dataset or checkpoint that no run made. Everything that a run made is represented by the
run.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names, tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.run_state import STATE


class Node(NamedTuple):
    """A node of the lineage graph. `noun` is run, file, dataset or checkpoint; `id` is the id in hex (for a file, its
    digest)."""

    noun: str
    id: str


class Edge(NamedTuple):
    """A link to `node`. `field` is the later node's name for it: a setting, `parent` or `training data`."""

    field: str
    node: Node


Edges = dict[Node, list[Edge]]


@dataclasses.dataclass
class Branch:
    """A node of a lineage tree and its subtrees. `again` is true if the node is expanded elsewhere in the tree."""

    node: Node
    field: str
    facts: dict[str, Any]
    again: bool = False
    branches: list[Branch] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        """Return the tree as indented lines."""
        name = self.facts.get("name") or self.node.id[-6:]
        field = f"{self.field}: " if self.field else ""
        line = f"{field}{self.node.noun} {name}" + (" (drawn above)" if self.again else "")
        below = (f"  {part}" for branch in self.branches for part in repr(branch).splitlines())
        return "\n".join([line, *below])

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as a JSON-compatible dict."""
        values = {"noun": self.node.noun, "id": self.node.id, "field": self.field or None, **self.facts}
        return values | ({"again": True} if self.again else {"branches": [b.as_dict() for b in self.branches]})


def list_tables_with_bytes(session: Session) -> dict[str, Any]:
    """Return noun → table for the registry's entities with an id and an artifact: datasets and checkpoints."""
    return {
        noun: table
        for noun, table in names.list_noun_tables(session).items()
        if not names.is_keyed_by_run(table) and "artifact" in table.__table__.columns
    }


def make_node(row: Any) -> Node:
    """Return the node that represents a row: the run that made it, else the row itself."""
    maker = getattr(row, "run_id", None)
    return Node("run", maker.hex) if maker else Node(row.__noun__.name, row.id.hex)


def make_annotation_node(noun: str, target: str) -> Node:
    """Return the node that an annotation refers to."""
    table = names.list_noun_tables().get(noun)
    return Node("run" if table is not None and names.is_keyed_by_run(table) else noun, target)


def find_node(session: Session, reference: str) -> Node:
    """Return the node that a name or id of any noun refers to.

    Raises NotFoundError if nothing matches, and BadInputError if several nodes match.
    """
    nodes: dict[Node, str] = {}
    tables_by_noun = {"run": tables.Run, **list_tables_with_bytes(session)}
    for noun, table in {
        **tables_by_noun,
        **{noun: t for noun, t in names.list_noun_tables(session).items() if names.is_keyed_by_run(t)},
    }.items():
        try:
            id = names.resolve_id(session, noun, reference)
        except NotFoundError:
            continue
        node = make_node(session.get_one(table, id)) if noun in list_tables_with_bytes(session) else Node("run", id.hex)
        nodes.setdefault(node, noun)
    if not nodes:
        suggestions = list(
            dict.fromkeys(n for noun in tables_by_noun for n in names.suggest_names(session, noun, reference))
        )
        hint = f"did you mean {' or '.join(suggestions[:3])}?" if suggestions else "chessreg runs list"
        raise NotFoundError(
            f"no {', '.join([*tables_by_noun][:-1])} or {[*tables_by_noun][-1]} {reference!r} was found", hint
        )
    if len(nodes) > 1:
        node_texts = ", ".join(f"{noun} {node.id[-6:]}" for node, noun in nodes.items())
        raise BadInputError(f"{reference!r} is ambiguous: {node_texts}", "give one of these ids")
    return next(iter(nodes))


def build_tree(session: Session, node: Node, *, up: bool) -> Branch:
    """Return the tree of all inputs of `node` (`up`), or of all results derived from it."""
    step = read_parents if up else read_children
    edges: Edges = {}
    frontier = {node}
    while frontier:
        edges |= step(session, frontier)
        frontier = {edge.node for at in frontier for edge in edges[at]} - edges.keys()
    facts = describe_nodes(session, edges.keys())
    drawn_nodes: set[Node] = set()

    def build_branch(edge: Edge) -> Branch:
        branch_tree = Branch(
            edge.node, edge.field, facts[edge.node], again=edge.node in drawn_nodes and bool(edges[edge.node])
        )
        drawn_nodes.add(edge.node)
        if not branch_tree.again:
            branch_tree.branches = [build_branch(next_edge) for next_edge in merge_edges(edges[edge.node])]
        return branch_tree

    return build_branch(Edge("", node))


def iter_nodes(branch: Branch) -> Iterator[Node]:
    """Yield every node of a tree, the root first. A node that occurs several times is yielded several times."""
    yield branch.node
    for inner in branch.branches:
        yield from iter_nodes(inner)


def merge_edges(edges: list[Edge]) -> list[Edge]:
    """Merge edges to the same node: `vector layer 3` and `vector layer 4` become `vector layer 3, 4`."""
    fields: dict[Node, list[str]] = defaultdict(list)
    for edge in edges:
        fields[edge.node].append(edge.field)
    merged_edges = []
    for node, edge_fields in fields.items():
        head = edge_fields[0].rpartition(" ")[0] + " "
        have_one_stem = len(edge_fields) > 1 and len(head) > 1 and all(field.startswith(head) for field in edge_fields)
        merged_edges.append(
            Edge(
                head + ", ".join(f.removeprefix(head) for f in edge_fields)
                if have_one_stem
                else ", ".join(edge_fields),
                node,
            )
        )
    return merged_edges


def find_stale_runs(session: Session) -> dict[UUID, list[Node]]:
    """Return run id → the invalid nodes that the run depends on. An invalid run is not stale because of itself."""
    now, annotation = names.CURRENT_ANNOTATIONS.c, tables.Annotation
    invalid_runs = (
        annotation.noun.in_(names.list_noun_tables()),
        annotation.word == tables.AnnotationWord.INVALID,
    )  # uses the index of both
    if session.scalar(select(annotation.id).where(*invalid_runs).limit(1)) is None:
        return {}  # avoids the slow view if nothing was ever invalid
    invalid_nodes = [
        node
        for noun, target in session.execute(
            select(now.noun, now.target)
            .where(now.word == tables.AnnotationWord.INVALID.value)
            .group_by(now.noun, now.target)
            .order_by(func.min(now.at), now.target)
        )
        if (node := make_annotation_node(noun, target)).noun == "run" or noun in list_tables_with_bytes(session)
    ]
    stale_inputs: dict[UUID, list[Node]] = defaultdict(list)
    for source in invalid_nodes:
        seen_nodes, frontier = {source}, {source}
        while frontier:
            edges = read_children(session, frontier)
            frontier = {edge.node for at in frontier for edge in edges[at]} - seen_nodes
            seen_nodes |= frontier
        for node in sorted(seen_nodes - {source}):
            if node.noun == "run":
                stale_inputs[UUID(hex=node.id)].append(source)
    return dict(stale_inputs)


# -- one step ---------------------------------------------------------------------------------------------------------


def read_parents(session: Session, of_these: Iterable[Node]) -> Edges:
    """Return the direct inputs of each node."""
    edges: Edges = {node: [] for node in of_these}
    run_input = tables.RunInput
    runs = list_ids_of_noun(edges, "run")
    rows = [
        row for (row,) in select_by_keys(session, select(run_input).order_by(run_input.name), run_input.run_id, runs)
    ]
    by_digest = find_makers(session, {row.digest for row in rows if row.source_run_id is None})
    for row in rows:
        made_by = Node("run", row.source_run_id.hex) if row.source_run_id else by_digest[row.digest]
        add_edge(edges, Node("run", row.run_id.hex), Edge(row.name, made_by))
    for noun, table in list_tables_with_bytes(session).items():
        for row in read_rows_by_key(session, table.id, list_ids_of_noun(edges, noun)):
            for edge in list_source_edges(session, row):
                add_edge(edges, Node(noun, row.id.hex), edge)
    return edges


def list_source_edges(session: Session, row: Any) -> list[Edge]:
    """Return the sources of an entity that no run made: its foreign keys and the datasets that it was trained on."""
    edges = []
    for field, source in list_source_tables(session, type(row)):
        if (id := getattr(row, f"{field}_id")) is not None:
            edges.append(Edge(field, make_node(session.get_one(source, id))))
    for reference in getattr(row, "training_datasets", None) or ():
        identity = reference.removeprefix("dataset:").partition("[")[0]
        if dataset := session.scalar(select(tables.Dataset).where(tables.Dataset.identity == identity)):
            edges.append(Edge("training data", make_node(dataset)))
    return edges


def list_source_tables(session: Session, table: Any) -> list[tuple[str, Any]]:
    """Return (`parent`, table) for each foreign key `parent_id` of `table` that refers to an entity."""
    tables_by_source = {table_class.__table__: table_class for table_class in list_tables_with_bytes(session).values()}
    return [
        (column.name.removesuffix("_id"), tables_by_source[key.column.table])
        for column in table.__table__.columns
        for key in column.foreign_keys
        if key.column.table in tables_by_source
    ]


def read_children(session: Session, of_these: Iterable[Node]) -> Edges:
    """Return the direct results of each node."""
    edges: Edges = {node: [] for node in of_these}
    run_input, runs = tables.RunInput, list_ids_of_noun(edges, "run")
    inputs_select = (
        select(run_input)
        .join(tables.Run, tables.Run.id == run_input.run_id)
        .order_by(*get_time_order(tables.Run), run_input.name)
    )
    for (row,) in select_by_keys(session, inputs_select, run_input.source_run_id, runs):
        add_edge(edges, Node("run", row.source_run_id.hex), Edge(row.name, Node("run", row.run_id.hex)))
    digests = {node.id: node for node in edges if node.noun == "file"}
    for noun, table in list_tables_with_bytes(session).items():
        rows = read_rows_by_key(session, table.id, list_ids_of_noun(edges, noun))
        if hasattr(table, "run_id"):
            rows += read_rows_by_key(session, table.run_id, runs)
        for row in rows:
            for edge in iter_result_edges(session, row):
                add_edge(edges, make_node(row), edge)
            if row.artifact and make_node(row).noun != "run":
                digests[row.artifact] = make_node(row)
    external_reads = inputs_select.where(run_input.source_run_id.is_(None))
    for (row,) in select_by_keys(session, external_reads, run_input.digest, digests):
        add_edge(edges, digests[row.digest], Edge(row.name, Node("run", row.run_id.hex)))
    return edges


def iter_result_edges(session: Session, row: Any) -> Iterator[Edge]:
    """Yield edges to the entities that refer to this row by a foreign key or, for a dataset, as training data."""
    for table in list_tables_with_bytes(session).values():
        for field, source in list_source_tables(session, table):
            if source is type(row):
                key = getattr(table, f"{field}_id")
                for child in session.scalars(select(table).where(key == row.id).order_by(*get_time_order(table))):
                    yield Edge(field, make_node(child))
    if isinstance(row, tables.Dataset):
        checkpoint = tables.Checkpoint
        imported_checkpoints = (
            select(checkpoint).where(checkpoint.run_id.is_(None)).order_by(*get_time_order(checkpoint))
        )
        for checkpoint_row in session.scalars(imported_checkpoints):
            if any(row.identity in reference for reference in checkpoint_row.training_datasets or ()):
                yield Edge("training data", make_node(checkpoint_row))


def find_makers(session: Session, digests: set[str]) -> dict[str, Node]:
    """Return artifact digest → node for artifacts that no run made."""
    maker_of = {digest: Node("file", digest) for digest in digests}
    for table in list_tables_with_bytes(session).values():
        for row in read_rows_by_key(session, table.artifact, sorted(digests)):
            maker_of[row.artifact] = make_node(row)
    return maker_of


def describe_nodes(session: Session, node_ids: Iterable[Node]) -> dict[Node, dict[str, Any]]:
    """Return the name, kind and state of each node for display.

    `kind` is a run's kind, else the noun. `state` is invalid, stale, missing (a run that is not in this registry), or
    the state of the run; complete for all other nodes.
    """
    nodes = list(node_ids)
    stale_runs = find_stale_runs(session)
    now = names.CURRENT_ANNOTATIONS.c
    invalid_targets = set(
        session.execute(select(now.noun, now.target).where(now.word == tables.AnnotationWord.INVALID.value))
    )
    runs = read_kinds_and_states(session, list_ids_of_noun(nodes, "run"))
    nouns = ("run", *list_tables_with_bytes(session))
    names_by_noun = {noun: names.read_names_of(session, noun, list_ids_of_noun(nodes, noun)) for noun in nouns}
    file_names = read_file_names(session, [node.id for node in nodes if node.noun == "file"])
    facts = {}
    for node in nodes:
        kind, state = runs.get(node.id, (node.noun, "missing" if node.noun == "run" else "complete"))
        if (node.noun, node.id) in invalid_targets:
            state = "invalid"
        elif node.noun == "run" and UUID(hex=node.id) in stale_runs:
            state = "stale"
        facts[node] = {
            "name": names_by_noun[node.noun].get(UUID(hex=node.id))
            if node.noun in names_by_noun
            else file_names.get(node.id),
            "kind": kind,
            "state": state,
        }
    return facts


def read_file_names(session: Session, digests: Sequence[str]) -> dict[str, str]:
    """Return digest → the name that a user's file had, for files that a run imported alone."""
    run_input, attempt = tables.RunInput, tables.Attempt
    statement = select(run_input.digest, attempt.execution_options).join(attempt, attempt.run_id == run_input.run_id)
    file_names = {}
    for digest, options in select_by_keys(session, statement, run_input.digest, list(digests)):
        name = options.get("file_names") or options.get("file_name")
        if name and ", " not in name:
            file_names[digest] = str(name)
    return file_names


def read_kinds_and_states(session: Session, ids: Sequence[UUID]) -> dict[str, tuple[str, str]]:
    """Return (kind, state) of runs by the hex digits of their ids."""
    run = tables.Run
    rows = select_by_keys(session, select(run.id, run.kind, STATE), run.id, ids)
    return {id.hex: (kind, state) for id, kind, state in rows}


# -- small ------------------------------------------------------------------------------------------------------------


def list_ids_of_noun(edges: Iterable[Node], noun: str) -> list[UUID]:
    """Return the ids of the nodes of one noun. Ids that are not 32 hex digits, as in another registry's annotations,
    are skipped."""
    return [UUID(hex=node.id) for node in edges if node.noun == noun and re.fullmatch("[0-9a-f]{32}", str(node.id))]


def add_edge(edges: Edges, at: Node, edge: Edge) -> None:
    """Append `edge` to the edges of `at` unless `at` is not a key or has it already."""
    if at in edges and edge not in edges[at]:
        edges[at].append(edge)


def get_time_order(table: Any) -> tuple[Any, ...]:
    """Return the columns that sort rows by creation time. Ids are hashes, so their order is meaningless to users."""
    return (table.created_at, table.id) if hasattr(table, "created_at") else (table.id,)


def read_rows_by_key(session: Session, column: Any, keys: list[Any]) -> list[Any]:
    """Return the rows of a column's table in which the column is one of `keys`."""
    query = select(column.class_).order_by(*get_time_order(column.class_))
    return [row for (row,) in select_by_keys(session, query, column, keys)]
