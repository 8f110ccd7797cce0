"""A month of rated games from database.lichess.org: resumed after an interruption, renamed only when verified."""

from __future__ import annotations

import re
from pathlib import Path

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.foreign import download
from chessreg.games.foreign.download import Progress

BASE_URL = "https://database.lichess.org"


def format_month_name(month: str) -> str:
    """Return the file name of a month. Raises BadInputError unless `month` is YYYY-MM from 2013-01 on."""
    if re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month) is None or month < "2013-01":
        raise BadInputError(f"{month!r} is not a month of the Lichess database", "write YYYY-MM, from 2013-01 on")
    return f"lichess_db_standard_rated_{month}.pgn.zst"


def format_month_url(month: str, base_url: str = BASE_URL) -> str:
    """Return the official URL of a month of standard rated games."""
    return f"{base_url.rstrip('/')}/standard/{format_month_name(month)}"


def format_checksum_url(base_url: str = BASE_URL) -> str:
    """Return the URL of the SHA-256 sums of all months: `<hex>  <file name>` lines."""
    return f"{base_url.rstrip('/')}/standard/sha256sums.txt"


def fetch_month(month: str, folder: Path, base_url: str = BASE_URL, on_progress: Progress | None = None) -> Path:
    """Download a month into `folder` and return its path; return immediately if it exists with the correct checksum.

    An interrupted download leaves `<file>.part`, from which the next call resumes. The file is renamed only if its
    SHA-256 equals the published one; a complete `.part` with another one is deleted.

    Raises NotFoundError if the server does not have the month, BadInputError for an invalid month, a wrong checksum or
    a folder that cannot be written, ChessregError if the network or the disk fails.
    """
    name = format_month_name(month)
    return download.download_file(
        format_month_url(month, base_url),
        folder / name,
        _find_checksum(name, base_url),
        title=month,
        on_progress=on_progress,
        missing_hint="the newest month appears a few days after its end",
    )


def _find_checksum(name: str, base_url: str) -> str:
    """Return the published SHA-256 of a file. Raises NotFoundError if the server does not list it."""
    url = format_checksum_url(base_url)
    for line in download.read_url(url).splitlines():
        digest, _, file = line.strip().partition(" ")
        if file.strip().lstrip("*") == name and re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            return digest.lower()
    raise NotFoundError(f"{url} does not list {name}", f"see {base_url.rstrip('/')} for the months that exist")
