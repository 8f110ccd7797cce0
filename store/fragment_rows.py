"""Rows as lines of JSON: what may stand in a row, and how bytes survive."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from store.errors import StoreError

_BYTES = "$bytes"
HAS_BYTES = b'"$bytes":'  # only a key: inside a JSON string its quotes would be escaped


class _Encoder(json.JSONEncoder):
    """JSON without NaN; bytes as base64 under one key, numpy scalars and arrays as Python's."""

    def __init__(self) -> None:
        super().__init__(allow_nan=False, separators=(",", ":"))

    def default(self, o: Any) -> Any:
        if isinstance(o, (bytes, bytearray, memoryview)):
            return {_BYTES: base64.b64encode(o).decode()}
        if hasattr(o, "tolist") and hasattr(o, "dtype"):  # numpy, which is not imported here
            return o.tolist()
        raise TypeError(f"{type(o).__name__} cannot stand in a row")


_ENCODER = _Encoder()


def encode_row(family: str, row: Mapping[str, Any]) -> bytes:
    """One line, without its newline. Raises StoreError naming the field that cannot be written."""
    try:
        text = _ENCODER.encode(dict(row)).encode()
        if HAS_BYTES in text and text.count(HAS_BYTES) != _count_bytes(row):
            raise ValueError(f"the key {_BYTES} is reserved")
    except (TypeError, ValueError, RecursionError) as error:
        field = _offender(row)
        name = f"{family} row, field {field}" if field else f"{family} row"
        raise StoreError(f"{name}: {error}", "rows hold finite numbers, text, bytes, lists and dicts") from None
    return b'{"t":' + json.dumps(family).encode() + b',"row":' + text + b"}"


def decode_bytes(value: dict[str, Any]) -> Any:
    """`object_hook` that turns `{"$bytes": …}` back into bytes."""
    if len(value) == 1 and _BYTES in value:
        return base64.b64decode(value[_BYTES], validate=True)
    return value


def _count_bytes(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return 1
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _offender(value: Any, path: str = "") -> str:
    """The path of the first value that JSON refuses, for example `detail.loss`; empty if it is not found."""
    if isinstance(value, Mapping):
        children = [(f"{path}.{key}" if path else str(key), child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        children = [(f"{path}[{number}]", child) for number, child in enumerate(value)]
    else:
        if isinstance(value, float) and not math.isfinite(value):
            return path
        try:
            _ENCODER.encode(value)
        except (TypeError, ValueError):
            return path
        return ""
    return next(filter(None, (_offender(child, name) for name, child in children[:10_000])), "")
