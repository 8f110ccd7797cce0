"""Repositories of the Hugging Face hub: addresses, listings, downloads that resume, and uploads in one commit.

An address is written as in Hugging Face's own tools: `hf:[datasets/]USER/NAME[@REVISION][/PATH]`. A file name comes
from the server, so it is checked before it becomes a path. The user's token is sent only to the hub itself, never to
the storage that the hub redirects to.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

from chessreg.errors import BadInputError, ChessregError, NotFoundError, get_first_line
from chessreg.games.foreign import download
from chessreg.games.foreign.download import Progress
from chessreg.masking import mask
from chessreg.models.hub import get_endpoint
from chessreg.terminal import make_visible

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PREFIX = "hf:"
RepositoryType = Literal["model", "dataset"]
ADDRESS = re.compile(
    r"hf:(?://)?(?:(?P<type>model|dataset)s/)?(?P<repository>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
MAX_LISTED_FILES = 200_000  # a server that lists more is refused
MAX_DOWNLOADED_FILES = 1000
MAX_NAME_BYTES = 255
SPARE_BYTES = 64 << 20  # stay free on the disk
LOGIN = "log in with: hf auth login; or set HF_TOKEN"


@dataclass(frozen=True)
class HubAddress:
    """A repository of the hub, perhaps with a revision (branch, tag or commit) and the files that are meant.

    `type` is None if the address leaves it open. `pattern` is a file, a folder or a pattern such as `*.pgn`; it is
    empty for the whole repository.
    """

    repository: str  # USER/NAME
    type: RepositoryType | None = None
    revision: str | None = None
    pattern: str = ""

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Return the address that a text means. Raises BadInputError."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        match = ADDRESS.fullmatch(text)
        if match is None:
            raise BadInputError(f"{text!r} is not an address of the hub", "hf:USER/NAME[@REVISION][/FILE OR PATTERN]")
        try:
            validate_repo_id(match["repository"])
        except HFValidationError as error:
            raise BadInputError(f"{text!r}: {get_first_line(error)}") from error
        revision = unquote(match["revision"]) if match["revision"] else None
        kind = cast("RepositoryType | None", match["type"])
        return cls(match["repository"], kind, revision, (match["path"] or "").strip("/"))

    def __str__(self) -> str:
        return f"{PREFIX}{'datasets/' if self.type == 'dataset' else ''}{self.repository}"

    def format_url(self, endpoint: str) -> str:
        """Return the address of its web page."""
        return f"{endpoint}/{'datasets/' if self.type == 'dataset' else ''}{self.repository}"


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository. `sha256` is None for a file that Git itself stores; `blob` is its Git object id."""

    path: str
    bytes: int
    sha256: str | None
    blob: str

    def matches(self, path: Path) -> bool:
        """Return whether a local file has this content."""
        if path.stat().st_size != self.bytes:
            return False
        return download.compute_digest(path) == self.sha256 if self.sha256 else compute_git_blob(path) == self.blob


@dataclass(frozen=True)
class HubRepository:
    """A repository at one commit, with its files. `address` has its type."""

    address: HubAddress
    commit: str
    files: tuple[RepositoryFile, ...]


def compute_git_blob(path: Path) -> str:
    """Return the id that Git gives to a file's content (SHA-1), in hex."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def make_hub_api(endpoint: str | None = None) -> HfApi:
    """Return Hugging Face's client for the hub at `endpoint`, HF_ENDPOINT or huggingface.co."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=get_endpoint(endpoint), library_name="chessreg")


@contextmanager
def report_hub_errors(address: HubAddress, endpoint: str, action: str) -> Iterator[None]:
    """Raise each error of Hugging Face's client as one line. `action` is a verb phrase, such as `read the files of`."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    action_text = f"cannot {action} {address}"
    try:
        yield
    except ChessregError:
        raise
    except OfflineModeIsEnabled as error:
        raise ChessregError(f"{action_text}: HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE") from error
    except LocalTokenNotFoundError as error:
        raise BadInputError(f"{action_text}: no token for {endpoint} was found", LOGIN) from error
    except GatedRepoError as error:
        raise BadInputError(
            f"{action_text}: it is gated", f"accept its terms at {address.format_url(endpoint)}"
        ) from error
    except RevisionNotFoundError as error:
        raise NotFoundError(
            f"{address} has no revision {address.revision!r}", "give a branch, tag or commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise NotFoundError(f"{address} does not exist, or this token cannot read it", LOGIN) from error
    except HfHubHTTPError as error:
        raise make_status_error(action_text, endpoint, error) from error
    except (HTTPError, OSError) as error:
        if "xet-write-token" in str(error):  # hf_xet's error for a mirror that stores files otherwise
            raise ChessregError(
                f"{action_text}: {endpoint} has no Xet storage: {get_first_line(error)}",
                "HF_HUB_DISABLE_XET=1 uploads by HTTP: run the same command again with it",
            ) from error
        hint = "check the network and run the same command again"
        raise ChessregError(f"{action_text}: {endpoint} does not answer: {get_first_line(error)}", hint) from error


def make_status_error(action_text: str, endpoint: str, error: Any) -> ChessregError:
    """Return the error of a request that the hub refused."""
    status = error.response.status_code
    server_message = getattr(error, "server_message", None) or error.response.reason_phrase
    reason = make_visible(mask(str(server_message)).strip())[:300]
    if status == 401:
        return BadInputError(f"{action_text}: {endpoint} does not accept the token", LOGIN)
    if status == 403:
        return BadInputError(
            f"{action_text}: the token has no right to do this ({reason})", "use a token with write access"
        )
    return ChessregError(f"{action_text}: {endpoint} answered {status} {reason}", "run the same command again")


# -- reading -----------------------------------------------------------------------------------------------------------


def list_repository(address: HubAddress, endpoint: str | None = None) -> HubRepository:
    """Return the files of a repository at the commit of its revision. An open type is a model's, else a dataset's.

    Raises NotFoundError for a missing repository or revision, BadInputError for one that needs rights, ChessregError if
    the hub does not answer.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.hf_api import RepoFile

    api, base = make_hub_api(endpoint), get_endpoint(endpoint)
    with report_hub_errors(address, base, "read"):
        kind, repository_info = address.type or "model", None
        try:
            repository_info = api.repo_info(address.repository, repo_type=kind, revision=address.revision)
        except RepositoryNotFoundError as error:
            if address.type is not None or isinstance(error, RevisionNotFoundError):
                raise
            kind = "dataset"
            repository_info = api.repo_info(address.repository, repo_type=kind, revision=address.revision)
        commit = str(repository_info.sha)
        if not re.fullmatch("[0-9a-f]{40,64}", commit):
            raise ChessregError(f"{base} states the commit {make_visible(commit[:60])!r} of {address}")
        folder_address = HubAddress(address.repository, kind, address.revision, address.pattern)
        entries = api.list_repo_tree(address.repository, recursive=True, revision=commit, repo_type=kind)
        listed_files = list(itertools.islice(entries, MAX_LISTED_FILES + 1))
    if len(listed_files) > MAX_LISTED_FILES:
        raise BadInputError(f"{address} lists more than {MAX_LISTED_FILES:,} files and folders", "is it a repository?")
    files = tuple(
        RepositoryFile(entry.path, int(entry.size), entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
        for entry in listed_files
        if isinstance(entry, RepoFile)
    )
    return HubRepository(folder_address, commit, files)


def select_files(repository: HubRepository, pattern: str) -> list[RepositoryFile]:
    """Return the files that a pattern means: a path, all files of a folder, or `*` and `?` over whole paths.

    Raises NotFoundError, with some of the repository's files, if there are none.
    """
    matching_files = [
        file
        for file in repository.files
        if file.path == pattern or file.path.startswith(f"{pattern}/") or fnmatch.fnmatchcase(file.path, pattern)
    ]
    if not matching_files:
        raise NotFoundError(
            f"{repository.address} has no file {pattern!r}",
            f"it has {describe_paths([f.path for f in repository.files])}",
        )
    return matching_files


def describe_paths(paths: Sequence[str], most: int = 5) -> str:
    """Return some paths as a list, with the number of the others."""
    path_list = ", ".join(make_visible(path[:100]) for path in paths[:most]) or "no files"
    return path_list if len(paths) <= most else f"{path_list} and {len(paths) - most:,} others"


def check_file_name(path: str) -> None:
    """Raise BadInputError for a file name that could leave its folder, or that a program could misread.

    >>> check_file_name("blocks.3/cfg.json")
    """
    parts = path.split("/")
    is_unsafe = (
        not path.isprintable()
        or any(part in ("", ".", "..") or "\\" in part for part in parts)
        or any(len(part.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES for part in parts)
        or parts[-1].endswith((".part", ".part.tag"))  # names of unfinished downloads
    )
    if is_unsafe:
        raise BadInputError(f"the repository has a file with the unsafe name {path[:120]!a}", "nothing was downloaded")


def download_files(
    repository: HubRepository,
    files: Sequence[RepositoryFile],
    folder: Path,
    *,
    endpoint: str | None = None,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Download files into a folder under their paths, and return the local paths. Complete files are kept.

    An interrupted download resumes. Each file is compared with the digest that the repository lists. Raises
    BadInputError for unsafe names, too many files and a full disk before anything is downloaded, and the errors of
    `games.foreign.download.download_file`.
    """
    from huggingface_hub import get_token, hf_hub_url

    if len(files) > MAX_DOWNLOADED_FILES:
        raise BadInputError(
            f"{len(files):,} files of {repository.address} match, more than {MAX_DOWNLOADED_FILES:,}",
            f"name a folder or a pattern, such as {repository.address}/{make_visible(files[0].path[:100])}",
        )
    for file in files:
        check_file_name(file.path)
    normalized_paths = [unicodedata.normalize("NFC", file.path) for file in files]
    if len(set(normalized_paths)) < len(normalized_paths):
        raise BadInputError(f"{repository.address} has two files of one name", "name one of them")
    missing_bytes = sum(file.bytes for file in files if not (folder / file.path).exists())
    check_free_space(folder, missing_bytes, repository.address)
    base, done_bytes, total = get_endpoint(endpoint), 0, sum(file.bytes for file in files)

    def report(before: int) -> Progress:
        return lambda have, _: on_progress(before + have, total) if on_progress else None

    paths = []
    for file in files:
        target = folder / file.path
        url = hf_hub_url(
            repository.address.repository, file.path, repo_type=repository.address.type, revision=repository.commit,
            endpoint=base,
        )  # fmt: skip
        source = f"{repository.address}/{file.path}"
        download.download_file(
            url, target, file.sha256, title=source, on_progress=report(done_bytes), token=get_token(), size=file.bytes
        )
        if file.sha256 is None and not file.matches(target):
            target.unlink()
            raise BadInputError(f"{source} is damaged: it differs from the commit's file", "fetch it again")
        paths.append(target)
        done_bytes += file.bytes
    return paths


def check_free_space(folder: Path, needed_bytes: int, address: HubAddress) -> None:
    """Raise BadInputError if the disk of a folder, which need not exist, has no room for this number of bytes."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = max(shutil.disk_usage(place).free - SPARE_BYTES, 0)
    if needed_bytes > free:
        raise BadInputError(
            f"the files of {address} have {needed_bytes:,} bytes, but {place} has {free:,} bytes free",
            "name fewer files, or free some space",
        )


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PushedFolder:
    """The outcome of an upload: the commit and its web page, and the paths that were written. `is_new` is whether the
    repository is new."""

    url: str
    commit: str
    changed_files: tuple[str, ...]
    is_new: bool


def list_folder_files(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their path in it, in order."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def push_folder(
    folder: Path, address: HubAddress, message: str, *, private: bool = True, endpoint: str | None = None
) -> PushedFolder:
    """Upload the files of a folder in one commit; create the repository if it is missing. Files that the repository has
    already are not sent, and if none differs there is no commit. Other files of the repository are kept.

    `private` applies to a new repository only. `address` must have a type. Raises BadInputError without a token or
    rights and for a repository of another type, ChessregError if the network fails. Nothing is committed then.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import LocalTokenNotFoundError, RepositoryNotFoundError

    api, base, kind = make_hub_api(endpoint), get_endpoint(endpoint), address.type
    local_files = list_folder_files(folder)
    with report_hub_errors(address, base, "write to"):
        if not get_token():
            raise LocalTokenNotFoundError("no token")
        try:
            repository = list_repository(HubAddress(address.repository, kind), endpoint)
            is_new = False
        except NotFoundError as error:
            if not isinstance(error.__cause__, RepositoryNotFoundError):
                raise
            api.create_repo(address.repository, repo_type=kind, private=private, exist_ok=True)
            repository, is_new = list_repository(HubAddress(address.repository, kind), endpoint), True
        remote_files = {file.path: file for file in repository.files}
        changed_files = {
            name: path
            for name, path in local_files.items()
            if name not in remote_files or not remote_files[name].matches(path)
        }
        if not changed_files:
            return PushedFolder(address.format_url(base), repository.commit, (), is_new)
        commit = send_commit(api, address, changed_files, message)
    return PushedFolder(address.format_url(base), commit, tuple(changed_files), is_new)


def send_commit(api: HfApi, address: HubAddress, files: Mapping[str, Path], message: str) -> str:
    """Upload files and commit them. Returns the commit. Raises ChessregError for an upload that broke off."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.errors import HfHubHTTPError, HTTPError
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    operations = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
    hides_progress = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hides_progress:
        disable_progress_bars()
    try:
        commit = api.create_commit(address.repository, operations, commit_message=message, repo_type=address.type)
    except (HfHubHTTPError, HTTPError):
        raise
    except (RuntimeError, ValueError) as error:  # of the storage behind the hub
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = make_visible(mask(get_first_line(cause)))[:300]
        raise ChessregError(
            f"the upload to {address} was interrupted, and nothing was committed: {reason}",
            "run the same command again: files that arrived are not sent again",
        ) from error
    finally:
        if hides_progress:
            enable_progress_bars()
    return str(commit.oid)


def find_other_type(address: HubAddress, endpoint: str | None = None) -> RepositoryType | None:
    """Return the other type if a repository of that type has this name, and none of `address.type` does; else None."""
    from huggingface_hub.errors import RepositoryNotFoundError

    api = make_hub_api(endpoint)
    other: RepositoryType = "dataset" if address.type == "model" else "model"
    with report_hub_errors(address, get_endpoint(endpoint), "read"):
        for kind, answer in ((address.type, None), (other, other)):
            try:
                api.repo_info(address.repository, repo_type=kind)
            except RepositoryNotFoundError:
                continue
            return answer
    return None
