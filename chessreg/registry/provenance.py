"""With which code something was computed, captured when an attempt starts: packages, the command line, and of a git
repository the commit, what differs from it, and small files it does not know yet. Secrets are masked.

Nothing here imports torch: versions are read from the installed packages' own files.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

UNTRACKED_BYTES = 2**20  # of all untracked files together
PATCH_BYTES = 2**22
SECRETS = (
    *(".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", ".netrc", ".pgpass", ".npmrc", ".pypirc", "credentials*", "secrets*", "*_token", "*.token"),
)
VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s&]+)"
# Upper case only, or the word itself: `tokenizer=…` and `token = ids[0]` in a patch are code, not secrets.
SECRET = re.compile(rf"\b(\w*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)\b|passw(?:or)?d\b(?==))(\s*[=:]\s*){VALUE}")
# To the last @: a password may hold one. Lengths are bounded, so that a long word takes no longer than its length.
CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,30}://[^\s/:@]{0,200}):\S{0,400}@")


def repository_state(folder: Path) -> dict[str, Any] | None:
    """The state of the git repository around `folder`; None when there is none or git is missing.

    `root`, `commit` (None before the first), `branch`, `remote`, `patch` (tracked files against the commit),
    `untracked` (path → text, 1 MiB in all) and `left_out` (path → sha256 of those that were too many or no text).
    Files that git ignores, .env and keys are left out altogether; passwords and tokens are masked.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    top = Path(root.strip())
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    state: dict[str, Any] = {
        "root": str(top),
        "commit": commit.strip() if commit else None,
        "branch": (_git(top, "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip() or None,
        "remote": mask((_git(top, "remote", "get-url", "origin") or "").strip()) or None,
    }
    without = [f":(exclude,glob,icase)**/{pattern}" for pattern in SECRETS]
    if state["commit"]:
        patch = _git(top, "diff", "HEAD", "--no-ext-diff", "--no-color", "--binary", "--", ".", *without) or ""
        if len(patch) > PATCH_BYTES:
            state["patch_sha256"] = hashlib.sha256(patch.encode(errors="surrogateescape")).hexdigest()
            patch = patch[:PATCH_BYTES]
        state["patch"] = mask(_printable(patch))
    listed = _git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", *without) or ""
    state["untracked"], state["left_out"] = _untracked(top, [name for name in listed.split("\0") if name])
    return state


def _untracked(top: Path, names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Small text files in whole, the smallest first; of the others the first thousand by digest."""
    kept: dict[str, str] = {}
    left: dict[str, str] = {}
    room = UNTRACKED_BYTES
    files = [(path.stat().st_size, name, path) for name in names if (path := top / name).is_file()]
    for size, name, path in sorted(files):
        printable = _printable(name)
        if size > 64 * UNTRACKED_BYTES:
            left[printable] = f"{size} bytes"
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            left[printable] = error.strerror or "unreadable"
            continue
        if size <= room and (text := _text(content)) is not None:
            kept[printable] = mask(text)
            room -= size
        elif len(left) < 1000:
            left[printable] = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return kept, left


def _text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _printable(text: str) -> str:
    """Without what neither JSON nor PostgreSQL can hold: lone surrogates and NUL."""
    return text.encode(errors="surrogateescape").decode(errors="replace").replace("\0", "")


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of git, or None. Without locks, prompts and a pager."""
    own = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=os.environ | own, capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="surrogateescape")


OPTION = re.compile(r"(?i)--?[\w-]*(token|secret|password|passwd|api-?key)")
ASSIGNED = re.compile(r"(?is)^(--?[\w-]*(?:token|secret|password|passwd|api-?key))=.*$")


def chessreg_version() -> str:
    """The installed version; in a checkout that was never installed, the one in pyproject.toml."""
    try:
        return metadata.version("chessreg")
    except metadata.PackageNotFoundError:
        pyproject = Path(__file__).parents[2] / "pyproject.toml"
        match = (
            re.search(r'^version = "(.+)"$', pyproject.read_text(encoding="utf-8"), re.M)
            if pyproject.exists()
            else None
        )
        return match[1] if match else "unknown"


def code_state(folder: Path | None = None) -> dict[str, Any]:
    """The code that ran: `chessreg` (version; commit and patch when it is a checkout) and `working_folder`.

    The second is the repository of `folder` (default the working directory), None when it is in none, and left out
    when it is chessreg's own.
    """
    folder = (folder or Path.cwd()).resolve()
    own = repository_state(Path(__file__).parent) if _editable() else None
    state: dict[str, Any] = {"chessreg": {"version": chessreg_version(), **(own or {})}}
    nearest = next((str(path) for path in (folder, *folder.parents) if (path / ".git").exists()), None)
    if own is None or own["root"] != nearest:  # else it is the same repository, whose state is known
        here = repository_state(folder)
        if not (own and here and own["root"] == here["root"]):
            state["working_folder"] = here
    return state


def _editable() -> bool:
    """Whether chessreg runs from a checkout, not from site-packages."""
    return not any(part in ("site-packages", "dist-packages") for part in Path(__file__).parts)


def environment() -> dict[str, str]:
    """Installed packages and their versions, sorted by name."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = _name_and_version(distribution)
        copied = "thirdparty_files" in Path(str(distribution.locate_file(""))).parts  # Ray's own, on the path with it
        if name and not copied:
            versions.setdefault(name.lower().replace("_", "-"), version)
    return dict(sorted(versions.items()))


def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Off the first lines of its METADATA: parsing all of it, for 150 packages, takes half a second."""
    head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
    fields = {"Name": "", "Version": ""}
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        if key in fields and not fields[key]:
            fields[key] = value.strip()
    return fields["Name"], fields["Version"]


def masked_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: passwords in URLs, --token=x, and the word after --token."""
    masked: list[str] = []
    secret = False
    for word in argv:
        masked.append("***" if secret and not word.startswith("-") else ASSIGNED.sub(r"\1=***", mask(word)))
        secret = bool(OPTION.fullmatch(word))
    return masked


def mask(text: str) -> str:
    """Text with passwords in URLs and values of *TOKEN, *SECRET, *PASSWORD replaced by ***.

    >>> mask("postgresql://ann:hunter2@box/chess")
    'postgresql://ann:***@box/chess'
    >>> mask("postgresql://ann:hunt@er/2@box/chess")
    'postgresql://ann:***@box/chess'
    >>> mask("WANDB_TOKEN=abc --lr=1")
    'WANDB_TOKEN=*** --lr=1'
    """
    return SECRET.sub(r"\1\2***", CREDENTIALS.sub(r"\1:***@", text))
