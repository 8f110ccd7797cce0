"""The files and buckets that this user trusts on this machine: kinds and Slurm profiles by digest, buckets by URL.

A kind in a file is code, and a registry only records paths of files. Such a file is loaded only if the user has named
its path (`chessreg run ./my_kind.py`) or trusted its digest (`chessreg trust`). Slurm profiles outside the user's
settings are treated alike, because they choose what a job's shell runs. Trust is stored in the user's settings folder,
one file for each digest, and never in a registry or a store, which are shared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.folders import expand_path, get_config_folder, get_recordable_path
from store.files import describe_os_error, read_json

TRUSTED_VARIABLE = "CHESSREG_TRUSTED"  # comma-separated digests trusted by the parent process
MAX_CODE_BYTES = 16 << 20  # of a file with code
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
_NAMED_DIGESTS: set[str] = set()  # files named in this process


class NotTrustedError(BadInputError):
    """Raised for a file that must not be loaded."""


@dataclass(frozen=True)
class TrustedDigest:
    """The sha256 of a trusted file, its path (empty if only the digest was given), and the time of the decision."""

    digest: str
    path: str
    since: str  # ISO 8601, UTC


def trust_folder() -> Path:
    """Return the folder with this user's trusted digests."""
    return get_config_folder() / "trusted"


def hash_content(content: bytes) -> str:
    """Return the sha256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def list_trusted() -> list[TrustedDigest]:
    """Return everything trusted in the settings, oldest first."""
    rows = (row for path in trust_folder().glob("*.json") if (row := read_trusted_record(path)) is not None)
    return sorted(rows, key=lambda row: (row.since, row.digest))


def read_trusted_record(path: Path) -> TrustedDigest | None:
    """Return the record in a settings file, or None if `save_digest` did not write the file."""
    try:
        row = TrustedDigest(**read_json(path))
        datetime.fromisoformat(row.since)
    except (OSError, ValueError, TypeError):
        return None
    return (
        row if DIGEST_PATTERN.fullmatch(row.digest) and path.stem == row.digest and isinstance(row.path, str) else None
    )


def is_trusted(digest: str) -> bool:
    """Return whether a file with this digest may be loaded: by settings, by environment, or named in this process."""
    trusted_digests = _NAMED_DIGESTS | set(os.environ.get(TRUSTED_VARIABLE, "").split(","))
    return digest in trusted_digests or read_trusted_record(trust_folder() / f"{digest}.json") is not None


def trust_named_file(path: Path, digest: str) -> None:
    """Trust a file that the user has named. If settings cannot be written, trust it in this process only."""
    _NAMED_DIGESTS.add(digest)
    with suppress(ChessregError):
        save_digest(digest, path)


def trust_reference(reference: str) -> TrustedDigest:
    """Trust a file by path, or a digest. Raises NotFoundError, BadInputError, and ChessregError if settings are not
    writable."""
    if DIGEST_PATTERN.fullmatch(reference.lower()):
        return save_digest(reference.lower())
    path, content = read_code_file(Path(reference))
    return save_digest(hash_content(content), path)


def save_digest(digest: str, path: Path | None = None) -> TrustedDigest:
    """Store a digest as trusted, atomically. An existing record is kept."""
    existing_record = next((row for row in list_trusted() if row.digest == digest), None)
    if existing_record is not None and (path is None or existing_record.path == str(path)):
        return existing_record
    record = TrustedDigest(digest, str(path or ""), datetime.now(UTC).isoformat(timespec="seconds"))
    target = trust_folder() / f"{digest}.json"
    part_path = target.with_suffix(f".{os.getpid()}")
    try:
        for place in (trust_folder().parent, trust_folder()):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            place.chmod(0o700)
        with os.fdopen(os.open(part_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
        part_path.replace(target)
    except OSError as error:
        raise ChessregError(
            f"cannot write the settings {target}: {describe_os_error(error)}", "check that folder"
        ) from error
    return record


def revoke_trust(reference: str) -> list[TrustedDigest]:
    """Revoke the trust in a path or a digest (or its beginning), and return the removed records. Raises
    NotFoundError."""
    path = str(expand_path(reference).resolve())
    begins = reference.lower() if re.fullmatch(r"[0-9a-fA-F]{8,64}", reference) else None
    records = [row for row in list_trusted() if row.path == path or (begins and row.digest.startswith(begins))]
    if not records:
        raise NotFoundError(f"{reference} is not trusted on this machine", "chessreg trust --list")
    for row in records:
        (trust_folder() / f"{row.digest}.json").unlink(missing_ok=True)
        _NAMED_DIGESTS.discard(row.digest)
    return records


def read_code_file(path: Path) -> tuple[Path, bytes]:
    """Return the real path and the content of a file with code.

    Raises NotFoundError, NotTrustedError for a file in a store, and BadInputError for a file that cannot be read, is
    larger than MAX_CODE_BYTES, or whose path is not UTF-8.
    """
    try:
        real = expand_path(path).resolve()
        is_file = real.is_file()
    except (ValueError, RuntimeError, OSError) as error:  # NUL in the path, or a link cycle
        raise BadInputError(f"{str(path)!r} is not a path: {error}") from error
    if not is_file:
        raise NotFoundError(f"{real} does not exist")
    get_recordable_path(real)
    if (store := next((place for place in real.parents if (place / "store.json").exists()), None)) is not None:
        raise NotTrustedError(
            f"{real} is in the store {store}, from which code is never loaded", "copy it to another folder"
        )
    try:
        with real.open("rb") as file:
            content = file.read(MAX_CODE_BYTES + 1)
    except OSError as error:
        raise BadInputError(f"{real} cannot be read: {error.strerror}") from error
    if len(content) > MAX_CODE_BYTES:
        raise BadInputError(f"{real} is larger than the limit of {MAX_CODE_BYTES >> 20} MiB")
    return real, content


def can_load(path: Path) -> bool:
    """Return whether the file exists and is trusted."""
    try:
        read_trusted_file(path)
    except ChessregError:
        return False
    return True


def remember_place(place: object) -> None:
    """Remember a bucket that the user named for push or pull, so that later pulls may use it automatically."""
    url = getattr(place, "url", "")
    with suppress(OSError):
        if "://" in url and not is_remembered_place(url):
            get_places_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            (get_places_folder() / hash_content(url.encode())).write_text(url, encoding="utf-8")


def is_remembered_place(url: str) -> bool:
    """Return whether the user has named this bucket on this machine."""
    try:
        return (get_places_folder() / hash_content(url.encode())).read_text(encoding="utf-8") == url
    except (OSError, ValueError):
        return False


def get_places_folder() -> Path:
    """Return the folder that notes the buckets that the user has named."""
    return trust_folder().with_name("places")


def build_worker_environment(source: str) -> dict[str, str]:
    """Return the environment in which a job's worker trusts the file of its kind as this process does.

    Empty for a kind that is not a file or not trusted; the worker reports that.
    """
    path, suffix, _ = source.partition(".py")
    try:
        return {TRUSTED_VARIABLE: hash_content(read_trusted_file(Path(path + suffix))[1])} if suffix else {}
    except ChessregError:
        return {}


def read_trusted_file(path: Path) -> tuple[Path, bytes]:
    """Return the real path and the content of a trusted file.

    Raises NotTrustedError with the command that trusts it, and the errors of `read_code_file`.
    """
    real, content = read_code_file(path)
    if (refusal := make_refusal(real, content, "the kind")) is not None:
        raise refusal
    return real, content


def make_refusal(path: Path, content: bytes, description: str) -> NotTrustedError | None:
    """Return the error that `description` in a file with this content is not trusted, or None if it is."""
    digest = hash_content(content)
    if is_trusted(digest):
        return None
    return NotTrustedError(
        f"{description} in {path} (sha256 {digest[:16]}) is not trusted on this machine, and is not loaded",
        f"read it, then: chessreg trust {shlex.quote(str(path))}",
    )
