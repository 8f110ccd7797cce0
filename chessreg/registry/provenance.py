"""The code and packages of an attempt, captured when it starts.

For a git repository this is the commit and the names and digests of changed files; their text only if the user has
enabled source-text. Secrets are masked. Nothing here imports torch: versions are read from the installed packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from chessreg import settings
from chessreg.masking import mask
from chessreg.registry.file_gate import get_file_key, open_file_keys

MAX_UNTRACKED_BYTES = 2**20  # of the texts of all untracked files
MAX_PATCH_BYTES = 2**22
MAX_FILES = 1000  # listed at most
SECRET_FILES = (
    *(".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", ".netrc", ".pgpass", ".npmrc", ".pypirc", "credentials*", "secrets*", "*_token", "*.token"),
)


def read_repository_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the git repository that contains `folder`. None without a repository or without git.

    Keys: `root`, `commit` (None before the first), `branch`, `remote`, `dirty` (whether tracked files differ from the
    commit), `changed` (their paths), `patch_sha256` (of the difference, or None) and `untracked` (path → sha256, or the
    reason for its absence). With the setting source-text also `patch` and `untracked_text` (path → text, 1 MiB in
    total). Files that git ignores, .env files and keys are left out.
    """
    root = _run_git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    top = Path(root.removesuffix("\n"))
    commit = _run_git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    is_text_recorded, _ = settings.is_source_text_recorded(folder)
    state: dict[str, Any] = {
        "root": _make_storable(str(top)),
        "commit": commit.strip() if commit else None,
        "branch": mask(_make_storable((_run_git(top, "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()))
        or None,
        "remote": mask(_make_storable((_run_git(top, "remote", "get-url", "origin") or "").strip())) or None,
    }
    without = [f":(exclude,glob,icase)**/{pattern}" for pattern in SECRET_FILES]
    plain_options = ("--no-ext-diff", "--no-textconv", "--no-color")
    against = ("HEAD", "--", ".", *without)
    patch = changes = ""
    if state["commit"]:
        patch = _run_git(top, "diff", *plain_options, "--binary", *against) or ""
        changes = _run_git(top, "diff", *plain_options, "--name-only", "-z", *against) or ""
    state["dirty"] = bool(patch)
    state["changed"] = [_make_storable(name) for name in changes.split("\0") if name][:MAX_FILES]
    state["patch_sha256"] = _hash_content(patch.encode(errors="surrogateescape")) if patch else None
    listing = _run_git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", *without) or ""
    state["untracked"], text = _read_untracked(top, [name for name in listing.split("\0") if name], is_text_recorded)
    if is_text_recorded:
        state |= {"patch": mask(_make_storable(patch[:MAX_PATCH_BYTES])), "untracked_text": text}
    return state


def _read_untracked(top: Path, names: list[str], with_text: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of untracked files, the smallest first, and the texts of small ones.

    Files of an open registry are left out: opening and closing them would drop SQLite's locks.
    """
    digests: dict[str, str] = {}
    texts: dict[str, str] = {}
    room = MAX_UNTRACKED_BYTES if with_text else 0
    open_keys = open_file_keys()
    files = [
        (path.stat().st_size, name, path)
        for name in names
        if (path := top / name).is_file() and get_file_key(path) not in open_keys
    ]
    for size, name, path in sorted(files)[:MAX_FILES]:
        storable_name = _make_storable(name)
        if size > 64 * MAX_UNTRACKED_BYTES:
            digests[storable_name] = f"{size} bytes"
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            digests[storable_name] = error.strerror or "unreadable"
            continue
        digests[storable_name] = f"sha256:{_hash_content(content)}"
        if size <= room and (text := _decode_text(content)) is not None:
            texts[storable_name] = mask(text)
            room -= size
    return digests, texts


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _decode_text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _make_storable(text: str) -> str:
    """Return `text` without lone surrogates and NUL, which JSON and PostgreSQL cannot store."""
    return text.encode(errors="surrogateescape").decode(errors="replace").replace("\0", "")


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None on failure. Runs without locks, prompts and a pager."""
    git_environment = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        command = [
            "git",
            "-C",
            str(folder),
            "-c",
            "core.fsmonitor=false",
            *arguments,
        ]  # which may name a program to run
        process = subprocess.run(command, env=os.environ | git_environment, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.decode(errors="surrogateescape")


def get_chessreg_version() -> str:
    """Return the installed version, or in a checkout that was never installed the version in pyproject.toml."""
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


def describe_own_code() -> str:
    """Return chessreg's commit, or the digest of its files outside a git checkout, as `runs show` prints them."""
    state = read_code_state()["chessreg"]
    if not state.get("commit"):
        return f"{SOURCE_FILES}: sha256 {hash_source_files()[:12]}"
    patch_note = f", with changes (sha256 {state['patch_sha256'][:12]})" if state["patch_sha256"] else ""
    return f"commit {state['commit'][:12]}{patch_note}"


def read_code_state(folder: Path | None = None) -> dict[str, Any]:
    """Return the state of the code: `chessreg` (version; in a repository also commit and patch, elsewhere the digest of
    its files) and `working_folder`.

    `working_folder` is the repository of `folder` (default: the current folder). It is None outside a repository, and
    left out if that is chessreg's own repository.
    """
    folder = (folder or Path.cwd()).resolve()
    package_state = read_repository_state(Path(__file__).parent) if _is_checkout() else None
    package_state = package_state or {"file": SOURCE_FILES, "sha256": hash_source_files()}
    state: dict[str, Any] = {"chessreg": {"version": get_chessreg_version(), **package_state}}
    nearest = next((str(path) for path in (folder, *folder.parents) if (path / ".git").exists()), None)
    root = package_state.get("root")
    if root is None or root != nearest:  # otherwise it is the same repository
        folder_state = read_repository_state(folder)
        if not (root and folder_state and root == folder_state["root"]):
            state["working_folder"] = folder_state
    return state


SOURCE_FILES = "chessreg/ and store/ (*.py, *.sql)"


def hash_source_files() -> str:
    """Return the SHA-256 of the names and contents of SOURCE_FILES, which identifies code without a commit."""
    top = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("chessreg", "store") for path in (top / folder).rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(f"{path.relative_to(top).as_posix()} {_hash_content(path.read_bytes())}\n".encode())
    return digest.hexdigest()


def _is_checkout() -> bool:
    """Return whether chessreg runs from a checkout rather than from site-packages."""
    return not any(part in ("site-packages", "dist-packages") for part in Path(__file__).parts)


def read_packages() -> dict[str, str]:
    """Return installed package → version, sorted by name."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = _read_name_and_version(distribution)
        is_bundled = "thirdparty_files" in Path(str(distribution.locate_file(""))).parts  # bundled with Ray
        if name and not is_bundled:
            versions.setdefault(name.lower().replace("_", "-"), version)
    return dict(sorted(versions.items()))


def _read_name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version from the first lines of METADATA. Parsing all of it for 150 packages takes 0.5 s."""
    head = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "").partition("\n\n")[0]
    fields = {"Name": "", "Version": ""}
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        if key in fields and not fields[key]:
            fields[key] = value.strip()
    return fields["Name"], fields["Version"]
