"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    JSON,
    CheckConstraint,
    DateTime,
    Dialect,
    Enum,
    Float,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Noun(NamedTuple):
    """What a user calls the rows of a table.

    Rows whose key begins with `run_id` are made by runs and go by their run's id and name; all others have an `id`.
    A table with a column `artefact` owns these bytes, one with `path` arrays below the store's root; a foreign key to
    the table of a noun says what a row was made from. Lineage, merge, gc and transfer read no more than that.
    """

    name: str
    digests: tuple[str, ...] = ()  # columns by whose beginnings a row is found too
    listed: str | None = None  # the command that lists them; None: `chessreg NOUN list`

    @property
    def command(self) -> str:
        return f"chessreg {self.name} list" if self.listed is None else self.listed


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    __noun__: ClassVar[Noun | None] = None
    __compared__: ClassVar[tuple[str, ...]] = ()  # columns that two machines which did the same may have made apart


class FiniteFloat(TypeDecorator[float]):
    """A double that refuses NaN and infinities: SQLite would store a NaN as NULL, past any CHECK."""

    impl = Float(53)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return value


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, stored in UTC; a naive one is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


class Json(TypeDecorator[Any]):
    """JSON, on PostgreSQL JSONB. None is SQL's NULL, not JSON's null.

    Objects and lists only: SQLite gives a JSON column numeric affinity.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":  # imported only there: 0.05 s of every start
            from sqlalchemy.dialects.postgresql import JSONB

            return dialect.type_descriptor(JSONB(none_as_null=True))
        return dialect.type_descriptor(JSON(none_as_null=True))


class DigestText(String):
    """A sha256 in lower-case hex."""


class NameText(String):
    """A name by the grammar of all names (`chessreg.named.NAME`)."""


class ArrayPath(Text):
    """`arrays/<name>`: a group of activations below a store's root."""


Digest = DigestText(64)
Small = SmallInteger().with_variant(Integer(), "sqlite")


def choice(kind: type[enum.StrEnum], name: str) -> Enum:
    """A closed set of words, checked by the database."""
    return Enum(
        kind,
        native_enum=False,
        create_constraint=True,
        values_callable=lambda e: [m.value for m in e],
        name=name,
        length=24,
    )


def utc_now() -> datetime:
    return datetime.now(UTC)


def check(name: str, condition: str) -> CheckConstraint:
    """A rule that the database itself holds rows to; its full name is ck_<table>_<name>."""
    return CheckConstraint(condition, name=name)


def bulk(*constraints: CheckConstraint) -> tuple[Any, ...]:
    """Table arguments of the bulk tables: their natural key is the row's only place (SQLite WITHOUT ROWID)."""
    return (*constraints, {"sqlite_with_rowid": False})
