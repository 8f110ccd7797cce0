"""A month of rated games from database.lichess.org: resumed where a download broke off, renamed only when verified."""

from __future__ import annotations

import errno
import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from chessreg.errors import BadInputError, ChessregError, NotFoundError

BASE_URL = "https://database.lichess.org"
CHUNK = 1 << 18
TIMEOUT_SECONDS = 60.0

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, bytes in all or None)."""


def month_name(month: str) -> str:
    """The file of a month. Raises BadInputError unless `month` is YYYY-MM from 2013-01 on."""
    if re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month) is None or month < "2013-01":
        raise BadInputError(f"{month!r} is no month of the Lichess database", "write YYYY-MM, from 2013-01 on")
    return f"lichess_db_standard_rated_{month}.pgn.zst"


def month_url(month: str, base_url: str = BASE_URL) -> str:
    """The official address of a month of standard rated games."""
    return f"{base_url.rstrip('/')}/standard/{month_name(month)}"


def checksum_url(base_url: str = BASE_URL) -> str:
    """The list of SHA-256 sums of all months: `<hex>  <file name>` lines."""
    return f"{base_url.rstrip('/')}/standard/sha256sums.txt"


def fetch(month: str, folder: Path, base_url: str = BASE_URL, on_progress: Progress | None = None) -> Path:
    """Download a month into `folder` and return its path; at once when it is there and its checksum holds.

    An interrupted download leaves `<file>.part`, from which the next call goes on. The file gets its name only once its
    SHA-256 equals the published one; a `.part` that is complete and differs is deleted.

    Raises NotFoundError when the server has no such month, BadInputError for a bad month, a wrong checksum or a folder
    that cannot be written, ChessregError when the network or the disk fails.
    """
    name = month_name(month)
    target = folder / name
    expected = _checksum(name, base_url)
    if target.exists():
        if _sha256(target) == expected:
            return target
        raise BadInputError(
            f"{target} is not the published file: its SHA-256 differs", f"delete it and fetch {month} again"
        )
    part = folder / f"{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(month_url(month, base_url), part, on_progress)
        found = _sha256(part)
        if found != expected:
            part.unlink()
            raise BadInputError(
                f"{name} arrived damaged: its SHA-256 is {found}, the published one {expected}", f"fetch {month} again"
            )
        part.replace(target)
    except OSError as error:
        raise _disk_error(error, part) from error
    return target


def _checksum(name: str, base_url: str) -> str:
    url = checksum_url(base_url)
    text = ""
    if answer := _open(url, {}):
        try:
            with answer:
                text = answer.read().decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise _network_error(url, error) from error
    for line in text.splitlines():
        digest, _, file = line.strip().partition(" ")
        if file.strip().lstrip("*") == name and re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            return digest.lower()
    raise NotFoundError(f"{url} does not list {name}", f"see {base_url.rstrip('/')} for the months that exist")


def _download(url: str, part: Path, on_progress: Progress | None) -> None:
    """Append what is missing to `part`."""
    have = part.stat().st_size if part.exists() else 0
    answer = _open(url, {"Range": f"bytes={have}-"} if have else {})
    if answer is None:  # nothing follows what we have: it is complete, or too long, which the checksum tells
        return
    with answer:
        if have and answer.status != 206:
            have = 0  # the server sends the whole file again
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            done = have
            if on_progress:
                on_progress(done, total)
            while True:
                try:
                    chunk = answer.read(CHUNK)
                except (OSError, HTTPException) as error:
                    raise _network_error(url, error) from error
                if not chunk:
                    break
                file.write(chunk)
                done += len(chunk)
                if on_progress:
                    on_progress(done, total)
        if total is not None and done < total:
            raise _network_error(url, ConnectionError(f"the connection broke at {done} of {total} bytes"))


def _open(url: str, headers: dict[str, str]) -> HTTPResponse | None:
    """An open answer, or None where the asked range lies behind the end of the file (416)."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "chessreg", **headers})
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        return answer
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return None
        if error.code in (404, 410):
            raise NotFoundError(f"there is no {url}", "the newest month appears a few days after its end") from error
        raise ChessregError(f"{url} answered {error.code} {error.reason}", "try again later") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _network_error(url, error) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _network_error(url: str, error: Exception) -> ChessregError:
    reason = getattr(error, "reason", None) or error
    return ChessregError(
        f"cannot read {url}: {reason}", "check the network and run the same command: it goes on from here"
    )


def _disk_error(error: OSError, part: Path) -> ChessregError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ChessregError(
            f"no space left for {part}", "free some space and run the same command: it goes on from here"
        )
    return BadInputError(f"cannot write {part}: {error.strerror or error}")
