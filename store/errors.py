"""Errors of the store: a one-line message, a hint, and an exit status for the command line."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Raised for a failure in the store that the user can act on."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class DiskFullError(StoreError):
    """Raised when a write fails because a disk or a quota is full. `path` is the file or folder that was written."""

    def __init__(self, message: str, path: Path, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path


class LockHeldError(StoreError):
    """Raised when another process holds a lock."""


class NotInStoreError(StoreError):
    """Raised for a digest, array or fragment that is not in this store."""

    exit_code = 3


class CorruptError(StoreError):
    """Raised for bytes that differ from those written: a missing or truncated chunk, a wrong digest, a damaged
    fragment."""


class AlreadyPublishedError(StoreError):
    """Raised when another process has published the same immutable name. `path` is the published folder."""

    def __init__(self, message: str, path: Path, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path
