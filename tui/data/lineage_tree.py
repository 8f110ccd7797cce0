"""The lineage of an object as the lines of a foldable tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.registry.lineage import Branch
    from chessreg.session import Session


WAY_LABELS = {"up": "inputs", "down": "descendants"}


class Trees(NamedTuple):
    """The inputs of an object (`up`) and its results (`down`) as trees."""

    up: Branch
    down: Branch


def build_lineage_trees(session: Session, noun: str, id: str) -> Trees:
    """Build both trees of a run, dataset, checkpoint or file; `id` is hexadecimal."""
    from chessreg.entities.lineage_tree import build_described_tree
    from chessreg.registry.lineage import Node

    with session.database.read() as sql:
        node = Node(noun, id)
        return Trees(build_described_tree(sql, node, up=True), build_described_tree(sql, node, up=False))


def list_tree_lines(trees: Trees, ways: Collection[str], folded_keys: Collection[str]) -> list[Row]:
    """Return one row per visible node of the trees named in `ways` (`up`, `down`).

    `key` is the path of the node in its tree. `below` is the number of nodes hidden by folding this one.
    """
    rows: list[Row] = []
    for way in WAY_LABELS:
        if way in ways:
            rows += iter_branch_lines(getattr(trees, way), way, folded_keys, "", "", way)
    return rows


def iter_branch_lines(
    branch: Branch, way: str, folded_keys: Collection[str], guide: str, under: str, key: str
) -> Iterator[Row]:
    """Yield the lines of a branch and of those below it, with tree guides. Branches whose key is in `folded_keys` yield
    one line.

    `way` is `up` or `down`, `guide` is drawn before the branch's own line, `under` before the lines below it, and `key`
    identifies the branch.
    """
    is_closed = key in folded_keys and bool(branch.branches)
    yield {
        "way": WAY_LABELS[way],
        "key": key,
        "guide": guide,
        "field": branch.field,
        "noun": branch.node.noun,
        "id": branch.node.id,
        "again": branch.again,
        "below": count_descendants(branch) if is_closed else 0,
        "folds": bool(branch.branches),
        **branch.facts,
    }
    if is_closed:
        return
    for number, inner in enumerate(branch.branches):
        is_last = number == len(branch.branches) - 1
        guides = under + ("└── " if is_last else "├── "), under + ("    " if is_last else "│   ")
        yield from iter_branch_lines(inner, way, folded_keys, *guides, f"{key}/{number}")


def count_descendants(branch: Branch) -> int:
    """Return the number of nodes below a branch."""
    return sum(1 + count_descendants(inner) for inner in branch.branches)


def count_distinct_descendants(branch: Branch) -> int:
    """Return the number of different nodes below a branch."""
    from chessreg.registry.lineage import iter_nodes

    return len(set(iter_nodes(branch)) - {branch.node})
