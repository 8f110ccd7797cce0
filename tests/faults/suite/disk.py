"""A disk that forgets: data that were not synced when the power is cut may be lost.

Processes that are watched note every fsync: of a file its bytes, of a folder its entries. After the cut a folder is put
into a state that a disk could have left: synced data are present; for everything else a seeded coin decides whether it
is as it was before, as it was written, or half written. A rename that was not synced leaves one of its two names, as on
every journaling file system. SQLite's file is restored to its earlier state if commits were not flushed (`PRAGMA
synchronous` below FULL); otherwise it loses data that SQLite flushes later than a commit.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import struct
from pathlib import Path
from typing import Any

HEAD = 8  # bytes that hold the length of a note
FULL = 2  # PRAGMA synchronous
Entries = dict[str, tuple[int, bool]]  # name → inode, whether it is a folder


class Disk:
    """The data of some folders, and of a registry's file, that would survive a power cut; made before the work
    begins."""

    def __init__(self, log: Path, roots: list[Path], database: Path | None) -> None:
        self.log, self.roots, self.database = log, roots, database
        self.folders: dict[int, Entries] = {}
        self.files: dict[int, bytes] = {}
        for root in roots:
            for folder, entries in tree(root).items():
                self.folders[folder] = entries
            for path in root.rglob("*"):
                if path.is_file():
                    self.files[path.stat().st_ino] = path.read_bytes()
        self.saved = {path: path.read_bytes() for path in database_files(database) if path.exists()}
        log.write_bytes(b"")

    def watch(self) -> None:
        """Record the syncs and commits of this process from now on."""
        from sqlalchemy import Engine, event

        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND)
        synced = os.fsync

        def note(what: tuple[Any, ...]) -> None:
            data = pickle.dumps(what)
            os.write(handle, len(data).to_bytes(HEAD, "little") + data)

        def fsync(fd: int) -> None:
            synced(fd)
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                note(("folder", found.st_ino, entries_of(os.readlink(f"/proc/self/fd/{fd}"))))
            else:
                with open(f"/proc/self/fd/{fd}", "rb") as file:
                    note(("file", found.st_ino, file.read()))

        def commits(connection: Any) -> None:
            if connection.dialect.name == "sqlite":
                flushes = connection.connection.dbapi_connection.execute("PRAGMA synchronous").fetchone()[0] >= FULL
                note(("commit", flushes, None))

        os.fsync = fsync  # type: ignore[assignment]
        if self.database is not None:
            event.listen(Engine, "commit", commits)

    def cut(self, random: Any) -> None:
        """Put the folders, and the registry's file, into a state in which a cut of the power could have left them."""
        lax, ever = self._notes()
        coin = (lambda: False) if random.random() < 0.5 else (lambda: bool(random.random() < 0.5))
        for root in self.roots:
            self._cut(root, coin, random, ever)
        if lax:
            for path in database_files(self.database):
                path.unlink(missing_ok=True)
            for path, content in self.saved.items():
                path.write_bytes(content)
        elif self.database is not None:
            cut_log(self.database, random)

    def _notes(self) -> tuple[bool, set[int]]:
        """Import the syncs; returns whether a commit was not synced, and the inodes that ever had a name."""
        data, at, lax = self.log.read_bytes(), 0, False
        ever = {inode for entries in self.folders.values() for inode, _ in entries.values()}
        while at + HEAD <= len(data):
            size = int.from_bytes(data[at : at + HEAD], "little")
            if at + HEAD + size > len(data):
                break  # the process ended while it wrote this
            sort, about, content = pickle.loads(data[at + HEAD : at + HEAD + size])
            at += HEAD + size
            if sort == "folder":
                self.folders[about] = content
                ever.update(inode for inode, _ in content.values())
            elif sort == "file":
                self.files[about] = content
            else:
                lax |= not about
        return lax, ever

    def _cut(self, root: Path, coin: Any, random: Any, ever: set[int]) -> None:
        now = tree(root)
        bytes_now = {path.stat().st_ino: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        kept: dict[int, Entries] = {}
        for folder in self.folders.keys() | now.keys():
            before, after = self.folders.get(folder, {}), now.get(folder, {})
            kept[folder] = {}
            for name in before.keys() | after.keys():
                entry = before.get(name)
                if entry != after.get(name) and coin():
                    entry = after.get(name)
                if entry is not None:
                    kept[folder][name] = entry
        places_now = {entry[0]: (folder, name) for folder, found in now.items() for name, entry in found.items()}
        for inode, (folder, name) in places_now.items():  # a rename leaves one name, not two, and not none
            names = [(f, n) for f, found in kept.items() for n, entry in found.items() if entry[0] == inode]
            for at, old in names:
                if len(names) > 1 and (at, old) != (folder, name) and (folder, name) in names:
                    del kept[at][old]
            if not names and inode in ever and name not in kept[folder]:
                kept[folder][name] = now[folder][name]
        contents: dict[int, bytes] = {}
        for inode in {entry[0] for found in kept.values() for entry in found.values() if not entry[1]}:
            synced, written = self.files.get(inode), bytes_now.get(inode)
            content = synced or b""
            if written is not None and written != synced and coin():
                content = written[: int(random.integers(len(written) + 1))] if coin() else written
            contents[inode] = content
        aside = root.with_name(root.name + "~cut")
        rebuild(aside, root.stat().st_ino, kept, contents)
        shutil.rmtree(root)
        aside.rename(root)


def cut_log(database: Path, random: Any) -> None:
    """Lose the data that SQLite does not flush at each commit: the index of its write-ahead log (`-shm`), the log after
    the last commit, and pages of the file that a checkpoint has copied and not flushed.

    The index says which: https://www.sqlite.org/walformat.html, section 2.1. A commit is in it once it is flushed.
    """
    _, log, index = database_files(database)
    if not (log.exists() and index.exists() and index.stat().st_size >= 136):
        return
    header = index.read_bytes()[:136]
    index.unlink()
    initialised, (size, last) = header[12], struct.unpack("=HI", header[14:20])
    backfilled, attempted = struct.unpack("=I", header[96:100])[0], struct.unpack("=I", header[128:132])[0]
    if not initialised or header[:48] != header[48:96]:  # it ended while it wrote the index
        return
    page = 65536 if size == 1 else size
    data = log.read_bytes()
    end = 32 + last * (24 + page)
    lost = data[end:]
    left = random.bytes(len(lost)) if random.random() < 0.5 else lost[: int(random.integers(len(lost) + 1))]
    log.write_bytes(data[:end] + left)
    with database.open("r+b") as file:
        for frame in range(backfilled, min(attempted, last)):
            at = 32 + frame * (24 + page)
            number = int.from_bytes(data[at : at + 4], "big")
            if random.random() < 0.5:
                file.seek((number - 1) * page + page // 2)  # the disk was in the middle of it
                file.write(random.bytes(page - page // 2))


def database_files(database: Path | None) -> list[Path]:
    return [] if database is None else [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]


def entries_of(folder: str | Path) -> Entries:
    with os.scandir(folder) as found:
        return {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in found}


def tree(root: Path) -> dict[int, Entries]:
    """The folders below a folder and itself by inode."""
    return {os.stat(parent).st_ino: entries_of(parent) for parent, _, _ in os.walk(root)}


def rebuild(at: Path, folder: int, kept: dict[int, Entries], contents: dict[int, bytes]) -> None:
    at.mkdir()
    for name, (inode, is_folder) in kept.get(folder, {}).items():
        if is_folder:
            rebuild(at / name, inode, kept, contents)
        else:
            (at / name).write_bytes(contents[inode])
