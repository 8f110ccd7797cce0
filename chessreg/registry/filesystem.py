"""What kind of file system a registry lies on: SQLite's write-ahead log needs memory that one host shares."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/mounts")
NETWORK = frozenset(
    (
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "davfs",
            "davfs2",
            "gfs",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "mfs",
        ),
        *("ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "s3fs", "smb2", "smb3", "smbfs"),
        *("sshfs", "vboxsf", "webdav", "wekafs"),
    )
)


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that holds `path` (which need not exist yet), or None for a local one.

    CHESSREG_NETWORK_FILESYSTEM=1 or 0 overrules what is detected, for types that chessreg does not know.
    """
    told = os.environ.get("CHESSREG_NETWORK_FILESYSTEM")
    if told is not None:
        return "network" if told not in ("", "0") else None
    kind = _type_of(path.resolve(), mounts)
    name = kind.removeprefix("fuse.").removeprefix("fuse")
    return kind if name in NETWORK else None


def _type_of(path: Path, mounts: Path) -> str:
    """The type of the mount with the longest folder above `path`; of equal ones the last, which covers the others."""
    best, found = -1, ""
    for folder, kind in _mounts(mounts):
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, found = len(folder.parts), kind
    return found


def _mounts(mounts: Path) -> list[tuple[Path, str]]:
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:  # macOS
        import psutil

        return [(Path(part.mountpoint), part.fstype) for part in psutil.disk_partitions(all=True)]
    fields = [line.split(" ") for line in lines]
    return [(Path(_unescaped(f[1])), f[2]) for f in fields if len(f) > 2]


def _unescaped(text: str) -> str:
    """/proc/mounts writes a space as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
