"""The lineage of an entity as a tree whose runs have their settings, machine and time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.entities.display import Row
from chessreg.registry.lineage import Branch, Node, build_tree
from chessreg.registry.read import read_run_rows
from chessreg.runs.inputs import REFERENCE_PATTERN
from chessreg.runs.spec import describe_source, flatten_settings, format_value

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


def build_described_tree(sql: SqlSession, node: Node, *, up: bool) -> Branch:
    """Return the tree of a node's inputs (`up`) or results. Facts of runs include those of `read_lineage_facts`."""
    tree = build_tree(sql, node, up=up)
    branches = [*iter_branches(tree)]
    facts = read_lineage_facts(sql, {UUID(branch.node.id) for branch in branches if branch.node.noun == "run"})
    for branch in branches:
        branch.facts |= facts.get(branch.node.id, {})
    return tree


def iter_branches(branch: Branch) -> Iterator[Branch]:
    """Yield a branch and those below it."""
    yield branch
    for inner in branch.branches:
        yield from iter_branches(inner)


def read_lineage_facts(sql: SqlSession, ids: Collection[UUID]) -> dict[str, Row]:
    """Return the settings, machine (`host`) and creation time of runs, by their id in hexadecimal digits.

    `settings` are the seed and those that were given, without inputs.
    """
    facts: dict[str, Row] = {}
    for row in read_run_rows(sql, list(ids), stale_runs=()):
        settings = {
            path.rpartition(".")[2].replace("_", " "): format_value(value)
            for path, value in flatten_settings(row["spec"]).items()
            if (path == "seed" or describe_source(path, row["explicit"]) == "given") and value not in (None, [], "")
        }
        words = (f"{name} {text}" for name, text in settings.items() if not REFERENCE_PATTERN.match(text))
        facts[row["id"].hex] = {
            "settings": ", ".join(words), "host": row["host"], "created_at": row["created_at"],
        }  # fmt: skip
    return facts
