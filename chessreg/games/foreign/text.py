"""The text of a file of results, packed or plain, and its rows if it is a table."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from chessreg.errors import BadInputError
from chessreg.games.movetext import decode
from chessreg.games.sources import BrokenStreamError, Source

_LARGEST_FIELD = 1 << 24  # characters: a transcript with a long prompt is more than csv takes by itself


def read_text(path: Path) -> str:
    """The whole text of a file (plain, zst, gz or bz2). Raises NotFoundError or BadInputError saying what is wrong."""
    try:
        return decode(b"".join(Source(path).blocks())).removeprefix("\ufeff")
    except BrokenStreamError as error:
        raise BadInputError(f"{path} is damaged: {error.args[0]}") from error


def header(text: str) -> list[str]:
    """The column names of a CSV: its first line's fields."""
    line = text.split("\n", 1)[0]
    return [name.strip() for name in next(csv.reader([line]), [])] if len(line) < 10_000 else []


def table(text: str) -> list[dict[str, str]]:
    """The rows of a CSV by column; what a short row lacks is empty. Raises BadInputError for a row that is too long."""
    csv.field_size_limit(_LARGEST_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in next(reader, [])]
        rows = []
        for fields in reader:
            if not fields:
                continue
            if len(fields) > len(names):
                raise BadInputError(
                    f"line {reader.line_num} has {len(fields)} fields, the header has {len(names)}",
                    "the file is damaged, or two column sets were appended to one file",
                )
            rows.append(dict(zip(names, fields + [""] * (len(names) - len(fields)), strict=True)))
    except csv.Error as error:
        raise BadInputError(f"line {reader.line_num} is no CSV: {error}") from error
    return rows


def number(text: str) -> float | None:
    """A number, or None for an empty field and for what is none."""
    return float(text) if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", text, re.IGNORECASE) else None


def flag(text: str) -> bool:
    return text.strip().lower() in ("true", "1")
