"""The right to write to a registry on a network file system. One process at a time holds it; all others only read.

The lease is a file next to the registry, created with O_EXCL, that names the machine, process and boot. A dead holder
is detected immediately on its own host. Another host cannot detect it, so the error message names the file to remove.
Leases are needed because SQLite's write-ahead log requires memory shared within one host.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chessreg.errors import RegistryError
from store.files import describe_os_error, read_json
from store.process import ProcessId, get_machine_name, get_this_process


class Lease:
    """The lease of one registry. `hold` takes it, `release` releases it."""

    _users: dict[tuple[int, Path], int] = {}  # noqa: RUF012 - (pid, file) → how many Database objects of it use this
    _guard = threading.Lock()

    def __init__(self, registry: Path) -> None:
        self.registry = registry
        self.file = registry.with_name(registry.name + ".lease")
        self._pid = 0  # of the process that took it; a forked child does not hold it

    def hold(self) -> None:
        """Take the lease, or share it within this process. Raises RegistryError naming the current holder.

        A lease already held is read again: while this process was suspended, a user may have removed the file as the
        message suggests, and another process may be writing now.
        """
        with self._guard:
            if self._pid == os.getpid():
                if not _is_this_process(self.read_holder() or {}):
                    self._take_over()
                return
            key = os.getpid(), self.file
            if not self._users.get(key):
                self._take_over()
            self._users[key] = self._users.get(key, 0) + 1
            self._pid = os.getpid()

    def release(self) -> None:
        """Release the lease once no other Database object of this process uses it."""
        if self._pid != os.getpid():
            return
        with self._guard:
            key = os.getpid(), self.file
            self._pid = 0
            self._users[key] -= 1
            holder = self.read_holder()
            if not self._users[key] and holder and _is_this_process(holder):
                self.file.unlink(missing_ok=True)

    def read_holder(self) -> dict[str, Any] | None:
        """Return the record of the holder (host, pid, since, …), or None if the lease is free."""
        try:
            record: dict[str, Any] = read_json(self.file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {"host": "?", "pid": 0, "since": "?"}
        return record

    def _take_over(self) -> None:
        """Take the lease, also from a holder whose process has ended. Raises RegistryError while another process holds
        it.
        """
        with self._lock_takeover():
            holder = self.read_holder()
            if holder and _is_gone(holder):
                self.file.unlink(missing_ok=True)
            if self._write():
                return
            raise RegistryError(
                f"the registry {self.registry} is on a network file system and is being written by "
                f"{self.describe_holder()}; until it ends, this process can only read",
                f"stop that process; if it has ended, remove {self.file}",
            )

    def describe_holder(self) -> str:
        """Return the holder in words, for messages."""
        holder = self.read_holder() or {}
        return f"process {holder.get('pid', '?')} on {holder.get('host', '?')} since {holder.get('since', '?')}"

    def _write(self) -> bool:
        """Create the lease file atomically. Return False if it exists already."""
        part_path = self.file.with_name(f"{self.file.name}.{get_machine_name()}.{os.getpid()}")
        record = json.dumps(get_this_process().record())
        try:
            part_path.write_text(record, encoding="utf-8")
            try:
                os.link(part_path, self.file)  # atomic, also on NFS, with its content
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                try:
                    handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                except FileExistsError:
                    return False
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(record)
            return True
        except OSError as error:
            message = f"the registry {self.registry} cannot be written: {describe_os_error(error)}"
            raise RegistryError(message, f"check the folder {self.file.parent}") from error
        finally:
            with suppress(OSError):
                part_path.unlink(missing_ok=True)

    @contextmanager
    def _lock_takeover(self) -> Iterator[None]:
        """Let one process at a time check whether the holder is gone.

        A lock of this host is enough, since only the holder's own host can detect that it is gone.
        """
        name = hashlib.sha256(str(self.file).encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"chessreg-lease-{os.getuid()}-{name}"
        with path.open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _is_this_process(holder: dict[str, Any]) -> bool:
    return ProcessId.from_record(holder) == get_this_process()


def _is_gone(holder: dict[str, Any]) -> bool:
    """Return whether the holder ran on this host and has certainly ended."""
    process = ProcessId.from_record(holder)
    return process is not None and process.is_gone() is True
