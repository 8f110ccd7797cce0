"""The lineage of an object as the lines of a foldable tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tui.data.pages import Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.registry.lineage import Branch
    from chessreg.session import Session


WAY_LABELS = {"up": "inputs", "down": "descendants"}


class Trees(NamedTuple):
    """The inputs of an object (`up`) and its results (`down`) as trees."""

    up: Branch
    down: Branch


def build_lineage_trees(session: Session, noun: str, id: str) -> Trees:
    """Build both trees of a run, dataset, checkpoint or file; `id` is hexadecimal. Runs have `settings`, `host` and
    `created_at`."""
    from chessreg.registry.lineage import Node, build_tree

    with session.database.read() as sql:
        node = Node(noun, id)
        trees = Trees(build_tree(sql, node, up=True), build_tree(sql, node, up=False))
        branches = [*iter_branches(trees.up), *iter_branches(trees.down)]
        facts = read_lineage_facts(sql, {UUID(branch.node.id) for branch in branches if branch.node.noun == "run"})
        for branch in branches:
            branch.facts |= facts.get(branch.node.id, {})
    return trees


def iter_branches(branch: Branch) -> Iterator[Branch]:
    """Yield a branch and those below it."""
    yield branch
    for inner in branch.branches:
        yield from iter_branches(inner)


def read_lineage_facts(sql: SqlSession, ids: Collection[UUID]) -> dict[str, Row]:
    """Return the settings, machine (`host`) and creation time of runs, by their id in hexadecimal digits.

    `settings` are the seed and those that were given, without inputs.
    """
    from chessreg.registry.read import read_run_rows
    from chessreg.runs.inputs import REFERENCE_PATTERN
    from chessreg.runs.spec import describe_source, flatten_settings, format_value

    found: dict[str, Row] = {}
    for row in read_run_rows(sql, list(ids), stale=()):
        settings = {
            path.rpartition(".")[2].replace("_", " "): format_value(value)
            for path, value in flatten_settings(row["spec"]).items()
            if (path == "seed" or describe_source(path, row["explicit"]) == "given") and value not in (None, [], "")
        }
        words = (f"{name} {text}" for name, text in settings.items() if not REFERENCE_PATTERN.match(text))
        found[row["id"].hex] = {
            "settings": ", ".join(words), "host": row["host"], "created_at": row["created_at"],
        }  # fmt: skip
    return found


def list_tree_lines(trees: Trees, ways: Collection[str], folded: Collection[str]) -> list[Row]:
    """Return one row per visible node of the trees named in `ways` (`up`, `down`).

    `key` is the path of the node in its tree. `below` is the number of nodes hidden by folding this one.
    """
    rows: list[Row] = []
    for way in WAY_LABELS:
        if way in ways:
            rows += iter_branch_lines(getattr(trees, way), way, folded, "", "", way)
    return rows


def iter_branch_lines(
    branch: Branch, way: str, folded: Collection[str], guide: str, under: str, key: str
) -> Iterator[Row]:
    """Yield the lines of a branch and of those below it, with tree guides. Branches whose key is in `folded` yield one
    line.

    `way` is `up` or `down`, `guide` is drawn before the branch's own line, `under` before the lines below it, and `key`
    identifies the branch.
    """
    closed = key in folded and bool(branch.branches)
    yield {
        "way": WAY_LABELS[way],
        "key": key,
        "guide": guide,
        "field": branch.field,
        "noun": branch.node.noun,
        "id": branch.node.id,
        "again": branch.again,
        "below": count_descendants(branch) if closed else 0,
        "folds": bool(branch.branches),
        **branch.facts,
    }
    if closed:
        return
    for number, inner in enumerate(branch.branches):
        last = number == len(branch.branches) - 1
        guides = under + ("└── " if last else "├── "), under + ("    " if last else "│   ")
        yield from iter_branch_lines(inner, way, folded, *guides, f"{key}/{number}")


def count_descendants(branch: Branch) -> int:
    """Return the number of nodes below a branch."""
    return sum(1 + count_descendants(inner) for inner in branch.branches)


def count_distinct_descendants(branch: Branch) -> int:
    """Return the number of different nodes below a branch."""
    from chessreg.registry.lineage import iter_nodes

    return len(set(iter_nodes(branch)) - {branch.node})
