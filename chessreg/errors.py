"""Errors that chessreg raises on purpose: one line of what went wrong, and a hint naming the command that helps."""

from __future__ import annotations


class ChessregError(Exception):
    """Something failed for a reason that the user can act on. `exit_code` is the command line's exit status."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFoundError(ChessregError):
    """A name, id or path that nothing answers to."""

    exit_code = 3


class BadInputError(ChessregError):
    """A file, setting or reference that cannot be used as given."""

    exit_code = 4
