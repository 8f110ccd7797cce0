"""Files at paths that a user names: written completely or not at all, and never over an existing file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from store.files import describe_os_error, is_disk_full


@contextmanager
def open_new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file next to `path` for writing; it gets the name `path` when the block ends without an error.

    Raises BadInputError if `path` exists, NotFoundError if its folder does not, ChessregError if it cannot be written.
    """
    if path.exists():
        raise BadInputError(f"{path} exists already", "name a file that is not there")
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"the folder {path.absolute().parent} does not exist")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        hint = "free some space and export it again" if is_disk_full(error) else ""
        raise ChessregError(f"{path} cannot be written: {describe_os_error(error)}", hint) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
