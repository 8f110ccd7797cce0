"""What a test says"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | None = "0002"


def upgrade() -> None:
    op.create_table(
        "statistic",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("low", sa.Float(precision=53), nullable=True),
        sa.Column("high", sa.Float(precision=53), nullable=True),
        sa.Column("p", sa.Float(precision=53), nullable=True),
        sa.Column("n", sa.Integer(), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.CheckConstraint("n >= 0", name=op.f("ck_statistic_n")),
        sa.CheckConstraint("p >= 0 AND p <= 1", name=op.f("ck_statistic_p")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_statistic_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "name", name=op.f("pk_statistic")),
        sqlite_with_rowid=False,
    )
