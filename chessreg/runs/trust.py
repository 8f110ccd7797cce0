"""What this user trusts on this machine: files with kinds of experiment, by their digest, and buckets, by their URL.

A kind in a file is code, and a registry only says where its runs' files were. So such a file is loaded only when the
user has named its path (`chessreg run ./my_kind.py`) or trusted its digest (`chessreg trust`). What is trusted lies in
the user's settings folder, one small file a digest: in no registry and in no store, from which it would travel.
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
from store.files import reason

ENVIRONMENT = "CHESSREG_TRUSTED_KINDS"  # digests, apart by commas: what started this process trusts these too
LARGEST = 16 << 20  # bytes of a file with a kind
DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMED: set[str] = set()  # digests of files that were named in this process, also where no settings can be written


class NotTrustedError(BadInputError):
    """A file with a kind that may not be loaded."""


@dataclass(frozen=True)
class Trusted:
    """A digest (sha256 of a file's bytes), where the file was (empty: the digest alone was given), and since when."""

    digest: str
    path: str
    since: str  # ISO 8601, UTC


def folder() -> Path:
    """The settings folder of this user and machine."""
    from platformdirs import user_config_path

    return user_config_path("chessreg", appauthor=False) / "trusted-kinds"


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def trusted() -> list[Trusted]:
    """All that is trusted by settings, oldest first."""
    files = []
    for path in folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):
            row = json.loads(path.read_text(encoding="utf-8"))
            files.append(Trusted(path.stem, str(row["path"]), str(row["since"])))
    return sorted((row for row in files if DIGEST.fullmatch(row.digest)), key=lambda row: (row.since, row.digest))


def is_trusted(digest: str) -> bool:
    """Whether a file of these bytes may be loaded: by settings, by the environment, or because it was named here."""
    return digest in _NAMED | set(os.environ.get(ENVIRONMENT, "").split(",")) or (folder() / f"{digest}.json").is_file()


def named(path: Path, digest: str) -> None:
    """Trust a file that the user has named. Where no settings can be written, for this process alone."""
    _NAMED.add(digest)
    with suppress(ChessregError):
        add(digest, path)


def trust(reference: str) -> Trusted:
    """Trust a file by its path, or a digest. Raises NotFoundError, BadInputError; ChessregError where the settings
    cannot be written."""
    if DIGEST.fullmatch(reference.lower()):
        return add(reference.lower())
    path, content = read(Path(reference))
    return add(digest_of(content), path)


def add(digest: str, path: Path | None = None) -> Trusted:
    """Keep a digest as trusted, whole or not at all; one that is kept stays as it is."""
    known = next((row for row in trusted() if row.digest == digest), None)
    if known is not None and (path is None or known.path == str(path)):
        return known
    made = Trusted(digest, str(path or ""), datetime.now(UTC).isoformat(timespec="seconds"))
    target = folder() / f"{digest}.json"
    aside = target.with_suffix(f".{os.getpid()}")
    try:
        for place in (folder().parent, folder()):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            place.chmod(0o700)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({name: value for name, value in asdict(made).items() if name != "digest"}, file)
        aside.replace(target)
    except OSError as error:
        raise ChessregError(f"cannot write the settings {target}: {reason(error)}", "check that folder") from error
    return made


def remove(reference: str) -> list[Trusted]:
    """Trust a path or a digest (its beginning is enough) no more; returns what was trusted. Raises NotFoundError."""
    path = str(Path(reference).expanduser().resolve())
    begins = reference.lower() if re.fullmatch(r"[0-9a-fA-F]{8,64}", reference) else None
    matching = [row for row in trusted() if row.path == path or (begins and row.digest.startswith(begins))]
    if not matching:
        raise NotFoundError(f"{reference} is not trusted here", "chessreg trust --list")
    for row in matching:
        (folder() / f"{row.digest}.json").unlink(missing_ok=True)
        _NAMED.discard(row.digest)
    return matching


def read(path: Path) -> tuple[Path, bytes]:
    """The real path of a file with a kind, and its bytes. Raises NotFoundError, and NotTrustedError in a store."""
    try:
        real = path.expanduser().resolve()
        there = real.is_file()
    except (ValueError, RuntimeError, OSError) as error:  # a NUL, a home that nobody has, a circle of links
        raise BadInputError(f"{str(path)!r} is no path: {error}") from error
    if not there:
        raise NotFoundError(f"{real} does not exist")
    if (store := next((place for place in real.parents if (place / "store.json").exists()), None)) is not None:
        raise NotTrustedError(
            f"{real} lies in the store {store}, from which no kind is loaded", "copy it to a folder of your own"
        )
    try:
        with real.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise BadInputError(f"{real} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise BadInputError(f"{real} has more than {LARGEST >> 20} MiB: it is no file with a kind")
    return real, content


def may_load(path: Path) -> bool:
    """Whether there is such a file, and its kind may be loaded."""
    try:
        check(path)
    except ChessregError:
        return False
    return True


def name_place(place: object) -> None:
    """Keep the bucket that the user has named to push to or pull from: bytes may later be pulled from it by itself."""
    url = getattr(place, "url", "")
    with suppress(OSError):
        if "://" in url and not is_named_place(url):
            places().mkdir(parents=True, exist_ok=True, mode=0o700)
            (places() / digest_of(url.encode())).write_text(url, encoding="utf-8")


def is_named_place(url: str) -> bool:
    return (places() / digest_of(url.encode(errors="replace"))).is_file()


def places() -> Path:
    return folder().with_name("places")


def for_worker(source: str) -> dict[str, str]:
    """The environment in which a job's worker, perhaps elsewhere, trusts the file of its kind as this process does.

    Empty for a kind that is no file, and for a file that is not trusted here: the worker then says so.
    """
    path, suffix, _ = source.partition(".py")
    try:
        return {ENVIRONMENT: digest_of(check(Path(path + suffix))[1])} if suffix else {}
    except ChessregError:
        return {}


def check(path: Path) -> tuple[Path, bytes]:
    """The real path and the bytes of a file that is trusted. Raises NotTrustedError with the command that trusts it,
    and what `read` raises."""
    real, content = read(path)
    digest = digest_of(content)
    if not is_trusted(digest):
        raise NotTrustedError(
            f"the kind in {real} (sha256 {digest[:16]}) is not trusted on this machine, and is not loaded",
            f"read it, then: chessreg trust {shlex.quote(str(real))}",
        )
    return real, content
