"""The lineage of an entity as a tree whose runs have their settings, machine and time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import exists, or_, select

from chessreg.entities.display import Row
from chessreg.registry import tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.lineage import Branch, Node, build_tree
from chessreg.registry.read import list_run_engines, read_annotations, read_run_rows
from chessreg.runs.inputs import REFERENCE_PATTERN
from chessreg.runs.spec import describe_source, flatten_settings, format_value

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


def build_described_tree(sql: SqlSession, node: Node, *, up: bool) -> Branch:
    """Return the tree of a node's inputs (`up`) or results, with the facts of `read_lineage_facts` and
    `read_source_files`, and with notes."""
    tree = build_tree(sql, node, up=up)
    branches = [*iter_branches(tree)]
    ids = {
        noun: {UUID(b.node.id) for b in branches if b.node.noun == noun} for noun in ("run", "dataset", "checkpoint")
    }
    facts = {
        **read_lineage_facts(sql, ids["run"]),
        **read_source_files(sql, tables.Dataset, ids["dataset"]),
        **read_source_files(sql, tables.Checkpoint, ids["checkpoint"]),
    }
    for noun, noun_ids in ids.items():
        for id, marks in read_annotations(sql, noun, list(noun_ids)).items():
            if marks["notes"]:
                facts.setdefault(id.hex, {})["notes"] = marks["notes"]
    for branch in branches:
        branch.facts |= facts.get(branch.node.id, {})
    return tree


def iter_branches(branch: Branch) -> Iterator[Branch]:
    """Yield a branch and those below it."""
    yield branch
    for inner in branch.branches:
        yield from iter_branches(inner)


def read_lineage_facts(sql: SqlSession, ids: Collection[UUID]) -> dict[str, dict[str, Any]]:
    """Return the settings, machine (`host`), creation time and engines of runs, by their id in hexadecimal digits.

    `settings` are the seed and those that were given, without inputs. `engines` are those of `list_run_engines`, and
    left out for runs without one.
    """
    facts: dict[str, dict[str, Any]] = {}
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
    run, match = tables.Run, tables.Match
    has_engines = or_(run.kind == "move-quality", exists().where(match.run_id == run.id))
    for (run_id,) in select_by_keys(sql, select(run.id).where(has_engines), run.id, list(ids)):
        if engines := list_run_engines(sql, run_id):
            facts[run_id.hex]["engines"] = engines
    return facts


def read_source_files(sql: SqlSession, table: Any, ids: Collection[UUID]) -> dict[str, dict[str, Any]]:
    """Return the files (name and sha256) from which datasets or checkpoints were imported, by id in hexadecimal digits.

    Entities without a recorded file are left out.
    """
    facts = {}
    for (record,) in select_by_keys(sql, select(table), table.id, list(ids)):
        source = (getattr(record, "detail", None) or {}).get("source") or {}
        sources = (
            record.report.get("sources", ()) if table is tables.Dataset else [{**source, "name": source.get("file")}]
        )
        files = [{"name": each["name"], "sha256": each.get("sha256")} for each in sources if each.get("name")]
        if files:
            facts[record.id.hex] = {"files": files}
    return facts


def list_details(facts: Row) -> list[str]:
    """Return the notes, files and engines of a node as texts, with the first digits of their digests.

    >>> list_details({"notes": ["for the talk"], "files": [{"name": "a.pgn", "sha256": "0123456789abcdef"}]})
    ['note: for the talk', 'file a.pgn sha256 0123456789ab']
    """
    notes = [f"note: {note}" for note in facts.get("notes", ())]
    files = [(f"file {file['name']}", file["sha256"]) for file in facts.get("files", ())]
    engines = [
        (f"{' and '.join(engine['roles'])} {engine['name']} {engine['version']}", engine["binary_sha256"])
        for engine in facts.get("engines", ())
    ]
    return notes + [f"{text} sha256 {digest[:12]}" if digest else text for text, digest in (*files, *engines)]
