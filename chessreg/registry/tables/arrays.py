"""Artifacts and the entities that own them: checkpoints, caches, probes, vectors, SAEs, interventions."""

import enum
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.types import (
    ArrayPathType,
    Base,
    Digest,
    FiniteFloat,
    Json,
    NameType,
    Noun,
    UtcDateTime,
    check_constraint,
    make_word_column,
)


class ArtifactState(enum.StrEnum):
    """Whether an artifact's bytes are still being written or complete."""

    STAGING = "staging"
    COMPLETE = "complete"


class Artifact(Base):
    """A file or folder in a store, identified by its digest."""

    __tablename__ = "artifact"
    __table_args__ = (check_constraint("bytes", "bytes >= 0"),)
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[ArtifactState] = mapped_column(make_word_column(ArtifactState, "state"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ArtifactLocation(Base):
    """A store or bucket that contains an artifact."""

    __tablename__ = "artifact_location"
    digest: Mapped[str] = mapped_column(ForeignKey("artifact.digest", ondelete="CASCADE"), primary_key=True)
    uri: Mapped[str] = mapped_column(Text, primary_key=True)
    machine_id: Mapped[UUID | None]
    verified_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Output(Base):
    """A named output of a run. `run:<spec hash>/<name>` is its input reference."""

    __tablename__ = "output"
    __compared__ = ("digest",)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(NameType(128), primary_key=True)
    unit: Mapped[int]
    digest: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)


class Tokenizer(Base):
    """A registered vocabulary: the texts of its tokens in the order of their ids."""

    __tablename__ = "tokenizer"
    name: Mapped[str] = mapped_column(NameType(64), primary_key=True)
    size: Mapped[int]
    vocabulary: Mapped[list[str]] = mapped_column(Json)


class Checkpoint(Base):
    """The weights of a model. The id derives from the artifact's digest.

    An external model (source format `external`) is one whose games are imported without its weights. It has no
    artifact, its id derives from its name, and unknown values are NULL. `runs.inputs` refuses it wherever weights are
    needed, so the shape columns have the same types as for other checkpoints.
    """

    __tablename__ = "checkpoint"
    __noun__ = Noun("checkpoint", ("artifact",))
    __table_args__ = (
        check_constraint("residual", "residual IN ('raw', 'centred')"),
        check_constraint("weights", "(artifact IS NULL) = (source_format = 'external')"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), unique=True, nullable=True)
    architecture: Mapped[str] = mapped_column(String(64), nullable=True)
    layers: Mapped[int] = mapped_column(nullable=True)
    d_model: Mapped[int] = mapped_column(nullable=True)
    heads: Mapped[int] = mapped_column(nullable=True)
    block_size: Mapped[int] = mapped_column(nullable=True)
    tokenizer: Mapped[str] = mapped_column(ForeignKey("tokenizer.name"), nullable=True)
    parameters: Mapped[int] = mapped_column(BigInteger, nullable=True)
    parameters_without_embeddings: Mapped[int] = mapped_column(BigInteger, nullable=True)
    residual: Mapped[str] = mapped_column(String(16), nullable=True)  # raw or centred
    tokens_seen: Mapped[int | None] = mapped_column(BigInteger)
    training_datasets: Mapped[list[str] | None] = mapped_column(Json)  # input references; None is unknown
    source_format: Mapped[str] = mapped_column(String(32))
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("checkpoint.id"))
    run_id: Mapped[UUID | None] = mapped_column(index=True)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ActivationCache(Base):
    """A published zarr group: the activations of a range of units of a run."""

    __tablename__ = "activation_cache"
    __noun__ = Noun("cache")
    __compared__ = ("digest",)
    __table_args__ = (check_constraint("range", "start >= 0 AND stop > start"),)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True)
    stop: Mapped[int]
    checkpoint_id: Mapped[UUID] = mapped_column(index=True)
    path: Mapped[str] = mapped_column(ArrayPathType)  # relative to the store's root
    digest: Mapped[str] = mapped_column(Digest)
    hook_points: Mapped[list[str]] = mapped_column(Json)
    rows: Mapped[int] = mapped_column(BigInteger)
    d_model: Mapped[int]
    dtype: Mapped[str] = mapped_column(String(16))
    bytes: Mapped[int] = mapped_column(BigInteger)


class ProbeRecord(Base):
    """A linear probe: one unit of a probe run, or of a run that imported files.

    Values that an imported file lacks are NULL, including its model if no checkpoint was named.
    """

    __tablename__ = "probe"
    __noun__ = Noun("probe")
    __compared__ = ("artifact",)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)
    checkpoint_id: Mapped[UUID | None] = mapped_column(index=True)
    hook_point: Mapped[str] = mapped_column(String(128))
    layer: Mapped[int]
    label: Mapped[str] = mapped_column(String(64))
    positions: Mapped[str] = mapped_column(String(32))
    classes: Mapped[int]
    train_games: Mapped[int | None]
    train_positions: Mapped[int | None] = mapped_column(BigInteger)
    epochs: Mapped[float | None] = mapped_column(FiniteFloat)
    norm: Mapped[float] = mapped_column(FiniteFloat)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)


class VectorRecord(Base):
    """A direction in a residual stream, float32 [d_model]. checkpoint_id is NULL if an import's model is unknown."""

    __tablename__ = "vector"
    __noun__ = Noun("vector")
    __compared__ = ("artifact",)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)
    checkpoint_id: Mapped[UUID | None] = mapped_column(index=True)
    hook_point: Mapped[str] = mapped_column(String(128))
    layer: Mapped[int]
    source: Mapped[str] = mapped_column(String(64))  # contrastive, probe, random, shuffled
    positions: Mapped[str] = mapped_column(String(32))
    norm: Mapped[float] = mapped_column(FiniteFloat)
    detail: Mapped[dict[str, Any]] = mapped_column(Json)


class SaeRecord(Base):
    """A sparse autoencoder of one hook point."""

    __tablename__ = "sae"
    __noun__ = Noun("sae")
    __compared__ = ("artifact",)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)
    checkpoint_id: Mapped[UUID] = mapped_column(index=True)
    hook_point: Mapped[str] = mapped_column(String(128))
    layer: Mapped[int]
    architecture: Mapped[str] = mapped_column(String(32))
    features: Mapped[int]
    detail: Mapped[dict[str, Any]] = mapped_column(Json)


class Intervention(Base):
    """An edit of the residual stream: its direction, layers, scale and token positions."""

    __tablename__ = "intervention"
    __noun__ = Noun("intervention", listed="")
    id: Mapped[UUID] = mapped_column(primary_key=True)  # derives from all other columns
    checkpoint_id: Mapped[UUID] = mapped_column(index=True)
    source: Mapped[str] = mapped_column(String(64))  # probe:piece, contrastive:skill, random, …
    input_references: Mapped[list[str]] = mapped_column(Json)  # of the directions
    layers: Mapped[list[int]] = mapped_column(Json)  # 0-based
    scale: Mapped[float] = mapped_column(FiniteFloat)
    scale_rule: Mapped[str] = mapped_column(String(32))
    token_mask: Mapped[str] = mapped_column(String(32))
    detail: Mapped[dict[str, Any]] = mapped_column(Json)
