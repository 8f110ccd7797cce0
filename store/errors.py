"""Errors of the store: what went wrong in one line, a hint with what helps, and the exit status of a command line."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Something in the store failed for a reason that the user can act on."""

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
    """A write failed because a disk or a quota is full. `path` is the file or the folder that was written."""

    def __init__(self, message: str, path: Path, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path


class NotInStoreError(StoreError):
    """A digest, array or fragment that this store does not hold."""

    exit_code = 3


class CorruptError(StoreError):
    """Bytes that are not what was written: a chunk lost or cut short, a digest that differs, a torn fragment."""


class AlreadyPublishedError(StoreError):
    """An immutable thing that somebody published first. `path` is where the published one lies."""

    def __init__(self, message: str, path: Path, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path
