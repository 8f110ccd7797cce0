"""baseline"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001_230fae5b"
down_revision: str | None = None


def upgrade() -> None:
    op.create_table(
        "annotation",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("noun", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column(
            "word",
            sa.Enum(
                "name",
                "tag",
                "note",
                "pin",
                "star",
                "archive",
                "invalid",
                name="word",
                native_enum=False,
                create_constraint=True,
                length=24,
            ),
            nullable=False,
        ),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotation")),
    )
    with op.batch_alter_table("annotation", schema=None) as batch_op:
        batch_op.create_index("ix_annotation_target", ["noun", "target"], unique=False)
        batch_op.create_index("ix_annotation_value", ["noun", "word", "value"], unique=False)

    op.create_table(
        "artifact",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("staging", "complete", name="state", native_enum=False, create_constraint=True, length=24),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("bytes >= 0", name=op.f("ck_artifact_bytes")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifact")),
    )
    op.create_table(
        "conflict",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("table_name", sa.String(length=32), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("row", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conflict")),
    )
    with op.batch_alter_table("conflict", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_conflict_run_id"), ["run_id"], unique=False)

    op.create_table(
        "engine",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("binary_sha256", sa.String(length=64), nullable=True),
        sa.Column("options", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine")),
    )
    op.create_table(
        "fragment",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("ingested_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_fragment")),
    )
    with op.batch_alter_table("fragment", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_fragment_run_id"), ["run_id"], unique=False)

    op.create_table(
        "intervention",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("input_references", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("layers", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("scale", sa.Float(precision=53), nullable=False),
        sa.Column("scale_rule", sa.String(length=32), nullable=False),
        sa.Column("token_mask", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_intervention")),
    )
    with op.batch_alter_table("intervention", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_intervention_checkpoint_id"), ["checkpoint_id"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("executor", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("system_id", sa.String(length=32), nullable=True),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("queued", "running", "ended", name="state", native_enum=False, create_constraint=True, length=24),
            nullable=False,
        ),
        sa.Column("cancel", sa.Boolean(), nullable=False),
        sa.Column(
            "cause",
            sa.Enum(
                "finished",
                "failed",
                "killed",
                "preempted",
                "walltime",
                "oom",
                "diverged",
                "engine_died",
                "lost",
                name="cause",
                native_enum=False,
                create_constraint=True,
                length=24,
            ),
            nullable=True,
        ),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("shard >= 0 AND shards >= 1 AND shard <= shards", name=op.f("ck_job_shard")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_group_id"), ["group_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_run_id"), ["run_id"], unique=False)
        batch_op.create_index("ix_job_state", ["state"], unique=False)

    op.create_table(
        "kind",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("result_tables", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("extra_columns", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("determinism", sa.String(length=16), nullable=False),
        sa.CheckConstraint("determinism IN ('exact', 'statistical')", name=op.f("ck_kind_determinism")),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_kind")),
    )
    op.create_table(
        "machine",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("system_id", sa.String(length=32), nullable=True),
        sa.Column("platform", sa.String(length=255), nullable=False),
        sa.Column("cpu", sa.String(length=255), nullable=False),
        sa.Column("cores", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("driver", sa.String(length=64), nullable=True),
        sa.Column("cuda", sa.String(length=64), nullable=True),
        sa.Column("torch", sa.String(length=64), nullable=True),
        sa.Column("python", sa.String(length=64), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_machine")),
    )
    op.create_table(
        "registry_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("registry_id", sa.Uuid(), nullable=False),
        sa.Column("data_version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_registry_state_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_state")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("spec_hash", sa.String(length=64), nullable=False),
        sa.Column("explicit", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("units >= 0", name=op.f("ck_run_units")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("spec_hash", name=op.f("uq_run_spec_hash")),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_run_kind"), ["kind"], unique=False)

    op.create_table(
        "tokenizer",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("vocabulary", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokenizer")),
    )
    op.create_table(
        "activation_cache",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("stop", sa.Integer(), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("hook_points", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("d_model", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("start >= 0 AND stop > start", name=op.f("ck_activation_cache_range")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_activation_cache_run_id_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "start", name=op.f("pk_activation_cache")),
    )
    with op.batch_alter_table("activation_cache", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_activation_cache_checkpoint_id"), ["checkpoint_id"], unique=False)

    op.create_table(
        "artifact_location",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Uuid(), nullable=True),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["digest"], ["artifact.digest"], name=op.f("fk_artifact_location_digest_artifact"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "uri", name=op.f("pk_artifact_location")),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("machine_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("executor", sa.String(length=255), nullable=False),
        sa.Column("execution_options", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("argv", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_started", sa.Float(precision=53), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("checked_in_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_check_in_seconds", sa.Float(precision=53), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                "running",
                "finished",
                "failed",
                "killed",
                "lost",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=24,
            ),
            nullable=False,
        ),
        sa.Column(
            "cause",
            sa.Enum(
                "finished",
                "failed",
                "killed",
                "preempted",
                "walltime",
                "oom",
                "diverged",
                "engine_died",
                "lost",
                name="cause",
                native_enum=False,
                create_constraint=True,
                length=24,
            ),
            nullable=True,
        ),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("units_done", sa.Integer(), nullable=False),
        sa.Column("progress", sa.Float(precision=53), nullable=True),
        sa.Column("progress_before", sa.Float(precision=53), nullable=True),
        sa.Column("doing", sa.Text(), nullable=True),
        sa.Column("load", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("chessreg_version", sa.String(length=64), nullable=False),
        sa.Column("code", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("environment", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(["machine_id"], ["machine.id"], name=op.f("fk_attempt_machine_id_machine")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_attempt_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempt_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempt_run_id"), ["run_id"], unique=False)
        batch_op.create_index("ix_attempt_state", ["state"], unique=False)

    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=True),
        sa.Column("architecture", sa.String(length=64), nullable=True),
        sa.Column("layers", sa.Integer(), nullable=True),
        sa.Column("d_model", sa.Integer(), nullable=True),
        sa.Column("heads", sa.Integer(), nullable=True),
        sa.Column("block_size", sa.Integer(), nullable=True),
        sa.Column("tokenizer", sa.String(length=64), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column("parameters_without_embeddings", sa.BigInteger(), nullable=True),
        sa.Column("residual", sa.String(length=16), nullable=True),
        sa.Column("tokens_seen", sa.BigInteger(), nullable=True),
        sa.Column("training_datasets", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("source_format", sa.String(length=32), nullable=False),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(artifact IS NULL) = (source_format = 'external')", name=op.f("ck_checkpoint_weights")),
        sa.CheckConstraint("residual IN ('raw', 'centred')", name=op.f("ck_checkpoint_residual")),
        sa.ForeignKeyConstraint(["artifact"], ["artifact.digest"], name=op.f("fk_checkpoint_artifact_artifact")),
        sa.ForeignKeyConstraint(["parent_id"], ["checkpoint.id"], name=op.f("fk_checkpoint_parent_id_checkpoint")),
        sa.ForeignKeyConstraint(["tokenizer"], ["tokenizer.name"], name=op.f("fk_checkpoint_tokenizer_tokenizer")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
        sa.UniqueConstraint("artifact", name=op.f("uq_checkpoint_artifact")),
    )
    with op.batch_alter_table("checkpoint", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoint_run_id"), ["run_id"], unique=False)

    op.create_table(
        "dataset",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("identity", sa.String(length=64), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("games", sa.Integer(), nullable=False),
        sa.Column("plies", sa.BigInteger(), nullable=False),
        sa.Column("duplicates", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Integer(), nullable=False),
        sa.Column("rating_scale", sa.String(length=32), nullable=True),
        sa.Column("licence", sa.String(length=64), nullable=True),
        sa.Column("parent_id", sa.Uuid(), nullable=True),
        sa.Column("report", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "games >= 0 AND plies >= 0 AND duplicates >= 0 AND rejected >= 0 AND skipped >= 0",
            name=op.f("ck_dataset_counts"),
        ),
        sa.ForeignKeyConstraint(["artifact"], ["artifact.digest"], name=op.f("fk_dataset_artifact_artifact")),
        sa.ForeignKeyConstraint(["parent_id"], ["dataset.id"], name=op.f("fk_dataset_parent_id_dataset")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset")),
        sa.UniqueConstraint("identity", name=op.f("uq_dataset_identity")),
    )
    op.create_table(
        "game",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("match", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("opening_number", sa.Integer(), nullable=False),
        sa.Column("opening_plies", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("plies", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("result", sa.String(length=8), nullable=False),
        sa.Column("termination", sa.String(length=32), nullable=False),
        sa.Column("adjudication_cp", sa.Integer(), nullable=True),
        sa.Column("turns", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("first_try_legal", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("tries", sa.LargeBinary(), nullable=True),
        sa.Column("moves", sa.LargeBinary(), nullable=False),
        sa.Column("move_hash", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.CheckConstraint("result IN ('1-0', '0-1', '1/2-1/2', '*')", name=op.f("ck_game_result")),
        sa.CheckConstraint("first_try_legal >= 0 AND first_try_legal <= turns", name=op.f("ck_game_turns")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_game_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", name=op.f("pk_game")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("game", schema=None) as batch_op:
        batch_op.create_index("ix_game_termination", ["termination"], unique=False)

    op.create_table(
        "illegal_attempt",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("ply", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("text", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_illegal_attempt_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "ply", "number", name=op.f("pk_illegal_attempt")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "match",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("player", sa.String(length=255), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=True),
        sa.Column("intervention_id", sa.Uuid(), nullable=True),
        sa.Column("engine_id", sa.Uuid(), nullable=True),
        sa.Column("opponent", sa.String(length=128), nullable=False),
        sa.Column("opponent_checkpoint_id", sa.Uuid(), nullable=True),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("limit", sa.String(length=32), nullable=True),
        sa.Column("color", sa.String(length=16), nullable=False),
        sa.Column("opening", sa.String(length=64), nullable=False),
        sa.Column("opening_seed", sa.BigInteger(), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("move_limit", sa.Integer(), nullable=True),
        sa.Column("planned", sa.Integer(), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.CheckConstraint("color IN ('white', 'black')", name=op.f("ck_match_color")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_match_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_match")),
    )
    with op.batch_alter_table("match", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_match_checkpoint_id"), ["checkpoint_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_match_intervention_id"), ["intervention_id"], unique=False)

    op.create_table(
        "metric_point",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_metric_point_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "name", "step", name=op.f("pk_metric_point")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "opening_book",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("openings", sa.Integer(), nullable=False),
        sa.Column("licence", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("openings > 0", name=op.f("ck_opening_book_openings")),
        sa.ForeignKeyConstraint(["digest"], ["artifact.digest"], name=op.f("fk_opening_book_digest_artifact")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_opening_book")),
    )
    op.create_table(
        "output",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["artifact.digest"], name=op.f("fk_output_digest_artifact")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_output_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_output")),
    )
    with op.batch_alter_table("output", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_output_digest"), ["digest"], unique=False)

    op.create_table(
        "prediction",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("item", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_prediction_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "item", "name", name=op.f("pk_prediction")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "probe",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=True),
        sa.Column("hook_point", sa.String(length=128), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("positions", sa.String(length=32), nullable=False),
        sa.Column("classes", sa.Integer(), nullable=False),
        sa.Column("train_games", sa.Integer(), nullable=True),
        sa.Column("train_positions", sa.BigInteger(), nullable=True),
        sa.Column("epochs", sa.Float(precision=53), nullable=True),
        sa.Column("norm", sa.Float(precision=53), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["artifact.digest"], name=op.f("fk_probe_artifact_artifact")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_probe_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", name=op.f("pk_probe")),
    )
    with op.batch_alter_table("probe", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_probe_artifact"), ["artifact"], unique=False)
        batch_op.create_index(batch_op.f("ix_probe_checkpoint_id"), ["checkpoint_id"], unique=False)

    op.create_table(
        "rating",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("player", sa.String(length=255), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("estimator", sa.String(length=64), nullable=False),
        sa.Column("rating", sa.Float(precision=53), nullable=True),
        sa.Column("low", sa.Float(precision=53), nullable=True),
        sa.Column("high", sa.Float(precision=53), nullable=True),
        sa.Column("games", sa.Integer(), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_rating_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "player", name=op.f("pk_rating")),
    )
    op.create_table(
        "run_input",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source_run_id", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_input_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "reference", "digest", name=op.f("pk_run_input")),
    )
    with op.batch_alter_table("run_input", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_run_input_source_run_id"), ["source_run_id"], unique=False)

    op.create_table(
        "sae",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=False),
        sa.Column("hook_point", sa.String(length=128), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("architecture", sa.String(length=32), nullable=False),
        sa.Column("features", sa.Integer(), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["artifact.digest"], name=op.f("fk_sae_artifact_artifact")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_sae_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", name=op.f("pk_sae")),
    )
    with op.batch_alter_table("sae", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sae_artifact"), ["artifact"], unique=False)
        batch_op.create_index(batch_op.f("ix_sae_checkpoint_id"), ["checkpoint_id"], unique=False)

    op.create_table(
        "score",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("split", sa.String(length=32), nullable=False),
        sa.Column("item", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("layer", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.Column("counts", sa.LargeBinary(), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.CheckConstraint("correct >= 0 AND correct <= n", name=op.f("ck_score_correct")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_score_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "split", "item", name=op.f("pk_score")),
        sqlite_with_rowid=False,
    )
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
    op.create_table(
        "trial",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("condition", sa.String(length=64), nullable=False),
        sa.Column("sample", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.Column("intervention_id", sa.Uuid(), nullable=True),
        sa.Column("item", sa.Integer(), nullable=False),
        sa.Column("ply", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("fen", sa.String(length=100), nullable=True),
        sa.Column("text", sa.String(length=32), nullable=False),
        sa.Column("legal_original", sa.Boolean(), nullable=True),
        sa.Column("legal_modified", sa.Boolean(), nullable=True),
        sa.Column("mass_original", sa.Float(precision=53), nullable=True),
        sa.Column("mass_modified", sa.Float(precision=53), nullable=True),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_trial_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", "condition", "sample", name=op.f("pk_trial")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "unit_range",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("stop", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("start >= 0 AND stop > start", name=op.f("ck_unit_range_range")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_unit_range_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "start", "stop", name=op.f("pk_unit_range")),
    )
    op.create_table(
        "vector",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_id", sa.Uuid(), nullable=True),
        sa.Column("hook_point", sa.String(length=128), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("positions", sa.String(length=32), nullable=False),
        sa.Column("norm", sa.Float(precision=53), nullable=False),
        sa.Column("detail", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["artifact.digest"], name=op.f("fk_vector_artifact_artifact")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_vector_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "unit", name=op.f("pk_vector")),
    )
    with op.batch_alter_table("vector", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_vector_artifact"), ["artifact"], unique=False)
        batch_op.create_index(batch_op.f("ix_vector_checkpoint_id"), ["checkpoint_id"], unique=False)

    op.create_table(
        "split",
        sa.Column("dataset_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("low", sa.Float(precision=53), nullable=False),
        sa.Column("high", sa.Float(precision=53), nullable=False),
        sa.Column("games", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("low >= 0 AND low < high AND high <= 1", name=op.f("ck_split_part")),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["dataset.id"], name=op.f("fk_split_dataset_id_dataset"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("dataset_id", "name", name=op.f("pk_split")),
    )
    op.execute("""CREATE VIEW annotation_now AS
SELECT id, noun, target, word, value, host, at
FROM (
    SELECT
        id, noun, target, word, value, host, at, withdrawn,
        row_number() OVER (PARTITION BY noun, target, word, value ORDER BY at DESC, id DESC) AS place
    FROM annotation
) AS said
WHERE place = 1 AND NOT withdrawn""")
    state = sa.table(
        "registry_state",
        sa.column("id", sa.Integer()),
        sa.column("registry_id", sa.Uuid()),
        sa.column("data_version", sa.BigInteger()),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    op.bulk_insert(state, [{"id": 1, "registry_id": uuid4(), "data_version": 0, "created_at": datetime.now(UTC)}])
