"""Karvonen's weights and games on the Hugging Face hub: where they are, and their metadata there.

The hub tells a large file's SHA-256 before it is fetched (header X-Linked-ETag of the answer that redirects to the
storage), so that a download can be gone on with and is known to be whole. `HF_ENDPOINT` names a mirror, as in Hugging
Face's own tools.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urljoin, urlsplit

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games import chessbench, download
from chessreg.games.chessbench import BenchFile
from chessreg.games.download import Fetched, Progress

ENDPOINT = "https://huggingface.co"
MOST_REDIRECTS = 5


@dataclass(frozen=True)
class HubSource:
    """A file of a repository, by a short name. Other files of that repository can be named too."""

    name: str
    holds: Literal["checkpoint", "games"]
    repository: str
    file: str
    about: str

    @property
    def called(self) -> str:
        """What its import is called unless another name is given."""
        return self.name.replace("/", "-")


LLMS, GAMES = "adamkarvonen/chess_llms", "adamkarvonen/chess_games"
SOURCES = {
    source.name: source
    for source in (
        HubSource(
            "karvonen/8layers", "checkpoint", LLMS, "lichess_8layers_ckpt_no_optimizer.pt",
            "the 8-layer model of Karvonen 2024, 25 million parameters",
        ),
        HubSource(
            "karvonen/16layers", "checkpoint", LLMS, "lichess_16layers_ckpt_no_optimizer.pt",
            "the 16-layer model of Karvonen 2024, 50 million parameters",
        ),
        HubSource(
            "karvonen/games", "games", GAMES, "lichess_100mb.zip",
            "games with ratings, of which its probes were made; --file lichess_6gb_blocks.zip: the training corpus",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Remote:
    """The hub's metadata of a file. None: unknown."""

    url: str
    sha256: str | None
    bytes: int | None
    commit: str | None


def every_source() -> dict[str, HubSource | BenchFile]:
    """What can be fetched by name, of the hub and of ChessBench."""
    return {**SOURCES, **chessbench.SOURCES}


def source_named(name: str) -> HubSource | BenchFile:
    """The source of this name. NotFoundError lists those that there are."""
    if name not in every_source():
        raise NotFoundError(f"there is no {name!r} to fetch", f"known: {', '.join(every_source())}")
    return every_source()[name]


def url_of(source: HubSource, file: str | None = None, revision: str = "main", endpoint: str | None = None) -> str:
    """The address of a file: of the mirror `endpoint`, else of HF_ENDPOINT, else of the hub."""
    base = (endpoint or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if not re.match(r"https?://", base):
        raise BadInputError(f"the hub's address {base!r} is no URL", "such as HF_ENDPOINT=https://huggingface.co")
    kind = "datasets/" if source.holds == "games" else ""
    return f"{base}/{kind}{source.repository}/resolve/{quote(revision, safe='')}/{quote(file or source.file)}"


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirects are answers: the one to the storage carries the digest."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def look(url: str, missing: str = "") -> Remote:
    """The hub's metadata of the file at `url`, without fetching it. Raises NotFoundError or ChessregError."""
    opener = urllib.request.build_opener(_Stay)
    commit: str | None = None
    at = url
    for _ in range(MOST_REDIRECTS):
        headers, location = _headers(opener, at, missing)
        commit = headers.get("X-Repo-Commit") or commit
        digest = (headers.get("X-Linked-ETag") or "").strip('W/"').lower()
        if re.fullmatch(r"[0-9a-f]{64}", digest):
            size = headers.get("X-Linked-Size") or ""
            return Remote(url, digest, int(size) if size.isdigit() else None, commit)
        if location is None or urlsplit(urljoin(at, location)).netloc != urlsplit(at).netloc:
            size = headers.get("Content-Length") or "" if location is None else ""
            return Remote(url, None, int(size) if size.isdigit() else None, commit)
        at = urljoin(at, location)  # a repository that was renamed
    raise ChessregError(f"{url} is redirected again and again", "try again later")


def _headers(opener: urllib.request.OpenerDirector, url: str, missing: str) -> tuple[Any, str | None]:
    """The headers of an answer, and where it redirects to."""
    try:
        answer = download.opened(url, {"Accept-Encoding": "identity"}, missing, method="HEAD", opener=opener)
    except ChessregError as error:
        redirect = error.__cause__
        if isinstance(redirect, urllib.error.HTTPError) and redirect.code in (301, 302, 303, 307, 308):
            return redirect.headers, redirect.headers.get("Location")
        raise
    assert answer is not None  # only a range can lie behind the end
    with answer:
        return answer.headers, None


def fetch(
    source: HubSource,
    folder: Path,
    *,
    file: str | None = None,
    revision: str = "main",
    endpoint: str | None = None,
    on_progress: Progress | None = None,
) -> Fetched:
    """Download a file of the source into `folder`/OWNER--REPOSITORY; at once when it is there and its digest is right.

    What broke off is gone on with; where the hub publishes no digest it begins anew.
    Raises as `games.download.fetch` does.
    """
    if file is not None and (Path(file).is_absolute() or ".." in Path(file).parts):
        raise BadInputError(f"{file!r} is no file of a repository", "give its path in the repository")
    url = url_of(source, file, revision, endpoint)
    missing = f"{url.partition('/resolve/')[0]} lists the files that there are"
    remote = look(url, missing)
    target = folder / source.repository.replace("/", "--") / (file or source.file)
    if remote.sha256 is None:
        for old in (target, target.with_name(f"{target.name}.part")):
            old.unlink(missing_ok=True)
    download.fetch(remote.url, target, remote.sha256, what=source.name, on_progress=on_progress, missing=missing)
    digest = remote.sha256 or download.digest_of(target)
    return Fetched(target, remote.url, remote.commit, digest, remote.sha256 is not None)
