"""Columns by the field's terms

Columns are renamed; no row changes but those of jobs, whose JSON holds two settings under the same earlier names.
"""

from __future__ import annotations

import json
from contextlib import suppress

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0005"
down_revision: str | None = "0004"

RENAMED = {
    "kind": {"families": "result_tables", "detail_schema": "extra_columns"},
    "run": {"given": "explicit"},
    "run_input": {"recipe": "reference"},
    "attempt": {"how": "execution_options"},
    "conflict": {"family": "table_name"},
    "intervention": {"recipes": "input_references", "positions": "token_mask"},
}
IN_JOBS = {"how": "execution_options", "given": "explicit"}
JOB = sa.table(
    "job",
    sa.column("id", sa.Uuid()),
    sa.column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql")),
)


def upgrade() -> None:
    for table, columns in RENAMED.items():
        for earlier, name in columns.items():  # both databases rename in place, in keys and indexes too
            op.execute(f"ALTER TABLE {table} RENAME COLUMN {earlier} TO {name}")
    connection = op.get_bind()
    for job, text in connection.execute(sa.select(JOB.c.id, sa.cast(JOB.c.detail, sa.Text))).all():
        with suppress(ValueError, AttributeError):  # a row that cannot be read stays as it is
            detail = {IN_JOBS.get(key, key): value for key, value in json.loads(text).items()}
            connection.execute(sa.update(JOB).where(JOB.c.id == job).values(detail=detail))
