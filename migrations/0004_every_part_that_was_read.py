"""Every part that was read

One row for each reference that a run read. Before, two parts of one dataset in one setting shared a row. The row that
was left out is added to complete runs: their specs name every reference, and a dataset's identity has one digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | None = "0003"

RUN = sa.table(
    "run",
    sa.column("id", sa.Uuid()),
    sa.column("spec", sa.JSON().with_variant(postgresql.JSONB(), "postgresql")),
    sa.column("completed_at", sa.DateTime()),
)
READ = sa.table(
    "run_input",
    sa.column("run_id", sa.Uuid()),
    sa.column("name", sa.String()),
    sa.column("recipe", sa.Text()),
    sa.column("digest", sa.String()),
    sa.column("source_run_id", sa.Uuid()),
)


def upgrade() -> None:
    with op.batch_alter_table("run_input", schema=None) as batch_op:
        batch_op.drop_constraint(op.f("pk_run_input"), type_="primary")
        batch_op.create_primary_key(op.f("pk_run_input"), ["run_id", "name", "recipe", "digest"])
    connection = op.get_bind()
    if missing := list(left_out(connection)):
        connection.execute(sa.insert(READ), missing)


def left_out(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    """Rows of the references to a dataset that complete runs name beside one that has a row."""
    datasets = sa.select(READ, RUN.c.spec).join(RUN, RUN.c.id == READ.c.run_id)
    rows = connection.execute(datasets.where(RUN.c.completed_at.is_not(None), READ.c.recipe.like("dataset:%"))).all()
    there = {(row.run_id, row.name, row.recipe) for row in rows}
    for row in rows:
        named = row.spec.get(row.name) if isinstance(row.spec, dict) else None
        for recipe in named if isinstance(named, list) else ():
            key = row.run_id, row.name, recipe
            if isinstance(recipe, str) and identity(recipe) == identity(row.recipe) and key not in there:
                there.add(key)
                yield {
                    "run_id": row.run_id,
                    "name": row.name,
                    "recipe": recipe,
                    "digest": row.digest,
                    "source_run_id": row.source_run_id,
                }


def identity(recipe: str) -> str:
    """`dataset:<identity>` of a reference to a dataset or a part of it."""
    return recipe.partition("[")[0]
