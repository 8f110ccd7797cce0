"""Chess data: datasets, their splits, engines."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.types import (
    Base,
    Digest,
    FiniteFloat,
    Json,
    NameType,
    Noun,
    UtcDateTime,
    check_constraint,
)


class Dataset(Base):
    """Games or positions. The identity is the sha256 of the source bytes, the filters and the reader's version."""

    __tablename__ = "dataset"
    __noun__ = Noun("dataset", ("identity", "artifact"))
    __table_args__ = (
        check_constraint("counts", "games >= 0 AND plies >= 0 AND duplicates >= 0 AND rejected >= 0 AND skipped >= 0"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True)
    identity: Mapped[str] = mapped_column(Digest, unique=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"))
    source: Mapped[str] = mapped_column(Text)  # file names, as given
    games: Mapped[int]
    plies: Mapped[int] = mapped_column(BigInteger)
    duplicates: Mapped[int]
    rejected: Mapped[int]
    skipped: Mapped[int]
    rating_scale: Mapped[str | None] = mapped_column(String(32))  # lichess, stockfish, fide
    licence: Mapped[str | None] = mapped_column(String(64))
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("dataset.id"))
    report: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Split(Base):
    """One part of a dataset: the games whose seeded hash of the moves is in [low, high)."""

    __tablename__ = "split"
    __compared__ = ("seed", "low", "high")
    __table_args__ = (check_constraint("part", "low >= 0 AND low < high AND high <= 1"),)
    dataset_id: Mapped[UUID] = mapped_column(ForeignKey("dataset.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(NameType(64), primary_key=True)
    seed: Mapped[int] = mapped_column(BigInteger)
    low: Mapped[float] = mapped_column(FiniteFloat)
    high: Mapped[float] = mapped_column(FiniteFloat)
    games: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class OpeningBook(Base):
    """A file of openings that games may start from. A match names its digest (`book:<digest>`)."""

    __tablename__ = "opening_book"
    __table_args__ = (check_constraint("openings", "openings > 0"),)
    digest: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), primary_key=True)
    source: Mapped[str] = mapped_column(Text)  # file name, as given
    format: Mapped[str] = mapped_column(String(16))  # pgn, epd, csv, tsv
    openings: Mapped[int]
    licence: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Engine(Base):
    """A version of an engine program: binary, version and options. Built-in opponents have no binary."""

    __tablename__ = "engine"
    __noun__ = Noun("engine")
    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    version: Mapped[str] = mapped_column(String(64))
    binary_sha256: Mapped[str | None] = mapped_column(Digest)
    options: Mapped[dict[str, Any]] = mapped_column(Json)
