"""Identity: what a thing is called by its content, and how a long id is shown and found again."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from sqlalchemy.orm import InstrumentedAttribute, Session

SHORT_ID_DIGITS = 6  # characters of an id that are shown, when they are enough


def canonical_json(value: Any) -> str:
    """JSON of a value, the same text on every machine: sorted keys, no spaces, 1.0 written as 1.

    >>> canonical({"lr": 1.0, "layers": (3, 5)})
    '{"layers":[3,5],"lr":1}'

    Raises BadInputError for NaN, infinities, text that is no Unicode (a lone surrogate), keys that are not text, and
    types that have no one spelling (a set).
    """
    return json.dumps(_to_json_value(value, "value"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _to_json_value(value: Any, where: str) -> Any:
    if isinstance(value, enum.Enum):
        return _to_json_value(value.value, where)
    if isinstance(value, str):
        _require_unicode(value, where)
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInputError(f"{where} is {value}, which has no identity", "give a finite number")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadInputError(f"{where} has the key {key!r}, which is not text")
            _require_unicode(key, where)
        return {str(key): _to_json_value(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json_value(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    if isinstance(value, PurePath):
        return value.as_posix()
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _to_json_value(value.tolist(), where)
    raise BadInputError(f"{where} is a {type(value).__name__}, which has no canonical text")


def _require_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInputError(f"{where} holds {text[error.start]!r}, which is no character") from error


def canonical_digest(value: Any) -> str:
    """sha256 of the canonical text, 64 hex digits. Raises what `canonical` raises."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def uuid_from_digest(digest: str) -> UUID:
    """The id that follows from a hex digest: its first 16 bytes."""
    return UUID(hex=digest[:32])


def new_id() -> UUID:
    """A new id (UUIDv7): ids made later sort later."""
    from uuid_utils.compat import uuid7

    made: UUID = uuid7()
    return made


def shorten_id(id: UUID | str, others: Iterable[UUID | str] = ()) -> str:
    """The last 6 hex digits of an id, or as many as set it apart from all others.

    The tail, not the head: a UUIDv7 begins with the clock, so ids of one afternoon share their first digits.
    """
    text = _id_hex(id)
    length = SHORT_ID_DIGITS
    for other in map(_id_hex, others):
        while other != text and length < 32 and other.endswith(text[-length:]):
            length += 1
    return text[-length:]


def shorten_ids(ids: Iterable[UUID | str]) -> dict[str, str]:
    """`short` of each of many ids among themselves, by the full 32 digits; sorts once instead of comparing pairs."""
    tails = sorted({_id_hex(id)[::-1] for id in ids})
    short_of = {}
    for place, tail in enumerate(tails):
        around = [tails[n] for n in (place - 1, place + 1) if 0 <= n < len(tails)]
        shared = max((_common_prefix_length(tail, other) for other in around), default=0)
        short_of[tail[::-1]] = tail[::-1][-max(SHORT_ID_DIGITS, shared + 1) :]
    return short_of


def _common_prefix_length(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _id_hex(id: UUID | str) -> str:
    return id.hex if isinstance(id, UUID) else id.replace("-", "").lower()


def find_by_suffix(session: Session, table: Any, suffix: str, limit: int = 10) -> list[UUID]:
    """Ids of a table that end with these hex digits (dashes are ignored), at most `limit`.

    `table` is a mapped class with a column `id`, or the id column itself (Probe.run_id).
    """
    from sqlalchemy import String, cast, func, select, type_coerce

    digits = _id_hex(suffix)
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        return []
    column: InstrumentedAttribute[UUID] = table.id if hasattr(table, "id") else table
    if len(digits) == 32:  # a whole id, which the index finds
        return list(session.scalars(select(column).where(column == UUID(digits)).distinct()))
    if session.get_bind().dialect.name == "postgresql":
        tail = func.right(func.replace(cast(column, String), "-", ""), len(digits))
    else:
        tail = func.substr(type_coerce(column, String), -len(digits))
    return list(session.scalars(select(column).where(tail == digits).distinct().order_by(column).limit(limit)))
