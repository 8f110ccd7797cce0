"""Identity: canonical JSON, digests and ids derived from content, and short forms of ids."""

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

SHORT_ID_DIGITS = 6  # shown of an id if unique


def format_canonical_json(value: Any) -> str:
    """Return the JSON text of `value`, identical on every machine: sorted keys, no spaces, 1.0 written as 1.

    >>> format_canonical_json({"lr": 1.0, "layers": (3, 5)})
    '{"layers":[3,5],"lr":1}'

    Raises BadInputError for NaN, infinities, text with lone surrogates, keys that are not text, and types without a
    unique representation (such as sets).
    """
    return json.dumps(_to_json_value(value, "value"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _to_json_value(value: Any, where: str) -> Any:
    """Return `value` as the JSON value that canonical texts are made of; `where` names it in errors.

    Whole floats become integers. Raises BadInputError for a value without a canonical form, such as NaN.
    """
    if isinstance(value, enum.Enum):
        return _to_json_value(value.value, where)
    if isinstance(value, str):
        _require_unicode(value, where)
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInputError(f"{where} is {value}, which has no canonical form", "give a finite number")
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
        raise BadInputError(f"{where} contains {text[error.start]!r}, which is not a character") from error


def hash_canonical_json(value: Any) -> str:
    """Return the SHA-256 of `format_canonical_json(value)` as 64 hex digits. Raises the same errors."""
    return hashlib.sha256(format_canonical_json(value).encode()).hexdigest()


def make_uuid(digest: str) -> UUID:
    """Return the id derived from a hex digest: its first 16 bytes."""
    return UUID(hex=digest[:32])


def make_id() -> UUID:
    """Return a new UUIDv7. Ids created later sort later."""
    from uuid_utils.compat import uuid7

    id: UUID = uuid7()
    return id


def shorten_id(id: UUID | str, other_ids: Iterable[UUID | str] = ()) -> str:
    """Return the last 6 hex digits of an id, or as many as distinguish it from `other_ids`.

    The end of the id is used because a UUIDv7 begins with a timestamp: ids created close together share their first
    digits.
    """
    text = _format_id_hex(id)
    length = SHORT_ID_DIGITS
    for other in map(_format_id_hex, other_ids):
        while other != text and length < 32 and other.endswith(text[-length:]):
            length += 1
    return text[-length:]


def shorten_ids(ids: Iterable[UUID | str]) -> dict[str, str]:
    """Return the short form of each id that distinguishes it from the rest, by its full 32 hex digits.

    Sorts once instead of comparing all pairs.
    """
    tails = sorted({_format_id_hex(id)[::-1] for id in ids})
    shortest_lengths = {}
    for place, tail in enumerate(tails):
        around = [tails[n] for n in (place - 1, place + 1) if 0 <= n < len(tails)]
        shared_length = max((_common_prefix_length(tail, other) for other in around), default=0)
        shortest_lengths[tail[::-1]] = tail[::-1][-max(SHORT_ID_DIGITS, shared_length + 1) :]
    return shortest_lengths


def _common_prefix_length(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _format_id_hex(id: UUID | str) -> str:
    return id.hex if isinstance(id, UUID) else id.replace("-", "").lower()


def find_by_suffix(session: Session, table: Any, suffix: str, limit: int = 10) -> list[UUID]:
    """Return at most `limit` ids of a table that end with the hex digits `suffix` (dashes are ignored).

    `table` is a mapped class with a column `id`, or the id column itself (such as Probe.run_id).
    """
    from sqlalchemy import String, cast, func, select, type_coerce

    digits = _format_id_hex(suffix)
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        return []
    column: InstrumentedAttribute[UUID] = table.id if hasattr(table, "id") else table
    if len(digits) == 32:  # a full id can use the index
        return list(session.scalars(select(column).where(column == UUID(digits)).distinct()))
    if session.get_bind().dialect.name == "postgresql":
        tail = func.right(func.replace(cast(column, String), "-", ""), len(digits))
    else:
        tail = func.substr(type_coerce(column, String), -len(digits))
    return list(session.scalars(select(column).where(tail == digits).distinct().order_by(column).limit(limit)))
