"""ChessBench's files (Ruoss et al. 2024): their addresses, and downloading them.

The server sends a file's MD5 before the download (header x-goog-hash). For files composed of pieces it sends only an
ETag, which changes with the file: an interrupted download resumes while the ETag is unchanged.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from chessreg.errors import BadInputError
from chessreg.games.foreign import download
from chessreg.games.foreign.download import Fetched, Progress

BASE_URL = "https://storage.googleapis.com/searchless_chess"
LICENCE = "CC-BY-4.0"


@dataclass(frozen=True)
class BenchFile:
    """A file of positions with a short name; `sha256` if known for certain."""

    name: str
    file: str
    about: str
    sha256: str | None = None
    holds: Literal["positions"] = "positions"
    repository: str = "searchless_chess"

    @property
    def default_name(self) -> str:
        """The default name of its dataset."""
        return re.sub(r"[/_]", "-", self.name)


SOURCES = {
    source.name: source
    for source in (
        BenchFile(
            "chessbench/test/behavioral_cloning", "data/test/behavioral_cloning_data.bag",
            "62,561 positions with their best moves, 4 MB",
            "fc1d27fc98baae3a7f15fee85439b499f4a6f1815dffde26d047a77f02cc50b1",
        ),
        BenchFile(
            "chessbench/test/state_value", "data/test/state_value_data.bag",
            "62,561 positions with their win probability, 4 MB",
        ),
        BenchFile(
            "chessbench/test/action_value", "data/test/action_value_data.bag",
            "1,838,218 moves with the win probability after them, 141 MB",
        ),
        BenchFile(
            "chessbench/train/behavioral_cloning", "data/train/behavioral_cloning_data.bag",
            "530,310,443 positions with their best moves, 34 GB",
        ),
        BenchFile(
            "chessbench/train/state_value", "data/train/state_value_data.bag",
            "530,310,443 positions with their win probability, 36 GB",
        ),
        BenchFile(
            "chessbench/train/action_value", "data/train/action_value-00000-of-02148_data.bag",
            "the first of 2,148 shards, 1.2 GB; --file data/train/action_value-00001-of-02148_data.bag: another",
        ),
        BenchFile("chessbench/puzzles", "data/puzzles.csv", "10,000 puzzles with their games, 5 MB"),
    )
}  # fmt: skip


def format_chessbench_url(source: BenchFile, file: str | None = None, endpoint: str | None = None) -> str:
    """Return the URL of a file, on the mirror `endpoint` if given."""
    base = (endpoint or BASE_URL).rstrip("/")
    if not re.match(r"https?://", base):
        raise BadInputError(f"the address {base!r} is not a URL", f"such as {BASE_URL}")
    return f"{base}/{quote(file or source.file)}"


def fetch_bench_file(
    source: BenchFile,
    folder: Path,
    *,
    file: str | None = None,
    endpoint: str | None = None,
    on_progress: Progress | None = None,
) -> Fetched:
    """Download a file into `folder`/searchless_chess. Returns immediately if it exists and its digest is correct.

    Raises the errors of `download.download_file`.
    """
    if file is not None and (Path(file).is_absolute() or ".." in Path(file).parts):
        raise BadInputError(f"{file!r} is not a file of ChessBench", "such as data/test/state_value_data.bag")
    url = format_chessbench_url(source, file, endpoint)
    hint = "to list the files: chessreg fetch"
    answer = download.open_url(url, {"Accept-Encoding": "identity"}, hint, method="HEAD")
    assert answer is not None  # only a range can start behind the end
    with answer:
        tag, hashes = answer.headers.get("ETag"), answer.headers.get_all("x-goog-hash") or []
    md5 = parse_md5(hashes)
    sha256 = source.sha256 if file in (None, source.file) else None
    target = folder / source.repository / (file or source.file)
    download.download_file(
        url, target, sha256 or md5, title=source.name, on_progress=on_progress, missing_hint=hint,
        algorithm="sha256" if sha256 else "md5", tag=tag or "",
    )  # fmt: skip
    return Fetched(target, url, None, download.compute_digest(target), (sha256 or md5) is not None)


def parse_md5(headers: list[str]) -> str | None:
    """Return the hex MD5 in headers `x-goog-hash: crc32c=…,md5=…` (base 64); None if they contain none.

    >>> parse_md5(["crc32c=AAAAAA==", "md5=1B2M2Y8AsgTpgAmY7PhCfg=="])
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    for part in ",".join(headers).split(","):
        name, _, value = part.strip().partition("=")
        if name == "md5":
            try:
                digest = base64.b64decode(value, validate=True).hex()
            except binascii.Error:
                continue
            if len(digest) == 32:
                return digest
    return None
