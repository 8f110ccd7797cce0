"""Files of results, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from chessreg.errors import BadInputError


def written_whole(path: Path, data: bytes) -> None:
    """Write beside, then rename. Raises BadInputError when the place cannot be written."""
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(aside, 0o666 & ~_umask())
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
