"""The recorded runs behind the rows of a query, and the inputs that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.queries.published.paper_runs import RecordedRun, World

if TYPE_CHECKING:
    from chessreg.queries.engine import QueryEngine
    from chessreg.queries.result import QueryResult
    from chessreg.registry.database import Database

TAGS = """
SELECT 'sha256:' || c.artifact AS reference, c.tags, c.random_init, p.tags AS of_parent
FROM checkpoints AS c LEFT JOIN checkpoints AS p ON p.checkpoint_id = c.parent_id
UNION ALL
SELECT 'run:' || r.spec_hash || '/' || o.name, c.tags, c.random_init, p.tags
FROM checkpoints AS c JOIN output AS o ON o.digest = c.artifact JOIN run AS r ON r.id = o.run_id
LEFT JOIN checkpoints AS p ON p.checkpoint_id = c.parent_id
UNION ALL
SELECT 'dataset:' || d.identity, t.tags, false, NULL
FROM dataset AS d JOIN tagged AS t ON t.noun = 'dataset' AND t.target = d.id
"""


def read_runs_by_row(database: Database, result: QueryResult) -> list[list[RecordedRun]]:
    """Return the runs behind each row of a catalogue query, in row order.

    They come from the query's relation `sources`, or else from `base`.
    """
    from chessreg.queries.ask import build_question
    from chessreg.queries.scope import Scope

    assert result.entry
    scope = Scope.from_options(result.meta["scope"])
    question = build_question(database, result.entry, scope, result.meta.get("scoring", "paper"), None)
    relation = "sources" if "sources" in result.entry.relations else "base"
    select = f"SELECT DISTINCT cell, run_id FROM {relation} WHERE run_id IS NOT NULL ORDER BY ALL"
    sql = f"{question.build_relations()}\n{select}"
    ids: dict[int, list[UUID]] = {}
    for row in question.engine.answer({"runs": sql}, question.parameters)["runs"].to_pylist():
        ids.setdefault(row["cell"], []).append(UUID(row["run_id"]))
    runs = read_runs(database, {run for run_ids in ids.values() for run in run_ids})
    return [[runs[run] for run in ids.get(cell, ())] for cell in result.cells or ()]


def read_runs(database: Database, ids: set[UUID]) -> dict[UUID, RecordedRun]:
    """Return the runs with these ids."""
    from sqlalchemy import select

    from chessreg.registry.tables import Run

    with database.read() as sql:
        rows = sql.execute(select(Run.id, Run.kind, Run.version, Run.spec).where(Run.id.in_(ids))).all()
    return {id: RecordedRun(kind, version, spec) for id, kind, version, spec in rows}


def read_world(database: Database, engine: QueryEngine) -> World:
    """Return the inputs of a registry's runs. Runs are read on first use and kept."""
    from chessreg.registry.identity import make_uuid

    runs: dict[UUID, RecordedRun] = {}
    tags: dict[str, frozenset[str]] = {}
    for row in engine.answer({"tags": TAGS})["tags"].to_pylist():
        own_tags = (row["tags"] or "").split(", ")
        if row["random_init"]:
            own_tags = [f"untrained:{tag}" for tag in (row["of_parent"] or "").split(", ")]
        tags[row["reference"]] = frozenset(filter(None, own_tags))

    def find_run(reference: str) -> RecordedRun | None:
        if not reference.startswith("run:"):
            return None
        id = make_uuid(reference.removeprefix("run:").partition("/")[0])
        if id not in runs:
            runs.update(read_runs(database, {id}))
        return runs.get(id)

    return World(find_run, lambda reference: tags.get(reference, frozenset()))
