"""Annotations of entities: names, tags, notes, pins, archive, invalidation. An append-only log."""

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DDL, Boolean, Connection, Index, String, Text, event
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.named import NAME
from chessreg.registry.tables.types import Base, CheckedType, UtcDateTime, make_word_column


class AnnotationWord(enum.StrEnum):
    """The kinds of annotations."""

    NAME = "name"
    TAG = "tag"
    NOTE = "note"
    PIN = "pin"
    STAR = "star"
    ARCHIVE = "archive"
    INVALID = "invalid"


class AnnotationText(CheckedType, Text):
    """The value of an annotation. A NAME must match `chessreg.named.NAME`; all other values are free text."""

    def is_valid(self, value: Any, row: Mapping[str, Any]) -> bool:
        return value is None or row.get("word") != AnnotationWord.NAME or NAME.fullmatch(str(value)) is not None


class Annotation(Base):
    """An annotation of an entity. The newest row of a (noun, target, word, value) is current and may withdraw it."""

    __tablename__ = "annotation"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    noun: Mapped[str] = mapped_column(String(32))  # run, dataset, checkpoint, …
    target: Mapped[str] = mapped_column(String(128))  # id in hex
    word: Mapped[AnnotationWord] = mapped_column(make_word_column(AnnotationWord, "word"))
    value: Mapped[str] = mapped_column(AnnotationText)
    withdrawn: Mapped[bool] = mapped_column(Boolean, default=False)
    host: Mapped[str] = mapped_column(String(255))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


Index("ix_annotation_target", Annotation.noun, Annotation.target)
Index("ix_annotation_value", Annotation.noun, Annotation.word, Annotation.value)

ANNOTATION_VIEW_SQL = """CREATE VIEW annotation_now AS
SELECT id, noun, target, word, value, host, at
FROM (
    SELECT
        id, noun, target, word, value, host, at, withdrawn,
        row_number() OVER (PARTITION BY noun, target, word, value ORDER BY at DESC, id DESC) AS place
    FROM annotation
) AS said
WHERE place = 1 AND NOT withdrawn"""  # the revisions contain the same text, because Alembic ignores views


@event.listens_for(Annotation.__table__, "after_create")
def _create_view(table: object, connection: Connection, **_: object) -> None:
    connection.execute(DDL(ANNOTATION_VIEW_SQL))


@event.listens_for(Annotation.__table__, "before_drop")
def _drop_view(table: object, connection: Connection, **_: object) -> None:
    connection.execute(DDL("DROP VIEW IF EXISTS annotation_now"))
