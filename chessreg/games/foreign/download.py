"""Downloads over HTTP that resume after an interruption; a file is renamed only when its digest is correct."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.masking import mask
from store.files import describe_os_error, is_disk_full

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60.0

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, total bytes or None)."""


@dataclass(frozen=True)
class Fetched:
    """A downloaded file: its URL, the commit of its repository, its digest, and whether it was checked against a
    published digest."""

    path: Path
    url: str
    commit: str | None
    sha256: str
    published_sha256: bool

    def as_json(self) -> dict[str, Any]:
        return {**{name: value for name, value in asdict(self).items() if name != "path"}, "url": mask(self.url)}


def download_file(
    url: str,
    target: Path,
    expected_sha256: str | None,
    *,
    title: str,
    on_progress: Progress | None = None,
    missing_hint: str = "",
    algorithm: str = "sha256",
    tag: str | None = None,
    token: str | None = None,
    size: int | None = None,
) -> Path:
    """Download `url` to `target` and return it; return immediately if it exists with the expected digest.

    An interrupted download leaves `<target>.part`, from which the next call resumes. A complete `.part` with a wrong
    digest is deleted. A download that received nothing leaves no new folders.

    With `expected_sha256` None, any complete file is accepted, because no digest is published. `title` names the
    download in messages; `missing_hint` is the hint if the server does not have the file. `tag` identifies this version
    of the file: a part of another version is discarded. `token` is sent to the server of `url`, not to one that it
    redirects to. A file of more than `size` bytes is not read further.

    Raises NotFoundError if the server does not have the file, BadInputError for a wrong digest or a folder that cannot
    be written, ChessregError if the network or the disk fails.
    """
    algorithm_name = {"sha256": "SHA-256", "md5": "MD5"}[algorithm]
    if target.exists():
        if expected_sha256 is None or compute_digest(target, algorithm) == expected_sha256:
            return target
        raise BadInputError(
            f"{target} is not the published file: its {algorithm_name} differs", f"delete it and fetch {title} again"
        )
    part = target.with_name(f"{target.name}.part")
    new_folders = [folder for folder in part.parents if not folder.exists()]  # innermost first
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        if tag is not None:
            _discard_stale_part(part, tag)
        _append_missing(url, part, on_progress, missing_hint, token, size)
        digest = compute_digest(part, algorithm)
        if expected_sha256 is not None and digest != expected_sha256:
            part.unlink()
            tag_path(part).unlink(missing_ok=True)
            raise BadInputError(
                f"{target.name} is damaged: its {algorithm_name} is {digest}, the published one {expected_sha256}",
                f"fetch {title} again",
            )
        part.replace(target)
        tag_path(part).unlink(missing_ok=True)
    except OSError as error:
        raise make_disk_error(error, part) from error
    finally:
        for folder in new_folders:  # remove new folders that stayed empty
            with suppress(OSError):
                folder.rmdir()
    return target


def tag_path(part: Path) -> Path:
    """Return the path that stores the tag of a part."""
    return part.with_name(f"{part.name}.tag")


def _discard_stale_part(part: Path, tag: str) -> None:
    """Delete a part that was downloaded under another or an unknown tag."""
    tag_file = tag_path(part)
    if not tag or not tag_file.exists() or tag_file.read_text(encoding="utf-8", errors="replace") != tag:
        part.unlink(missing_ok=True)
        tag_file.write_text(tag, encoding="utf-8")


def read_url(url: str, missing_hint: str = "") -> str:
    """Return the text of a small file. Raises the errors of `download_file`."""
    answer = open_url(url, {}, missing_hint)
    if answer is None:
        return ""
    try:
        with answer:
            return answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        raise make_network_error(url, error) from error


def _append_missing(
    url: str, part: Path, on_progress: Progress | None, missing_hint: str, token: str | None, size: int | None
) -> None:
    """Append the missing bytes to `part`. A part with more than `size` bytes is deleted."""
    have = part.stat().st_size if part.exists() else 0
    answer = open_url(url, {"Range": f"bytes={have}-"} if have else {}, missing_hint, token=token)
    if answer is None:  # nothing follows: the part is complete, or too long, which the checksum reveals
        return
    with answer:
        if have and answer.status != 206:
            have = 0  # the server sends the whole file again
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            done_bytes = have
            if on_progress:
                on_progress(done_bytes, total)
            while True:
                try:
                    chunk = answer.read(CHUNK_BYTES)
                except (OSError, HTTPException) as error:
                    raise make_network_error(url, error) from error
                if not chunk:
                    break
                file.write(chunk)
                done_bytes += len(chunk)
                if size is not None and done_bytes > size:
                    part.unlink()
                    raise BadInputError(f"{url} has more than its {size:,} bytes", "fetch it again")
                if on_progress:
                    on_progress(done_bytes, total)
        if total is not None and done_bytes < total:
            raise make_network_error(url, ConnectionError(f"the connection broke at {done_bytes} of {total} bytes"))


def open_url(
    url: str,
    headers: dict[str, str],
    missing_hint: str = "",
    *,
    method: str = "GET",
    token: str | None = None,
) -> HTTPResponse | None:
    """Return an open response, or None if the requested range starts behind the end of the file (416).

    `token` is sent to the first host only, not after a redirect. Raises NotFoundError with the hint `missing_hint`,
    BadInputError if access is denied, and ChessregError for other failures.
    """
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "chessreg", **headers}, method=method)
        if token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        return answer
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return None
        if error.code in (404, 410):
            raise NotFoundError(f"{url} does not exist", missing_hint) from error
        if error.code in (401, 403):
            raise BadInputError(
                f"{url} answered {error.code} {error.reason}", "use a token that can read it"
            ) from error
        raise ChessregError(f"{url} answered {error.code} {error.reason}", "try again later") from error
    except (OSError, HTTPException, ValueError) as error:
        raise make_network_error(url, error) from error


def compute_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def make_network_error(url: str, error: Exception) -> ChessregError:
    """Return the error of a failed request, with the hint to repeat the command."""
    reason = getattr(error, "reason", None) or error
    return ChessregError(
        f"cannot read {url}: {reason}", "check the network and run the same command: it resumes at this point"
    )


def make_disk_error(error: OSError, part: Path) -> ChessregError:
    """Return the error of a failed write; a full disk has another hint."""
    message = f"cannot write {part}: {describe_os_error(error)}"
    if is_disk_full(error):
        return ChessregError(message, "free some space and run the same command: it resumes at this point")
    return BadInputError(message)
