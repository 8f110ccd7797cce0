"""The user's folders for settings, state and cache, `~` in paths, and new folders that appear whole."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from platformdirs.unix import Unix

from chessreg.errors import BadInputError, NotFoundError
from store.files import convert_os_errors

APPLICATION = Unix("chessreg", appauthor=False)  # the XDG folders on macOS too


def get_config_folder() -> Path:
    """Return the folder of the user's settings: XDG_CONFIG_HOME/chessreg, by default ~/.config/chessreg.

    Raises BadInputError if XDG_CONFIG_HOME is not an absolute path, or unset while the home folder is unknown.
    """
    return _get_folder("config")


def get_state_folder() -> Path:
    """Return XDG_STATE_HOME/chessreg, by default ~/.local/state/chessreg.

    Raises BadInputError as `get_config_folder`.
    """
    return _get_folder("state")


def get_cache_folder() -> Path:
    """Return XDG_CACHE_HOME/chessreg, by default ~/.cache/chessreg. Raises BadInputError as `get_config_folder`."""
    return _get_folder("cache")


def expand_path(path: str | Path) -> Path:
    """Return `path` with a leading `~` or `~user` replaced by that home folder.

    Raises BadInputError if the user does not exist or has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = Path(path).parts[0]
        raise BadInputError(f"{path}: the home folder {user} is unknown", "write the path in full") from error


def get_recordable_path(path: Path) -> Path:
    """Return `path`. Raises BadInputError unless it is UTF-8: registries hold paths as text."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadInputError(f"the path {str(path)!a} is not UTF-8", "rename that folder, or name another one") from None
    return path


def _get_folder(use: Literal["config", "state", "cache"]) -> Path:
    """Return chessreg's folder for one use, as the XDG variables define it.

    Raises BadInputError if the variable is not an absolute path, or if neither it nor the home folder is known.
    """
    variable = f"XDG_{use.upper()}_HOME"
    value = os.environ.get(variable, "").strip()
    if value and not os.path.isabs(value):
        raise BadInputError(f"{variable} is {value!r}, not an absolute path", f"unset {variable}")
    if not value and not os.path.isabs(os.path.expanduser("~")):
        message = f"HOME is not set, and user {os.getuid()} has no entry in the password file"
        raise BadInputError(f"the settings folder is unknown: {message}", f"export HOME=… or {variable}=…")
    folder: Path = getattr(APPLICATION, f"user_{use}_path")
    return folder


@contextlib.contextmanager
def write_new_folder(folder: Path, action: str) -> Iterator[Path]:
    """Yield an empty folder next to `folder`, which is renamed to it after the block. After an error it is removed.

    `action` names the work in error messages. Raises BadInputError if the folder exists, NotFoundError if its parent is
    missing, StoreError and DiskFullError.
    """
    if folder.exists():
        raise BadInputError(f"{folder} exists already", "choose a folder name that does not exist")
    if not folder.parent.is_dir():
        raise NotFoundError(f"the folder {folder.parent} does not exist", f"mkdir -p {shlex.quote(str(folder.parent))}")
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        with convert_os_errors(action, folder):
            staging.mkdir()
            yield staging
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
