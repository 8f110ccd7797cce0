"""Errors that chessreg raises on purpose: one line about the problem, and a hint with the command that fixes it."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


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
    """A name, id or path that does not exist."""

    exit_code = 3


class BadInputError(ChessregError):
    """A file, setting or reference that cannot be used as given."""

    exit_code = 4


class RegistryError(ChessregError):
    """The registry's database does not answer, or refuses to be read or written."""


DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError),
    *(NotImplementedError, RuntimeError, TypeError, ValueError),
)
"""Exceptions that a reader raises for a damaged or contradictory file: all but chessreg's own errors, errors of the
operating system, and MemoryError."""


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Raise BadInputError, with the reason, for a file that the block cannot write."""
    try:
        yield
    except OSError as error:
        from store.files import describe_os_error, is_disk_full

        hint = "free some space and try again" if is_disk_full(error) else ""
        raise BadInputError(f"cannot write {path}: {describe_os_error(error)}", hint) from error


LACK_OF_MEMORY = re.compile(
    r"can't allocate memory|out of memory|std::bad_alloc|_ALLOC_FAILED|"
    r"could not create a (primitive(?! descriptor)|memory object)",
    re.IGNORECASE,
)


class DivergedError(ChessregError, FloatingPointError):
    """NaN or infinite activations, logits or weights. The attempt ends as `diverged`."""


def describe_error(error: BaseException) -> tuple[str, str, int]:
    """Return message, hint and exit status of any error. Errors of chessreg and of the store have their own texts."""
    if hasattr(error, "message") and hasattr(error, "hint"):
        return error.message, error.hint or "", getattr(error, "exit_code", 1)
    from store.files import DISK_FULL, describe_os_error, find_error_file, is_disk_full

    place = find_error_file(error)
    suffix = f": {place}" if place else ""
    if is_disk_full(error):
        return f"{DISK_FULL}{suffix}", "free some space and try again", 1
    if (custom_kind := find_custom_kind(error)) is not None:
        message = f"your kind {custom_kind.name} raised {type(error).__name__}: {get_first_line(error)}"
        return message, f"{custom_kind.file}, line {custom_kind.line}; --debug shows more", 1
    if is_out_of_memory(error):
        return "out of memory", "", 1
    if isinstance(error, OSError):
        return f"{describe_os_error(error)}{suffix}", "", 1
    if isinstance(error, FloatingPointError):  # of the trainer, which imports nothing of chessreg
        return f"training diverged: {get_first_line(error)}", "a smaller --learning-rate or --grad-clip", 1
    return (
        f"unexpected {type(error).__name__}: {get_first_line(error)}",
        "this is a fault in chessreg; --debug shows where",
        1,
    )


class ErrorOrigin(NamedTuple):
    """The place at which a custom kind of experiment raised an error."""

    name: str  # of the kind
    file: str
    line: int


def find_custom_kind(error: BaseException) -> ErrorOrigin | None:
    """Return the place at which a custom kind raised this error; None for any other error."""
    file, name, line = "", "", 0
    kind: Any
    step = error.__traceback__
    while step is not None:
        frame, number, step = step.tb_frame, step.tb_lineno, step.tb_next
        kind = frame.f_locals.get("self")
        if not file and hasattr(kind, "board_views") and not type(kind).__module__.startswith("chessreg."):
            file, name = frame.f_code.co_filename, kind.name
        if file and frame.f_code.co_filename == file:
            line = number
    return ErrorOrigin(name, file, line) if file else None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a lack of memory, of this process or of a GPU.

    On the CPU, PyTorch raises a RuntimeError, with the text of its allocator, of oneDNN or of C++.

    >>> is_out_of_memory(RuntimeError("could not create a primitive")), is_out_of_memory(RuntimeError("bad shape"))
    (True, False)
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_memory_error or (isinstance(error, RuntimeError) and LACK_OF_MEMORY.search(str(error)) is not None)


def reraise_lack_of_memory(error: Exception, content_bytes: float = math.inf) -> None:
    """Raise `error` again if it is a lack of memory. Readers call it before they report other errors as a damaged file.

    NumPy also raises MemoryError for the shape of an array in a damaged file. An array of more than `content_bytes`,
    the size of the file's unpacked content, is therefore not a lack of memory.
    """
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    is_damaged_shape = shape is not None and dtype is not None and math.prod(shape) * dtype.itemsize > content_bytes
    if is_out_of_memory(error) and not is_damaged_shape:
        raise error


def get_first_line(error: BaseException) -> str:
    return (str(error).strip() or "no message").splitlines()[0]
