"""Karvonen's weights and games on the Hugging Face hub: their addresses and metadata.

The hub publishes the SHA-256 of a large file, so that an interrupted download resumes and a complete one is verified.
huggingface_hub reads that metadata; its own download is not used, because it deletes partial files. `HF_ENDPOINT` names
a mirror, as in Hugging Face's tools.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.foreign import chessbench, download
from chessreg.games.foreign.chessbench import BenchFile
from chessreg.games.foreign.download import Fetched, Progress

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True)
class HubSource:
    """A file of a repository with a short name. Other files of that repository can be named as well."""

    name: str
    holds: Literal["checkpoint", "games"]
    repository: str
    file: str
    about: str

    @property
    def default_name(self) -> str:
        """The default name of its import."""
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


def list_fetch_sources() -> dict[str, HubSource | BenchFile]:
    """Return all downloads by name, of the hub and of ChessBench."""
    return {**SOURCES, **chessbench.SOURCES}


def get_fetch_source(name: str) -> HubSource | BenchFile:
    """Return the download with this name. Raises NotFoundError that lists the known names."""
    if name not in list_fetch_sources():
        raise NotFoundError(f"download {name!r} does not exist", f"known: {', '.join(list_fetch_sources())}")
    return list_fetch_sources()[name]


def get_endpoint(endpoint: str | None = None) -> str:
    """Return the hub's URL: `endpoint`, HF_ENDPOINT or huggingface.co. Raises BadInputError for another text."""
    base = (endpoint or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if not re.match(r"https?://", base):
        raise BadInputError(f"the hub's address {base!r} is not a URL", "such as HF_ENDPOINT=https://huggingface.co")
    return base


def format_hub_url(
    source: HubSource, file: str | None = None, revision: str = "main", endpoint: str | None = None
) -> str:
    """Return the URL of a file, on the mirror `endpoint` or HF_ENDPOINT if given."""
    from huggingface_hub import hf_hub_url

    kind, base = "dataset" if source.holds == "games" else "model", get_endpoint(endpoint)
    return hf_hub_url(source.repository, file or source.file, repo_type=kind, revision=revision, endpoint=base)


def read_hub_metadata(url: str, missing_hint: str) -> HfFileMetadata:
    """Return the hub's metadata of a file, without downloading it.

    Raises NotFoundError with `missing_hint` if the file does not exist, and ChessregError for a failed request.
    """
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError

    try:
        return get_hf_file_metadata(url, token=False)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (404, 410) or isinstance(error, RepositoryNotFoundError):
            raise NotFoundError(f"{url} does not exist", missing_hint) from error
        raise ChessregError(f"{url} answered {status}", "try again later") from error
    except (HTTPError, OSError) as error:
        raise download.make_network_error(url, error) from error


def fetch_hub_file(
    source: HubSource,
    folder: Path,
    *,
    file: str | None = None,
    revision: str = "main",
    endpoint: str | None = None,
    on_progress: Progress | None = None,
) -> Fetched:
    """Download a file into `folder`/OWNER--REPOSITORY. Returns immediately if it exists and its digest is correct.

    An interrupted download resumes; without a published digest it starts again. Raises the errors of
    `games.foreign.download.download_file`.
    """
    if file is not None and (Path(file).is_absolute() or ".." in Path(file).parts):
        raise BadInputError(f"{file!r} is not a file of a repository", "give its path in the repository")
    url = format_hub_url(source, file, revision, endpoint)
    missing_hint = f"{url.partition('/resolve/')[0]} lists its files"
    metadata = read_hub_metadata(url, missing_hint)
    published_sha256 = metadata.etag if re.fullmatch("[0-9a-f]{64}", metadata.etag or "") else None
    target = folder / source.repository.replace("/", "--") / (file or source.file)
    if published_sha256 is None:
        for old in (target, target.with_name(f"{target.name}.part")):
            old.unlink(missing_ok=True)
    download.download_file(
        url, target, published_sha256, title=source.name, on_progress=on_progress, missing_hint=missing_hint
    )
    digest = published_sha256 or download.compute_digest(target)
    return Fetched(target, url, metadata.commit_hash, digest, published_sha256 is not None)
