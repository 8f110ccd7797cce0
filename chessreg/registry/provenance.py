"""Where, with what and with which code something was computed. Captured when an attempt starts:
machine, packages, and of a git repository the commit, what differs from it, and small files it does not know yet.

Nothing here imports torch: versions are read from the installed packages' own files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from chessreg.registry.process import boot_id, pid_start
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


OPTION = re.compile(r"(?i)--?[\w-]*(token|secret|password|passwd|api-?key)")
ASSIGNED = re.compile(r"(?is)^(--?[\w-]*(?:token|secret|password|passwd|api-?key))=.*$")

__all__ = [
    "boot_id",
    "chessreg_version",
    "code_state",
    "environment",
    "mask",
    "masked_argv",
    "pid_start",
    "this_machine",
]


def chessreg_version() -> str:
    """The installed version; in a checkout that was never installed, the one in pyproject.toml."""
    try:
        return metadata.version("chessreg")
    except metadata.PackageNotFoundError:
        pyproject = Path(__file__).parents[2] / "pyproject.toml"
        found = re.search(r'^version = "(.+)"$', pyproject.read_text(), re.M) if pyproject.exists() else None
        return found[1] if found else "unknown"


def this_machine() -> dict[str, Any]:
    """A row of `machine`: this host as it is now. The id follows from all columns but `last_seen`."""
    from chessreg.registry.identity import digest_of, uuid_of
    from chessreg.registry.tables.types import utc_now

    row = dict(_machine())
    row["gpus"] = list(row["gpus"])
    return {"id": uuid_of(digest_of(row)), **row, "last_seen": utc_now()}


@lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    import psutil

    gpus, driver = _gpus()
    torch, cuda = _torch()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": int(psutil.virtual_memory().total),
        "gpus": gpus,
        "driver": driver,
        "cuda": cuda,
        "torch": torch,
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    if found:
        return found[1].strip()
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine()


def _gpus() -> tuple[list[str], str | None]:
    """Names of the NVIDIA GPUs (by index) and the driver's version."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    said = _output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    rows = [line.split(", ") for line in said.splitlines() if ", " in line]
    return [name for name, *_ in rows], rows[0][1] if rows else None


def _torch() -> tuple[str | None, str | None]:
    """The versions of torch and of the CUDA that it was built for, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None, None
    version_file = Path(found.origin).with_name("version.py")
    text = version_file.read_text() if version_file.exists() else ""
    said = dict(re.findall(r"^(__version__|cuda)\b[^=\n]*= *'([^']*)'", text, re.M))
    return said.get("__version__") or metadata.version("torch"), said.get("cuda")


def _output(command: Sequence[str]) -> str:
    """What a program says on stdout; nothing when it fails or takes longer than ten seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def code_state(folder: Path | None = None) -> dict[str, Any]:
    """The code that ran: `chessreg` (version; commit and patch when it is a checkout) and `working_folder`.

    The second is the repository of `folder` (default the working directory), None when it is in none, and left out
    when it is chessreg's own.
    """
    here = repository_state(folder or Path.cwd())
    own = repository_state(Path(__file__).parent) if _editable() else None
    found: dict[str, Any] = {"chessreg": {"version": chessreg_version(), **(own or {})}}
    if not (own and here and own["root"] == here["root"]):
        found["working_folder"] = here
    return found


def _editable() -> bool:
    """Whether chessreg runs from a checkout, not from site-packages."""
    return not any(part in ("site-packages", "dist-packages") for part in Path(__file__).parts)


def environment() -> dict[str, str]:
    """Installed packages and their versions, sorted by name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name, version = _name_and_version(distribution)
        copied = "thirdparty_files" in Path(str(distribution.locate_file(""))).parts  # Ray's own, on the path with it
        if name and not copied:
            found.setdefault(name.lower().replace("_", "-"), version)
    return dict(sorted(found.items()))


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
