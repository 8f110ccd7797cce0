"""The state of a git repository: commit, what differs from it, and the small files git does not know yet."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

from chessreg.registry.urls import mask

UNTRACKED_BYTES = 2**20  # of all untracked files together
PATCH_BYTES = 2**22
SECRETS = (
    *(".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", ".netrc", ".pgpass", ".npmrc", ".pypirc", "credentials*", "secrets*", "*_token", "*.token"),
)


def repository_state(folder: Path) -> dict[str, Any] | None:
    """What git says of the repository around `folder`; None when there is none or git is missing.

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
        shown = _printable(name)
        if size > 64 * UNTRACKED_BYTES:
            left[shown] = f"{size} bytes"
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            left[shown] = error.strerror or "unreadable"
            continue
        if size <= room and (text := _text(content)) is not None:
            kept[shown] = mask(text)
            room -= size
        elif len(left) < 1000:
            left[shown] = f"sha256:{hashlib.sha256(content).hexdigest()}"
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
    """What git says, or None. It takes no lock, asks nothing and reads no pager."""
    own = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=os.environ | own, capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="surrogateescape")
