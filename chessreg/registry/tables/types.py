"""Column types that behave the same on SQLite and PostgreSQL, and the values that they accept from other registries.

Names later become parts of paths and commands, and SQLite stores any value it is given. Therefore the accepted values
are declared with the type (DigestType, NameType, ArrayPathType, UnitNumber), and `require_admissible` checks the rows
of merges and fragments.
"""

import enum
import math
import re
from collections.abc import Mapping, Sequence
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
from chessreg.named import NAME, clip_text

MAX_UNITS = 10_000_000  # of a run, without its reduce; lists of units are kept in memory

NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Noun(NamedTuple):
    """The user's name for the rows of a table.

    Rows whose key begins with `run_id` are made by runs and share their run's id and name. All others have an `id`. A
    table with a column `artifact` owns those bytes, one with `path` owns arrays below the store's root. A foreign key
    to the table of a noun names a source of the row. Lineage, merge, gc and transfer need nothing else.
    """

    name: str
    digests: tuple[str, ...] = ()  # digest columns whose prefixes identify a row
    listed: str | None = None  # the command that lists them; None: `chessreg NOUN list`

    @property
    def command(self) -> str:
        return f"chessreg {self.name} list" if self.listed is None else self.listed


class Base(DeclarativeBase):
    """The base class of all tables. `__noun__` is set if users can name the rows."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    __noun__: ClassVar[Noun | None] = None
    __compared__: ClassVar[tuple[str, ...]] = ()  # columns in which a merge compares rows with one key


class FiniteFloat(TypeDecorator[float]):
    """A double that rejects NaN and infinities: SQLite would store NaN as NULL and bypass CHECK constraints."""

    impl = Float(53)
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return value


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware datetime, stored in UTC. Naive values are rejected."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC, without a time zone for SQLite. Raises ValueError for a time without one."""
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

    Only for objects and lists, because SQLite gives a JSON column numeric affinity.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return JSONB on PostgreSQL and JSON elsewhere. None is stored as NULL."""
        if dialect.name == "postgresql":  # this import takes 0.05 s
            from sqlalchemy.dialects.postgresql import JSONB

            return dialect.type_descriptor(JSONB(none_as_null=True))
        return dialect.type_descriptor(JSON(none_as_null=True))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return replace_nul(value) if dialect.name == "postgresql" else value


def replace_nul(value: Any) -> Any:
    """Return `value` with every U+0000 replaced by ␀, also inside lists and objects.

    PostgreSQL cannot store U+0000 in text or JSON, but byte-level tokenizers have it as a token, so a model may write
    it.
    """
    if isinstance(value, str):
        return value.replace("\0", "␀")
    if isinstance(value, Mapping):
        return {replace_nul(key): replace_nul(item) for key, item in value.items()}
    return [replace_nul(item) for item in value] if isinstance(value, (list, tuple)) else value


class CheckedType:
    """A column type that restricts the values accepted from other registries, by `pattern` or an overridden
    `is_valid`."""

    pattern: ClassVar[re.Pattern[str]]
    hint: ClassVar[str] = "this row was not written by chessreg, or was changed later"

    def is_valid(self, value: Any, row: Mapping[str, Any]) -> bool:
        """Return whether the column accepts `value`, which is part of `row`."""
        return value is None or self.pattern.fullmatch(str(value)) is not None


class DigestType(CheckedType, String):
    """A sha256 in lower-case hex."""

    pattern = re.compile(r"[0-9a-f]{64}")


class NameType(CheckedType, String):
    """A name as defined by `chessreg.named.NAME`."""

    pattern = NAME


class ArrayPathType(CheckedType, Text):
    """`arrays/<name>`: the path of a group of activations below a store's root."""

    pattern = re.compile(r"arrays/[A-Za-z0-9][A-Za-z0-9_-]{0,119}")


class ModelText(String):
    """Text that a model generated in place of a move. Longer texts are cropped to the column (`crop_model_texts`)."""


class UnitNumber(CheckedType, Integer):
    """A number of units, or the start or end of a range of units."""

    hint = f"a run has at most {MAX_UNITS:,} units"

    def is_valid(self, value: Any, row: Mapping[str, Any]) -> bool:
        return type(value) is int and 0 <= value <= MAX_UNITS + 1


def require_admissible(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise BadInputError for a row with a value that its column does not accept.

    Examples: an invalid digest or name, a path outside the store, excess units, a fraction in an integer column.
    """
    for column, kind in list_checked_columns(table):
        for row in rows:
            if not kind.is_valid(row.get(column), row):
                raise _make_refusal(table, column, row.get(column), kind.hint)
    for column in list_whole_number_columns(table):
        values = [row.get(column) for row in rows]
        if not {*map(type, values)} <= {int, bool, type(None)}:
            for value in values:
                if value is not None and not isinstance(value, int) and value != as_whole_number(value):
                    raise _make_refusal(table, column, value, CheckedType.hint)


def crop_model_texts(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with model-generated texts cropped to their columns: SQLite ignores lengths, PostgreSQL enforces
    them."""
    cropped_row = dict(row)
    for column, max_chars in list_model_text_columns(table):
        if isinstance(text := row.get(column), str):
            cropped_row[column] = text[:max_chars]
    return cropped_row


def require_lengths(table: Table, row: Mapping[str, Any]) -> None:
    """Raise BadInputError for a text that is longer than its column. Model-generated texts are exempt."""
    for column, max_chars in list_length_limited_columns(table):
        value = row.get(column)
        if isinstance(value, str) and len(value) > max_chars:
            raise _make_refusal(table, column, value, f"shorten its {len(value)} characters to {max_chars}")


def as_whole_number(value: object) -> int | None:
    """Return the integer value of a float without a fraction, else None."""
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _make_refusal(table: Table, column: str, value: object, hint: str) -> BadInputError:
    return BadInputError(f"a row of {table.name} is refused: its {column} cannot be {clip_text(str(value))!a}", hint)


@cache
def list_checked_columns(table: Table) -> tuple[tuple[str, CheckedType], ...]:
    """Return the columns that restrict their values, each with its type."""
    return tuple((column.name, column.type) for column in table.columns if isinstance(column.type, CheckedType))


@cache
def list_length_limited_columns(table: Table) -> tuple[tuple[str, int], ...]:
    """Return the text columns with a maximum length, each with that length, except model-generated text."""
    types = ((column.name, column.type) for column in table.columns if not isinstance(column.type, ModelText))
    return tuple((name, kind.length) for name, kind in types if isinstance(kind, String) and kind.length)


@cache
def list_model_text_columns(table: Table) -> tuple[tuple[str, int], ...]:
    """Return the columns of model-generated text, each with its length."""
    types = ((column.name, column.type) for column in table.columns)
    return tuple((name, kind.length) for name, kind in types if isinstance(kind, ModelText) and kind.length)


@cache
def list_whole_number_columns(table: Table) -> tuple[str, ...]:
    """Return the integer columns without further restrictions."""
    return tuple(c.name for c in table.columns if isinstance(c.type, Integer) and not isinstance(c.type, CheckedType))


Digest = DigestType(64)
SmallInt = SmallInteger().with_variant(Integer(), "sqlite")


def make_word_column(kind: type[enum.StrEnum], name: str) -> Enum:
    """Return the column type of an enumeration, checked by the database."""
    return Enum(
        kind,
        native_enum=False,
        create_constraint=True,
        values_callable=lambda e: [m.value for m in e],
        name=name,
        length=24,
    )


def get_utc_now() -> datetime:
    return datetime.now(UTC)


def check_constraint(name: str, condition: str) -> CheckConstraint:
    """Return a CHECK constraint, named ck_<table>_<name>."""
    return CheckConstraint(condition, name=name)


def get_bulk_table_args(*constraints: CheckConstraint) -> tuple[Any, ...]:
    """Return the table arguments of a large result table, stored by its natural key (SQLite's WITHOUT ROWID)."""
    return (*constraints, {"sqlite_with_rowid": False})
