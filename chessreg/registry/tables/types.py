"""Column types that mean the same on SQLite and PostgreSQL, and which values of others they admit.

Names become parts of paths and commands later on, and SQLite keeps whatever it is given. So what a column may hold is
declared with its type (DigestText, NameText, ArrayPath, Units), and `admit` checks rows of a merge and of fragments.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
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
    Table,
    Text,
)
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine

from chessreg.errors import BadInputError
from chessreg.named import NAME, clipped

MAX_UNITS = 10_000_000  # of a run, a reduce aside: lists of units are held in memory

NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Noun(NamedTuple):
    """What a user calls the rows of a table.

    Rows whose key begins with `run_id` are made by runs and go by their run's id and name; all others have an `id`.
    A table with a column `artifact` owns these bytes, one with `path` arrays below the store's root; a foreign key to
    the table of a noun says what a row was made from. Lineage, merge, gc and transfer read no more than that.
    """

    name: str
    digests: tuple[str, ...] = ()  # columns by whose beginnings a row is found too
    listed: str | None = None  # the command that lists them; None: `chessreg NOUN list`

    @property
    def command(self) -> str:
        return f"chessreg {self.name} list" if self.listed is None else self.listed


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING_CONVENTION)
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

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return replace_nul(value) if dialect.name == "postgresql" else value


def replace_nul(value: Any) -> Any:
    """The value with ␀ for each U+0000, also inside lists and objects: PostgreSQL has no such character, neither in a
    text nor in JSON. Tokenizers of bytes have it as a token, so a model may write it."""
    if isinstance(value, str):
        return value.replace("\0", "␀")
    if isinstance(value, Mapping):
        return {replace_nul(key): replace_nul(item) for key, item in value.items()}
    return [replace_nul(item) for item in value] if isinstance(value, (list, tuple)) else value


class CheckedType:
    """A column type that says which values of others it admits: those of its pattern, or what it makes of `admits`."""

    pattern: ClassVar[re.Pattern[str]]
    hint: ClassVar[str] = "whatever holds this row was not written by chessreg, or was changed since"

    def admits(self, value: Any, row: Mapping[str, Any]) -> bool:
        """Whether a value, one of this row, may enter the column."""
        return value is None or self.pattern.fullmatch(str(value)) is not None


class DigestType(CheckedType, String):
    """A sha256 in lower-case hex."""

    pattern = re.compile(r"[0-9a-f]{64}")


class NameType(CheckedType, String):
    """A name by the grammar of all names (`chessreg.named.NAME`)."""

    pattern = NAME


class ArrayPathType(CheckedType, Text):
    """`arrays/<name>`: a group of activations below a store's root."""

    pattern = re.compile(r"arrays/[A-Za-z0-9][A-Za-z0-9_-]{0,119}")


class ModelText(String):
    """What a model wrote where a move was asked: rows have as much of its beginning as fits the column (`cropped`)."""


class UnitNumber(CheckedType, Integer):
    """How many units a run has, or where a range of them begins or ends."""

    hint = f"a run has {MAX_UNITS:,} units at most"

    def admits(self, value: Any, row: Mapping[str, Any]) -> bool:
        return type(value) is int and 0 <= value <= MAX_UNITS + 1


def require_admissible(table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise BadInputError for the first row that holds what its column cannot: no digest, a name that is none, a path
    out of the store, more units than a run can have, what is no whole number (SQLite takes any value anywhere)."""
    admitting, whole = checked_columns(table), whole_number_columns(table)
    for row in rows:
        for column, kind in admitting:
            value = row.get(column)
            if not kind.admits(value, row):
                raise _refusal(table, column, value, kind.hint)
        for column in whole:
            value = row.get(column)
            if value is not None and not isinstance(value, int) and value != as_whole_number(value):
                raise _refusal(table, column, value, CheckedType.hint)


def crop_model_texts(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with what models wrote cropped to its columns: SQLite keeps any length, PostgreSQL refuses it."""
    cut = dict(row)
    for column, most in model_text_columns(table):
        if isinstance(text := row.get(column), str):
            cut[column] = text[:most]
    return cut


def require_lengths(table: Table, row: Mapping[str, Any]) -> None:
    """Raise BadInputError for a text, other than what a model wrote, that is longer than its column."""
    for column, most in length_limited_columns(table):
        value = row.get(column)
        if isinstance(value, str) and len(value) > most:
            raise _refusal(table, column, value, f"it has {len(value)} characters, {most} fit: shorten it")


def as_whole_number(value: object) -> int | None:
    """The whole number that a float is."""
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _refusal(table: Table, column: str, value: object, hint: str) -> BadInputError:
    return BadInputError(f"a row of {table.name} is refused: its {column} cannot be {clipped(str(value))!a}", hint)


@cache
def checked_columns(table: Table) -> tuple[tuple[str, CheckedType], ...]:
    """The columns that declare what they admit, each with its type."""
    return tuple((column.name, column.type) for column in table.columns if isinstance(column.type, CheckedType))


@cache
def length_limited_columns(table: Table) -> tuple[tuple[str, int], ...]:
    """The columns of texts with a greatest length, each with it; those that are cropped to it aside."""
    types = ((column.name, column.type) for column in table.columns if not isinstance(column.type, ModelText))
    return tuple((name, kind.length) for name, kind in types if isinstance(kind, String) and kind.length)


@cache
def model_text_columns(table: Table) -> tuple[tuple[str, int], ...]:
    """The columns of what models wrote, each with its length."""
    types = ((column.name, column.type) for column in table.columns)
    return tuple((name, kind.length) for name, kind in types if isinstance(kind, ModelText) and kind.length)


@cache
def whole_number_columns(table: Table) -> tuple[str, ...]:
    """The columns of whole numbers that say nothing more of what they admit."""
    return tuple(c.name for c in table.columns if isinstance(c.type, Integer) and not isinstance(c.type, CheckedType))


Digest = DigestType(64)
SmallInt = SmallInteger().with_variant(Integer(), "sqlite")


def word_column(kind: type[enum.StrEnum], name: str) -> Enum:
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


def check_constraint(name: str, condition: str) -> CheckConstraint:
    """A rule that the database itself holds rows to; its full name is ck_<table>_<name>."""
    return CheckConstraint(condition, name=name)


def bulk_table_args(*constraints: CheckConstraint) -> tuple[Any, ...]:
    """Table arguments of the bulk tables: their natural key is the row's only place (SQLite WITHOUT ROWID)."""
    return (*constraints, {"sqlite_with_rowid": False})
